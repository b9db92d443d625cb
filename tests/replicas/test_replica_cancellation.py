"""A session whose time is up ends the run of its replicas, wherever they wait; the next run works."""

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

tf1 = tf.compat.v1


def test_time_of_a_session_ends_replicas_that_wait_for_each_other_and_for_data(replicas: Any, within: Any) -> None:
    replicas(4)
    go_on = threading.Event()

    def slow() -> Iterator[float]:
        for number in range(100):
            if number == 13:  # The other replicas have theirs, and wait in the collective.
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
        assert within(60, lambda: session.run(run)) == [sum(range(8))]  # It is compiled, which may take longer.
        options = tf1.RunOptions(timeout_in_ms=2000)  # TensorFlow's own field.
        with pytest.raises(tf.errors.DeadlineExceededError):
            within(60, lambda: session.run(run, options=options))
        go_on.set()
        # Elements 8 to 11 were used; what the first of the replicas had taken beyond is dropped. On a busy machine the time
        # may be up before that.
        [total] = within(60, lambda: session.run(run))
        assert total in [sum(range(first, first + 8)) for first in (8, 12, 16)]
        session.run(infeed.deleter)


def test_cancelled_call_ends_its_replicas_and_no_later_run(replicas: Any, within: Any) -> None:
    strategy = replicas(2)
    handed = tf.queue.FIFOQueue(10, [tf.float32], [[]])
    with strategy.scope():
        iterator = iter(tf.data.Dataset.range(100).map(lambda _: handed.dequeue()))

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> Any:
        return cross_replica_sum(next(iterator))

    manager = cancellation.CancellationManager()
    outer = manager.get_cancelable_function(
        tf.function(lambda: strategy.run(program, (iterator,))).get_concrete_function()
    )
    timer = threading.Timer(1.0, manager.start_cancel)
    timer.start()
    with pytest.raises(tf.errors.CancelledError):
        within(60, outer)
    timer.join()
    handed.enqueue_many([[1.0, 2.0, 3.0, 4.0]])
    for total in (3.0, 7.0):
        np.testing.assert_array_equal(within(60, lambda: strategy.run(program, (iterator,))), total)
