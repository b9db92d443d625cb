"""Threads that read an outfeed while a program runs, and programs on several threads."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu


@pytest.fixture
def running(tap: Any, infeed_of: Any, echo: Any, start: Any, until_waiting: Any) -> Any:
    """`running(n, mode)` starts a run that passes on `n` numbers of the tap; returns its future, infeed and outfeed."""

    def run(n: int, mode: Any = None) -> tuple[Any, Any, Any]:
        infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue(mode)
        run = start(lambda: echo(infeed, outfeed, n))
        until_waiting(infeed)
        return run, infeed, outfeed

    return run


@pytest.mark.parametrize("iterated", [False, True])
def test_reads_during_a_run_give_what_has_come(iterated, tap, running, until):
    run, _, outfeed = running(6)
    tap.put(0, 1, 2)
    got: list[Any] = []
    until(lambda: got.extend(outfeed if iterated else outfeed.dequeue()) or len(got) == 3)
    assert not run.done()
    assert len(list(outfeed) if iterated else outfeed.dequeue()) == 0
    tap.put(3, 4, 5)
    run.result(60)
    assert [int(x) for x in (*got, *(outfeed if iterated else outfeed.dequeue()))] == list(range(6))


@pytest.mark.parametrize("how", ["dequeue", "iterate"])
def test_several_reading_threads_share_the_elements(how, numbers, infeed_of, echo, start):
    n = 1000
    infeed, outfeed = infeed_of(numbers(n)), ipu.IPUOutfeedQueue()
    ended = threading.Event()

    def read() -> list[int]:
        got: list[int] = []
        while True:
            last = ended.is_set()
            got.extend(outfeed.dequeue() if how == "dequeue" else outfeed)
            if last:
                return [int(x) for x in got]

    readers = [start(read) for _ in range(3)]
    for _ in range(5):
        echo(infeed, outfeed, n // 5)
    ended.set()
    parts = [reader.result(60) for reader in readers]
    assert all(part == sorted(part) for part in parts)  # Each thread's elements keep their order,
    assert sorted(itertools.chain(*parts)) == list(range(n))  # and each element went to one of them.


def test_exception_in_a_reading_thread_loses_nothing_and_leaves_the_run_alone(tap, running, start, until):
    run, _, outfeed = running(10)
    tap.put(0, 1)

    def read() -> None:
        until(lambda: len(outfeed.dequeue()) > 0)
        raise KeyError("done with it")

    with pytest.raises(KeyError, match="done with it"):
        start(read).result(60)
    assert not run.done()
    tap.put(*range(2, 10))
    run.result(60)
    seen = []

    def iterate() -> None:
        for x in outfeed:
            if int(x) == 6:
                raise KeyError("six")
            seen.append(int(x))

    with pytest.raises(KeyError, match="six"):
        start(iterate).result(60)
    assert seen in ([1, 2, 3, 4, 5], [2, 3, 4, 5])
    np.testing.assert_array_equal(outfeed.dequeue(), [7, 8, 9])


def test_dequeue_can_wait_for_the_end_of_the_run(tap, running, start):
    run, _, outfeed = running(3)
    reader = start(lambda: outfeed.dequeue(wait_for_completion=True))
    for values in ((0, 1), (2,)):
        assert not reader.done()
        tap.put(*values)
    np.testing.assert_array_equal(reader.result(60), [0, 1, 2])
    run.result(60)
    assert outfeed.dequeue(wait_for_completion=True).shape == (0,)  # Nothing runs.


def test_last_mode_during_a_run_gives_the_latest(tap, running, until):
    run, _, outfeed = running(4, ipu.IPUOutfeedMode.LAST)

    def latest() -> int:
        got: list[int] = []

        def take() -> bool:
            try:
                got.append(int(outfeed.dequeue()))
            except (tf.errors.FailedPreconditionError, TypeError):  # There is none, or `[]`: nothing came so far.
                return False
            return True

        until(take)
        return got[0]

    tap.put(5)
    assert latest() == 5
    tap.put(6)
    assert latest() == 6
    tap.put(7, 8)
    run.result(60)
    assert int(outfeed.dequeue()) == 8


def test_programs_of_several_threads_run_at_once(tap, running, numbers, echo, start):
    first, _, _ = running(1)
    other = ipu.IPUOutfeedQueue()
    start(lambda: echo(ipu.feeds.IPUOwnedIterator(numbers(500)), other, 500)).result(60)
    np.testing.assert_array_equal(other.dequeue(), np.arange(500))
    assert not first.done()
    tap.put(1)
    first.result(60)


def test_programs_of_several_threads_share_a_queue(numbers, infeed_of, echo, start):
    infeed, outfeeds = infeed_of(numbers(400)), [ipu.IPUOutfeedQueue() for _ in range(4)]
    runs = [start(lambda outfeed=outfeed: echo(infeed, outfeed, 100)) for outfeed in outfeeds]
    for run in runs:
        run.result(60)
    parts = [start(lambda outfeed=outfeed: outfeed.dequeue().numpy().tolist()).result(60) for outfeed in outfeeds]
    assert all(part == sorted(part) for part in parts)
    assert sorted(itertools.chain(*parts)) == list(range(400))
