"""Models whose layers name IPUs by `ipu_shard`: how many replicas of them fit, and that they train the same."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu

BATCH = 4


def configure(ipus):
    config = ipu.IPUConfig()
    config.auto_select_ipus = ipus
    config.configure_ipu_system()


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


def functional():
    inputs = keras.Input([6])
    return keras.Model(inputs, Placed(1, 3)(layers.Activation("tanh")(Placed(0, 4)(inputs))))


def compiled(make, **options):
    keras.utils.set_random_seed(2)
    model = make()
    model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


@pytest.mark.parametrize("make", [Sharded, functional])
def test_replicas_of_a_sharded_model_fill_the_device(make, features, scoped, assert_same):
    x, y = features, features[:, :3]
    configure(4)
    model = scoped(lambda: compiled(make, steps_per_execution=6))
    model.set_replication_options("LIST")
    history = model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False).history
    assert history["loss"][0].shape == (2,)
    # The gradients of two batches are summed: twice those of both together.
    plain = compiled(make)
    plain.optimizer.learning_rate = 0.2
    plain.fit(x, y, batch_size=2 * BATCH, verbose=0, shuffle=False)
    assert_same(model.get_weights(), plain.get_weights())
    assert_same(model.predict(x, batch_size=BATCH, verbose=0), plain(x))
    configure(2)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert np.isfinite(model.train_on_batch(x[:BATCH], y[:BATCH]))


def test_shards_that_do_not_fit_the_device_are_refused(features, scoped):
    configure(2)
    model = scoped(lambda: compiled(lambda: keras.Sequential([Placed(0, 4), Placed(2, 3)])))
    with pytest.raises(ValueError, match="has 2 IPUs attached, .* a multiple of 4 IPUs"):
        model.fit(features, features[:, :3], batch_size=BATCH, verbose=0)


def test_shards_of_a_step_that_no_layer_has_are_refused(features, scoped):
    class Own(keras.Sequential):
        def train_step(self, data):
            with ipu.scopes.ipu_shard(1):
                return super().train_step(data)

    configure(4)
    model = scoped(lambda: compiled(lambda: Own([layers.Dense(3)])))
    with pytest.raises(ValueError, match="the steps of model .* use 2 IPUs .* the `call` of its layers uses 1"):
        model.fit(features, features[:, :3], batch_size=BATCH, verbose=0)
