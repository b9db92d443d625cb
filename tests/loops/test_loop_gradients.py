"""Gradients through `loops.repeat` and inside of its body."""

import numpy as np
import tensorflow as tf

from tensorflow_ipu.loops import repeat


# XLA does not know how much to keep for a loop without a limit, and refused to compile the gradient.
def test_loops_of_a_known_number_of_iterations_have_gradients_nested_and_over_a_range(run):
    def program(x):
        found = []
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = repeat(2, lambda a: repeat(3, lambda b: b * x, [a]), [x])
            for _ in tf.range(3):
                y = y * x
        found.append(tape.gradient(y, x))
        for n in (3, tf.constant(3), np.int64(3)):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = repeat(n, lambda value: value * x, [x])
            found += [y, tape.gradient(y, x)]
        return found

    assert [value.numpy() for value in run(program, tf.constant(2.0))] == [10 * 2**9, *[16, 32] * 3]


def test_gradient_of_a_loop_with_data_and_variables_is_that_of_tensorflow(strategy, run, infeed_of):
    rows = np.random.default_rng(0).normal(size=[4, 3]).astype(np.float32)
    with strategy.scope():
        weight = tf.Variable([1.0, -2.0, 0.5])
    queue = infeed_of(tf.data.Dataset.from_tensor_slices(rows))

    def program():
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


def test_gradients_are_taken_in_the_body_and_applied_there(strategy, run):
    with strategy.scope():
        weight = tf.Variable(4.0)
        optimizer = tf.keras.optimizers.SGD(0.25)

    def body():
        with tf.GradientTape() as tape:
            loss = weight * weight
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    def program():
        repeat(3, body)

    run(program)
    assert weight.numpy() == 0.5
