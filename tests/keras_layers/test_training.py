"""A model of the IPU's layers trains by `fit` as one of the plain layers does without the library."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers


def ours():
    return [
        layers.Embedding(20, 8, serialization_factor=4, mask_zero=True),
        layers.PopnnGRU(6, return_sequences=True),
        layers.LayerNormalization(),
        layers.PopnnLSTM(6),
        layers.Recompute(keras.layers.Dense(8, activation="tanh")),
        layers.SerialDense(3, 2, "input_rows_kernel_columns"),
    ]


def plain():
    return [
        keras.layers.Embedding(20, 8, mask_zero=True),
        keras.layers.GRU(6, return_sequences=True),
        keras.layers.LayerNormalization(),
        keras.layers.LSTM(6),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(3),
    ]


def fit(model, weights):
    model.set_weights(weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, steps_per_execution=4)
    random = np.random.default_rng(0)
    words, labels = random.integers(0, 20, [64, 5]).astype(np.int32), random.integers(0, 3, 64).astype(np.int32)
    losses = model.fit(words, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, model.get_weights()


def test_weights_after_fit_are_those_of_plain_layers():
    model = keras.Sequential([keras.layers.Input([5], dtype="int32"), *plain()])
    weights = model.get_weights()
    expected_losses, expected = fit(model, weights)
    with ipu.IPUStrategy().scope():
        losses, actual = fit(keras.Sequential([keras.layers.Input([5], dtype="int32"), *ours()]), weights)
    assert losses == pytest.approx(expected_losses, rel=1e-4)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
