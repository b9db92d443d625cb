"""Tests custom steps of Keras models, under a strategy without extensions, against steps without the library."""

import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu

STEPS, BATCH = 4, 8


def functional():
    inputs = keras.Input([6])
    first = layers.Dense(5, activation="relu")(inputs)
    second = layers.Dense(5, activation="gelu")(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.concatenate([first, second])))


def sequential(*parts):
    return lambda: keras.Sequential([*(part() for part in parts), layers.Dense(3)])


# The models, each with the shape of its inputs, and an optimizer for each: each optimizer is there once.
MODELS: dict[str, tuple[Callable[[], keras.Model], list[int]]] = {
    "functional": (functional, [6]),
    "normalization": (
        sequential(
            lambda: layers.Dense(8),
            lambda: layers.BatchNormalization(momentum=0.5),
            lambda: layers.Dropout(0.5, seed=7),
            layers.LayerNormalization,
        ),
        [6],
    ),
    "convolution": (
        sequential(
            lambda: layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.MaxPooling2D,
            lambda: layers.Conv2D(4, 3, strides=2),
            layers.GlobalAveragePooling2D,
        ),
        [8, 8, 2],
    ),
    "recurrent": (sequential(lambda: layers.LSTM(4)), [5, 2]),
    "embedding": (sequential(lambda: layers.Embedding(10, 4), lambda: SelfAttention(), layers.Flatten), [3]),
}


def decaying():
    return keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5), momentum=0.5)


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "averaging": lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_overwrite_frequency=3),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, clipnorm=1.0),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": decaying,
}
CASES = list(zip(MODELS, OPTIMIZERS, strict=True))


class SelfAttention(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(1, 4)

    def call(self, x):
        return self.attention(x, x, use_causal_mask=True)


def batches(shape):
    """Returns features, or integers for models with an embedding, and labels: a batch for each step."""
    random = np.random.default_rng(1)
    size = [STEPS, BATCH, *shape]
    features = random.integers(0, 10, size) if shape == [3] else random.normal(size=size)
    return features.astype(np.int32 if shape == [3] else np.float32), random.integers(0, 3, size[:2]).astype(np.int32)


class Training:
    """A model, an optimizer and a loss, made from one seed, and a training step."""

    def __init__(self, model, optimizer):
        keras.utils.set_random_seed(0)
        self.model = MODELS[model][0]()
        self.optimizer = OPTIMIZERS[optimizer]()
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def values(self):
        return [np.asarray(v) for v in (*self.model.variables, *self.optimizer.variables)]

    def variables(self):
        return [v.value for v in (*self.model.variables, *self.optimizer.variables)]


@functools.cache
def plain_training(case):
    """Returns the losses and the values of all variables after training without the library."""
    training = Training(*case)
    step = tf.function(training.step, jit_compile=True)
    return [step(x, y).numpy() for x, y in zip(*batches(MODELS[case[0]][1]), strict=True)], training.values()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_steps_equal_those_of_plain_keras_to_the_bit(case, assert_same):
    losses, values = plain_training(case)
    # XLA compiles each plain step as a whole, so it must compile all of these steps too.
    strategy = ipu.IPUStrategy(enable_keras_extensions=False, host_kernels=False)
    # All variables are made inside of the first call.
    with strategy.scope():
        training = Training(*case)
        step = tf.function(training.step, jit_compile=True)
        data = zip(*batches(MODELS[case[0]][1]), strict=True)
        assert [strategy.run(step, (x, y)).numpy() for x, y in data] == losses
    assert_same(training.values(), values, rtol=0, atol=0)
    assert {variable.device.rpartition("/")[2] for variable in training.variables()} == {"device:IPU:0"}


def test_loop_on_the_device_equals_plain_keras_to_float_rounding(plain_strategy, assert_same):
    case = CASES[2]
    losses, values = plain_training(case)
    with plain_strategy.scope():
        training = Training(*case)
        queue = ipu.IPUOutfeedQueue()
        source = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(batches(MODELS[case[0]][1])))
        source.initializer  # noqa: B018

        @tf.function(jit_compile=True)
        def program(n):
            ipu.loops.repeat(n, lambda x, y: queue.enqueue(training.step(x, y)), infeed_queue=source)

        for n in (1, STEPS - 1):
            plain_strategy.run(program, (tf.constant(n),))
    np.testing.assert_allclose(queue.dequeue(), losses, rtol=1e-5)
    assert_same(training.values(), values)


def test_training_goes_on_from_a_model_that_was_built_before(plain_strategy):
    features, labels = batches([6])
    with plain_strategy.scope():
        training = Training("functional", "averaging")
        training.model.build([None, 6])
        training.optimizer.build(training.model.trainable_variables)
        initial_values = training.values()
        iterator = iter(tf.data.Dataset.from_tensor_slices((features, labels)))

        @tf.function(jit_compile=True)
        def program(iterator, training):
            loss = 0.0
            for _ in tf.range(STEPS):
                loss = training.step(*next(iterator))
            return loss

        assert plain_strategy.run(program, (iterator, training)).numpy() > 0
    assert all(np.any(a != b) for a, b in zip(initial_values[:4], training.values()[:4], strict=True))


def test_metrics_gather_and_mixed_precision_computes_in_half_in_a_program(plain_strategy):
    with plain_strategy.scope():
        mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
        model = keras.Sequential([keras.Input([4]), layers.Dense(3, dtype="mixed_float16")])

        @tf.function(jit_compile=True)
        def program(x, y):
            for i in tf.range(4):
                mean.update_state(tf.cast(i, tf.float32))
                accuracy.update_state(y, x)
            return model(x)

        half = plain_strategy.run(program, (tf.eye(4), tf.constant([0, 1, 2, 0])))
    assert half.dtype == tf.float16
    assert model.layers[0].kernel.dtype == "float32"
    assert float(mean.result()) == 1.5
    assert float(accuracy.result()) == 0.75
    mean.reset_state()
    assert float(mean.result()) == 0
