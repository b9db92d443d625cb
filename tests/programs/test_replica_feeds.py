"""Queues of a program on replicas: the elements of each replica, and the order of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration
from tensorflow_ipu.ops.replication_ops import replication_index


@tf.function(jit_compile=True)
def echo(source: Any, sink: Any, n: Any) -> None:
    i = 0
    while i < n:  # With `tf.range(n)`, TensorFlow would compile again for each n.
        sink.enqueue(next(source))
        i += 1


def iterator_of(strategy: Any, dataset: tf.data.Dataset) -> Any:
    with strategy.scope():
        return iter(dataset)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_consecutive_elements_go_to_consecutive_replicas(count, replicas, float_range):
    strategy, queue, last = replicas(count), ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
    iterator = iterator_of(strategy, float_range())
    for begin, sink in ((0, queue), (3, queue), (6, last)):  # Each run continues where the previous one stopped.
        strategy.run(echo, (iterator, sink, tf.constant(3)))
        rows = np.arange(begin * count, (begin + 3) * count).reshape([3, count] if count > 1 else [3])
        if sink is last:
            np.testing.assert_array_equal(last.dequeue(), rows[-1])
            with pytest.raises(tf.errors.FailedPreconditionError):
                last.dequeue()
        else:
            np.testing.assert_array_equal(queue.dequeue() if begin == 0 else list(queue), rows)


@settings(max_examples=6, deadline=None)
@given(size=st.integers(0, 20), count=st.sampled_from([2, 4]), runs=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_any_runs_over_any_dataset_see_its_whole_rows_and_no_more(size, count, runs):
    reset_ipu_configuration()
    config = ipu.IPUConfig()
    config.auto_select_ipus = count
    config.configure_ipu_system()
    strategy, queue = ipu.IPUStrategy(), ipu.IPUOutfeedQueue()
    iterator = iterator_of(strategy, tf.data.Dataset.range(size).map(lambda x: tf.cast(x, tf.float32)))
    rows = size // count
    start = 0
    for n in runs:
        if start + n > rows:
            with pytest.raises(tf.errors.OutOfRangeError):
                strategy.run(echo, (iterator, queue, tf.constant(n)))
        else:
            strategy.run(echo, (iterator, queue, tf.constant(n)))
        start = min(start + n, rows)
    if start > 0:
        np.testing.assert_array_equal(queue.dequeue(), np.arange(start * count).reshape(start, count))


def test_structures_get_the_replica_axis_in_every_leaf(replicas):
    values = np.arange(8 * 2 * 3, dtype=np.float32).reshape(8, 2, 3)
    dataset = tf.data.Dataset.from_tensor_slices({"x": values, "y": np.arange(8, dtype=np.int32)})
    strategy, queue, nested = replicas(2), ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()
    iterator = iterator_of(strategy, dataset)

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(4):
            queue.enqueue(next(iterator))
        index = tf.cast(replication_index(), tf.float32)
        nested.enqueue(({"own": index, "more": [index + 1, tf.ones([3]) * index]}, 5))

    strategy.run(program)
    taken = queue.dequeue()
    np.testing.assert_array_equal(taken["x"], values.reshape(4, 2, 2, 3))
    np.testing.assert_array_equal(taken["y"], np.arange(8).reshape(4, 2))
    first, second = nested.dequeue()
    np.testing.assert_array_equal(first["own"], [[0, 1]])
    np.testing.assert_array_equal(first["more"][0], [[1, 2]])
    np.testing.assert_array_equal(first["more"][1], [[[0] * 3, [1] * 3]])
    np.testing.assert_array_equal(second, [[5, 5]])


def test_values_of_replicas_of_which_some_enqueue_more_wait_for_the_others(replicas):
    strategy, queue = replicas(2), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(x: Any, replica: Any) -> None:
        if replication_index() == replica:
            queue.enqueue(x)

    for x, replica in ((1.0, 0), (2.0, 0), (3.0, 1)):
        strategy.run(program, (tf.constant(x), tf.constant(replica)))
    np.testing.assert_array_equal(queue.dequeue(), [[1, 3]])


def test_queue_keeps_to_its_number_of_replicas(replicas, float_range):
    strategy, queue = replicas(4), ipu.IPUOutfeedQueue()
    iterator = iterator_of(strategy, float_range())
    strategy.run(echo, (iterator, queue, tf.constant(1)))

    @tf.function(jit_compile=True)
    def halves(source: Any, sink: Any) -> None:
        with ipu.scopes.ipu_shard(1):
            sink.enqueue(next(source))

    with pytest.raises(tf.errors.FailedPreconditionError, match="feeds a program of 4 replicas; a program of 2 cannot"):
        strategy.run(halves, (iterator, ipu.IPUOutfeedQueue()))
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="holds elements of a program of 4 replicas; a program of 2"
    ):
        strategy.run(halves, (iterator_of(strategy, float_range()), queue))
    np.testing.assert_array_equal(queue.dequeue(), [[0, 1, 2, 3]])
    strategy.run(echo, (iterator, queue, tf.constant(1)))
    np.testing.assert_array_equal(queue.dequeue(), [[4, 5, 6, 7]])
