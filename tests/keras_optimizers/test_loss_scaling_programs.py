"""Loss scaling in programs: on replicas, with accumulated gradients, and Keras's own beside it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.layers import CaptureUpstreamGradients
from tensorflow_ipu.keras.optimizers import (
    ALSGradientAccumulationOptimizer,
    ALSOptimizer,
    CrossReplicaOptimizer,
    GradientAccumulationOptimizer,
    LossScaleOptimizer,
)

SGD = keras.optimizers.SGD


@pytest.mark.parametrize("count", [1, 2])
def test_a_model_trains_as_without_it(trained_on, regression, replicas, count):
    expected = trained_on(count, lambda: keras.optimizers.Adam(0.1))
    inputs, targets = regression
    strategy = replicas(count)
    with strategy.scope():
        weights = [keras.Variable(np.ones((3, 1), np.float32)), keras.Variable(np.zeros(1, np.float32))]
        optimizer = ALSOptimizer(keras.optimizers.Adam(0.1), 4, update_frequency=2)
        batches = iter(tf.data.Dataset.from_tensor_slices((inputs, targets)))

        @tf.function(jit_compile=True)
        def program(batches):
            for _ in tf.range(8 // count):
                x, y = next(batches)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((tf.matmul(x, weights[0].value) + weights[1].value - y) ** 2)
                    loss = optimizer.get_scaled_loss(loss)
                gradients = tape.gradient(loss, [weight.value for weight in weights])
                optimizer.apply_gradients(zip(gradients, weights, strict=True))

        strategy.run(program, args=(batches,))
    for ours, plain in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), plain, rtol=1e-5, atol=1e-6)
    assert optimizer.loss_scaling_factor.numpy() == 4 * 2 ** (8 // count // 3)  # Each third changes it.


def test_replicas_skip_and_scale_together(replicas):
    strategy = replicas(2)
    with strategy.scope():
        weight = keras.Variable(0.0)
        optimizer = ALSOptimizer(SGD(1.0), 2, update_frequency=1)
        results = ipu.IPUOutfeedQueue()
        # Replica 0 has the first of each pair.
        gradients = iter(tf.data.Dataset.from_tensor_slices([2.0, 2.0, np.inf, 4.0, 2.0, 2.0]))

        @tf.function(jit_compile=True)
        def program(gradients):
            for _ in tf.range(3):
                optimizer.apply_gradients([(next(gradients), weight)])
                results.enqueue((weight.value, optimizer.loss_scaling_factor.value))

        strategy.run(program, args=(gradients,))
    weights, scales = results.dequeue()
    np.testing.assert_array_equal(weights, [[-2, -2], [-2, -2], [-4, -4]])
    np.testing.assert_array_equal(scales, [[4, 4], [2, 2], [4, 4]])


def test_scaling_and_accumulation_work_together(replicas):
    strategy = replicas(1)
    with strategy.scope():
        weight = keras.Variable(0.0)
        als = ALSOptimizer(SGD(1.0), 2, update_frequency=1)
        optimizer = ALSGradientAccumulationOptimizer(als, 2)
        results = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(gradients):
        for at in tf.range(6):
            gradient = optimizer.get_scaled_loss(tf.gather(gradients, at))
            optimizer.apply_gradients([(gradient, weight)])
            results.enqueue((weight.value, als.loss_scaling_factor.value))

    strategy.run(program, args=(tf.constant([1.0, 2.0, np.inf, 1.0, 3.0, 4.0]),))
    weights, scales = results.dequeue()
    np.testing.assert_array_equal(weights, [0, -3, -3, -3, -3, -10])
    np.testing.assert_array_equal(scales, [2, 4, 4, 2, 2, 4])


def test_accumulation_with_scaling_counts_captured_gradients_of_each_mini_batch(replicas):
    strategy = replicas(1)
    with strategy.scope():
        weight = keras.Variable(0.0)
        als = ALSOptimizer(SGD(1.0), 2, captured_grads_only=True)
        optimizer = ALSGradientAccumulationOptimizer(als, 2)

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(2):
            optimizer.apply_gradients([(tf.constant(1.0), weight)], captured_grads=[tf.constant([1.0, 1e4])])

    strategy.run(program)
    np.testing.assert_array_equal(als.histogram.numpy(), [2, 2])


class Noting(SGD):
    """Notes which gradients were captured, as programs write optimizers of their own."""

    supports_captured_grads = True
    seen = ()

    def apply_gradients(self, grads_and_vars, captured_grads=None):
        self.seen = [*self.seen, tf.nest.map_structure(lambda gradient: gradient.shape, captured_grads)]
        return super().apply_gradients(grads_and_vars)


def captured_by_fit(replicas, optimizer, steps_per_update=1):
    """Fits a linear model to 0 with x = 1, so that the captured gradients are 2 w / 2 in each of two rows."""
    strategy = replicas(1)
    with strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(3.0))
        model = keras.Sequential([keras.Input([1]), CaptureUpstreamGradients(dense, tag="dense")])
        model.compile(optimizer(), "mse", steps_per_execution=4)
        if steps_per_update > 1:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps_per_update)
    x, y = np.ones([8, 1], np.float32), np.zeros([8, 1], np.float32)
    model.fit(x, y, batch_size=2, verbose=0)
    return model


@pytest.mark.parametrize(("steps", "alone", "histogram"), [(1, True, [8, 0]), (1, False, [12, 0]), (2, True, [8, 0])])
def test_fit_hands_captured_gradients_to_the_optimizer(replicas, steps, alone, histogram):
    model = captured_by_fit(replicas, lambda: ALSOptimizer(SGD(0.0), 2, captured_grads_only=alone), steps)
    np.testing.assert_array_equal(model.optimizer.histogram.numpy(), histogram)
    assert model.optimizer.iterations.numpy() == 4 // steps


def test_fit_hands_captured_gradients_to_an_optimizer_of_the_users(replicas):
    model = captured_by_fit(replicas, lambda: Noting(0.1))
    assert model.optimizer.seen == [{"dense": [(2, 1)]}]  # Traced once.
    with pytest.raises(ValueError, match="takes captured gradients, of which each step has its own"):
        captured_by_fit(replicas, lambda: Noting(0.1), 2)


def test_accumulation_with_scaling_wants_an_optimizer_that_scales():
    with pytest.raises(ValueError, match="`als_optimizer` must be an `ALSOptimizer`"):
        ALSGradientAccumulationOptimizer(SGD(), 2)
    optimizer = ALSGradientAccumulationOptimizer(ALSOptimizer(SGD()), 2)
    with pytest.raises(ValueError, match="`experimental_aggregate_gradients` must be True"):
        optimizer.apply_gradients([(tf.constant(1.0), keras.Variable(0.0))], experimental_aggregate_gradients=False)


def test_keras_loss_scaling_skips_on_all_replicas_what_is_infinite_on_one(replicas):
    strategy = replicas(2)
    with strategy.scope():
        weight = keras.Variable(0.0)
        optimizer = LossScaleOptimizer(SGD(1.0), initial_scale=4.0)
        gradients = iter(tf.data.Dataset.from_tensor_slices([4.0, 4.0, np.inf, 4.0, 4.0, 4.0]))
        results = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(gradients):
            for _ in tf.range(3):
                optimizer.apply_gradients([(next(gradients), weight)])
                results.enqueue((weight.value, optimizer.dynamic_scale.value))

        optimizer.build([weight])
        strategy.run(program, args=(gradients,))
    weights, scales = results.dequeue()
    np.testing.assert_array_equal(weights, [[-2, -2], [-2, -2], [-6, -6]])
    np.testing.assert_array_equal(scales, [[4, 4], [2, 2], [2, 2]])


def test_keras_own_loss_scaling_works_in_a_program_inside_of_accumulation(replicas):
    strategy = replicas(1)
    with strategy.scope():
        weight = keras.Variable(0.0, dtype="float16")
        inner = keras.optimizers.LossScaleOptimizer(SGD(1.0), initial_scale=4.0)
        optimizer = GradientAccumulationOptimizer(inner, 2)
        optimizer.build([weight])
        results = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(gradients):
        for at in tf.range(6):
            gradient = tf.cast(optimizer.scale_loss(tf.gather(gradients, at)), tf.float16)
            optimizer.apply_gradients([(gradient, weight)])
            results.enqueue((weight.value, inner.dynamic_scale.value))

    strategy.run(program, args=(tf.constant([1.0, 2.0, 1e6, 1.0, 3.0, 4.0]),))  # The third is too large for float16.
    weights, scales = results.dequeue()
    np.testing.assert_array_equal(weights, [0, -3, -3, -3, -3, -10])
    np.testing.assert_array_equal(scales, [4, 4, 4, 2, 2, 2])


def test_sixteen_replicas_that_accumulate_scale_and_take_the_mean_stay_equal(replicas):
    strategy = replicas(16)
    with strategy.scope():
        weights = [keras.Variable(np.full((2, 2), value, np.float32)) for value in (0.5, 1.0, 1.5)]
        als = ALSOptimizer(CrossReplicaOptimizer(keras.optimizers.Adam(0.01)), 2, update_frequency=1)
        optimizer = ALSGradientAccumulationOptimizer(als, 2)
        numbers = iter(tf.data.Dataset.range(10**6).map(lambda i: tf.cast(i % 7, tf.float32)))
        results = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(numbers):
            for _ in tf.range(4):
                x = next(numbers)
                with tf.GradientTape() as tape:
                    loss = tf.add_n([tf.reduce_sum(tf.tanh(weight.value) * x) for weight in weights])
                    loss = optimizer.get_scaled_loss(loss)
                gradients = tape.gradient(loss, [weight.value for weight in weights])
                optimizer.apply_gradients(zip(gradients, weights, strict=True))
            results.enqueue((*(weight.value for weight in weights), als.loss_scaling_factor.value))

        for _ in range(5):
            strategy.run(program, args=(numbers,))
    for seen in results.dequeue():
        np.testing.assert_array_equal(seen, np.repeat(seen[:, :1], 16, axis=1))
    assert als.loss_scaling_factor.numpy() == 2 * 2**10
    assert int(optimizer.iterations) == 10


@pytest.mark.parametrize(
    ("asked", "first_step"),
    [
        ({}, 0.0),  # XLA's float16 becomes infinite: the update is left out.
        ({"nanoo": True}, 0.0),  # As the machine's becomes no number.
        ({"esr": ipu.config.StochasticRoundingBehaviour.ON}, -65504 / 128),  # The machine saturates, and goes on.
    ],
)
def test_scaling_sees_the_overflows_that_the_machine_would(asked, first_step):
    config = ipu.IPUConfig()
    for name, value in asked.items():
        setattr(config.floating_point_behaviour, name, value)
    config.configure_ipu_system()
    with (strategy := ipu.IPUStrategy()).scope():
        weight = keras.Variable(0.0)
        optimizer = ALSOptimizer(SGD(1.0), 128, update_frequency=1)
        results = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                half = tf.cast(weight.value, tf.float16)
                loss = optimizer.get_scaled_loss(tf.reduce_sum(half * tf.constant([600, 400], tf.float16)))
            gradient = tape.gradient(loss, half)
            optimizer.apply_gradients([(gradient, weight)])
            results.enqueue((weight.value, optimizer.loss_scaling_factor.value))

    strategy.run(program)
    weights, scales = results.dequeue()
    # 128 times 1000 is beyond float16, and counts as above the edge of the histogram, as 64 and 32 times 1000 do.
    np.testing.assert_array_equal(scales, [64, 32, 16])
    np.testing.assert_array_equal(weights, [first_step, first_step - 1000, first_step - 2000])
