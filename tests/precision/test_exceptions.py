"""Floating-point exceptions: the operations that raise them, their messages, and the restored variables."""

import collections
import os
import re

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._tensorflow import profiler
from tensorflow_ipu.config import IPUConfig, StochasticRoundingBehaviour
from tensorflow_ipu.ops import cross_replica_ops, replication_ops

HALF = tf.float16


def configure(*names, ipus=1):
    config = IPUConfig()
    config.auto_select_ipus = ipus
    for name in names:
        setattr(config.floating_point_behaviour, name, StochasticRoundingBehaviour.ON if name == "esr" else True)
    config.configure_ipu_system()


def run(function, *args):
    return ipu.IPUStrategy().run(tf.function(function, jit_compile=True), args)


def stopped(function, *args):
    with pytest.raises(tf.errors.InvalidArgumentError, match="Floating point exception") as caught:
        run(function, *args)
    return str(caught.value)


def half(*values):
    return tf.constant(values, HALF)


def single(*values):
    return tf.constant(values, tf.float32)


@pytest.mark.parametrize(
    ("name", "function", "args", "words"),
    [
        ("oflo", lambda x: x * x, [half(1, 300)], "Mul .* gave 90000"),
        ("oflo", lambda x: tf.cast(x, HALF), [single(1, 70000)], "Cast .* gave 70000"),
        ("oflo", lambda x: tf.exp(x), [half(1, 12)], "Exp .* gave 1.6275e"),
        ("oflo", lambda x: tf.matmul([x], [x], transpose_b=True), [half(200, 200)], "MatMul .* gave 80000"),
        ("oflo", lambda x: tf.reduce_sum(x), [half(60000, 60000)], "Sum .* gave 1.2e"),
        ("inv", lambda x: x - x, [half(1, np.inf)], "Sub .* gave a NaN"),
        ("inv", lambda x: x / x, [single(1, 0)], "RealDiv .* gave a NaN"),
        ("inv", lambda x: tf.math.log(x), [single(1, -1)], "Log .* gave a NaN"),
        ("inv", lambda x: tf.sqrt(x), [half(1, -1)], "Sqrt .* gave a NaN"),
        ("inv", lambda x: tf.matmul([x], [[0.0], [1.0]]), [single(np.inf, 1)], "MatMul .* gave a NaN"),
        ("div0", lambda x: 1 / x, [half(1, 0)], "RealDiv .* divided by zero"),
        ("div0", lambda x: 1 / x, [single(1, 0)], "RealDiv .* divided by zero"),
        ("div0", lambda x: tf.math.log(x), [single(1, 0)], "Log .* divided by zero"),
        ("div0", lambda x: tf.math.rsqrt(x), [half(1, 0)], "Rsqrt .* divided by zero"),
        # Exceptions are detected even if no later value is infinite or a NaN.
        ("oflo", lambda x: tf.nn.relu(-x * x), [half(1, 300)], "Mul .* gave 90000"),
        ("oflo", lambda x: 1 / (x * x), [half(1, 300)], "Mul .* gave 90000"),
        ("oflo", lambda x: tf.tanh(tf.reduce_sum(x * x)) + 1, [half(1, 300)], "Mul .* gave 90000"),
        ("oflo", lambda x: tf.exp(-tf.cast(x * x, tf.float32) * 2), [half(1, 300)], "Mul .* gave 90000"),
        ("oflo", lambda x: tf.where(x > 2, x, x * x), [half(1, 300)], "Mul .* gave 90000"),
        ("oflo", lambda x: (x * x)[:1], [half(1, 300)], "Mul .* gave 90000"),
        ("oflo", lambda x: x * x - 60000, [half(1, 300)], "Mul .* gave 90000"),
        ("div0", lambda x: tf.cast(tf.cast(1 / x > 1, tf.int32), HALF), [half(1, 0)], "divided by zero"),
        ("inv", lambda x: tf.maximum(tf.sqrt(x), 1), [half(1, -1)], "gave a NaN"),
    ],
)
def test_an_operation_stops_the_program(name, function, args, words):
    configure(name)
    message = stopped(function, *args)
    assert re.search(words, message), message
    assert f"({name})" in message
    assert re.search(r"`[\w/]+` \(test_exceptions\.py:\d+\)", message), message


def test_what_was_there_before_stops_nothing():
    configure("inv", "div0", "oflo")
    cases = [
        (lambda x: x + 1, half(np.nan, np.inf, -np.inf)),
        (lambda x: tf.matmul([x], [[1.0], [1.0]]), single(np.nan, 1)),
        (lambda x: tf.matmul([x], [[1.0], [1.0]]), single(np.inf, 1)),
        (lambda x: tf.reduce_sum(x), half(np.nan, 1)),
        (lambda x: tf.cast(x, HALF), single(np.inf, np.nan, 65504)),
        (lambda x: tf.where(x > 1, x, 0.0), half(np.inf, 1)),
        (lambda x: x * 2, half(32752)),
        (lambda x: 1 / x, single(1e-38, 2)),
    ]
    functions = [function for function, _ in cases]
    run(lambda *values: [function(x) for function, x in zip(functions, values, strict=True)], *(x for _, x in cases))


