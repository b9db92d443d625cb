"""Tests recurrent layers of Keras 2 in programs: results, and that a program is compiled once."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import rnn_steps

layers = keras.layers


def test_updates_of_recurrent_weights_compile_no_program_anew(in_scope_and_plain, same, features, compilations):
    x, y = features.reshape([-1, 3, 2]), features[:, :1]

    def train():
        model = keras.Sequential([layers.InputLayer([3, 2]), layers.GRU(3), layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=3)
        with compilations() as names:
            losses = model.fit(x, y, 8, epochs=3, shuffle=False, verbose=0).history["loss"]
        return losses, len([name for name in names if "program" in name])

    (results, programs), (expected, _) = in_scope_and_plain(train)
    same(results, expected, rtol=1e-5)
    assert programs == 1


def test_program_with_a_recurrent_layer_trains_in_a_loop_of_its_own(compilations):
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        model = keras.Sequential([layers.InputLayer([5, 2]), layers.LSTM(4)])
        optimizer = keras.optimizers.legacy.SGD(0.5)

        @tf.function(jit_compile=True)
        def step():
            optimizer.minimize(lambda: (model(np.ones([2, 5, 2], np.float32)) - 1.0) ** 2, model.trainable_variables)

        with compilations() as names:
            for _ in range(3):
                strategy.run(step)
    assert len([name for name in names if "step" in name]) == 1, names


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_steps_by_the_kernel_train_as_plain_keras_does(kind, in_scope_and_plain, same, features, monkeypatch):
    runs, original = [], rnn_steps.run
    monkeypatch.setattr(rnn_steps, "run", lambda *args: runs.append(args) or original(*args))
    x, y = np.round(features.reshape([-1, 3, 2])), features[:, :1]

    def train():
        model = keras.Sequential(
            [layers.InputLayer([3, 2]), layers.Masking(1.0), kind(3, go_backwards=True), layers.Dense(1)]
        )
        model.compile("sgd", "mse", steps_per_execution=3)
        return model.fit(x, y, 8, epochs=2, shuffle=False, verbose=0).history["loss"]

    results, expected = in_scope_and_plain(train)
    same(results, expected, rtol=1e-5)
    assert runs
