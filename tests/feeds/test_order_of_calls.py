"""Programs use their queues in the order of their trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native

DEADLINE = 60.0


def dequeue_compute_enqueue(source: Any, sink: Any) -> None:
    for _ in tf.range(3):
        x, y = source._dequeue()
        sink.enqueue(tf.reduce_sum(x) + y)


def dequeue_alone(source: Any, sink: Any) -> None:
    del sink
    for _ in tf.range(3):
        source._dequeue()


def two_dequeues(source: Any, sink: Any) -> None:
    for _ in tf.range(3):
        x, y = source._dequeue()
        sink.enqueue((tf.reduce_sum(x) + y, source._dequeue()[1]))


def enqueue_then_dequeue(source: Any, sink: Any) -> None:
    y = 0.0
    for _ in tf.range(3):
        sink.enqueue(y)
        _, y = source._dequeue()


def loop_behind_a_dequeue(source: Any, sink: Any) -> None:
    source._dequeue()
    for _ in tf.range(3):
        sink.enqueue(source._dequeue()[1])


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (dequeue_compute_enqueue, [1.0, 6.0, 11.0]),
        (dequeue_alone, None),
        (two_dequeues, ([1.0, 11.0, 21.0], [1.0, 3.0, 5.0])),
        (enqueue_then_dequeue, [0.0, 0.0, 1.0]),
        (loop_behind_a_dequeue, [1.0, 2.0, 3.0]),
    ],
)
def test_queues_of_loops_are_used_as_traced(body: Any, left: Any, strategy: Any, infeed_of: Any) -> None:
    xs = np.arange(16, dtype=np.float32).reshape(8, 2)
    source = infeed_of(tf.data.Dataset.from_tensor_slices((xs, np.arange(8, dtype=np.float32))))
    sink: Any = ipu.IPUOutfeedQueue()
    program = tf.autograph.to_graph(body)
    strategy.run(tf.function(lambda: program(source, sink) and None, jit_compile=True, autograph=False))
    found = tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), sink.dequeue()) if sink.enqueued else None
    assert found == left


def test_enqueue_of_what_xla_knows_ahead_still_comes_after_the_dequeue(
    strategy: Any, tap: Any, infeed_of: Any, until_waiting: Any, start: Any
) -> None:
    source = infeed_of(tap.dataset)
    sink: Any = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(3):
            sink.enqueue(0 * source._dequeue())

    running = start(lambda: strategy.run(program))
    for given in range(3):
        until_waiting(source, sink, given)
        assert native.ipu_outfeed_ready(sink._feed.number) == given
        tap.put(7)
    running.result(DEADLINE)
    assert sink.dequeue().numpy().tolist() == [0, 0, 0]
