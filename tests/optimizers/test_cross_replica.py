"""Training on R replicas with the mean of their gradients is equal to training on one with R times the batch."""

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.optimizers import (
    CrossReplicaGradientAccumulationOptimizer,
    CrossReplicaGradientAccumulationOptimizerV2,
    CrossReplicaOptimizer,
    GradientAccumulationOptimizerV2,
    IpuOptimizer,
    MapGradientOptimizer,
    ShardedOptimizer,
    apply_cross_replica_op,
    apply_cross_replica_op_single,
)

v1 = tf.compat.v1.train
INNER = {"momentum": lambda: v1.MomentumOptimizer(0.05, 0.9), "adam": lambda: v1.AdamOptimizer(0.1)}


def groups(size):
    return [list(range(first, first + size)) for first in range(0, 8, size)]


def accumulating(reduction):
    return lambda inner: CrossReplicaGradientAccumulationOptimizerV2(inner, 2, None, False, None, reduction)


@pytest.mark.parametrize(
    ("inner", "count", "wrap", "share", "together"),
    [
        ("momentum", 4, CrossReplicaOptimizer, 1 / 4, 4),
        ("adam", 2, CrossReplicaOptimizer, 1 / 2, 2),
        ("momentum", 1, CrossReplicaOptimizer, 1, 1),
        ("momentum", 2, lambda inner: inner, 1, 2),
        ("adam", 1, ShardedOptimizer, 1, 1),
        ("adam", 2, lambda inner: GradientAccumulationOptimizerV2(inner, 2), 1, 4),
        ("momentum", 2, lambda inner: CrossReplicaOptimizer(MapGradientOptimizer(inner, lambda g, _: 3 * g)), 3 / 2, 2),
        # Two replicas, each with two micro-batches for an update.
        ("adam", 2, accumulating("mean"), 1 / 4, 4),
        ("momentum", 2, accumulating("running_mean"), 1 / 4, 4),
    ],
    ids=["mean of 4", "mean of 2", "mean of 1", "sum", "sharded", "accumulated", "mapped", "mean", "running mean"],
)
def test_replicas_train_as_one_with_all_their_batches(trained_on, plainly_trained, inner, count, wrap, share, together):
    expected = plainly_trained(MapGradients(INNER[inner](), share), groups(together))
    result = trained_on(count, lambda: wrap(INNER[inner]()))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_all_ways_to_accumulate_with_the_mean_are_the_same(trained_on, plainly_trained):
    ways = [
        lambda inner: CrossReplicaGradientAccumulationOptimizerV2(inner, 2),
        lambda inner: CrossReplicaGradientAccumulationOptimizer(inner, 2),
        lambda inner: GradientAccumulationOptimizerV2(CrossReplicaOptimizer(IpuOptimizer(inner)), 2),
    ]
    first, *others = [trained_on(2, lambda wrap=wrap: wrap(INNER["momentum"]())) for wrap in ways]
    np.testing.assert_array_equal(others, [first] * 2)
    # The mean of the replicas' sums is half of the sum of all.
    expected = plainly_trained(MapGradients(INNER["momentum"](), 0.5), groups(4))
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-6)


class MapGradients:
    """A wrapper that scales the gradients of a plain optimizer."""

    def __init__(self, optimizer, scale):
        self._optimizer = optimizer
        self._scale = scale

    def apply_gradients(self, pairs):
        self._optimizer.apply_gradients([(gradient * self._scale, variable) for gradient, variable in pairs])


def test_sparse_gradients_become_their_dense_mean(replicas):
    strategy = replicas(2)
    with strategy.scope():
        table = tf.Variable(np.zeros((4, 2), np.float32))
        optimizer = CrossReplicaOptimizer(v1.GradientDescentOptimizer(1.0))
        rows = iter(tf.data.Dataset.from_tensor_slices(np.array([[0, 1, 1], [1, 3, 0]], np.int32)))

        @tf.function(jit_compile=True)
        def program(rows):
            indices = next(rows)
            pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(tf.gather(table, indices)), [table])
            optimizer.apply_gradients(pairs)

        strategy.run(program, args=(rows,))
    np.testing.assert_array_equal(table.numpy(), -np.array([[2, 2], [3, 3], [0, 0], [1, 1]]) / 2)


def test_all_gradients_meet_at_once_and_those_that_are_none_are_passed_on(replicas):
    strategy = replicas(2)
    with strategy.scope():
        first, second = tf.Variable(1.0), tf.Variable([1.0, 2.0])
        optimizer = CrossReplicaOptimizer(INNER["adam"]())

    @tf.function(jit_compile=True)
    def program():
        optimizer.apply_gradients([(first.read_value(), first), (second.read_value(), second)])

    @tf.function(jit_compile=True)
    def with_none(x):
        pairs = apply_cross_replica_op([(None, first), (x, second)])
        assert pairs[0] == (None, first)
        assert pairs[1][1] is second
        assert apply_cross_replica_op_single(None, first) == (None, first)
        return pairs[1][0], apply_cross_replica_op_single(2 * x, second)[0]

    with strategy.scope():
        concrete = strategy.extended.call_on_device(program.get_concrete_function, (), {})
    assert [op.type for op in concrete.graph.get_operations()].count("IpuAllReduce") == 1
    assert [float(x) for x in strategy.run(with_none, args=(tf.constant(3.0),))] == [3.0, 6.0]
    with pytest.raises(RuntimeError, match="can only be called in a program"):
        CrossReplicaOptimizer(INNER["adam"]()).apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
