"""Training on R replicas: with the mean of their gradients, as on a single replica with R times the batch."""

from __future__ import annotations

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
INNER = {
    "momentum": lambda: v1.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: v1.AdamOptimizer(0.1),
}


@pytest.fixture
def replicas():
    """`replicas(count)` configures so many, and gives a strategy for them."""

    def configure(count):
        config = ipu.IPUConfig()
        config.auto_select_ipus = count
        config.configure_ipu_system()
        return ipu.IPUStrategy()

    return configure


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


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_mean_over_replicas_trains_as_one_replica_with_all_of_their_batches(
    trained_on, plainly_trained, inner, count
):
    expected = plainly_trained(INNER[inner](), groups(count), mean=True)
    result = trained_on(count, lambda: CrossReplicaOptimizer(INNER[inner]()))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inner", INNER)
def test_without_it_the_gradients_of_replicas_add_up(trained_on, plainly_trained, inner):
    expected = plainly_trained(INNER[inner](), groups(2))
    result = trained_on(2, INNER[inner])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("inner", "reduction"), [("momentum", "sum"), ("adam", "sum"), ("adam", "mean"), ("momentum", "running_mean")]
)
def test_accumulation_and_mean_train_as_one_batch(trained_on, plainly_trained, inner, reduction):
    # Two replicas, each with two micro-batches an update; the mean of the replicas' sums is half of the sum of all.
    share = 0.5 if reduction == "sum" else 0.25
    expected = plainly_trained(MapGradients(INNER[inner](), share), groups(4))
    result = trained_on(
        2, lambda: CrossReplicaGradientAccumulationOptimizerV2(INNER[inner](), 2, reduction_method=reduction)
    )
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


class MapGradients:
    """Scales the gradients of a plain optimizer."""

    def __init__(self, optimizer, scale):
        self._optimizer = optimizer
        self._scale = scale

    def apply_gradients(self, pairs):
        self._optimizer.apply_gradients([(gradient * self._scale, variable) for gradient, variable in pairs])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: CrossReplicaGradientAccumulationOptimizer(inner, 2),
        lambda inner: GradientAccumulationOptimizerV2(CrossReplicaOptimizer(inner), 2),
        lambda inner: GradientAccumulationOptimizerV2(CrossReplicaOptimizer(IpuOptimizer(inner)), 2),
    ],
)
def test_all_ways_to_accumulate_with_the_mean_are_the_same(trained_on, wrap):
    expected = trained_on(2, lambda: CrossReplicaGradientAccumulationOptimizerV2(INNER["momentum"](), 2))
    np.testing.assert_array_equal(trained_on(2, lambda: wrap(INNER["momentum"]())), expected)


def test_accumulation_alone_adds_up_the_replicas_once_an_update(trained_on, plainly_trained):
    expected = plainly_trained(INNER["adam"](), groups(4))
    result = trained_on(2, lambda: GradientAccumulationOptimizerV2(INNER["adam"](), 2))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_gradients_are_mapped_before_the_mean(trained_on, plainly_trained):
    expected = plainly_trained(MapGradients(INNER["momentum"](), 3.0), groups(2), mean=True)
    result = trained_on(
        2, lambda: CrossReplicaOptimizer(MapGradientOptimizer(INNER["momentum"](), lambda grad, _: 3 * grad))
    )
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


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


def test_all_gradients_meet_at_once(replicas):
    strategy = replicas(2)
    with strategy.scope():
        variables = [tf.Variable(1.0), tf.Variable([1.0, 2.0])]
        optimizer = CrossReplicaOptimizer(INNER["adam"]())

    @tf.function(jit_compile=True)
    def program():
        optimizer.apply_gradients([(variable.read_value(), variable) for variable in variables])

    with strategy.scope():
        concrete = strategy.extended.call_on_device(program.get_concrete_function, (), {})
    assert [op.type for op in concrete.graph.get_operations()].count("IpuAllReduce") == 1


def test_gradients_that_are_none_are_passed_on(replicas):
    strategy = replicas(2)
    with strategy.scope():
        first, second = tf.Variable(1.0), tf.Variable(2.0)

    @tf.function(jit_compile=True)
    def program(x):
        pairs = apply_cross_replica_op([(None, first), (x, second)])
        assert pairs[0] == (None, first)
        assert pairs[1][1] is second
        assert apply_cross_replica_op_single(None, first) == (None, first)
        return pairs[1][0], apply_cross_replica_op_single(2 * x, second)[0]

    assert [float(x) for x in strategy.run(program, args=(tf.constant(3.0),))] == [3.0, 6.0]


def test_an_eager_mean_is_refused():
    with pytest.raises(RuntimeError, match="can only be called in a program"):
        CrossReplicaOptimizer(INNER["adam"]()).apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])


def test_the_sharded_optimizer_trains_as_the_wrapped_one(trained_on, plainly_trained):
    expected = plainly_trained(INNER["adam"](), groups(1))
    np.testing.assert_allclose(trained_on(1, lambda: ShardedOptimizer(INNER["adam"]())), expected, rtol=1e-5, atol=1e-6)
