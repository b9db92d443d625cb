"""What models do on a device that compiles alone: each execution returns zeros, and nothing changes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu.config import DeviceConnectionType

X, Y = np.ones([16, 4], np.float32), np.ones([16, 1], np.float32)


def compiled(ipus, stages):
    config = ipu.IPUConfig()
    config.auto_select_ipus = ipus
    config.device_connection.type = DeviceConnectionType.PRE_COMPILE
    config.device_connection.version = "ipu2"
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.Input([4]), layers.Dense(3), layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=4)
        if stages is not None:
            model.set_pipeline_stage_assignment(stages)
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=4, accumulate_outfeed=True)
    return model


@pytest.mark.parametrize(("ipus", "stages"), [(1, None), (2, None), (2, [0, 1])])
def test_model_that_only_compiles_returns_zeros_and_trains_nothing(ipus, stages):
    model = compiled(ipus, stages)
    before = model.get_weights()
    options = {"batch_size": 2, "verbose": 0}
    history = model.fit(X, Y, epochs=2, validation_data=(X, Y), **options).history
    assert history == {name: [0, 0] for name in ("loss", "mae", "val_loss", "val_mae")}
    assert model.evaluate(X, Y, **options) == [0, 0]
    assert model.predict(X, **options).tolist() == [[0]] * 16
    for weights, earlier in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weights, earlier)


def test_callbacks_of_each_step_get_zeros_too():
    model = compiled(2, None)
    model.set_asynchronous_callbacks(True)
    seen = []

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, float(logs["loss"])))

    model.fit(X, Y, batch_size=2, verbose=0, callbacks=[Steps()])
    assert seen == [(step, 0) for step in range(8)]
