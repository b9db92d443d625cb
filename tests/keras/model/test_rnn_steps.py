"""Tests Keras's LSTM and GRU layers with host kernels for their steps: results, gradients, unsupported layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import rnn_steps

ROWS, STEPS, FEATURES, UNITS = 6, 5, 3, 4
ROUNDING = 64 * 2.0**-23  # For weights of about 1, and sums of several dozen terms.


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list of the arguments with which the kernels were traced."""
    calls: list[Any] = []
    original = rnn_steps.run
    monkeypatch.setattr(rnn_steps, "run", lambda *args: calls.append(args) or original(*args))
    return calls


def data() -> tuple[list[np.ndarray], np.ndarray]:
    """Returns sequences, a mask that omits first steps or all, initial states, and labels."""
    random = np.random.default_rng(3)
    mask = random.random([ROWS, STEPS]) > 0.3
    mask[0, :2] = False
    mask[1] = False
    sequences, state = random.normal(size=[ROWS, STEPS, FEATURES]), random.normal(size=[ROWS, UNITS])
    return [sequences.astype(np.float32), mask, state.astype(np.float32)], random.normal(size=[ROWS, 2]).astype(
        np.float32
    )


def make_recurrent_model(kind: type, masked: bool, options: dict[str, Any]) -> keras.Model:
    keras.utils.set_random_seed(1)
    sequences = keras.Input([STEPS, FEATURES])
    mask = keras.Input([STEPS], dtype="bool")
    state = keras.Input([UNITS])
    states = [state, state] if kind is layers.LSTM else state
    layer = kind(UNITS, return_sequences=True, return_state=True, **options)
    outputs, *last_states = layer(sequences, initial_state=states, mask=mask if masked else None)
    shown = layers.Concatenate()([outputs[:, 0], outputs[:, -1], *last_states])
    model = keras.Model([sequences, mask, state], layers.Dense(2)(shown))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def trained(make: Callable[[], keras.Model]) -> list[np.ndarray]:
    model = make()
    model.fit(*data(), batch_size=ROWS // 2, epochs=2, shuffle=False, verbose=0)
    return [np.asarray(weight, np.float32) for weight in model.get_weights()]


def differences(kind: type, masked: bool, options: dict[str, Any], scoped: Any) -> list[float]:
    weights = trained(lambda: scoped(lambda: make_recurrent_model(kind, masked, options)))
    plain_weights = trained(lambda: make_recurrent_model(kind, masked, options))
    return [float(np.abs(a - b).max()) for a, b in zip(weights, plain_weights, strict=True)]


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
@pytest.mark.parametrize(
    ("masked", "options"),
    [
        (False, {"go_backwards": True, "dropout": 0.4, "seed": 3, "unroll": True}),
        (True, {}),
        (True, {"go_backwards": True, "zero_output_for_mask": True, "use_bias": False}),
    ],
    ids=["backwards-dropout", "masked", "masked-backwards-zeros"],
)
def test_steps_by_the_kernel_train_as_plain_keras_does(kind, masked, options, scoped, runs):
    assert max(differences(kind, masked, options, scoped)) < ROUNDING
    assert runs


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (layers.LSTM, {"activation": "relu"}),
        (layers.LSTM, {"recurrent_dropout": 0.4, "seed": 3}),
        (layers.GRU, {"reset_after": False}),
        (layers.GRU, {"dtype": "float64"}),
        (layers.GRU, {"unroll": True, "go_backwards": True, "zero_output_for_mask": True}),
    ],
    ids=["activation", "recurrent-dropout", "reset-before", "float64", "unrolled"],
)
def test_other_layers_keep_the_loops_of_keras(kind, options, scoped, runs):
    assert max(differences(kind, True, options, scoped)) < ROUNDING
    assert not runs


def test_strategies_without_host_kernels_keep_the_loops_of_keras(runs):
    with ipu.IPUStrategy(host_kernels=False).scope():
        model = make_recurrent_model(layers.LSTM, False, {})
    model.predict(data()[0], verbose=0)
    assert not runs


def test_programs_with_exceptions_keep_the_loops_of_keras(scoped, runs):
    config = ipu.config.IPUConfig()
    config.floating_point_behaviour.inv = True
    config.configure_ipu_system()
    scoped(lambda: make_recurrent_model(layers.GRU, False, {})).predict(data()[0], verbose=0)
    assert not runs


