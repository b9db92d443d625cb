"""A replica that fails, or a session that times out, ends the run of all replicas. The next run works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.replication_ops import replication_index

FAILED = tf.errors.FailedPreconditionError


def some(condition: Any, work: Any) -> None:
    """Makes the replicas with a true `condition` do some work with an unused result."""

    def branch() -> Any:
        work()
        return 0

    tf.cond(condition, branch, lambda: 0)


@pytest.mark.parametrize("replica", [0, 3])
def test_error_of_one_replica_ends_those_that_wait_for_data(replica, replicas, within, tap):
    strategy, gone = replicas(4), ipu.IPUOutfeedQueue()
    with strategy.scope():
        iterator = iter(tap.dataset)
    fill = tf.function(lambda: gone.enqueue(1) and None, jit_compile=True)

    @tf.function(jit_compile=True)
    def program(iterator: Any, replica: Any) -> None:
        first = next(iterator)  # All replicas get this element.
        some(replication_index() == replica, lambda: gone.enqueue(first))
        some(replication_index() != replica, lambda: next(iterator))  # This element never arrives.

    strategy.run(fill)
    gone.deleter  # noqa: B018  (The access deletes it.)
    tap.put(0, 0, 0, 0)

    def run() -> None:
        with pytest.raises(tf.errors.OpError, match="deleted"):
            strategy.run(program, (iterator, tf.constant(replica)))

    within(60, run)


def test_feeds_are_in_step_after_a_run_that_failed(replicas, float_range, within):
    strategy, outfeed = replicas(4), ipu.IPUOutfeedQueue()
    with strategy.scope():
        iterator = iter(float_range())

    @tf.function(jit_compile=True)
    def program(iterator: Any, outfeed: Any, steps: Any) -> None:
        # Replica r takes `steps[r]` elements, and then all replicas run a collective.
        i = 0
        while i < steps[replication_index()]:
            outfeed.enqueue(next(iterator))
            i += 1
        some(replication_index() != 1, lambda: cross_replica_sum(i, name="meeting"))

    echo = tf.function(lambda iterator, outfeed: outfeed.enqueue(next(iterator)) and None, jit_compile=True)
    with pytest.raises(FAILED, match="meeting.*never will be by replica 1"):
        within(60, lambda: strategy.run(program, (iterator, outfeed, tf.constant([3, 1, 2, 3]))))
    np.testing.assert_array_equal(outfeed.dequeue(), [[0, 1, 2, 3]])
    strategy.run(echo, (iterator, outfeed))
    # The replica furthest ahead had taken two or three rows. All replicas continue after it.
    row = outfeed.dequeue().numpy().tolist()
    assert row in ([[8, 9, 10, 11]], [[12, 13, 14, 15]])


def test_collective_that_some_replicas_reach_fails_by_its_name(replicas, within):
    strategy = replicas(4)

    @tf.function(jit_compile=True)
    def program(replica: Any) -> None:
        some(replication_index() == replica, lambda: cross_replica_sum(1.0, name="gradients"))

    for replica in range(4):

        def run(replica: int = replica) -> None:
            with pytest.raises(FAILED, match=rf"gradients.* was reached by replica {replica}, but never will be by"):
                strategy.run(program, (tf.constant(replica),))

        within(60, run)
    strategy.run(program, (tf.constant(9),))


def test_replicas_that_wait_for_each_other_in_two_collectives_fail_soon_by_their_names(replicas, within):
    strategy = replicas(4)

    @tf.function(jit_compile=True)
    def program(x: Any) -> Any:
        if replication_index() == 1:
            return cross_replica_sum(x, name="left")
        return cross_replica_sum(x, name="right")

    def run() -> None:
        with pytest.raises(FAILED) as info:
            strategy.run(program, (1.0,))
        assert "replica 1 for replicas 0, 2, 3 in the collective `cond/left in program`" in info.value.message
        assert "replicas 0, 2, 3 for replica 1 in the collective `cond/right in program`" in info.value.message

    within(60, lambda: [run() for _ in range(7)])  # Each run took 10 seconds or more.
    assert strategy.run(tf.function(lambda: cross_replica_sum(1.0))).numpy() == 4


def test_waits_for_data_are_no_reason_to_fail(replicas, within, tap):
    strategy = replicas(2)
    with strategy.scope():
        iterator = iter(tap.dataset)

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> Any:
        return cross_replica_sum(next(iterator) if replication_index() == 0 else 0)

    def late() -> Any:
        timer = threading.Timer(1.5, lambda: tap.put(5, 6))
        timer.start()
        result = strategy.run(program, (iterator,))
        timer.join()
        return result

    assert within(60, late).numpy() == 5


tf1 = tf.compat.v1


def test_time_of_a_session_ends_replicas_that_wait_for_each_other_and_for_data(replicas, within):
    replicas(4)
    go_on = threading.Event()

    def slow() -> Iterator[float]:
        for number in range(100):
            if number == 13:  # The other replicas have their elements, and wait in the collective.
                go_on.wait(60)
            yield float(number)

    with tf.Graph().as_default(), tf1.Session() as session:
        infeed = ipu.IPUInfeedQueue(
            tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.float32))
        )

        def network() -> Any:
            return ipu.loops.repeat(2, lambda total, x: total + cross_replica_sum(x), [0.0], infeed)

        with scopes.ipu_scope("/device:IPU:0"):
            run = ipu.compiler.compile(network, [])
        session.run(infeed.initializer)
        assert within(60, lambda: session.run(run)) == [sum(range(8))]  # The compilation may take longer.
        options = tf1.RunOptions(timeout_in_ms=2000)  # This is a field of TensorFlow.
        with pytest.raises(tf.errors.DeadlineExceededError):
            within(60, lambda: session.run(run, options=options))
        go_on.set()
        # Elements 8 to 11 were used. Further elements that the first replica had taken are dropped. On a busy machine,
        # the time may be up before that.
        [total] = within(60, lambda: session.run(run))
        assert total in [sum(range(first, first + 8)) for first in (8, 12, 16)]
        session.run(infeed.deleter)


def test_cancelled_call_ends_its_replicas_and_no_later_run(replicas, within, tap):
    strategy = replicas(2)
    with strategy.scope():
        iterator = iter(tap.dataset)
    program = tf.function(lambda iterator: cross_replica_sum(next(iterator)), jit_compile=True)
    manager = cancellation.CancellationManager()
    outer = manager.get_cancelable_function(
        tf.function(lambda: strategy.run(program, (iterator,))).get_concrete_function()
    )
    timer = threading.Timer(1.0, manager.start_cancel)
    timer.start()
    with pytest.raises(tf.errors.CancelledError):
        within(60, outer)
    timer.join()
    tap.put(1, 2, 3, 4)
    for total in (3, 7):
        assert within(60, lambda: strategy.run(program, (iterator,))).numpy() == total
