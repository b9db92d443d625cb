"""Models of `mixed_float16`: they train as in Keras, and the replicas agree on which updates to skip."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.optimizers import CrossReplicaOptimizer

BATCH = 4


@pytest.fixture(autouse=True)
def half_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def configure(ipus):
    config = ipu.IPUConfig()
    config.auto_select_ipus = ipus
    config.configure_ipu_system()


def compiled(optimizer=None, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input([6]), layers.Dense(4, activation="tanh"), layers.Dense(3, dtype="float32")])
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.125), loss="mse", **options)
    return model


def on_each_replica(model):
    """The weights, each with an axis of replicas in front."""
    with ipu.IPUStrategy().scope():
        values = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)

        @tf.function(jit_compile=True)
        def program():
            values.enqueue([weight.value for weight in model.trainable_variables])

        tf.distribute.get_strategy().run(program)
    return [value.numpy() for value in values.dequeue()]


def test_a_model_trains_as_in_keras(features, scoped, assert_same):
    def use():
        model = compiled(steps_per_execution=3, metrics=["mae"])
        assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer
        history = model.fit(features, features[:, :3], batch_size=8, epochs=2, verbose=0, shuffle=False).history
        return [history, model.get_weights(), np.log2(model.optimizer.dynamic_scale.numpy())]

    assert_same(scoped(use), use(), rtol=1e-2, atol=1e-3)


def test_a_pipeline_trains_as_in_keras(features, scoped, assert_same):
    x, y = features[:32], features[:32, :3]
    configure(2)
    model = scoped(lambda: compiled(steps_per_execution=8))
    model.set_pipeline_stage_assignment([0, 1])
    model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    plain = compiled()
    plain.fit(x, y, batch_size=4 * BATCH, verbose=0, shuffle=False)
    assert int(model.optimizer.iterations) == int(plain.optimizer.iterations) == 2
    assert_same(model.get_weights(), plain.get_weights(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("wrapped", [False, True])
def test_replicas_skip_the_update_that_one_of_them_cannot_make(wrapped, features, scoped, assert_same):
    """Batch 3 has an infinite target: it is replica 1's, in its second step. Batch 2 is skipped with it."""
    targets = features[:, :3].copy()
    targets[3 * BATCH] = np.inf

    def make():
        if not wrapped:
            return compiled(steps_per_execution=6)
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25))
        return compiled(CrossReplicaOptimizer(scaling), steps_per_execution=6)

    configure(2)
    model = scoped(make)
    start = model.get_weights()
    model.fit(features, targets, batch_size=BATCH, verbose=0, shuffle=False)
    scaling = model.optimizer
    while not isinstance(scaling, keras.optimizers.LossScaleOptimizer):
        scaling = scaling.inner_optimizer
    assert scaling.dynamic_scale.numpy() == 2.0**14
    assert int(scaling.iterations) == 5
    for weight in on_each_replica(model):
        np.testing.assert_array_equal(weight[0], weight[1])

    configure(1)
    plain = compiled()
    plain.set_weights(start)
    kept = [row for row in range(len(features)) if not 2 * BATCH <= row < 4 * BATCH]
    # The sum of the gradients of two batches is twice that of both together.
    plain.optimizer.learning_rate = 0.25
    plain.fit(features[kept], targets[kept], batch_size=2 * BATCH, verbose=0, shuffle=False)
    assert_same(model.get_weights(), plain.get_weights(), rtol=1e-2, atol=1e-3)


class Own(keras.optimizers.SGD):
    def minimize(self, *_):
        """What older Keras optimizers had, and programs override."""


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_an_optimizer_with_its_own_minimize_is_refused_where_gradients_accumulate(policy):
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, dtype=policy)], name="model")
        model.dtype_policy = policy
        model.compile(Own(), "mse", steps_per_execution=2)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    with pytest.raises(ValueError, match="the optimizer of model `model` has a `minimize` of its own"):
        model.fit(np.ones([4, 2], np.float32), np.ones([4, 1], np.float32), batch_size=2, verbose=0)
