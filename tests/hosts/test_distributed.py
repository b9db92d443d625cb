"""`ipu.distributed`: equal values on all instances for all types, also in graphs; errors for different calls."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts
from tensorflow_ipu.distributed import allgather, allreduce, broadcast

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint64", "complex64"]


def lists(*tensors):
    return [tensor.numpy().tolist() for tensor in tensors]


@pytest.mark.workers(2)
def test_all_types_have_the_same_results_on_all_instances():
    matrix, rank = np.array([[1, 5], [3, 0]]), hosts.join().worker
    total, mean = 2 * matrix + 1, (2 * matrix + 1) / 2
    for name in TYPES:
        value = tf.cast(tf.constant(matrix) + rank, name)
        for result, expected in (
            (allreduce(value, SUM), total),
            (allreduce(value, "sum"), total),
            (allreduce(value, MEAN), mean if name[0] in "bfc" else np.trunc(mean)),
            (allgather(value), [matrix, matrix + 1]),
            (broadcast(value, 1), matrix + 1),
        ):
            assert result.dtype.name == name
            np.testing.assert_array_equal(tf.cast(result, tf.float64), expected, name)


@pytest.mark.workers(2)
def test_flags_and_values_of_variables_are_gathered_and_sent():
    rank = hosts.join().worker
    flags, variable = tf.constant([rank == 0, rank == 1]), tf.Variable([rank + 1.0])
    assert lists(allgather(flags), broadcast(flags, 1)) == [[[True, False], [False, True]], [False, True]]
    assert lists(broadcast(variable), allreduce(variable, SUM)) == [[1.0], [3.0]]


@pytest.mark.workers(2)
def test_exchanges_of_a_session_meet_by_their_names():
    rank = hosts.join().worker
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        exchanged = [*(allreduce(x + i, SUM) for i in range(2)), allgather(x)]
        assert exchanged[-1].shape == [2, 2]
        results = session.run(exchanged[:: 1 if rank else -1], {x: [rank, 1]})[:: 1 if rank else -1]
    assert [value.tolist() for value in results] == [[1, 2], [3, 4], [[0, 1], [1, 1]]]


@pytest.mark.workers(2)
def test_shape_may_differ_from_call_to_call_and_exchanges_may_be_in_loops_of_a_graph():
    rank, expected = hosts.join().worker, np.zeros(2)

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def double(x):
        return allreduce(allreduce(x, SUM), MEAN)

    @tf.function
    def steps(x):
        for _ in tf.range(5):
            x = allreduce(x, MEAN) + float(rank)
        return x

    for rows, factor, value in ((3, rank, 1.0), (1, rank, 1.0), (3, 1, 2.0)):
        np.testing.assert_array_equal(double(tf.ones([rows, 2]) * factor), np.full([rows, 2], value))
    for _ in range(5):
        expected = expected.mean() + np.arange(2)
    np.testing.assert_allclose(steps(tf.zeros([])), expected[rank])


@pytest.mark.workers(2)
def test_differences_are_told_by_all_and_the_instances_go_on():
    rank, scalar = hosts.join().worker, tf.constant(1)

    @tf.function
    def in_another_order(x, y):
        calls = [lambda: allreduce(x, SUM), lambda: allgather(y)]
        return [call() for call in calls[:: -1 if rank else 1]]

    for call, messages in (
        (
            lambda: allreduce(np.float32([1.0, 2.0] if rank else 1.0), SUM),
            ["sum of float32[] (Default)", "sum of float32[2] (Default)"],
        ),
        (
            lambda: broadcast(scalar, 1) if rank else allreduce(scalar, MEAN),
            ["mean of int32[] (Default)", "broadcast from worker 1 of int32[] (Default)"],
        ),
        (
            lambda: in_another_order(tf.constant(rank + 1.0), tf.constant([rank, rank])),
            ["sum of float32[] (PopDistAllReduce_x_0)", "gather of int32[1, 2] ("],
        ),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            call()
        assert [message for message in messages if message not in str(raised.value)] == []
        assert lists(allreduce(1.0, SUM)) == [2.0]


@pytest.mark.workers(2)
def test_exchange_in_a_program_is_refused():
    program = tf.function(lambda: allreduce(tf.constant(1.0), SUM), jit_compile=True)
    with pytest.raises(RuntimeError, match="`allreduce` is for tensors of the host, and is called in a program"):
        ipu.IPUStrategy().run(program)


def test_one_instance_has_what_it_gives():
    value = tf.constant([1, 2])
    assert lists(allreduce(value, SUM), allreduce(value, MEAN), broadcast(value)) == [[1, 2]] * 3
    assert lists(allgather(value), allgather(3)) == [[[1, 2]], [3]]


def test_wrong_arguments_are_refused(refused):
    refused(ValueError, "`reduce_op` must be .* is 'MAX'", allreduce, 1.0, "MAX")
    refused(ValueError, "`reduce_op` must be .* is None", allreduce, 1.0, None)
    refused(TypeError, "`value` must hold numbers, but is of type string", allreduce, "a", SUM)
    refused(TypeError, "`value` must hold numbers, but is of type bool", allreduce, True, SUM)
    refused(
        ValueError, r"`root_rank` must be one or more of the participating instances 0, but is \[1\]", broadcast, 1.0, 1
    )
    refused(TypeError, "`root_rank` must be", broadcast, 1.0, "0")
