"""Queues of a program on replicas: whose element is which, and how what comes out is put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.replication_ops import replication_index


@tf.function(jit_compile=True)
def echo(source: Any, sink: Any, n: Any) -> None:
    i = 0
    while i < n:  # With `tf.range(n)` TensorFlow compiles anew for each n.
        sink.enqueue(next(source))
        i += 1


def iterator_of(strategy: Any, dataset: tf.data.Dataset) -> Any:
    with strategy.scope():
        return iter(dataset)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_consecutive_elements_go_to_consecutive_replicas(count: int, replicas: Any, floating_point: Any) -> None:
    strategy, queue = replicas(count), ipu.IPUOutfeedQueue()
    iterator = iterator_of(strategy, floating_point())
    for begin in (0, 3):  # The second run goes on where the first one stopped.
        strategy.run(echo, (iterator, queue, tf.constant(3)))
        rows = np.arange(begin * count, (begin + 3) * count).reshape([3, count] if count > 1 else [3])
        np.testing.assert_array_equal(queue.dequeue(), rows)


@settings(max_examples=6, deadline=None)
@given(size=st.integers(0, 20), count=st.sampled_from([2, 4]), runs=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_any_runs_over_any_dataset_see_its_whole_rows_and_no_more(size: int, count: int, runs: list[int]) -> None:
    reset_ipu_configuration()
    config = ipu.IPUConfig()
    config.auto_select_ipus = count
    config.configure_ipu_system()
    strategy, queue = ipu.IPUStrategy(), ipu.IPUOutfeedQueue()
    iterator = iterator_of(strategy, tf.data.Dataset.range(size).map(lambda x: tf.cast(x, tf.float32)))
    rows = size // count
    at = 0
    for n in runs:
        if at + n > rows:
            with pytest.raises(tf.errors.OutOfRangeError):
                strategy.run(echo, (iterator, queue, tf.constant(n)))
        else:
            strategy.run(echo, (iterator, queue, tf.constant(n)))
        at = min(at + n, rows)
    if at > 0:
        np.testing.assert_array_equal(queue.dequeue(), np.arange(at * count).reshape(at, count))


def test_queue_of_a_loop_deals_its_elements_out_in_turn(replicas: Any, floating_point: Any) -> None:
    strategy = replicas(4)
    with strategy.scope():
        infeed, outfeed = ipu.IPUInfeedQueue(floating_point()), ipu.IPUOutfeedQueue()
        infeed.initializer  # noqa: B018  (The access starts it.)

    @tf.function(jit_compile=True)
    def program() -> Any:
        return ipu.loops.repeat(
            3, lambda total, x: (total + x, outfeed.enqueue(cross_replica_sum(x)))[0], [0.0], infeed
        )

    assert strategy.run(program).numpy() == 0 + 4 + 8
    np.testing.assert_array_equal(outfeed.dequeue(), [[6] * 4, [22] * 4, [38] * 4])
    infeed.initializer  # noqa: B018  (It starts anew, at the first element.)
    assert strategy.run(program).numpy() == 0 + 4 + 8


def test_structures_get_the_replica_axis_in_every_leaf(replicas: Any) -> None:
    values = np.arange(8 * 2 * 3, dtype=np.float32).reshape(8, 2, 3)
    dataset = tf.data.Dataset.from_tensor_slices({"x": values, "y": np.arange(8, dtype=np.int32)})
    strategy, queue = replicas(2), ipu.IPUOutfeedQueue()
    strategy.run(echo, (iterator_of(strategy, dataset), queue, tf.constant(4)))
    taken = queue.dequeue()
    np.testing.assert_array_equal(taken["x"], values.reshape(4, 2, 2, 3))
    np.testing.assert_array_equal(taken["y"], np.arange(8).reshape(4, 2))

    nested = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        own = tf.cast(replication_index(), tf.float32)
        nested.enqueue(({"own": own, "more": [own + 1, tf.ones([3]) * own]}, 5))

    strategy.run(program)
    first, second = nested.dequeue()
    np.testing.assert_array_equal(first["own"], [[0, 1]])
    np.testing.assert_array_equal(first["more"][0], [[1, 2]])
    np.testing.assert_array_equal(first["more"][1], [[[0] * 3, [1] * 3]])
    np.testing.assert_array_equal(second, [[5, 5]])


def test_last_mode_keeps_the_last_value_of_each_replica(replicas: Any, floating_point: Any) -> None:
    strategy, queue = replicas(4), ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
    strategy.run(echo, (iterator_of(strategy, floating_point()), queue, tf.constant(3)))
    np.testing.assert_array_equal(queue.dequeue(), [8, 9, 10, 11])
    with pytest.raises(tf.errors.FailedPreconditionError):
        queue.dequeue()


def test_iteration_over_an_outfeed_gives_a_row_of_all_replicas(replicas: Any, floating_point: Any) -> None:
    strategy, queue = replicas(2), ipu.IPUOutfeedQueue()
    strategy.run(echo, (iterator_of(strategy, floating_point()), queue, tf.constant(3)))
    assert [row.numpy().tolist() for row in queue] == [[0, 1], [2, 3], [4, 5]]


def test_values_of_replicas_of_which_some_enqueue_more_wait_for_the_others(replicas: Any) -> None:
    strategy, queue = replicas(2), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(x: Any, who: Any) -> None:
        if replication_index() == who:
            queue.enqueue(x)

    for x, who in ((1.0, 0), (2.0, 0), (3.0, 1)):
        strategy.run(program, (tf.constant(x), tf.constant(who)))
    np.testing.assert_array_equal(queue.dequeue(), [[1, 3]])


def test_queue_keeps_to_its_number_of_replicas(replicas: Any, floating_point: Any) -> None:
    strategy, queue = replicas(4), ipu.IPUOutfeedQueue()
    iterator = iterator_of(strategy, floating_point())
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
        strategy.run(halves, (iterator_of(strategy, floating_point()), queue))
    np.testing.assert_array_equal(queue.dequeue(), [[0, 1, 2, 3]])
    strategy.run(echo, (iterator, queue, tf.constant(1)))
    np.testing.assert_array_equal(queue.dequeue(), [[4, 5, 6, 7]])
