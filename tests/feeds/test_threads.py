"""Threads that read an outfeed while a program runs, and programs on several threads."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import program_order
from tensorflow_ipu.feeds._native_object import SharedObjects
from tensorflow_ipu.ops import sites
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum


@pytest.fixture
def running(tap: Any, infeed_of: Any, echo: Any, start: Any, until_waiting: Any) -> Any:
    """Returns a function: `running(n, mode)` starts a run that passes on `n` numbers of the tap.

    It returns the run's future, the infeed and the outfeed.
    """

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


@pytest.mark.parametrize("way", ["dequeue", "iterate"])
def test_several_reading_threads_share_the_elements(way, numbers, infeed_of, echo, start):
    n = 1000
    infeed, outfeed = infeed_of(numbers(n)), ipu.IPUOutfeedQueue()
    ended = threading.Event()

    def read() -> list[int]:
        got: list[int] = []
        while True:
            last = ended.is_set()
            got.extend(outfeed.dequeue() if way == "dequeue" else outfeed)
            if last:
                return [int(x) for x in got]

    readers = [start(read) for _ in range(3)]
    for _ in range(5):
        echo(infeed, outfeed, n // 5)
    ended.set()
    parts = [reader.result(60) for reader in readers]
    assert all(part == sorted(part) for part in parts)  # The elements of each thread are in order,
    assert sorted(itertools.chain(*parts)) == list(range(n))  # and exactly one thread got each element.


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
    elements = []

    def iterate() -> None:
        for x in outfeed:
            if int(x) == 6:
                raise KeyError("six")
            elements.append(int(x))

    with pytest.raises(KeyError, match="six"):
        start(iterate).result(60)
    assert elements in ([1, 2, 3, 4, 5], [2, 3, 4, 5])
    np.testing.assert_array_equal(outfeed.dequeue(), [7, 8, 9])


def test_dequeue_can_wait_for_the_end_of_the_run(tap, running, start):
    run, _, outfeed = running(3)
    reader = start(lambda: outfeed.dequeue(wait_for_completion=True))
    for values in ((0, 1), (2,)):
        assert not reader.done()
        tap.put(*values)
    np.testing.assert_array_equal(reader.result(60), [0, 1, 2])
    run.result(60)
    assert outfeed.dequeue(wait_for_completion=True).shape == (0,)  # No program runs.


def test_last_mode_during_a_run_gives_the_latest(tap, running, until):
    run, _, outfeed = running(4, ipu.IPUOutfeedMode.LAST)

    def latest() -> int:
        got: list[int] = []

        def take() -> bool:
            try:
                got.append(int(outfeed.dequeue()))
            except (tf.errors.FailedPreconditionError, TypeError):  # The queue is empty: the result is `[]`.
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


def test_a_program_waits_for_the_end_of_the_run_before_it(tap, running, numbers, echo, start, until):
    first, _, _ = running(1)
    second_outfeed = ipu.IPUOutfeedQueue()
    second = start(lambda: echo(ipu.feeds.IPUOwnedIterator(numbers(500)), second_outfeed, 500))
    until(lambda: native.ipu_runs_waiting(0) == 1)
    assert not second.done()
    assert len(second_outfeed.dequeue()) == 0
    tap.put(1)
    first.result(60)
    second.result(60)
    np.testing.assert_array_equal(second_outfeed.dequeue(), np.arange(500))


# The error was: on a device of one IPU, runs of several threads overlapped, and shared the elements by chance.
@pytest.mark.parametrize("ipus", [1, 2])
def test_runs_of_many_threads_come_one_after_the_other(ipus, replicas, numbers, infeed_of, echo, start):
    replicas(ipus)
    infeed, outfeed = infeed_of(numbers(10**6)), ipu.IPUOutfeedQueue()
    threads = [start(lambda: [echo(infeed, outfeed, 20) for _ in range(10)]) for _ in range(8)]
    for thread in threads:
        thread.result(60)
    np.testing.assert_array_equal(outfeed.dequeue().numpy().reshape(-1), np.arange(8 * 10 * 20 * ipus))


# The error was: each thread created an order of the device. A program captured two of them, which was taken for a queue
# that it gets twice.
@pytest.mark.parametrize("ipus", [1, 2])
def test_first_traces_of_many_threads_share_what_the_device_has_once(ipus, replicas, start, monkeypatch):
    strategy = replicas(ipus)
    monkeypatch.setattr(program_order, "_orders", SharedObjects())  # This is the situation in a new process.
    monkeypatch.setattr(sites, "_shared", SharedObjects())
    together = threading.Barrier(16)

    def train() -> list[float]:
        with strategy.scope():
            iterator = iter(tf.data.Dataset.range(100).map(lambda i: tf.cast(i, tf.float32)))
            outfeed = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(n: Any) -> Any:
            for _ in tf.range(n):
                outfeed.enqueue(next(iterator) + 0 * tf.random.uniform([]))
            return cross_replica_sum(1.0)

        together.wait(60)
        assert strategy.run(program, (tf.constant(3),)) == ipus
        return outfeed.dequeue().numpy().reshape(-1).tolist()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        results = [thread.result(120) for thread in [start(train) for _ in range(16)]]
    finally:
        sys.setswitchinterval(interval)
    assert results == [list(range(3 * ipus))] * 16


def test_what_threads_ask_for_first_at_the_same_time_is_made_once(start, monkeypatch):
    creations: list[Any] = []
    second = threading.Barrier(2)

    def slowly(make: Any) -> Any:
        def wait_and_make(*args: Any) -> Any:
            creations.append(args)
            with contextlib.suppress(threading.BrokenBarrierError):
                second.wait(0.3)  # A second thread must not pass this barrier.
            second.reset()
            return make(*args)

        return wait_and_make

    shared = SharedObjects()
    feeds = [start(lambda: shared.get(("key",), slowly(program_order.new))) for _ in range(4)]
    [feed] = {feed.result(60) for feed in feeds}
    monkeypatch.setattr(feed, "_make_state", slowly(feed._make_state))
    states = [start(lambda: feed.state("/device:IPU:0")) for _ in range(4)]
    assert len({id(state.result(60)) for state in states}) == 1
    assert (
        len(creations) == 3
    )  # The references are the feed, its state variable, and the handle that destroys the variable.


def test_ctrl_c_ends_the_wait_of_a_run_for_its_turn(running, numbers, infeed_of, echo, until):
    first, _, _ = running(1)
    infeed, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()

    def press() -> None:
        until(lambda: native.ipu_runs_waiting(0) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        echo(infeed, outfeed, 1)
    presses.join()
    with pytest.raises(tf.errors.CancelledError):  # Ctrl-C ends the waits of all runs.
        first.result(60)
    echo(infeed, outfeed, 3)
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2])


def test_a_host_function_that_runs_a_program_on_its_own_device_is_refused(replicas):
    strategy = replicas(1, 1)
    double = tf.function(lambda x: 2 * x, jit_compile=True)

    def program(x: Any, on: ipu.IPUStrategy) -> Any:
        with ipu.scopes.outside_compilation_scope():
            y = tf.py_function(lambda x: on.run(double, (x,)), [x], tf.float32)
            y.set_shape([])
        return y + 1

    def run(on: ipu.IPUStrategy) -> float:
        return float(strategy.run(tf.function(lambda x: program(x, on), jit_compile=True), (tf.constant(3.0),)))

    with pytest.raises(tf.errors.OpError, match=r"Neither could end\..*on another"):
        run(strategy)
    second_strategy = ipu.IPUStrategy("/device:IPU:1")
    assert run(second_strategy) == 7

    # The wait for the other device once lasted for ever.
    back = tf.function(lambda x: program(x, strategy), jit_compile=True)

    def there_and_back(x: Any) -> Any:
        with ipu.scopes.outside_compilation_scope():
            y = tf.py_function(lambda x: second_strategy.run(back, (x,)), [x], tf.float32)
            y.set_shape([])
        return y

    with pytest.raises(tf.errors.OpError, match=r"Neither could end\."):
        strategy.run(tf.function(there_and_back, jit_compile=True), (tf.constant(3.0),))
    assert run(second_strategy) == 7


def test_programs_of_several_threads_share_a_queue(numbers, infeed_of, echo, start):
    infeed, outfeeds = infeed_of(numbers(400)), [ipu.IPUOutfeedQueue() for _ in range(4)]
    runs = [start(lambda outfeed=outfeed: echo(infeed, outfeed, 100)) for outfeed in outfeeds]
    for run in runs:
        run.result(60)
    parts = [start(lambda outfeed=outfeed: outfeed.dequeue().numpy().tolist()).result(60) for outfeed in outfeeds]
    assert all(part == sorted(part) for part in parts)
    assert sorted(itertools.chain(*parts)) == list(range(400))
