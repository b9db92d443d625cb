"""Exchanges between replicas, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorflow_ipu.ops import ReplicaGroups
from tensorflow_ipu.ops.all_to_all_op import all_gather, all_to_all

# Whose sums of small whole numbers are exact.
NUMBERS = [
    *(tf.as_dtype(f"{kind}{bits}").as_numpy_dtype for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *(dtype.as_numpy_dtype for dtype in (tf.bfloat16, tf.float16, tf.float32, tf.float64)),
]


def exchanged(values: list[np.ndarray], split: int, concat: int) -> list[np.ndarray]:
    """What each replica gets, by the definition."""
    parts = [np.split(value, len(values), split) for value in values]
    return [np.concatenate([own[rank] for own in parts], concat) for rank in range(len(values))]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_all_to_all_of_any_shape_and_dimensions(replicated, arrays, data):
    replicas = data.draw(st.sampled_from([2, 3, 4]))
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    split = data.draw(st.integers(0, len(shape) - 1))
    concat = data.draw(st.integers(0, len(shape) - 1))
    shape[split] *= replicas
    values = arrays(replicas, shape, data.draw(st.sampled_from([*NUMBERS, np.bool_])))
    results = replicated(lambda x: all_to_all(x, split, concat, replicas), [(value,) for value in values])
    for result, expected in zip(results, exchanged(values, split, concat), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_all_to_all_in_orthogonal_groups(replicated, arrays):
    values = arrays(4, [2, 3])
    groups = ReplicaGroups(2, orthogonal=True)
    results = replicated(lambda x: all_to_all(x, 0, 0, groups), [(value,) for value in values])
    for first in (0, 1):
        for rank, expected in enumerate(exchanged([values[first], values[first + 2]], 0, 0)):
            np.testing.assert_array_equal(results[first + 2 * rank], expected)


def test_gradient_of_all_to_all_is_the_exchange_backwards(replicated, arrays):
    values = arrays(2, [4, 3])
    weights = arrays(2, [2, 6], seed=1)

    def program(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weight * all_to_all(x, 0, 1, 2))
        return tape.gradient(loss, x)

    results = replicated(program, list(zip(values, weights, strict=True)))
    for result, expected in zip(results, exchanged(weights, 1, 0), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_all_gather_stacks_the_replicas_of_groups_and_each_of_a_list(replicated, arrays):
    values, flags = arrays(4, [3]), arrays(4, [], np.bool_)

    def program(x, flag):
        gathered = all_gather([x, flag, x[:, None] * tf.zeros([0])], 4)
        assert isinstance(gathered, list)
        return all_gather(x, 2), all_gather(x, ReplicaGroups(2, orthogonal=True)), all_gather(x, 1), gathered

    results = replicated(program, list(zip(values, flags, strict=True)))
    for replica, (near, far, own, gathered) in enumerate(results):
        for found, expected in zip(gathered, (values, flags, np.zeros([4, 3, 0])), strict=True):
            np.testing.assert_array_equal(found, np.stack(expected))
        np.testing.assert_array_equal(near, np.stack(values[replica // 2 * 2 :][:2]))
        np.testing.assert_array_equal(far, np.stack([values[replica % 2], values[replica % 2 + 2]]))
        np.testing.assert_array_equal(own, values[replica][None])


def test_gradient_of_all_gather_sums_what_all_replicas_want_of_a_part(replicated, arrays):
    values = arrays(2, [2, 2])
    weights = arrays(2, [2, 2, 2], seed=1)

    def program(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weight * all_gather(x, 2))
        return tape.gradient(loss, x)

    results = replicated(program, list(zip(values, weights, strict=True)))
    for replica, result in enumerate(results):
        np.testing.assert_array_equal(result, weights[0][replica] + weights[1][replica])


def test_a_single_replica_exchanges_with_itself(strategy):
    program = tf.function(lambda x: (all_gather(x, 1), all_to_all(x, 0, 1, 1)), jit_compile=True)
    gathered, same = strategy.run(program, (tf.constant([[1.0, 2.0]]),))
    np.testing.assert_array_equal(gathered, [[[1.0, 2.0]]])
    np.testing.assert_array_equal(same, [[1.0, 2.0]])


def test_a_factor_that_does_not_divide_the_replicas_is_refused_when_the_program_runs(replicated, strategy):
    with pytest.raises(tf.errors.InvalidArgumentError, match="group size"):
        replicated(lambda x: all_gather(x, 4), [(np.float32(0),)] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="group size"):
        strategy.run(tf.function(lambda x: all_gather(x, 2), jit_compile=True), (tf.constant(0.0),))


def test_bad_arguments_are_refused_when_the_program_is_traced():
    with tf.Graph().as_default():
        x = tf.zeros([4, 3])
        for dimension in (-1, 2):
            with pytest.raises(ValueError, match="`split_dimension`"):
                all_to_all(x, dimension, 0, 2)
            with pytest.raises(ValueError, match="`concat_dimension`"):
                all_to_all(x, 0, dimension, 2)
        with pytest.raises(TypeError, match="`split_dimension`"):
            all_to_all(x, 0.0, 0, 2)
        with pytest.raises(ValueError, match="`replication_factor`, which is 2, must divide"):
            all_to_all(x, 1, 0, 2)
        for factor in (None, 1.5, ReplicaGroups()):
            with pytest.raises(TypeError, match="`replication_factor`"):
                all_gather(x, factor)
        with pytest.raises(ValueError, match="`replication_factor`"):
            all_gather(x, 0)
        with pytest.raises(ValueError, match="`x`"):
            all_gather([], 2)
    for call in (lambda: all_gather(tf.zeros([2]), 1), lambda: all_to_all(tf.zeros([2]), 0, 0, 1)):
        with pytest.raises(RuntimeError, match="can only be called in a program"):
            call()