def made_in_scope(kind: type, shape: list[int], **options: Any) -> tuple[ipu.IPUStrategy, Any]:
    """Returns a strategy, and a layer that was built in its scope for inputs of a shape."""
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        layer = kind(**options)
        layer.build(shape)
    return strategy, layer


def with_gradients(layer: Any) -> Callable[[tf.Tensor], list[Any]]:
    """Returns a function that computes the outputs, and their gradients for inputs and weights."""

    def compute(x: tf.Tensor) -> list[Any]:
        watched = [x, *(weight.value for weight in layer.weights)]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = layer(x)
        return [outputs, *tape.gradient(outputs, watched)]

    return compute


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 23), ("float16", 10), ("bfloat16", 7)])
@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_long_sequences_of_one_row_have_the_gradients_of_plain_keras(kind, dtype, digits, runs):
    options = {"recurrent_initializer": "glorot_uniform", "bias_initializer": "ones", "dtype": dtype}
    strategy, layer = made_in_scope(kind, [1, 150, 1], units=17, **options)
    gradients = with_gradients(layer)
    x = tf.constant(np.random.default_rng(5).normal(size=[1, 150, 1]), dtype)
    results = strategy.run(tf.function(gradients, jit_compile=True), (x,))
    for pair in zip(results, gradients(x), strict=True):
        gradient, expected = (np.asarray(tf.cast(tensor, tf.float32)) for tensor in pair)
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=64 * 2.0**-digits * np.abs(expected).max())
    assert runs


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_an_infinity_spreads_no_further_than_in_plain_keras(kind, runs):
    strategy, layer = made_in_scope(kind, [2, STEPS, FEATURES], units=UNITS, return_sequences=True)
    gradients = with_gradients(layer)
    x = np.ones([2, STEPS, FEATURES], np.float32)
    x[0, 1, 0] = np.inf
    results = strategy.run(tf.function(gradients, jit_compile=True), (tf.constant(x),))
    for gradient, expected in zip(results, gradients(tf.constant(x)), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)
    assert runs


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_third_derivatives_are_those_of_plain_keras(kind, runs):
    strategy, layer = made_in_scope(kind, [1, 2, 1], units=2)

    def derivative(function):
        def differentiated(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = tf.reduce_sum(tf.sin(function(x)))
            return tape.gradient(value, x)

        return differentiated

    third = derivative(derivative(derivative(layer)))
    x = tf.constant([[[0.5], [-1.0]]])
    result, expected = strategy.run(tf.function(third, jit_compile=True), (x,)), third(x)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert runs


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_gradients_of_gradients_are_those_of_plain_keras(kind, runs):
    (sequences, mask, state), _ = data()
    strategy, layer = made_in_scope(kind, [ROWS, STEPS, FEATURES], units=UNITS, return_sequences=True)

    def penalty(x, initial_state):
        watched = [x, initial_state, *(weight.value for weight in layer.weights)]
        with tf.GradientTape() as outer:
            outer.watch(watched)
            with tf.GradientTape() as inner:
                inner.watch(watched)
                states = [initial_state, tf.sin(initial_state)] if kind is layers.LSTM else initial_state
                loss = tf.reduce_sum(layer(x, initial_state=states, mask=mask) ** 2)
            first_gradients = inner.gradient(loss, watched)
            norm = tf.add_n([tf.reduce_sum(tf.sin(first_gradient)) for first_gradient in first_gradients])
        return outer.gradient(norm, watched)

    arguments = (tf.constant(sequences), tf.constant(state))
    for gradient, expected in zip(
        strategy.run(tf.function(penalty, jit_compile=True), arguments), penalty(*arguments), strict=True
    ):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    assert runs


def test_layers_outside_of_programs_are_plain_while_programs_have_kernels(scoped, runs):
    scoped(lambda: make_recurrent_model(layers.LSTM, False, {})).predict(data()[0], verbose=0)
    traced = len(runs)
    make_recurrent_model(layers.LSTM, False, {}).predict(data()[0], verbose=0)
    assert traced > 0
    assert len(runs) == traced