def test_masks_of_infinities_go_through_as_they_are():
    configure("inv", "div0", "oflo")
    x = half(1, 2, -np.inf, 3)
    got = run(lambda x: (tf.nn.softmax(x), x - 1, tf.nn.relu(tf.where(x > 2, half(np.inf), x) * 2)), x)
    exponentials = np.exp(np.array([1, 2, 3], np.float32) - 3)
    np.testing.assert_allclose(
        got[0], [*(exponentials / exponentials.sum())[:2], 0, (exponentials / exponentials.sum())[2]], atol=1e-3
    )
    assert got[1].numpy().tolist() == [0, 1, -np.inf, 2]
    assert got[2].numpy().tolist() == [2, 4, 0, np.inf]


# An operation of TensorFlow may compute two results and select one. For example, `Erfc` divides by zero if it is 1.
@pytest.mark.parametrize("options", [[], ["esr"]])
def test_what_an_operation_computes_and_discards_stops_nothing(options):
    configure("inv", "div0", "oflo", *options)
    gamma = tf.constant([1.0, 2.0, 5.0])
    got = run(lambda x, y: (tf.math.erfc(x), tf.nn.selu(100 * x), tf.math.lgamma(y)), half(0, 1), gamma)
    np.testing.assert_allclose(got[0], [1, 0.1573], rtol=2e-3)
    np.testing.assert_allclose(got[1], [0, 105.07], rtol=2e-3)
    np.testing.assert_allclose(got[2], [0, 0, np.log(24)], atol=1e-5)
    assert "Lgamma `Lgamma`" in stopped(tf.math.lgamma, tf.constant([0.0]))


# In an earlier version, the check found its operands by name, but loops of XLA's library have no names.
def test_loops_without_names_are_checked_too():
    configure("inv")
    matrix = tf.random.stateless_normal([4, 4], [1, 2])
    np.testing.assert_allclose(run(lambda x: tf.linalg.svd(x)[0], matrix), tf.linalg.svd(matrix)[0], rtol=1e-4)


# In an earlier version, a value with several readers was not restored.
def test_a_variable_whose_new_value_is_read_again_is_restored():
    configure("oflo")
    with ipu.IPUStrategy().scope():
        weights = tf.Variable(half(200))

    def step():
        doubled = weights * 2
        weights.assign(doubled)
        return doubled * doubled, doubled + 1

    stopped(step)
    assert weights.numpy().tolist() == [200]


def test_layers_that_the_host_computes_stop_the_program():
    images, weights = tf.fill([2, 40, 40, 16], tf.constant(300, HALF)), tf.fill([3, 3, 16, 16], tf.constant(30, HALF))
    configure("inv", "oflo")
    assert re.search(
        "Conv2D `Conv2D` .* gave 1.296e", stopped(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), images, weights)
    )
    run(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), images / 0, weights / 30)  # Infinities in the inputs do not count.


def test_what_rounds_at_random_overflows_where_it_rounds_up():
    configure("oflo", "esr")
    x = tf.fill([200], 65516.0)  # 3/8 of the elements round to 65536.
    assert re.search("Cast .* gave 65536", stopped(lambda x: tf.cast(x, HALF), x))
    run(lambda x: tf.cast(x, HALF), tf.fill([200], 65504.0))


def test_what_is_not_asked_for_stops_nothing():
    configure("div0")
    assert run(lambda x: x * x, half(300)).numpy() == 65504
    configure("oflo")
    assert np.isnan(run(lambda x: x / x, single(0)).numpy())
    configure("inv", "nanoo")
    assert np.isnan(run(lambda x: x * x + 1, half(300)).numpy())


def test_the_first_operation_of_the_program_is_named():
    configure("inv", "div0", "oflo")

    def function(x):
        y = tf.identity(x) * 2
        z = tf.multiply(y, y, name="first")
        return tf.multiply(z, z, name="second") / tf.zeros_like(x)

    assert "Mul `first`" in stopped(function, half(200))


def test_the_program_that_finds_the_operation_is_compiled_once_though_several_runs_stop(tmp_path):
    configure("oflo")
    strategy = ipu.IPUStrategy()
    function = tf.function(lambda x: x * x, jit_compile=True)
    strategy.run(function, (half(1, 2),))
    profiler.start(os.fspath(tmp_path))
    try:
        for value in (300, 400, 500):
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"gave {value * value:.5g}"[:10]):
                strategy.run(function, (half(1, value),))
    finally:
        profiler.stop()
    events = collections.Counter(event.name for event in profiler.measured(os.fspath(tmp_path)))
    assert events["CpuCompiler::RunBackend"] == 1


