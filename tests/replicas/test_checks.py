"""What a program may not hold: float64 at its border, and state of another device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

DOUBLE = tf.constant(1.0, tf.float64)


def kinds(function: Any) -> list[Any]:
    """The function as each kind of graph function that may or may not be compiled by itself."""
    return [tf.function(function, jit_compile=jit_compile) for jit_compile in (None, False, True)]


ONE = tf.constant(1.0)


# Inside of a graph function it passed.
@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        (lambda x: tf.cast(x, tf.float32), DOUBLE, r"input: float64 \(`x:0` of shape .*`tf.cast`"),
        (lambda x: tf.cast(x, tf.float32), np.ones(2), "input: float64"),
        (lambda x: tf.cast(x, tf.float32), np.float64(0.5), "input: float64"),
        (lambda x: (x, {"y": tf.cast(x, tf.float64)}), ONE, "output: float64"),
        (lambda x: tf.cast(DOUBLE, tf.float32) + x, ONE, "input: float64"),
    ],
    ids=["tensor", "array", "scalar", "output", "captured"],
)
def test_float64_at_the_border_of_a_program_is_refused(function: Any, value: Any, words: str, strategy: Any) -> None:
    for program in kinds(function):
        for call in (strategy.run, strategy.run, tf.function(strategy.run)):
            with pytest.raises(TypeError, match=f"Unsupported data type for {words}"):
                call(program, (value,))


def test_float64_of_keywords_and_concrete_functions_is_refused(strategy: Any) -> None:
    program = tf.function(lambda x, scale=None: x if scale is None else tf.cast(scale, tf.float32) * x)
    with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
        strategy.run(program, (ONE,), {"scale": DOUBLE})
    assert strategy.run(program, (ONE,)).numpy() == 1
    for each in kinds(lambda x: x):
        with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
            strategy.run(each.get_concrete_function(tf.TensorSpec([], tf.float64)), (DOUBLE,))


def test_float64_inside_of_a_program_and_int64_anywhere_are_fine(strategy: Any) -> None:
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


def test_captured_variable_that_was_made_outside_of_the_scope_is_refused(strategy: Any) -> None:
    variable = tf.Variable(1.0, name="mine")
    for program in kinds(lambda: variable + 1):
        with pytest.raises(ValueError, match=WORDS.format("`mine:0`")):
            strategy.run(program)
        with pytest.raises(ValueError, match=WORDS.format("`mine:0`")):
            tf.function(lambda program=program: strategy.run(program))()
    assert variable.assign_add(1).numpy() == 2


# It got TensorFlow's own error, which does not say what to do.
def test_variable_that_was_made_outside_of_the_scope_is_refused_as_an_argument(strategy: Any) -> None:
    with strategy.scope():
        mine = tf.Variable(2.0)
    other = tf.Variable(1.0)
    for program in kinds(lambda first, second: first + second):
        assert strategy.run(program, (mine, mine)).numpy() == 4
        for _ in range(2):
            with pytest.raises(ValueError, match=WORDS.format("`second`")):
                strategy.run(program, (mine, other))
        assert strategy.run(program, (mine, mine)).numpy() == 4


def test_all_variables_of_another_device_are_named_and_one_of_the_same_name_hides_none(strategy: Any) -> None:
    with strategy.scope():
        mine, third = tf.Variable(1.0), tf.Variable(1.0, name="third")
    other, first = tf.Variable(1.0), tf.Variable(1.0, name="first")
    assert mine.name == other.name
    for function in (lambda: other + mine, lambda: mine + other):
        with pytest.raises(ValueError, match=WORDS.format("`Variable:0`")):
            strategy.run(tf.function(function))
    with pytest.raises(ValueError, match=r"`Variable:0` on `.*`, `first:0` on") as info:
        strategy.run(tf.function(lambda: tf.add_n([other, first, third])))
    assert "third" not in str(info.value)


# Only TensorFlow's words came: that scopes must not nest, or that strategies are mixed.
@pytest.mark.parametrize("built", [False, True])
def test_optimizer_that_was_made_outside_of_the_scope_is_refused(strategy: Any, built: bool) -> None:
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


def test_iterator_of_the_host_is_refused(strategy: Any) -> None:
    iterator = iter(tf.data.Dataset.range(3))
    for program in kinds(lambda iterator: next(iterator)):
        with pytest.raises(ValueError, match=WORDS.format("`iterator`")):
            strategy.run(program, (iterator,))
    for program in kinds(lambda: next(iterator)):
        with pytest.raises(ValueError, match=WORDS.format("`captured state 0`")):
            strategy.run(program)
    assert next(iterator).numpy() == 0


def test_variable_of_another_ipu_device_is_refused(replicas: Any) -> None:
    first, second = replicas(1, 1), ipu.IPUStrategy("/device:IPU:1")
    with second.scope():
        variable = tf.Variable(1.0)
    program = tf.function(lambda: variable + 1)
    assert second.run(program).numpy() == 2
    with pytest.raises(ValueError, match=r"runs on `.*IPU:0`, but uses variables .*on `.*IPU:1`"):
        first.run(program)
    assert second.run(program).numpy() == 2
