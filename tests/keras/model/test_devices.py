"""Tests models whose layers select IPUs by `ipu_shard`, and models on a device that only compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu.config import DeviceConnectionType

BATCH = 4


class Placed(layers.Layer):
    """A dense layer on one IPU."""

    def __init__(self, shard, units):
        super().__init__()
        self.shard, self.dense = shard, layers.Dense(units)

    def call(self, x):
        with ipu.scopes.ipu_shard(self.shard):
            return self.dense(x)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.dense.units)


class Sharded(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = Placed(0, 4), Placed(1, 3)

    def call(self, x):
        return self.last(tf.tanh(self.first(x)))


def compiled(make, **options):
    keras.utils.set_random_seed(2)
    model = make()
    model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


def test_replicas_of_a_sharded_model_fill_the_device(features, scoped, assert_same, configure):
    x, y = features, features[:, :3]
    configure(4)
    model = scoped(lambda: compiled(Sharded, steps_per_execution=6))
    model.set_replication_options("LIST")
    history = model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False).history
    assert history["loss"][0].shape == (2,)
    # Summed gradients of two batches are twice the gradients of one batch of both.
    plain_model = compiled(Sharded)
    plain_model.optimizer.learning_rate = 0.2
    plain_model.fit(x, y, batch_size=2 * BATCH, verbose=0, shuffle=False)
    assert_same(model.get_weights(), plain_model.get_weights())
    assert_same(model.predict(x, batch_size=BATCH, verbose=0), plain_model(x))
    configure(2)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert np.isfinite(model.train_on_batch(x[:BATCH], y[:BATCH]))


def test_shards_that_do_not_fit_the_device_or_that_no_layer_has_are_refused(features, scoped, configure):
    class Own(keras.Sequential):
        def train_step(self, data):
            with ipu.scopes.ipu_shard(1):
                return super().train_step(data)

    for ipus, make, message in (
        (2, lambda: keras.Sequential([Placed(0, 4), Placed(2, 3)]), "has 2 IPUs attached, .* a multiple of 4 IPUs"),
        (4, lambda: Own([layers.Dense(3)]), "the steps of model .* use 2 IPUs .* the `call` of its layers uses 1"),
    ):
        configure(ipus)
        model = scoped(lambda make=make: compiled(make))
        with pytest.raises(ValueError, match=message):
            model.fit(features, features[:, :3], batch_size=BATCH, verbose=0)


X, Y = np.ones([16, 4], np.float32), np.ones([16, 1], np.float32)


# Two IPUs are two replicas, or two stages.
@pytest.mark.parametrize("stages", [None, [0, 1]])
def test_model_that_only_compiles_returns_zeros_and_trains_nothing(stages, configure):
    configure(2, device_connection__type=DeviceConnectionType.PRE_COMPILE, device_connection__version="ipu2")
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.Input([4]), layers.Dense(3), layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=4)
        if stages is not None:
            model.set_pipeline_stage_assignment(stages)
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=4, accumulate_outfeed=True)
    initial_weights, losses = model.get_weights(), []
    options = {"batch_size": 2, "verbose": 0}
    history = model.fit(X, Y, epochs=2, validation_data=(X, Y), **options).history
    assert history == {name: [0, 0] for name in ("loss", "mae", "val_loss", "val_mae")}
    assert model.evaluate(X, Y, **options) == [0, 0]
    assert model.predict(X, **options).tolist() == [[0]] * 16
    for weights, earlier in zip(model.get_weights(), initial_weights, strict=True):
        np.testing.assert_array_equal(weights, earlier)
    if stages is None:
        model.set_asynchronous_callbacks(True)
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step_index, logs: losses.append((step_index, float(logs["loss"])))
        )
        model.fit(X, Y, **options, callbacks=[note])
        assert losses == [(step, 0) for step in range(8)]
