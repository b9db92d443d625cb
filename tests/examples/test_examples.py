"""Each example, run as a user runs it, prints what it claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run_example(run_script):
    def run(name, *arguments, timeout=100):
        return run_script((EXAMPLES / f"{name}.py").read_text(), *arguments, timeout=timeout).stdout.splitlines()

    return run


def test_each_example_has_a_test_that_runs_it():
    tests = Path(__file__).read_text()
    missing = [path.stem for path in EXAMPLES.glob("*.py") if f'run_example("{path.stem}"' not in tests]
    assert not missing


def test_smallest_feed_streams_two_runs_of_ten_elements(run_example):
    assert run_example("smallest_feed") == [
        "sum of the first ten numbers: 55.0",
        "elements: [ 1.  2.  3.  4.  5.  6.  7.  8.  9. 10.]",
        "totals so far: [ 1.  3.  6. 10. 15. 21. 28. 36. 45. 55.]",
        "elements of the second run: [11. 12. 13. 14. 15. 16. 17. 18. 19. 20.]",
    ]


def test_dataset_iterator_finds_the_line_with_a_hundred_losses_a_run(run_example):
    *runs, line = run_example("dataset_iterator")
    losses = []
    for begin, run in zip(range(0, 500, 100), runs, strict=True):
        steps, loss = run.split(": mean loss ")
        assert steps == f"steps {begin} to {begin + 99}"
        losses.append(float(loss))
    # From far off to the variance of the noise, 0.1 squared.
    assert losses[0] > 0.1
    assert losses[-1] == pytest.approx(0.01, rel=0.2)
    slope, intercept = map(float, re.fullmatch(r"y = (\S+) x \+ (\S+)", line).groups())
    assert slope == pytest.approx(3, abs=0.05)
    assert intercept == pytest.approx(-2, abs=0.05)


def test_dequeue_thread_reads_results_that_the_data_of_the_same_run_wait_for(run_example):
    assert run_example("dequeue_thread") == [
        *(f"{i} squared is {i * i}" for i in range(8)),
        "The run has ended: all results but the last had been read before.",
    ]


def test_digits_learns_to_read_in_ten_epochs_and_draws_the_curve(run_example, tmp_path):
    begin, *epochs, steps, picture, accuracy = run_example("digits")
    assert begin.startswith("1437 images to train on, 360 for the test")
    results = [
        re.fullmatch(r"epoch +(\d+)  training loss (\S+)  test accuracy (\S+)", line).groups() for line in epochs
    ]
    assert [int(number) for number, _, _ in results] == list(range(1, 11))
    assert float(results[-1][1]) < 0.1 * float(results[0][1])
    assert re.match(r"440 steps in one run of [\d.]+ s", steps)
    path = Path(picture.removeprefix("learning curve: "))
    assert path == tmp_path / "empty" / "output" / "digits.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    result = float(accuracy.removeprefix("test accuracy: "))
    assert result >= 0.95
    assert float(results[-1][2]) == pytest.approx(result, abs=0.001)


def test_digits_takes_other_sizes_and_folders(run_example, tmp_path):
    folder = tmp_path / "elsewhere"
    _, epoch, steps, picture, accuracy = run_example(
        "digits", "--epochs", "1", "--batch-size", "50", "--output", str(folder)
    )
    assert epoch.startswith("epoch  1")
    assert steps.startswith("28 steps")
    assert picture == f"learning curve: {folder / 'digits.png'}"
    assert (folder / "digits.png").is_file()
    # A whole number of the 360 test images, though they make no whole number of batches.
    right = float(accuracy.removeprefix("test accuracy: ")) * 360
    assert right == pytest.approx(round(right), abs=0.02)


def test_digits_tests_every_image_once_and_counts_no_image_that_fills_up_a_batch(run_script):
    code = f"""
        import runpy
        import numpy as np

        digits = runpy.run_path({str(EXAMPLES / "digits.py")!r})
        _, images, _, labels = digits["load_data"]()
        dataset, steps = digits["test_dataset"](images, labels, 50)
        batches = list(dataset.take(steps).as_numpy_iterator())
        assert steps == 8 and {{b.shape for _, b in batches}} == {{(50,)}}
        tested = np.concatenate([b for _, b in batches])
        assert np.array_equal(tested[:360], labels)
        assert np.array_equal(np.concatenate([a for a, _ in batches])[:360], images)
        assert set(tested[360:]) == {{-1}}, "no answer of the network is -1"
        print("fine")
    """
    assert run_script(code, timeout=60).stdout == "fine\n"


def test_text_learns_to_tell_the_languages_apart(run_example):
    words, *epochs, accuracy = run_example("text")
    assert words.startswith("120 words, such as ")
    results = [re.fullmatch(r"epoch (\d)  training loss (\S+)  test accuracy (\S+)", line).groups() for line in epochs]
    assert [int(number) for number, _, _ in results] == [1, 2, 3, 4, 5]
    assert float(results[-1][1]) < 0.2 * float(results[0][1])
    result = float(accuracy.removeprefix("test accuracy: "))
    assert result >= 0.97
    assert float(results[-1][2]) == pytest.approx(result, abs=0.001)


def test_pipeline_trains_as_one_piece_does_and_draws_its_plan(run_example, tmp_path):
    picture = tmp_path / "plan.png"
    losses, apart, accuracy, depths, path = run_example("pipeline", str(picture), "--schedule", "interleaved")
    first, last = map(float, re.fullmatch(r"loss of the first update (\S+), of the last (\S+)", losses).groups())
    assert last < 0.2 < first
    assert float(apart.removeprefix("largest difference to the weights of the network in one piece: ")) < 1e-4
    assert float(accuracy.removeprefix("test accuracy: ")) > 0.9
    assert depths == "stash depths [4, 3, 2, 1], bubble 33%"
    assert path == f"picture of the plan: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_concurrent_stages_learn_a_distance(run_example, tmp_path):
    picture = tmp_path / "plan.png"
    error, plan, *grid = run_example("concurrent_stages", str(picture))
    first, last = map(float, re.match(r"mean squared error: (\S+) at first, (\S+) after", error).groups())
    assert first > 0.1
    assert last < 0.01
    assert plan.startswith("Grouped: 3 stages on 4 IPUs, 12 micro-batches, training")
    assert len([row for row in grid if row.startswith("IPU ")]) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_replicated_digits_learns_on_four_replicas_what_one_learns_from_the_whole_batch(run_example):
    alone, replicated, losses, weights = run_example("replicated_digits")
    pattern = r"(\d) replica\(s\), (\d) batch\(es\) of (\d+) an update: loss (\S+) to (\S+), test accuracy (\S+)"
    first, second = (re.fullmatch(pattern, line).groups() for line in (alone, replicated))
    assert first[:3] == ("1", "1", "96")
    assert second[:3] == ("4", "3", "8")
    for *_, begin, end, accuracy in (first, second):
        assert float(end) < 0.1 * float(begin)
        assert float(accuracy) > 0.94
    assert float(losses.removeprefix("largest difference of a loss: ")) < 1e-4
    # The weights are of the order of one, after 120 updates with momentum.
    assert float(weights.removeprefix("largest difference of a weight: ")) < 1e-3
