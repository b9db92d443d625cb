"""The examples with their own training loops print the documented results."""

import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

from tensorflow_ipu import compat


def test_digits_learns_to_read_in_ten_epochs_and_draws_the_curve(run_example, read_line, tmp_path):
    folder = tmp_path / "elsewhere"
    begin, *epochs, steps, picture, accuracy = run_example("digits", "--output", str(folder))
    assert begin.startswith("1437 images to train on, 360 for the test")
    results = [read_line(r"epoch +(\d+)  training loss (\S+)  test accuracy (\S+)", line) for line in epochs]
    assert [int(number) for number, _, _ in results] == list(range(1, 11))
    assert float(results[-1][1]) < 0.1 * float(results[0][1])
    assert re.match(r"440 steps in one run of [\d.]+ s", steps)
    assert picture == f"learning curve: {folder / 'digits.png'}"
    assert (folder / "digits.png").read_bytes().startswith(b"\x89PNG")
    result = float(accuracy.removeprefix("test accuracy: "))
    assert result >= 0.95
    # The accuracy counts each of the 360 test images once, although they do not fill the last batch.
    assert result * 360 == pytest.approx(round(result * 360), abs=0.02)
    assert float(results[-1][2]) == pytest.approx(result, abs=0.001)


def test_digits_tests_every_image_once_and_counts_no_image_that_fills_up_a_batch(source_of):
    digits = runpy.run_path(str(source_of("digits")))
    _, images, _, labels = digits["load_data"]()
    dataset, steps = digits["test_dataset"](images, labels, 50)
    batches = list(dataset.take(steps).as_numpy_iterator())
    assert steps == 8
    assert {numbers.shape for _, numbers in batches} == {(50,)}
    tested = np.concatenate([numbers for _, numbers in batches])
    np.testing.assert_array_equal(tested[:360], labels)
    np.testing.assert_array_equal(np.concatenate([pixels for pixels, _ in batches])[:360], images)
    assert set(tested[360:]) == {-1}, "no answer of the network is -1"


def test_machine_report_says_that_bytes_pass_faster_than_floats(run_example, read_line):
    *report, floats, integers = run_example("machine_report", "--batch", "16")
    assert report[0] == "train on Bow in Bow Pod16: a prediction; nothing was run"
    assert any(line.endswith("897 MiB: fits") for line in report)
    times = [float(read_line(r".*?: ([\d.]+) us a step.*", line)[0]) for line in (floats, integers)]
    assert times[1] < times[0]


def test_text_learns_to_tell_the_languages_apart(run_example, read_line):
    vocabulary, *epochs, accuracy = run_example("text")
    assert vocabulary.startswith("120 words, such as ")
    results = [read_line(r"epoch (\d)  training loss (\S+)  test accuracy (\S+)", line) for line in epochs]
    assert [int(number) for number, _, _ in results] == [1, 2, 3, 4, 5]
    assert float(results[-1][1]) < 0.2 * float(results[0][1])
    result = float(accuracy.removeprefix("test accuracy: "))
    assert result >= 0.97
    assert float(results[-1][2]) == pytest.approx(result, abs=0.001)


def test_replicated_digits_learns_on_four_replicas_what_one_learns_from_the_whole_batch(run_example, read_line):
    alone, replicated, losses, weights = run_example("replicated_digits")
    pattern = r"(\d) replica\(s\), (\d) batch\(es\) of (\d+) an update: loss (\S+) to (\S+), test accuracy (\S+)"
    first, second = (read_line(pattern, line) for line in (alone, replicated))
    assert first[:3] == ("1", "1", "96")
    assert second[:3] == ("4", "3", "8")
    for *_, begin, end, accuracy in (first, second):
        assert float(end) < 0.1 * float(begin)
        assert float(accuracy) > 0.94
    assert float(losses.removeprefix("largest difference of a loss: ")) < 1e-4
    # The weights have magnitude 1 after 120 updates with momentum.
    assert float(weights.removeprefix("largest difference of a weight: ")) < 1e-3


def test_advice_traces_a_model_anew_for_other_batches_and_stages(run_example, tmp_path):
    small = ["--layers", "1", "--width", "32", "--tokens", "8", "--words", "50", "--batch", "1"]
    output = "\n".join(run_example("advice", *small, "--save", str(tmp_path / "report.json")))
    assert "train language_model on Bow in Bow Pod16: a prediction" in output
    assert "micro-batches of 2 in place of 1" in output
    assert "`report.advice(retrace=True)`" not in output
    assert (tmp_path / "report.json").exists()


def test_an_overflow_stops_the_ipu_and_not_the_cpu(run_example):
    on_cpu, stopped, advised = run_example("half_precision")
    assert re.fullmatch(r"float16 of the CPU, loss scale 32768: the loss goes from .* to .*", on_cpu)
    assert re.search(r"MatMul `.*` \(half_precision\.py:\d+\) gave .*, and the largest number of float16", stopped)
    first, last = map(float, re.findall(r"[\d.]+$|[\d.]+(?= to)", advised))
    assert last < first / 100


