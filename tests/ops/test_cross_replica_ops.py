"""Collectives over replicas against NumPy: sums, means, broadcasts, all-gather and all-to-all."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import ReplicaGroups
from tensorflow_ipu.ops.all_to_all_op import all_gather, all_to_all
from tensorflow_ipu.ops.cross_replica_ops import (
    assume_equal_across_replicas,
    cross_replica_broadcast,
    cross_replica_mean,
    cross_replica_sum,
)

# Types in which sums of small integers are exact.
NUMBERS = [
    *(tf.as_dtype(f"{kind}{bits}").as_numpy_dtype for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *(dtype.as_numpy_dtype for dtype in (tf.bfloat16, tf.float16, tf.float32, tf.float64)),
]


def members(replicas, groups):
    everyone = np.arange(replicas)
    if groups.size is None:
        return [everyone.tolist()]
    if groups.orthogonal:
        return everyone.reshape(groups.size, -1).T.tolist()
    return everyone.reshape(-1, groups.size).tolist()


def test_sum_and_mean_of_every_type_of_number(replicated, arrays):
    replicas = 16
    values = [arrays(replicas, [33], dtype) for dtype in NUMBERS]
    of_int8 = [np.array([-5, 100, 7], np.int8), np.array([0, 120, 8], np.int8)] * (replicas // 2)
    halves = [np.array(pair, np.float16) for pair in ([2048, 60000], [1, 60000], *[[0, 60000]] * 13, [1, 60000])]

    def program(*xs):
        means = cross_replica_mean(xs[-3]), cross_replica_mean(xs[-2], 2), cross_replica_mean(xs[-1])
        return [*map(cross_replica_sum, xs[:-2]), cross_replica_sum(xs[-1]), *means]

    for *sums, of_halves, mean, mean_of_int8, mean_of_halves in replicated(
        program, list(zip(*values, of_int8, halves, strict=True))
    ):
        for result, operands, dtype in zip(sums, values, NUMBERS, strict=True):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, np.sum(np.asarray(operands, np.float64), 0).astype(dtype))
        np.testing.assert_array_equal(mean, sums[-1] / replicas)
        assert mean_of_int8.tolist() == [-2, 110, 7]  # Means are rounded toward zero.
        assert of_halves.tolist() == [2050, np.inf]  # The sum is computed in float32.
        assert mean_of_halves[1] == 60000


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_shape_type_and_group(replicated, arrays, data):
    replicas = data.draw(st.sampled_from([2, 3, 4, 6]))
    size = data.draw(st.sampled_from([k for k in range(1, replicas + 1) if replicas % k == 0]))
    groups = ReplicaGroups(size, data.draw(st.booleans()))
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
    dtype = data.draw(st.sampled_from(NUMBERS))
    values = arrays(replicas, shape, dtype)
    results = replicated(lambda x: cross_replica_sum(x, groups), [(value,) for value in values])
    for group in members(replicas, groups):
        expected = np.sum([values[member].astype(np.float64) for member in group], 0).astype(dtype)
        for replica in group:
            np.testing.assert_array_equal(results[replica], expected)


def test_broadcasts_sums_of_all_and_inputs_that_are_used_again(replicated, arrays):
    values = arrays(4, [2, 3])
    flags = arrays(4, [5], np.bool_)

    def program(x, flag):
        return (
            cross_replica_broadcast(x, root=2),
            cross_replica_broadcast(flag, 1, replica_group_size=2),
            cross_replica_sum(x, replica_group_size=0) + x,
            cross_replica_mean(x, replica_group_size=0),
            x,
        )

    results = replicated(program, list(zip(values, flags, strict=True)))
    for replica, (value, flag, total, mean, x) in enumerate(results):
        np.testing.assert_array_equal(value, values[2])
        np.testing.assert_array_equal(flag, flags[replica // 2 * 2 + 1])
        np.testing.assert_array_equal(x, values[replica])
        np.testing.assert_array_equal(total, sum(values) + x)
        np.testing.assert_array_equal(mean, sum(values) / 4)


@pytest.mark.parametrize("size", [1000, 200_000])
def test_sums_are_the_same_to_the_bit_in_every_run(start, trace, size):
    random = np.random.default_rng(1)
    values = [(random.normal(size=size) * 10.0 ** random.integers(-8, 8, size)).astype(np.float32) for _ in range(8)]
    expected = values[0]
    for value in values[1:]:
        expected = expected + value
    program = trace(cross_replica_sum, tf.TensorSpec([size]))
    for _ in range(3):
        for result in start([program] * 8, [(value,) for value in values]).wait():
            assert result.tobytes() == expected.tobytes()


def test_gradients_take_the_way_back(replicated):
    def looped(x):
        for _ in tf.range(3):
            x = cross_replica_mean(x) * 2.0
        return x

    functions = {
        lambda x: cross_replica_sum(tf.square(x)): [120, 240, 360, 480],
        lambda x: cross_replica_mean(x, replica_group_size=2): [5, 5, 25, 25],
        lambda x: cross_replica_broadcast(x, root=1): [0, 60, 0, 0],
        looped: [120] * 4,
    }

    def program(x, weight):
        gradients = []
        for function in functions:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = weight * tf.autograph.to_graph(function)(x)
            gradients.append(tape.gradient(loss, x))
        return tf.stack(gradients)

    gradients = replicated(program, [(np.float32(r + 1), np.float32(10 * r)) for r in range(4)])
    np.testing.assert_array_equal(np.transpose(gradients), list(functions.values()))


@pytest.mark.parametrize("replicas", [1, 2])
def test_sessions_sum_in_programs_loops_and_gradients_and_without_a_program(replicas, configure, refused):
    configure(replicas)

    def body(x):
        _, x = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, cross_replica_sum(x) * 2.0), [0, x])
        return x, tf.compat.v1.gradients(cross_replica_mean(x * x), [x])[0]

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            alone = cross_replica_sum(tf.constant([1.0, 2.0])), cross_replica_mean(tf.constant(3.0))
            compiled = ipu.compiler.compile(body, [tf.constant(1.0)])
        # A device named around a session does not reach into its graph.
        unplaced = cross_replica_sum(tf.constant([1.0, 2.0]))
        with tf.device("/device:CPU:0"):
            elsewhere = cross_replica_sum(tf.constant(1.0))
        refused(tf.errors.FailedPreconditionError, "IpuAllReduce", session.run, elsewhere)
        np.testing.assert_array_equal(session.run(unplaced), [replicas, 2.0 * replicas])
        total, mean = session.run(alone)
        np.testing.assert_array_equal(total, [replicas, 2.0 * replicas])
        assert mean == 3.0
        for _ in range(2):
            results = np.ravel(session.run(compiled))
            assert set(results) == {(2.0 * replicas) ** 3, 2 * (2.0 * replicas) ** 3}


def test_a_group_root_or_factor_that_cannot_be_is_refused_when_the_program_runs(replicated, strategy, refused):
    invalid = tf.errors.InvalidArgumentError
    for count, message, function in (
        (4, r"group size \(3\) does not divide .* replicas \(4\)", lambda x: cross_replica_sum(x, 3)),
        (2, "`root` is 2", lambda x: cross_replica_broadcast(x, root=2)),
        (2, "group size", lambda x: all_gather(x, 4)),
    ):
        refused(invalid, message, replicated, function, [(np.float32(0),)] * count)
    for function in (cross_replica_sum, all_gather):
        program = tf.function(lambda x, function=function: function(x, 2), jit_compile=True)
        refused(invalid, "group size", strategy.run, program, (tf.constant(0.0),))


def test_bad_arguments_are_refused_when_the_program_is_traced(refused):
    scalar = tf.constant(1.0)
    with tf.Graph().as_default():
        for error, message, call in (
            (ValueError, "`replica_group_size`", lambda: cross_replica_sum(tf.constant(1.0), -1)),
            (TypeError, "`replica_group_size`", lambda: cross_replica_mean(tf.constant(1.0), 2.0)),
            (TypeError, "`replica_group_size`", lambda: cross_replica_mean(tf.constant(1.0), True)),
            (TypeError, "bool", lambda: cross_replica_sum(tf.constant(True))),
            (TypeError, "complex64", lambda: cross_replica_broadcast(tf.constant(1j, tf.complex64))),
            (ValueError, "`root`", lambda: cross_replica_broadcast(tf.constant(1.0), -1)),
            (ValueError, "`root`", lambda: cross_replica_broadcast(tf.constant(1.0), 2, 2)),
            (TypeError, "`root`", lambda: cross_replica_broadcast(tf.constant(1.0), 1.0)),
            (TypeError, "`orthogonal`", lambda: ReplicaGroups(2, orthogonal=1)),
            (ValueError, "`size`", lambda: ReplicaGroups(0)),
            (ValueError, f"`size` must be at most 65536 replicas, but is {2**63}", lambda: ReplicaGroups(2**63)),
        ):
            refused(error, message, call)
    for function in (cross_replica_sum, cross_replica_mean, cross_replica_broadcast):
        refused(RuntimeError, f"`{function.__name__}` can only be called in a program", function, scalar)
    refused(tf.errors.FailedPreconditionError, r"IPUStrategy\.run", tf.function(cross_replica_sum), scalar)


def test_assume_equal_keeps_structure_and_values(replicated, refused):
    tensors = {"a": tf.constant(1.0), "b": [tf.constant(2.0)]}
    assert assume_equal_across_replicas(tensors, inplace=True) is tensors
    copies = assume_equal_across_replicas(tensors)
    assert copies["b"][0].numpy() == 2.0
    assert copies["a"] is not tensors["a"]
    refused(TypeError, "`inplace`", assume_equal_across_replicas, tensors, 1)
    assert replicated(assume_equal_across_replicas, [(np.float32(r),) for r in range(2)]) == [0.0, 1.0]


def all_to_all_of(values, split, concat):
    parts = [np.split(value, len(values), split) for value in values]
    return [np.concatenate([of_replica[rank] for of_replica in parts], concat) for rank in range(len(values))]


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
    for result, expected in zip(results, all_to_all_of(values, split, concat), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_all_to_all_takes_a_shape_that_is_unknown_when_the_program_is_traced(replicated, arrays):
    values = arrays(2, [3, 4])
    unknown = tf.function(lambda x: x + 0.0, input_signature=[tf.TensorSpec(None, tf.float32)])
    results = replicated(lambda x: all_to_all(unknown(x), 1, 0, 2), [(value,) for value in values])
    for result, expected in zip(results, all_to_all_of(values, 1, 0), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_exchanges_in_groups_and_of_each_of_a_list(replicated, arrays):
    values, flags, pairs = arrays(4, [3]), arrays(4, [], np.bool_), arrays(4, [2, 3])
    across = ReplicaGroups(2, orthogonal=True)

    def program(x, flag, pair):
        gathered = all_gather([x, flag, x[:, None] * tf.zeros([0])], 4)
        assert isinstance(gathered, list)
        return all_gather(x, 2), all_gather(x, across), all_gather(x, 1), all_to_all(pair, 0, 0, across), gathered

    results = replicated(program, list(zip(values, flags, pairs, strict=True)))
    for replica, (near, far, single, received, gathered) in enumerate(results):
        for actual, expected in zip(gathered, (values, flags, np.zeros([4, 3, 0])), strict=True):
            np.testing.assert_array_equal(actual, np.stack(expected))
        np.testing.assert_array_equal(near, np.stack(values[replica // 2 * 2 :][:2]))
        np.testing.assert_array_equal(far, np.stack(values[replica % 2 :: 2]))
        np.testing.assert_array_equal(single, values[replica][None])
        np.testing.assert_array_equal(received, all_to_all_of(pairs[replica % 2 :: 2], 0, 0)[replica // 2])


def test_gradients_are_the_exchange_backwards_and_the_sum_of_what_all_replicas_want(replicated, arrays):
    values, weights, of_gathered = arrays(2, [4, 3]), arrays(2, [2, 6], seed=1), arrays(2, [2, 4, 3], seed=1)

    def program(x, weight, of_gathered):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            exchanged_loss = tf.reduce_sum(weight * all_to_all(x, 0, 1, 2))
            gathered_loss = tf.reduce_sum(of_gathered * all_gather(x, 2))
        return tape.gradient(exchanged_loss, x), tape.gradient(gathered_loss, x)

    results = replicated(program, list(zip(values, weights, of_gathered, strict=True)))
    for replica, expected in enumerate(all_to_all_of(weights, 1, 0)):
        np.testing.assert_array_equal(results[replica][0], expected)
        np.testing.assert_array_equal(results[replica][1], of_gathered[0][replica] + of_gathered[1][replica])


def test_a_single_replica_exchanges_with_itself(strategy):
    program = tf.function(lambda x: (all_gather(x, 1), all_to_all(x, 0, 1, 1)), jit_compile=True)
    gathered, received = strategy.run(program, (tf.constant([[1.0, 2.0]]),))
    np.testing.assert_array_equal(gathered, [[[1.0, 2.0]]])
    np.testing.assert_array_equal(received, [[1.0, 2.0]])


def test_dimensions_and_factors_that_cannot_be_are_refused_when_the_program_is_traced(refused):
    with tf.Graph().as_default():
        x = tf.zeros([4, 3])
        for error, message, function, arguments in (
            *((ValueError, "`split_dimension`", all_to_all, (dimension, 0, 2)) for dimension in (-1, 2)),
            *((ValueError, "`concat_dimension`", all_to_all, (0, dimension, 2)) for dimension in (-1, 2)),
            (TypeError, "`split_dimension`", all_to_all, (0.0, 0, 2)),
            (ValueError, "`replication_factor` must divide .*, but is 2", all_to_all, (1, 0, 2)),
            *((TypeError, "`replication_factor`", all_gather, (factor,)) for factor in (None, 1.5, ReplicaGroups())),
            (ValueError, "`replication_factor`", all_gather, (0,)),
        ):
            refused(error, message, function, x, *arguments)
        refused(ValueError, "`x`", all_gather, [], 2)
    for call in (lambda: all_gather(tf.zeros([2]), 1), lambda: all_to_all(tf.zeros([2]), 0, 0, 1)):
        refused(RuntimeError, "can only be called in a program", call)
