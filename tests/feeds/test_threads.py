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


def test_dequeue_during_a_run_gives_what_has_come(tap: Any, running: Any, until: Any) -> None:
    run, _, outfeed = running(6)
    tap.put(0, 1, 2)
    got: list[int] = []
    until(lambda: got.extend(outfeed.dequeue()) or len(got) == 3)
    assert not run.done()
    assert outfeed.dequeue().shape == (0,)
    tap.put(3, 4, 5)
    run.result(60)
    assert [int(x) for x in (*got, *outfeed.dequeue())] == list(range(6))


def test_iteration_during_a_run_ends_where_the_queue_is_empty(tap: Any, running: Any, until: Any) -> None:
    run, _, outfeed = running(4)
    tap.put(0, 1)
    got: list[int] = []
    until(lambda: got.extend(int(x) for x in outfeed) or len(got) == 2)
    assert not run.done()
    tap.put(2, 3)
    run.result(60)
    assert got + [int(x) for x in outfeed] == [0, 1, 2, 3]


def test_thread_reads_all_that_a_long_run_enqueues(numbers: Any, infeed_of: Any, echo: Any, start: Any) -> None:
    infeed, outfeed, n = infeed_of(numbers(20_000)), ipu.IPUOutfeedQueue(), 20_000

    def read() -> list[int]:
        got: list[int] = []
        while len(got) < n:
            got.extend(int(x) for x in outfeed)
        return got

    reader = start(read)
    echo(infeed, outfeed, n)
    assert reader.result(60) == list(range(n))


@pytest.mark.parametrize("how", ["dequeue", "iterate"])
def test_several_reading_threads_share_the_elements(
    how: str, numbers: Any, infeed_of: Any, echo: Any, start: Any
) -> None:
    n = 5000
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


def test_exception_in_an_iterating_thread_loses_nothing(tap: Any, running: Any, start: Any) -> None:
    run, _, outfeed = running(10)
    tap.put(*range(10))
    run.result(60)
    seen = []

    def read() -> None:
        for x in outfeed:
            if int(x) == 3:
                raise KeyError("three")
            seen.append(int(x))

    with pytest.raises(KeyError, match="three"):
        start(read).result(60)
    assert seen == [0, 1, 2]
    np.testing.assert_array_equal(outfeed.dequeue(), [4, 5, 6, 7, 8, 9])


def test_exception_in_a_reading_thread_leaves_the_run_alone(tap: Any, running: Any, start: Any, until: Any) -> None:
    run, _, outfeed = running(4)
    tap.put(0, 1)

    def read() -> None:
        until(lambda: len(outfeed.dequeue()) > 0)
        raise KeyError("done with it")

    with pytest.raises(KeyError, match="done with it"):
        start(read).result(60)
    assert not run.done()
    tap.put(2, 3)
    run.result(60)
    assert int(outfeed.dequeue()[-1]) == 3


def test_elements_after_a_break_are_there_for_any_reader(numbers: Any, infeed_of: Any, echo: Any) -> None:
    infeed, outfeed = infeed_of(numbers(20)), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 6)
    for x in outfeed:
        if int(x) == 1:
            break
    assert int(next(iter(outfeed))) == 2
    echo(infeed, outfeed, 2)
    np.testing.assert_array_equal(outfeed.dequeue(), [3, 4, 5, 6, 7])
    assert outfeed.dequeue().shape == (0,)


def test_dequeue_can_wait_for_the_end_of_the_run(tap: Any, running: Any, start: Any) -> None:
    run, _, outfeed = running(3)
    reader = start(lambda: outfeed.dequeue(wait_for_completion=True))
    assert not reader.done()
    tap.put(0, 1)
    assert not reader.done()
    tap.put(2)
    np.testing.assert_array_equal(reader.result(60), [0, 1, 2])
    run.result(60)


def test_dequeue_that_waits_for_completion_is_at_once_where_nothing_runs(
    numbers: Any, infeed_of: Any, echo: Any
) -> None:
    outfeed = ipu.IPUOutfeedQueue()
    echo(infeed_of(numbers(3)), outfeed, 3)
    np.testing.assert_array_equal(outfeed.dequeue(wait_for_completion=True), [0, 1, 2])


def test_last_mode_during_a_run_gives_the_latest(tap: Any, running: Any, until: Any) -> None:
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


def test_programs_of_several_threads_run_at_once(tap: Any, running: Any, numbers: Any, echo: Any, start: Any) -> None:
    first, _, _ = running(1)
    other = ipu.IPUOutfeedQueue()
    start(lambda: echo(ipu.feeds.IPUOwnedIterator(numbers(500)), other, 500)).result(60)
    np.testing.assert_array_equal(other.dequeue(), np.arange(500))
    assert not first.done()
    tap.put(1)
    first.result(60)


def test_programs_of_several_threads_share_a_queue(numbers: Any, infeed_of: Any, echo: Any, start: Any) -> None:
    infeed, outfeeds = infeed_of(numbers(400)), [ipu.IPUOutfeedQueue() for _ in range(4)]
    runs = [start(lambda outfeed=outfeed: echo(infeed, outfeed, 100)) for outfeed in outfeeds]
    for run in runs:
        run.result(60)
    parts = [outfeed.dequeue().numpy().tolist() for outfeed in outfeeds]
    assert all(part == sorted(part) for part in parts)
    assert sorted(itertools.chain(*parts)) == list(range(400))


def test_program_may_be_traced_on_one_thread_and_run_on_another(numbers: Any, infeed_of: Any, start: Any) -> None:
    infeed, outfeed, strategy = infeed_of(numbers(10)), ipu.IPUOutfeedQueue(), ipu.IPUStrategy()
    program = tf.function(lambda: outfeed.enqueue(infeed._dequeue()) and None, jit_compile=True, autograph=False)
    strategy.run(program)
    start(lambda: strategy.run(program)).result(60)
    assert start(lambda: outfeed.dequeue().numpy().tolist()).result(60) == [0, 1]
