"""Training on R replicas: with the mean of their gradients, as on a single replica with R times the batch."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
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


@pytest.fixture
def trained_on(replicas, regression):
    """`trained_on(count, make_optimizer)` trains on replicas: micro-batch t * count + r is that of replica r."""

    def train(count, make_optimizer):
        strategy = replicas(count)
        inputs, targets = regression
        results = ipu.IPUOutfeedQueue()
        with strategy.scope():
            weights = tf.Variable(np.ones((3, 1), np.float32))
            optimizer = make_optimizer()
            batches = iter(tf.data.Dataset.from_tensor_slices((inputs, targets)))

        @tf.function(jit_compile=True)
        def program(batches):
            for _ in tf.range(8 // count):
                x, y = next(batches)
                loss = lambda x=x, y=y: tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)  # noqa: E731
                optimizer.apply_gradients(optimizer.compute_gradients(loss, [weights]))
            results.enqueue(weights.read_value())

        with strategy.scope():
            strategy.run(program, args=(batches,))
        everywhere = results.dequeue().numpy().reshape(count, 3, 1)
        for others in everywhere[1:]:
            np.testing.assert_array_equal(others, everywhere[0])
        np.testing.assert_array_equal(weights.numpy(), everywhere[0])
        return everywhere[0]

    return train


def groups(size):
    return [list(range(first, first + size)) for first in range(0, 8, size)]


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
    ],
    ids=["mean of 4", "mean of 2", "mean of 1", "sum", "sharded", "accumulated sum", "mapped before the mean"],
)
def test_replicas_train_as_one_with_all_their_batches(trained_on, plainly_trained, inner, count, wrap, share, together):
    expected = plainly_trained(MapGradients(INNER[inner](), share), groups(together))
    result = trained_on(count, lambda: wrap(INNER[inner]()))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("inner", "reduction"), [("adam", "mean"), ("momentum", "running_mean")])
def test_accumulation_and_mean_train_as_one_batch(trained_on, plainly_trained, inner, reduction):
    # Two replicas, each with two micro-batches an update.
    expected = plainly_trained(MapGradients(INNER[inner](), 0.25), groups(4))
    result = trained_on(
        2, lambda: CrossReplicaGradientAccumulationOptimizerV2(INNER[inner](), 2, None, False, None, reduction)
    )
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
    """Scales the gradients of a plain optimizer."""

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
