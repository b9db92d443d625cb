"""Collectives between the shards of a replica, compared with NumPy."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu import compiler, scopes
from tensorflow_ipu.ops.within_replica_ops import all_gather, all_reduce, reduce_scatter

CALLS = (lambda x: all_reduce(x, "COLLECTIVE_OP_ADD"), lambda x: reduce_scatter(x, "COLLECTIVE_OP_ADD"), all_gather)


def constants(*values):
    return [tf.constant(value) for value in values]


def assert_vectors(vectors, expected):
    assert [vector.numpy().tolist() for vector in vectors] == expected


def test_all_reduce_by_every_operation():
    for op, expected in (("MUL", [3, 8, 0]), ("MIN", [1, 2, 0]), ("MAX", [3, 4, 5]), ("ADD", [4, 6, 5])):
        results = all_reduce(constants([1.0, 2.0], [3.0, 4.0, 5.0]), f"COLLECTIVE_OP_{op}")
        assert isinstance(results, tuple)
        np.testing.assert_array_equal(results, [expected] * 2)
    shards = constants([True, False, True], [True, True])
    np.testing.assert_array_equal(all_reduce(shards, "COLLECTIVE_OP_LOGICAL_AND")[0], [True, False, False])
    np.testing.assert_array_equal(all_reduce(shards, "COLLECTIVE_OP_LOGICAL_OR")[1], [True, True, True])
    shards = constants([1, 2, 3], [4, 5, 6])  # Each shard keeps its own vector.
    np.testing.assert_array_equal(all_reduce(shards, "COLLECTIVE_OP_LOCAL"), [[1, 2, 3], [4, 5, 6]])
    assert_vectors(reduce_scatter(shards, "COLLECTIVE_OP_LOCAL"), [[1, 0], [5, 6]])


def test_reduce_scatter_leaves_each_shard_the_part_that_the_sdk_documents_equally_long_with_zeros_at_the_end():
    """The SDK's documentation has the parts x, y and z on shards 3, 1 and 2 of four."""
    results = reduce_scatter([tf.range(1, 4) * 10**shard for shard in range(4)], "COLLECTIVE_OP_ADD")
    assert_vectors(results, [[0], [2222], [3333], [1111]])
    results = reduce_scatter([tf.range(5) + shard for shard in range(4)], "COLLECTIVE_OP_ADD")
    assert_vectors(results, [[6, 0], [14, 0], [18, 22], [10, 0]])
    np.testing.assert_array_equal(all_gather(results)[3], [6, 0, 14, 0, 18, 22, 10, 0])
    for shards, op, expected in (
        (([1, 2], [10, 20]), "ADD", [[11], [22]]),
        (([1, 2, 3], [10, 20, 30]), "ADD", [[11, 0], [22, 33]]),
        (([1], [2], [3]), "MAX", [[0], [3], [0]]),
        (([True, True, True], [False, True, True]), "LOGICAL_AND", [[False, False], [True, True]]),
    ):
        assert_vectors(reduce_scatter(constants(*shards), f"COLLECTIVE_OP_{op}"), expected)
    for count, length in itertools.product([1, 3, 8], [1, 7, 24]):
        results = reduce_scatter([tf.range(1, length + 1) for _ in range(count)], "COLLECTIVE_OP_MAX")
        assert {len(part) for part in results} == {-(-length // count)}
        elements = np.concatenate(results)
        np.testing.assert_array_equal(np.sort(elements[elements > 0]), np.arange(1, length + 1))


def test_all_gather_concatenates_along_the_axis_and_takes_scalars_as_vectors():
    for axis in (1, -1):
        results = all_gather([tf.ones([2, 1]), tf.zeros([2, 2])], axis)
        np.testing.assert_array_equal(results, [[[1, 0, 0], [1, 0, 0]]] * 2)
    np.testing.assert_array_equal(all_reduce(constants(1, 2), "COLLECTIVE_OP_ADD"), [[3], [3]])
    np.testing.assert_array_equal(all_gather(constants(1, 2)), [[1, 2], [1, 2]])


def test_programs_and_their_gradients(strategy):
    @tf.function(jit_compile=True)
    def program(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            reduced = all_reduce([a, b], "COLLECTIVE_OP_ADD")
            scattered = reduce_scatter([a, b], "COLLECTIVE_OP_ADD")
            loss = tf.reduce_sum(reduced[0]) + 2 * tf.reduce_sum(reduced[1]) + 10 * tf.reduce_sum(scattered[0])
        return tape.gradient(loss, [a, b])

    results = strategy.run(program, (tf.zeros([2]), tf.zeros([3])))
    np.testing.assert_array_equal(results[0], [13.0, 3.0])
    np.testing.assert_array_equal(results[1], [13.0, 3.0, 3.0])


ORDER = r"`input_shards\[0\]` was made on shard 1: .* order of the shards"


def made(order):
    shards = []
    for number in order:
        with scopes.ipu_shard(number):
            shards.append(tf.fill([1], float(number)))
    with scopes.ipu_shard(-1):
        shards.append(tf.fill([1], 9.0))
    return shards


@pytest.mark.parametrize("call", CALLS)
def test_the_run_of_a_graph_refuses_shards_in_a_wrong_order(call, configure, refused):
    configure(2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with scopes.ipu_scope("/device:IPU:0"):
            compiled = compiler.compile(lambda: call(made([1, 0])))
        refused(tf.errors.FailedPreconditionError, ORDER, session.run, compiled)


def test_bad_shards_and_a_wrong_order_of_them_are_refused(refused):
    shard = tf.constant([1.0])
    for call in CALLS:
        with tf.Graph().as_default():
            assert len(call(made([0, 1]))) == 3
            refused(tf.errors.FailedPreconditionError, ORDER, call, made([1, 0]))
        for message, shards in (
            ("twice", [shard, shard]),
            ("same type", [shard, tf.constant([1])]),
            ("same rank", [shard, tf.constant(1.0)]),
            ("`input_shards`", []),
            ("`input_shards`", shard),
        ):
            refused(ValueError, message, call, shards)
    refused(ValueError, "rank 0 or 1", all_reduce, [tf.zeros([2, 2]), tf.ones([2, 2])], "COLLECTIVE_OP_ADD")
    refused(ValueError, "`op` must be one of", all_reduce, constants([1.0], [2.0]), "COLLECTIVE_OP_MEAN")
    refused(TypeError, "float32", all_reduce, constants([1.0], [2.0]), "COLLECTIVE_OP_LOGICAL_AND")
    refused(ValueError, "`axis`", all_gather, constants([1.0], [2.0]), axis=1)
    refused(ValueError, "except along `axis`", all_gather, [tf.zeros([2, 1]), tf.zeros([3, 1])], axis=1)
