"""The indices of replicas, and reduce-scatter, compared with NumPy."""

import numpy as np
import tensorflow as tf

from tensorflow_ipu.ops import ReplicaGroups, _collectives
from tensorflow_ipu.ops.reduce_scatter_op import reduce_scatter
from tensorflow_ipu.ops.replication_ops import replication_index


def scattered(reduced, replicas):
    length = -(-len(reduced) // replicas)
    return np.pad(reduced, (0, replicas * length - len(reduced))).reshape(replicas, length)


def test_vectors_of_every_length_are_padded_to_equal_parts(replicated, arrays):
    values, lengths = arrays(4, [8]), [0, 1, 3, 4, 5, 8]
    results = replicated(
        lambda x: reduce_scatter([x[:length] for length in lengths], 4), [(vector,) for vector in values]
    )
    for index, length in enumerate(lengths):
        expected = scattered(np.sum(values, 0)[:length], 4)
        np.testing.assert_array_equal([result[index] for result in results], expected)


def test_every_reduction_also_in_groups(replicated, arrays):
    numbers = {"ADD": np.add, "MUL": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
    numbers["MEAN"] = lambda a, b: (a + b) / 2
    booleans = {"LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or}

    def program(x, flags):
        def by(values, names):
            return {name: reduce_scatter(values, 2, f"COLLECTIVE_OP_{name}") for name in names}

        far = reduce_scatter(x, ReplicaGroups(2, orthogonal=True))
        return {**by(x, [*numbers, "LOCAL"]), **by(flags, booleans), "far": far}

    values, flags = arrays(4, [5]), arrays(4, [9], np.bool_)
    results = replicated(program, list(zip(values, flags, strict=True)))
    for first in (0, 2):
        for name, reduce in {**numbers, **booleans}.items():
            expected = scattered(reduce(*(flags if name in booleans else values)[first : first + 2]), 2)
            parts = [result[name] for result in results[first : first + 2]]
            np.testing.assert_array_equal(parts, expected, err_msg=name)
    for replica, result in enumerate(results):
        np.testing.assert_array_equal(result["LOCAL"], scattered(values[replica], 2)[replica % 2])
        far = scattered(values[replica % 2] + values[replica % 2 + 2], 2)[replica // 2]
        np.testing.assert_array_equal(result["far"], far)


def test_gradient_gathers_the_parts(replicated, arrays):
    values, weights = arrays(2, [3]), arrays(2, [2], seed=1)

    def program(x, weight):
        gradients = []
        for op in ("ADD", "MEAN"):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(weight * reduce_scatter(x, 2, f"COLLECTIVE_OP_{op}"))
            gradients.append(tape.gradient(loss, x))
        return gradients

    for sum_gradient, mean_gradient in replicated(program, list(zip(values, weights, strict=True))):
        np.testing.assert_array_equal(sum_gradient, np.concatenate(weights)[:3])
        np.testing.assert_array_equal(mean_gradient, sum_gradient / 2)


def test_a_single_replica_is_the_first_and_keeps_everything_and_an_eager_call_is_refused(strategy, refused):
    program = tf.function(lambda x: (reduce_scatter(x, 1), replication_index()), jit_compile=True)
    result, index = strategy.run(program, (tf.constant([1.0, 2.0, 3.0]),))
    assert (result.numpy().tolist(), index.numpy()) == ([1.0, 2.0, 3.0], 0)
    refused(RuntimeError, "`replication_index` can only be called in a program", replication_index)


def test_what_cannot_be_is_refused_when_the_program_is_traced(refused):
    with tf.Graph().as_default():
        for error, message, arguments in (
            (ValueError, "`x` must have rank 1", (tf.zeros([2, 2]), 2)),
            (ValueError, "`op` must be one of", (tf.zeros([2]), 2, "ADD")),
            (TypeError, "bool", (tf.constant([True]), 2)),
            (TypeError, "float32", (tf.zeros([2]), 2, "COLLECTIVE_OP_LOGICAL_OR")),
            (ValueError, "`replication_factor`", (tf.zeros([2]), 0)),
        ):
            refused(error, message, reduce_scatter, *arguments)
        x = tf.zeros([4])
        refused(LookupError, "by `max` has no gradient", tf.gradients, reduce_scatter(x, 2, "COLLECTIVE_OP_MAX"), x)
    refused(RuntimeError, "can only be called in a program", reduce_scatter, tf.zeros([2]), 1)


def test_every_replica_has_its_own_index_and_rank_also_in_loops_and_branches(replicated):
    def program(n):
        total = 0
        for _ in tf.range(n):
            if replication_index() > 0:
                total += replication_index()
        near, far = ReplicaGroups(2), ReplicaGroups(2, orthogonal=True)
        return replication_index(), total, _collectives.rank("rank", near), _collectives.rank("rank", far)

    for count in (6, 16):
        indices, totals, near, far = zip(*replicated(program, [(np.int32(5),)] * count), strict=True)
        assert indices == tuple(range(count))
        assert totals == tuple(range(0, 5 * count, 5))
        assert near == (0, 1) * (count // 2)
        assert far == (0,) * (count // 2) + (1,) * (count // 2)
        assert indices[0].dtype == np.int32
