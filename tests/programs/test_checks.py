"""Unsupported parts of programs, such as float64 inputs and resources of another device; and checks that end a run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import IPUStrategy

DOUBLE = tf.constant(1.0, tf.float64)


def kinds(function: Any) -> list[Any]:
    """Returns the function as each kind of graph function, compiled or not."""
    return [tf.function(function, jit_compile=jit_compile) for jit_compile in (None, False, True)]


ONE = tf.constant(1.0)


# It passed inside another graph function.
@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        (lambda x: tf.cast(x, tf.float32), DOUBLE, r"input: float64 \(`x:0` of shape .*`tf.cast`"),
        (lambda x: tf.cast(x, tf.float32), np.ones(2), "input: float64"),
        (lambda x: tf.cast(x, tf.float32), np.float64(0.5), "input: float64"),
        (lambda x: (x, {"y": tf.cast(x, tf.float64)}), ONE, "output: float64"),
        (lambda x: tf.cast(DOUBLE, tf.float32) + x, ONE, "input: float64"),
    ],
    ids=["tensor", "array", "scalar", "output", "captured"],
)
def test_float64_at_the_border_of_a_program_is_refused(function, value, message, strategy):
    for program in kinds(function):
        for call in (strategy.run, strategy.run, tf.function(strategy.run)):
            with pytest.raises(TypeError, match=f"Unsupported data type for {message}"):
                call(program, (value,))


def test_float64_of_keywords_and_concrete_functions_is_refused(strategy):
    program = tf.function(lambda x, scale=None: x if scale is None else tf.cast(scale, tf.float32) * x)
    with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
        strategy.run(program, (ONE,), {"scale": DOUBLE})
    assert strategy.run(program, (ONE,)).numpy() == 1
    for identity in kinds(lambda x: x):
        with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
            strategy.run(identity.get_concrete_function(tf.TensorSpec([], tf.float64)), (DOUBLE,))


def test_float64_inside_of_a_program_and_int64_anywhere_are_fine(strategy):
    def program(x: Any) -> Any:
        wide = tf.cast(x, tf.float64) / 3
        return tf.cast(wide * 3, tf.float32) + tf.cast(tf.cast(x, tf.int64) * 2**40 // 2**39, tf.float32)

    for function in kinds(program):
        assert strategy.run(function, (tf.constant(5.0),)).numpy() == pytest.approx(15)
    for function in kinds(lambda x: x + 2**40):
        result = strategy.run(function, (tf.constant(2, tf.int64),))
        assert (result.dtype, result.numpy()) == (tf.int64, 2**40 + 2)


WORDS = (
    r"the program runs on `.*IPU:0`, but uses variables \(or iterators, or queues\) of another device: {}"
    r" on `.*CPU:0`.*`strategy.scope\(\)`"
)


# For an argument, TensorFlow raised an error without a remedy.
def test_variable_that_was_made_outside_of_the_scope_is_refused(strategy):
    with strategy.scope():
        inside = tf.Variable(2.0, name="other")
    outside = tf.Variable(1.0, name="other")
    for program in kinds(lambda: outside + 1):
        with pytest.raises(ValueError, match=WORDS.format("`other:0`")):
            strategy.run(program)
        with pytest.raises(ValueError, match=WORDS.format("`other:0`")):
            tf.function(lambda program=program: strategy.run(program))()
    assert outside.assign_add(1).numpy() == 2
    for program in kinds(lambda first, second: first + second):
        assert strategy.run(program, (inside, inside)).numpy() == 4
        for _ in range(2):
            with pytest.raises(ValueError, match=WORDS.format("`second`")):
                strategy.run(program, (inside, outside))
        assert strategy.run(program, (inside, inside)).numpy() == 4
    # A variable of the same name hides no other, and all are named.
    for function in (lambda: outside + inside, lambda: inside + outside):
        with pytest.raises(ValueError, match=WORDS.format("`other:0`")):
            strategy.run(tf.function(function))
    with strategy.scope():
        third = tf.Variable(1.0, name="third")
    first = tf.Variable(1.0, name="first")
    with pytest.raises(ValueError, match=r"`first:0` on `.*`, `other:0` on") as info:
        strategy.run(tf.function(lambda: tf.add_n([outside, first, third])))
    assert "third" not in str(info.value)


# The error was only TensorFlow's: scopes must not nest, or strategies are mixed.
@pytest.mark.parametrize("built", [False, True])
def test_optimizer_that_was_made_outside_of_the_scope_is_refused(strategy, built):
    with strategy.scope():
        weight = tf.Variable(1.0)
    optimizer = tf.keras.optimizers.SGD(0.1)
    if built:
        optimizer.build([weight])
    step = tf.function(lambda: optimizer.apply_gradients([(tf.constant(1.0), weight)]), jit_compile=True)
    with pytest.raises(ValueError, match=r"an optimizer that was made outside of its scope.*`strategy.scope\(\)`"):
        strategy.run(step)
    with pytest.raises(ValueError, match="an optimizer that was made outside of its scope"):
        tf.function(lambda: strategy.run(step))()


def test_iterator_of_the_host_is_refused(strategy):
    iterator = iter(tf.data.Dataset.range(3))
    for program in kinds(lambda iterator: next(iterator)):
        with pytest.raises(ValueError, match=WORDS.format("`iterator`")):
            strategy.run(program, (iterator,))
    for program in kinds(lambda: next(iterator)):  # The error named `captured state 0`, and no line.
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\(`IteratorGetNext`\), at .*pass the program `iter"):
            strategy.run(program)
    assert next(iterator).numpy() == 0


def test_variable_of_another_ipu_device_is_refused(replicas):
    first, second = replicas(1, 1), ipu.IPUStrategy("/device:IPU:1")
    with second.scope():
        variable = tf.Variable(1.0)
    program = tf.function(lambda: variable + 1)
    assert second.run(program).numpy() == 2
    with pytest.raises(ValueError, match=r"runs on `.*IPU:0`, but uses variables .*on `.*IPU:1`"):
        first.run(program)
    assert second.run(program).numpy() == 2


X = tf.constant([1.0, -2.0, 3.0])


def positive(x: Any) -> Any:
    tf.debugging.assert_positive(x, "too low")
    return x + 1


def plainly(x: Any) -> Any:
    tf.Assert(tf.reduce_all(x > 0), ["low:", tf.cast(x, tf.int32)], summarize=2)
    return x + 1


def equal(x: Any) -> Any:
    tf.debugging.assert_equal(tf.cast(x, tf.int32), [1, 2, 3])
    return x + 1


def numeric(x: Any) -> Any:
    tf.debugging.check_numerics(tf.math.log(x), "of x")  # The result is unused.
    return x + 1


def used(x: Any) -> Any:
    return tf.exp(tf.debugging.check_numerics(tf.math.log(x), "of y"))


def in_a_loop(x: Any) -> Any:
    for _ in tf.range(3):
        positive(x)
        x -= 1.0
    return x


CASES = [
    (positive, [1, 2, 3], X, r"assertion failed: \[too low.*\[1 -2 3\]"),
    (plainly, [1, 2, 3], X, r"assertion failed: \[low:\] \[1 -2...\]"),
    (equal, [1, 2, 3], X, r"assertion failed: .*\[1 -2 3\].*\[1 2 3\]"),
    (numeric, [1, 2, 3], X, r"of x : Tensor had NaN values"),
    (used, [1, 2, 3], X, r"of y : Tensor had NaN values"),
    (in_a_loop, [4, 5, 6], [2, 3, 4], r"assertion failed: \[too low.*\[0 1 2\]"),
]


@pytest.mark.parametrize(
    ("function", "good", "bad", "message", "host_kernels"),
    [*((*case, True) for case in CASES), (*CASES[0], False), (*CASES[4], False)],
)
def test_check_ends_the_run_with_its_message(function, good, bad, message, host_kernels):
    strategy = IPUStrategy(host_kernels=host_kernels)
    program = tf.function(function)
    good = tf.constant(good, tf.float32)
    np.testing.assert_allclose(strategy.run(program, (good,)), program(good), rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s){message}") as failure:
        strategy.run(program, (tf.constant(bad, tf.float32),))
    assert re.search(r"(Assert|CheckNumerics\w*) `\S+` \(\S*test_checks.py:\d+\)", str(failure.value))


def test_variables_hold_what_they_had_at_some_step_when_a_check_ends_the_run(strategy):
    with strategy.scope():
        variable = tf.Variable(1.0)

    @tf.function(jit_compile=True)
    def program(most: Any) -> None:
        for _ in tf.range(4):
            variable.assign_add(1.0)
            tf.debugging.assert_less(variable, most)

    strategy.run(program, (tf.constant(9.0),))
    assert variable.numpy() == 5
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        strategy.run(program, (tf.constant(7.0),))
    assert variable.numpy() in (5, 6, 7)
    variable.assign(0.0)
    strategy.run(program, (tf.constant(9.0),))
    assert variable.numpy() == 4
