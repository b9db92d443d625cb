"""Tests models of `mixed_float16`: they train as in Keras, and replicas agree on which updates to skip."""

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


def compiled(optimizer=None, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input([6]), layers.Dense(4, activation="tanh"), layers.Dense(3, dtype="float32")])
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.125), loss="mse", **options)
    return model


def on_each_replica(strategy, model):
    """Returns the weights with a first axis of replicas."""
    with strategy.scope():
        values = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)

        @tf.function(jit_compile=True)
        def program():
            values.enqueue([variable.value for variable in model.trainable_variables])

        strategy.run(program)
    return [value.numpy() for value in values.dequeue()]


def test_a_model_trains_as_in_keras(features, scoped, assert_same):
    def use():
        model = compiled(steps_per_execution=3, metrics=["mae"])
        assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer
        history = model.fit(features, features[:, :3], batch_size=8, epochs=2, verbose=0, shuffle=False).history
        return [history, model.get_weights(), np.log2(model.optimizer.dynamic_scale.numpy())]

    assert_same(scoped(use), use(), rtol=1e-2, atol=1e-3)


def test_a_pipeline_trains_as_in_keras(features, replicas, assert_same):
    x, y = features[:32], features[:32, :3]
    with replicas(2).scope():
        model = compiled(steps_per_execution=8)
    model.set_pipeline_stage_assignment([0, 1])
    model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    plain_model = compiled()
    plain_model.fit(x, y, batch_size=4 * BATCH, verbose=0, shuffle=False)
    assert int(model.optimizer.iterations) == int(plain_model.optimizer.iterations) == 2
    assert_same(model.get_weights(), plain_model.get_weights(), rtol=1e-2, atol=1e-3)


def test_replicas_skip_the_update_that_one_of_them_cannot_make(features, replicas, assert_same):
    """Batch 3, of replica 1 in its second step, has an infinite target. Batch 2 is skipped with it."""
    targets = features[:, :3].copy()
    targets[3 * BATCH] = np.inf
    # Summed gradients of two batches are twice the gradients of one batch of both.
    plain_model = compiled(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25)))
    rows = [row for row in range(len(features)) if not 2 * BATCH <= row < 4 * BATCH]
    plain_model.fit(features[rows], targets[rows], batch_size=2 * BATCH, verbose=0, shuffle=False)
    strategy = replicas(2)
    for wrapped in (False, True):
        with strategy.scope():
            scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25 if wrapped else 0.125))
            model = compiled(CrossReplicaOptimizer(scaling) if wrapped else scaling, steps_per_execution=6)
        model.fit(features, targets, batch_size=BATCH, verbose=0, shuffle=False)
        assert scaling.dynamic_scale.numpy() == 2.0**14
        assert int(scaling.iterations) == 5
        for weight in on_each_replica(strategy, model):
            np.testing.assert_array_equal(weight[0], weight[1])
        assert_same(model.get_weights(), plain_model.get_weights(), rtol=1e-2, atol=1e-3)


def test_an_optimizer_with_its_own_minimize_is_refused_where_gradients_accumulate(features, scoped):
    class Own(keras.optimizers.SGD):
        def minimize(self, *_):
            """Optimizers of older Keras had `minimize`, which programs override."""

    for policy in ("float32", "mixed_float16"):
        keras.mixed_precision.set_global_policy(policy)
        model = scoped(lambda: compiled(Own(), steps_per_execution=2))
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        with pytest.raises(ValueError, match="the optimizer of model `.*` defines its own `minimize`"):
            model.fit(features, features[:, :3], batch_size=BATCH, verbose=0)
