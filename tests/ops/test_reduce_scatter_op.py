"""Reductions that leave each replica a part, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops import ReplicaGroups
from tensorflow_ipu.ops.reduce_scatter_op import reduce_scatter


def scattered(reduced: np.ndarray, replicas: int) -> np.ndarray:
    length = -(-len(reduced) // replicas)
    return np.pad(reduced, (0, replicas * length - len(reduced))).reshape(replicas, length)


def test_vectors_of_every_length_are_padded_to_equal_parts(replicated, arrays):
    values, lengths = arrays(4, [8]), [0, 1, 3, 4, 5, 8]
    results = replicated(lambda x: reduce_scatter([x[:length] for length in lengths], 4), [(one,) for one in values])
    for at, length in enumerate(lengths):
        expected = scattered(np.sum(values, 0)[:length], 4)
        np.testing.assert_array_equal([result[at] for result in results], expected)


def test_every_reduction(replicated, arrays):
    numbers = {"ADD": np.add, "MUL": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
    numbers["MEAN"] = lambda a, b: (a + b) / 2
    booleans = {"LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or}

    def program(x, flags):
        def by(values, names):
            return {name: reduce_scatter(values, 2, f"COLLECTIVE_OP_{name}") for name in names}

        return {**by(x, numbers), **by(flags, booleans)}

    values, flags = arrays(2, [5]), arrays(2, [9], np.bool_)
    results = replicated(program, list(zip(values, flags, strict=True)))
    for name, reduce in {**numbers, **booleans}.items():
        expected = scattered(reduce(*(flags if name in booleans else values)), 2)
        np.testing.assert_array_equal([result[name] for result in results], expected, err_msg=name)


def test_local_keeps_the_part_of_the_own_vector(replicated, arrays):
    values = arrays(2, [5])
    results = replicated(lambda x: reduce_scatter(x, 2, "COLLECTIVE_OP_LOCAL"), [(value,) for value in values])
    for replica, result in enumerate(results):
        np.testing.assert_array_equal(result, scattered(values[replica], 2)[replica])


def test_groups(replicated, arrays):
    values = arrays(4, [3])

    def program(x):
        return reduce_scatter(x, 2), reduce_scatter(x, ReplicaGroups(2, orthogonal=True))

    for replica, (near, far) in enumerate(replicated(program, [(value,) for value in values])):
        first = replica // 2 * 2
        np.testing.assert_array_equal(near, scattered(values[first] + values[first + 1], 2)[replica % 2])
        first = replica % 2
        np.testing.assert_array_equal(far, scattered(values[first] + values[first + 2], 2)[replica // 2])


@pytest.mark.parametrize(("op", "factor"), [("COLLECTIVE_OP_ADD", 1.0), ("COLLECTIVE_OP_MEAN", 0.5)])
def test_gradient_gathers_the_parts(replicated, arrays, op, factor):
    values = arrays(2, [3])
    weights = arrays(2, [2], seed=1)

    def program(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weight * reduce_scatter(x, 2, op))
        return tape.gradient(loss, x)

    for result in replicated(program, list(zip(values, weights, strict=True))):
        np.testing.assert_array_equal(result, factor * np.concatenate(weights)[:3])


def test_a_gradient_that_does_not_exist_is_refused():
    with tf.Graph().as_default():
        x = tf.zeros([4])
        y = reduce_scatter(x, 2, "COLLECTIVE_OP_MAX")
        with pytest.raises(LookupError, match="by `max` has no gradient"):
            tf.gradients(y, x)


def test_a_single_replica_keeps_everything(strategy):
    program = tf.function(lambda x: reduce_scatter(x, 1), jit_compile=True)
    np.testing.assert_array_equal(strategy.run(program, (tf.constant([1.0, 2.0, 3.0]),)), [1.0, 2.0, 3.0])


def test_bad_arguments_are_refused_when_the_program_is_traced():
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="`x` must have rank 1"):
            reduce_scatter(tf.zeros([2, 2]), 2)
        with pytest.raises(ValueError, match="`op` must be one of"):
            reduce_scatter(tf.zeros([2]), 2, "ADD")
        with pytest.raises(TypeError, match="bool"):
            reduce_scatter(tf.constant([True]), 2)
        with pytest.raises(TypeError, match="float32"):
            reduce_scatter(tf.zeros([2]), 2, "COLLECTIVE_OP_LOGICAL_OR")
        with pytest.raises(ValueError, match="`replication_factor`"):
            reduce_scatter(tf.zeros([2]), 0)
    with pytest.raises(RuntimeError, match="can only be called in a program"):
        reduce_scatter(tf.zeros([2]), 1)
