"""Exchanges between replicas, against NumPy."""

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


def exchanged(values, split, concat):
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


def test_gradients_are_the_exchange_backwards_and_the_sum_of_what_all_replicas_want(replicated, arrays):
    values, weights, of_gathered = arrays(2, [4, 3]), arrays(2, [2, 6], seed=1), arrays(2, [2, 4, 3], seed=1)

    def program(x, weight, of_gathered):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            exchanged_loss = tf.reduce_sum(weight * all_to_all(x, 0, 1, 2))
            gathered_loss = tf.reduce_sum(of_gathered * all_gather(x, 2))
        return tape.gradient(exchanged_loss, x), tape.gradient(gathered_loss, x)

    results = replicated(program, list(zip(values, weights, of_gathered, strict=True)))
    for replica, expected in enumerate(exchanged(weights, 1, 0)):
        np.testing.assert_array_equal(results[replica][0], expected)
        np.testing.assert_array_equal(results[replica][1], of_gathered[0][replica] + of_gathered[1][replica])


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


def test_bad_arguments_are_refused_when_the_program_is_traced(refused):
    with tf.Graph().as_default():
        x = tf.zeros([4, 3])
        for error, words, function, arguments in (
            *((ValueError, "`split_dimension`", all_to_all, (dimension, 0, 2)) for dimension in (-1, 2)),
            *((ValueError, "`concat_dimension`", all_to_all, (0, dimension, 2)) for dimension in (-1, 2)),
            (TypeError, "`split_dimension`", all_to_all, (0.0, 0, 2)),
            (ValueError, "`replication_factor`, which is 2, must divide", all_to_all, (1, 0, 2)),
            *((TypeError, "`replication_factor`", all_gather, (factor,)) for factor in (None, 1.5, ReplicaGroups())),
            (ValueError, "`replication_factor`", all_gather, (0,)),
        ):
            refused(error, words, function, x, *arguments)
        refused(ValueError, "`x`", all_gather, [], 2)
    for call in (lambda: all_gather(tf.zeros([2]), 1), lambda: all_to_all(tf.zeros([2]), 0, 0, 1)):
        refused(RuntimeError, "can only be called in a program", call)
