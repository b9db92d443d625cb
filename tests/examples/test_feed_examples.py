"""The examples of feeds and loops print what they claim; and each example has a test."""

from pathlib import Path

import pytest


def test_each_example_has_a_test_that_runs_it():
    folder = Path(__file__).parent
    tests = "".join(path.read_text() for path in folder.glob("test_*.py"))
    examples = (folder.parents[1] / "examples").glob("*.py")
    missing = [path.stem for path in examples if f'run_example("{path.stem}"' not in tests]
    assert not missing


def test_smallest_feed_streams_two_runs_of_ten_elements(run_example):
    assert run_example("smallest_feed") == [
        "sum of the first ten numbers: 55.0",
        "elements: [ 1.  2.  3.  4.  5.  6.  7.  8.  9. 10.]",
        "totals so far: [ 1.  3.  6. 10. 15. 21. 28. 36. 45. 55.]",
        "elements of the second run: [11. 12. 13. 14. 15. 16. 17. 18. 19. 20.]",
    ]


def test_dataset_iterator_finds_the_line_with_a_hundred_losses_a_run(run_example, read_line):
    *runs, line = run_example("dataset_iterator")
    losses = []
    for begin, run in zip(range(0, 500, 100), runs, strict=True):
        steps, loss = run.split(": mean loss ")
        assert steps == f"steps {begin} to {begin + 99}"
        losses.append(float(loss))
    # From far off to the variance of the noise, 0.1 squared.
    assert losses[0] > 0.1
    assert losses[-1] == pytest.approx(0.01, rel=0.2)
    slope, intercept = map(float, read_line(r"y = (\S+) x \+ (\S+)", line))
    assert slope == pytest.approx(3, abs=0.05)
    assert intercept == pytest.approx(-2, abs=0.05)


def test_dequeue_thread_reads_results_that_the_data_of_the_same_run_wait_for(run_example):
    assert run_example("dequeue_thread") == [
        *(f"{i} squared is {i * i}" for i in range(8)),
        "The run has ended: all results but the last had been read before.",
    ]
