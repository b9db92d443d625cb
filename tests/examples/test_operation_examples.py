"""The examples of operations print the documented results, and each example has a test."""

import json
import os
import re
from pathlib import Path

import pytest

PRINTED = {
    "packed_sequences": [
        "[0.0, 4.0, 0.0, 0.0]",
        "[64.0, 100.0, 144.0, 0.0]",
        "[256.0, 0.0, 0.0, 0.0]",
        "below 1, 10, 100, and from there on: [1, 3, 2, 6]",
    ],
    "host_embedding": ["a table of 2 GiB", "the loss fell: True", "followers: [1, 2, 3, 0]"],
    "old_layers": [
        "variables: popnn_dynamic_lstm/kernel, popnn_dynamic_lstm/biases",
        "the loss halved: True",
        "eight bits cost at most a sixteenth of the largest weight: True",
    ],
    "old_code": ["Nothing is missing.", "gelu(1) = 0.841"],
    "application": [
        "inputs: scale (), weights (2, 2)",
        "streamed_inputs: x (2,)",
        "streamed_outputs: y (2,)",
        "answers: [0.0, 10.0] to [70.0, 80.0]",
    ],
    # From (3, 4), at distance 5, 19 steps of 0.25 leave a distance of 0.25.
    "custom_operations": ["after 19 steps of a quarter: [0.15 0.2 ]", "squares: [0.02 0.04]"],
    "serving": ["y = 5.50", "stages: [1. 4.]"],
    "smallest_feed": [
        "sum of the first ten numbers: 55.0",
        "elements: [ 1.  2.  3.  4.  5.  6.  7.  8.  9. 10.]",
        "totals so far: [ 1.  3.  6. 10. 15. 21. 28. 36. 45. 55.]",
        "elements of the second run: [11. 12. 13. 14. 15. 16. 17. 18. 19. 20.]",
    ],
    "dequeue_thread": [
        *(f"{i} squared is {i * i}" for i in range(8)),
        "The run has ended: all results but the last had been read before.",
    ],
}


@pytest.mark.parametrize("name", PRINTED)
def test_example_prints_what_it_claims(run_example, name):
    assert run_example(name) == PRINTED[name]


def test_functions_are_shared_and_a_second_start_loads_what_the_first_compiled(run_example, read_line):
    first_line, outlined, same = run_example("functions")
    operations, _ = read_line(r"plain: (\d+) operations, nothing shared; compiled in (\S+) s", first_line)
    fewer, _ = read_line(r"outlined: (\d+) operations, 48 calls of 2 functions; compiled in (\S+) s", outlined)
    assert 2 * int(fewer) < int(operations)
    assert same == "the same loss and gradients: True"
    first, second, times = run_example("second_start")
    pattern = r"\{'ExecutablesStored': (\d), 'ExecutablesLoaded': (\d)\} traced in \S+ s, ready and run in \S+ s"
    assert [read_line(pattern, line) for line in (first, second)] == [("1", "0"), ("0", "1")]
    read_line(r"cold (\S+) s, warm (\S+) s: \d+ times as fast", times)


def test_each_example_has_a_test_that_runs_it():
    folder = Path(__file__).parent
    tests = "".join(path.read_text() for path in folder.glob("test_*.py"))
    examples = [path.stem for path in (folder.parents[1] / "examples").glob("*.py")]
    assert [name for name in examples if f'run_example("{name}"' not in tests and name not in PRINTED] == []


def test_changing_optimizer_goes_on_with_another_momentum_and_the_same_program(run_example, read_line):
    *runs, traced = run_example("changing_optimizer")
    losses = [float(*read_line(r"momentum \S+: loss (\S+)", run)) for run in runs]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 2 * losses[-1]
    assert traced == "traced 1 time(s), for the IPU: True"


def test_observing_prints_its_metrics_and_writes_a_trace(run_example, tmp_path):
    *report, waited, _ = run_example("observing", "--steps", "5", "--trace", str(tmp_path / "trace.json"))
    assert "Metric: RunTime" in report
    assert report[report.index("Counter: InfeedElements") + 1] == "  Value: 5"
    assert re.fullmatch(r"5 steps waited \d+ times for data: \d+% of the run", waited)
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert "run of program" in names


def test_host_work_prints_looks_up_calls_cpp_and_ends_where_a_check_does_not_hold(run_example, tmp_path):
    stderr = os.dup(2)  # TensorFlow prints to the file descriptor, not to Python's stream.
    with (tmp_path / "printed").open("w+") as file:
        os.dup2(file.fileno(), 2)
        try:
            total, ended = run_example("host_work")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        printed = file.read()
    assert total == "the first replica's total: 12.0"
    assert re.fullmatch(r"the run ended: \[the total is too high\] .* \[1[24]\] .* \[10\]", ended)
    for replica, (totals, text) in enumerate((([4, 8, 12], '"one" "three"'), ([7, 14, 21], '"three" "seventeen"'))):
        assert list(map(int, re.findall(rf"replica {replica}: total: (\d+)", printed)))[:3] == totals
        assert printed.count(f"replica {replica}: step 2 has [{text}]\n") >= 1


def test_dataset_iterator_finds_the_line_with_a_hundred_losses_a_run(run_example, read_line):
    *runs, line = run_example("dataset_iterator")
    losses = []
    for begin, run in zip(range(0, 500, 100), runs, strict=True):
        steps, loss = run.split(": mean loss ")
        assert steps == f"steps {begin} to {begin + 99}"
        losses.append(float(loss))
    # The loss falls to the variance of the noise, 0.1 squared.
    assert losses[0] > 0.1
    assert losses[-1] == pytest.approx(0.01, rel=0.2)
    slope, intercept = map(float, read_line(r"y = (\S+) x \+ (\S+)", line))
    assert slope == pytest.approx(3, abs=0.05)
    assert intercept == pytest.approx(-2, abs=0.05)
