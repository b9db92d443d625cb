"""Gradients through `loops.repeat` and inside of its body."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.loops import repeat


# XLA does not know how much to keep for a loop without a limit, and refused to compile the gradient.
@pytest.mark.parametrize("n", [3, tf.constant(3), np.int64(3)], ids=["int", "tensor", "numpy"])
def test_loop_of_a_known_number_of_iterations_has_a_gradient(n: Any, run: Any) -> None:
    def program(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = repeat(n, lambda value: value * x, [x])
        return y, tape.gradient(y, x)

    assert [value.numpy() for value in run(program, tf.constant(2.0))] == [16, 32]


def test_nested_loops_and_those_over_a_range_have_gradients(run: Any) -> None:
    def program(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = repeat(2, lambda a: repeat(3, lambda b: b * x, [a]), [x])
            for _ in tf.range(3):
                y = y * x
        return tape.gradient(y, x)

    assert run(program, tf.constant(2.0)).numpy() == 10 * 2**9


def test_gradient_of_a_loop_with_data_and_variables_is_that_of_tensorflow(
    strategy: Any, run: Any, infeed_of: Any
) -> None:
    rows = np.random.default_rng(0).normal(size=[4, 3]).astype(np.float32)
    with strategy.scope():
        weight = tf.Variable([1.0, -2.0, 0.5])
    queue = infeed_of(tf.data.Dataset.from_tensor_slices(rows))

    def program() -> Any:
        with tf.GradientTape() as tape:
            loss = repeat(4, lambda total, row: tf.tanh(total + tf.reduce_sum(row * weight)), [0.0], queue)
        return tape.gradient(loss, weight)

    plain = tf.constant([1.0, -2.0, 0.5])
    with tf.GradientTape() as tape:
        tape.watch(plain)
        total = tf.constant(0.0)
        for row in rows:
            total = tf.tanh(total + tf.reduce_sum(row * plain))
    np.testing.assert_allclose(run(program), tape.gradient(total, plain), rtol=1e-5)


def test_gradients_are_taken_in_the_body_and_applied_there(strategy: Any, run: Any) -> None:
    with strategy.scope():
        weight = tf.Variable(4.0)
        optimizer = tf.keras.optimizers.SGD(0.25)

    def body() -> Any:
        with tf.GradientTape() as tape:
            loss = weight * weight
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    def program() -> None:
        repeat(3, body)

    run(program)
    assert weight.numpy() == 0.5
