"""`ipu.distributed`: the same numbers on all instances, whatever the types, in graphs too; differences are told."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint64", "complex64"]


# What the workers run.


def numbers_of_types():
    rank = hosts.join().worker
    found = []
    for name in TYPES:
        value = tf.cast(tf.constant([[1, 5], [3, 0]]) + rank, name)
        found.append(
            [
                name,
                tf.cast(ipu.distributed.allreduce(value, SUM), tf.float64),
                tf.cast(ipu.distributed.allreduce(value, MEAN), tf.float64),
                tf.cast(ipu.distributed.allgather(value), tf.float64),
                tf.cast(ipu.distributed.broadcast(value, 1), tf.float64),
                ipu.distributed.allreduce(value, "sum").dtype.name,
            ]
        )
    return found


def flags_and_variables():
    rank = hosts.join().worker
    value = tf.constant([rank == 0, rank == 1])
    variable = tf.Variable([rank + 1.0])
    return (
        [ipu.distributed.allgather(value), ipu.distributed.broadcast(value, 1)],
        [ipu.distributed.broadcast(variable), ipu.distributed.allreduce(variable, SUM)],
    )


def rounded_once():
    """Sums of halves, which are other ones where each sum of two is rounded: in a program and on the host."""
    strategy = ipu.IPUMultiWorkerStrategy()
    rank, found = strategy.cluster.worker, []
    for dtype, large in ((tf.float16, 2048), (tf.bfloat16, 256)):
        value = tf.constant([1 if rank else large] * 3, dtype)
        program = tf.function(ipu.ops.cross_replica_ops.cross_replica_sum, jit_compile=True)
        found += [ipu.distributed.allreduce(value, SUM), strategy.run(program, (value,))]
    return [tf.cast(total, tf.float32) for total in found]


def in_another_order(rank):
    @tf.function
    def exchange(x, y):
        calls = [lambda: ipu.distributed.allreduce(x, SUM), lambda: ipu.distributed.allgather(y)]
        return [call() for call in calls[:: -1 if rank else 1]]

    return exchange(tf.constant(rank + 1.0), tf.constant([rank, rank]))


def in_graphs():
    rank = hosts.join().worker

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def double(x):
        return ipu.distributed.allreduce(ipu.distributed.allreduce(x, SUM), MEAN)

    @tf.function
    def steps(x):
        for _ in tf.range(5):
            x = ipu.distributed.allreduce(x, MEAN) + float(rank)
        return x

    of_shapes = [double(tf.ones([3, 2]) * rank), double(tf.ones([1, 2]) * rank), double(tf.ones([3, 2]))]
    return of_shapes, steps(tf.zeros([]))


def in_session():
    """A session runs them in any order."""
    rank = hosts.join().worker
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        exchanged = [ipu.distributed.allreduce(x + i, SUM) for i in range(2)]
        exchanged.append(ipu.distributed.allgather(x))
        assert exchanged[-1].shape == [2, 2]
        return session.run(exchanged[:: 1 if rank else -1], {x: [rank, 1]})[:: 1 if rank else -1]


def of_other_shapes(values):
    return ipu.distributed.allreduce(np.float32(values), SUM)


def of_other_kinds(rank):
    x = tf.constant(1)
    return ipu.distributed.broadcast(x, 1) if rank else ipu.distributed.allreduce(x, MEAN)


def in_a_program():
    strategy = ipu.IPUStrategy()
    program = tf.function(lambda: ipu.distributed.allreduce(tf.constant(1.0), SUM), jit_compile=True)
    return strategy.run(program)


def test_all_types_have_the_same_results_on_all_instances(workers):
    first, second = workers.call(numbers_of_types)
    one = np.array([[1, 5], [3, 0]])
    for (name, *found), (_, *others) in zip(first, second, strict=True):
        for ours, theirs in zip(found, others, strict=True):
            np.testing.assert_array_equal(ours, theirs, name)
        total, mean, gathered, sent, dtype = found
        np.testing.assert_array_equal(total, 2 * one + 1, name)
        exact = (2 * one + 1) / 2
        np.testing.assert_array_equal(mean, exact if name[0] in "bfc" else np.trunc(exact), name)
        np.testing.assert_array_equal(gathered, [one, one + 1], name)
        np.testing.assert_array_equal(sent, one + 1, name)
        assert dtype == name


def test_halves_are_added_in_float32_and_rounded_once(three_workers):
    for found in three_workers.call(rounded_once):
        assert [total.tolist() for total in found] == [[2050] * 3] * 2 + [[258] * 3] * 2


def test_flags_and_values_of_variables_are_gathered_and_sent(workers):
    for (gathered, sent), variables in workers.call(flags_and_variables):
        assert gathered.tolist() == [[True, False], [False, True]]
        assert sent.tolist() == [False, True]
        assert [value.tolist() for value in variables] == [[1.0], [3.0]]


def test_exchanges_of_a_session_meet_by_their_names(workers):
    for found in workers.call(in_session):
        assert [value.tolist() for value in found] == [[1, 2], [3, 4], [[0, 1], [1, 1]]]


def test_shape_may_differ_from_call_to_call_and_exchanges_may_be_in_loops_of_a_graph(workers):
    expected = np.zeros(2)
    for _ in range(5):
        expected = expected.mean() + np.arange(2)
    for rank, (found, looped) in enumerate(workers.call(in_graphs)):
        assert [value.shape for value in found] == [(3, 2), (1, 2), (3, 2)]
        assert [value.max() for value in found] == [1.0, 1.0, 2.0]
        np.testing.assert_allclose(looped, expected[rank])


@pytest.mark.parametrize(
    ("case", "values", "messages"),
    [
        (of_other_shapes, [1.0, [1.0, 2.0]], ["sum of float32[] (Default)", "sum of float32[2] (Default)"]),
        (of_other_kinds, [0, 1], ["mean of int32[] (Default)", "broadcast from worker 1 of int32[] (Default)"]),
        (in_another_order, [0, 1], ["sum of float32[] (PopDistAllReduce_x_0)", "gather of int32[1, 2] ("]),
    ],
)
def test_differences_are_told_by_all_and_the_instances_go_on(workers, case, values, messages):
    for outcome in workers.outcomes(case, workers.each(values)):
        assert outcome.kinds[0] == "InvalidArgumentError", outcome
        for message in messages:
            assert message in outcome.message
    assert [total.tolist() for total in workers.call(of_other_shapes, 1.0)] == [2.0, 2.0]


def test_exchange_in_a_program_is_refused(workers):
    for outcome in workers.outcomes(in_a_program):
        assert outcome.kinds[0] == "RuntimeError"
        assert "`allreduce` is for tensors of the host, and is called in a program" in outcome.message


def test_one_instance_has_what_it_gives():
    value = tf.constant([1, 2])
    reduced = [ipu.distributed.allreduce(value, SUM), ipu.distributed.allreduce(value, MEAN)]
    for found in (*reduced, ipu.distributed.broadcast(value), ipu.distributed.allgather(value)[0]):
        assert found.numpy().tolist() == [1, 2]
    assert ipu.distributed.allgather(3).numpy().tolist() == [3]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ipu.distributed.allreduce(1.0, "MAX"), ValueError, "`reduce_op` must be .* is 'MAX'"),
        (lambda: ipu.distributed.allreduce(1.0, None), ValueError, "`reduce_op` must be .* is None"),
        (lambda: ipu.distributed.allreduce("a", SUM), TypeError, "`value` must hold numbers, and is of type string"),
        (lambda: ipu.distributed.allreduce(True, SUM), TypeError, "`value` must hold numbers, and is of type bool"),
        (lambda: ipu.distributed.broadcast(1.0, 1), ValueError, r"`root_rank` is \[1\], .* that take part: 0"),
        (lambda: ipu.distributed.broadcast(1.0, "0"), TypeError, "`root_rank` must be"),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