def test_precision_report_advises_a_scale_and_layers(run_example, tmp_path):
    text = " ".join(run_example("precision_report", str(tmp_path)))
    assert "use 4096; scales from 2 to 524288 fit" in " ".join(text.split())
    assert "`sums` computes values up to 2^18" in text
    assert "`means` would then receive values beyond float16" in text
    assert text.count(": 0 of 1") == 2
    for name in ("small_losses", "large_sums"):
        assert (tmp_path / f"{name}.html").read_text().startswith("<!doctype html>")


def test_two_processes_learn_what_one_learns_and_popdist_is_there_for_scripts_that_ask(
    run_example, source_of, read_line, tmp_path
):
    script = tmp_path / "both.py"  # Two processes start once for both examples.
    paths = [str(source_of(name)) for name in ("popdist_digits", "many_hosts")]
    script.write_text(f"import runpy\nfor path in {paths}:\n    runpy.run_path(path)\n")
    done = subprocess.run(
        [sys.executable, "-m", "tensorflow_ipu", "run", "--num-instances", "2", "--num-replicas", "4", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    instances, workers = (
        [line for line in sorted(done.stdout.splitlines()) if word in line] for word in ("instance", "worker")
    )
    pattern = r"(?:\[(\d)\] )?worker (\d) of (\d), 4 replicas: loss (\S+), sum of weights (\S+)"
    [line] = run_example("many_hosts")
    *_, alone_loss, alone_sum = read_line(pattern, line)
    lines = [read_line(pattern, line) for line in workers]
    assert [line[:3] for line in lines] == [("0", "0", "2"), ("1", "1", "2")]
    for *_, loss, total in lines:
        assert abs(float(loss) - float(alone_loss)) < 0.001
        assert abs(float(total) - float(alone_sum)) < 0.1
    pattern = r"\[(\d)\] instance (\d) of 2, 4 replicas: loss (\S+) to (\S+), accuracy (\S+)"
    compat.install()
    try:
        [alone] = run_example("popdist_digits")
    finally:
        compat.uninstall()
    for number, line in enumerate(instances):
        *numbers, first, last, accuracy = read_line(pattern, line)
        assert numbers == [str(number)] * 2
        printed = [first, last, accuracy]
        expected = re.findall(r"\d\.\d+", alone)
        assert [float(text) for text in printed] == pytest.approx([float(text) for text in expected], abs=0.01)
        assert float(last) < 0.2 * float(first)


def test_a_training_that_was_stopped_goes_on_with_the_same_numbers(run_example, read_line):
    lines = run_example("resume")
    epochs = [read_line(r"epoch (\d): loss (\S+)", line) for line in lines if line.startswith("epoch")]
    assert [number for number, _ in epochs] == list("0123450123345")
    assert lines[10:12] == ["stopped before epoch 3 was saved", "goes on after epoch 2"]
    assert lines[-1] == "the same numbers: True"
    assert float(epochs[5][1]) < 0.2 * float(epochs[0][1])


def test_bert_is_asked_whether_it_fits_a_pod(run_example, read_line):
    small = ["--layers", "4", "--width", "64", "--tokens", "8", "--words", "100", "--batch", "1"]
    *ipus, times = (lines := run_example("bert_pod4", *small))[:5]
    reports = [read_line(r"IPU (\d): fits, (\d+)% to (\d+)% of its memory", line) for line in ipus]
    assert [number for number, _, _ in reports] == list("0123")
    read_line(r"\d\.\d+ ms a micro-batch, [\d,]+ sequences a second", times)
    advice = lines[5:]
    assert advice
    assert all(re.match(r"x \d\.\d\d, \d+% of memory, fits: ", line) for line in advice)


def test_sharding_trains_an_autoencoder_and_tells_its_ipus_apart(run_example, read_line):
    losses, *ipus = run_example("sharding")
    first, last = map(float, read_line(r"loss (\S+) before, (\S+) after 400 steps", losses))
    assert last < 0.1 * first
    reports = [read_line(r"IPU (\d): (\d+) bytes of variables, works (\d+)% of the time", line) for line in ipus]
    assert [number for number, _, _ in reports] == ["0", "1"]
    assert all(
        int(size) >= 3 * 4 * 64 * 8 for _, size, _ in reports
    )  # An IPU has half of the weights and their two moments.
    assert all(0 < int(share) < 100 for _, _, share in reports)


def test_pipeline_trains_as_one_piece_does_and_draws_its_plan(run_example, read_line, tmp_path):
    picture = tmp_path / "plan.png"
    losses, apart, accuracy, depths, path = run_example("pipeline", str(picture), "--schedule", "interleaved")
    first, last = map(float, read_line(r"loss of the first update (\S+), of the last (\S+)", losses))
    assert last < 0.2 < first
    assert float(apart.removeprefix("largest difference to the weights of the network in one piece: ")) < 1e-4
    assert float(accuracy.removeprefix("test accuracy: ")) > 0.9
    assert depths == "stash depths [4, 3, 2, 1], bubble 33%"
    assert path == f"picture of the plan: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_concurrent_stages_learn_a_distance(run_example, read_line, tmp_path):
    picture = tmp_path / "plan.png"
    error, plan, *grid = run_example("concurrent_stages", str(picture))
    first, last = map(float, read_line(r"mean squared error: (\S+) at first, (\S+) after.*", error))
    assert first > 0.1
    assert last < 0.01
    assert plan.startswith("Grouped: 3 stages on 4 IPUs, 12 micro-batches, training")
    assert len([row for row in grid if row.startswith("IPU ")]) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