def test_variables_are_as_they_were_before_the_step():
    configure("oflo")
    with ipu.IPUStrategy().scope():
        weights = tf.Variable(tf.ones([3], HALF))
        steps = tf.Variable(0)

    def train():
        for _ in tf.range(100):
            gradient = weights * 4
            steps.assign_add(1)
            weights.assign_add(weights)
            weights.assign_add(gradient * 0)

    message = stopped(train)
    assert "gave 65536" in message
    assert "in iteration 14 of the loop `while`" in message
    assert steps.numpy() == 14
    assert (weights.numpy() == 2.0**14).all()
    weights.assign(tf.ones([3], HALF))
    assert "in iteration 14 of the loop" in stopped(train)


# In an earlier version, a value that moved to another variable counted as unchanged, and both variables got the same
# value.
@pytest.mark.parametrize("loops", [False, True])
def test_variables_that_change_places_are_as_they_were_before_the_step(loops):
    configure("div0")
    with ipu.IPUStrategy().scope():
        first, second = tf.Variable(half(1, 2)), tf.Variable(half(3, 4))

    def swap(divisor):
        original = first + 0
        first.assign(second)
        second.assign(original)
        return 1 / divisor

    def program(divisor):
        if not loops:
            return swap(divisor)
        for _ in tf.range(3):
            swap(divisor)
            divisor -= 1
        return divisor

    run(program, half(9, 8))
    np.testing.assert_array_equal([first, second], [[3, 4], [1, 2]])
    assert "divided by zero" in stopped(program, half(7, 1 if loops else 0))
    # Of the loop, the second iteration stops, so the variables have swapped once.
    np.testing.assert_array_equal([first, second], [[1, 2], [3, 4]] if loops else [[3, 4], [1, 2]])


def test_a_program_of_one_step_or_with_a_branch_leaves_variables_alone():
    configure("inv", "div0", "oflo")
    with ipu.IPUStrategy().scope():
        weights = tf.Variable(tf.ones([3]))

    def step(x):
        weights.assign_sub(x)
        weights.assign(weights / (x - 2))

    def branching(x):
        for _ in tf.range(2):
            if x[0] < 1:
                weights.assign(1 / x)
            else:
                weights.assign(x)

    stopped(step, single(1, 2, 3))
    assert (weights.numpy() == 1).all()
    run(step, single(1, 1, 1))
    assert (weights.numpy() == 0).all()
    assert "divided by zero" in stopped(branching, single(0, 0, 0))
    assert (weights.numpy() == 0).all()
    run(branching, single(3, 3, 3))
    assert (weights.numpy() == 3).all()


def test_micro_batches_that_stop_leave_the_weights_of_the_whole_step():
    configure("oflo")
    with ipu.IPUStrategy().scope():
        weights = tf.Variable(tf.ones([2], HALF))

    def train():
        for step in tf.range(4):
            total = tf.zeros([2], HALF)
            for micro_batch in tf.range(3):
                scale = tf.where((step == 2) & (micro_batch == 1), 60000.0, 1.0)
                total += weights * tf.cast(scale, HALF)
            weights.assign_add(total)

    message = stopped(train)
    assert re.search(r"in iteration 1 of the loop `[^`]+`, in iteration 2 of the loop `while`", message), message
    assert (weights.numpy() == 16).all()


def test_what_a_loop_in_the_step_had_updated_stays_and_the_message_says_so():
    configure("oflo")
    with ipu.IPUStrategy().scope():
        looped, outside = tf.Variable(0.0), tf.Variable(0.0)

    def step(x):
        outside.assign_add(1)
        for _ in tf.range(3):
            looped.assign_add(1)
        return x * x

    message = stopped(step, half(1, 300))
    assert "as they were before that step, except for those that a loop in it had already updated" in message
    assert (looped.numpy(), outside.numpy()) == (3, 0)


def test_replicas_stop_together_and_the_message_says_which():
    configure("oflo", ipus=2)
    with ipu.IPUStrategy().scope():
        weights = tf.Variable([1.0])

    def train():
        for step in tf.range(4):
            value = tf.cast(300 * replication_ops.replication_index() * step, HALF)
            gradient = cross_replica_ops.cross_replica_sum(tf.cast(value * value, tf.float32))
            weights.assign_add([gradient])

    message = stopped(train)
    assert "on replica 1" in message
    assert "gave 90000" in message
    assert "in iteration 1 of the loop" in message
