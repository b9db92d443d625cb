"""Tests layers of Keras 2 in programs: they train as in plain `tf_keras`, draw by seeds, and share statistics."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu
from tensorflow_ipu.config.utils import reset_ipu_seed
from tensorflow_ipu.keras import layers

RANDOM = np.random.default_rng(0)
WORDS = RANDOM.integers(0, 20, [32, 6]).astype(np.int32)
IMAGES = RANDOM.normal(size=[32, 6, 6, 3]).astype(np.float32)
LABELS = RANDOM.integers(0, 3, 32).astype(np.int32)


def trained(make, x, weights=None, steps=2, **compiled):
    """Returns the losses of two epochs, and the weights before and after them, of a sequential model."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype), *make()])
    if weights is not None:
        model.set_weights(weights)
    initial_weights = model.get_weights()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, steps_per_execution=steps, **compiled)
    history = model.fit(x, LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], initial_weights, model.get_weights()


MODELS = {
    "convolutions": (
        lambda: [
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ],
        None,
        IMAGES,
    ),
    "recurrent": (
        lambda: [
            keras.layers.Embedding(20, 8, mask_zero=True),
            keras.layers.LSTM(6),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(8, "tanh"),
            keras.layers.Dense(3, kernel_regularizer="l2"),
        ],
        lambda: [
            layers.Embedding(20, 8, mask_zero=True, serialization_factor=4),
            layers.PopnnLSTM(6),
            layers.LayerNormalization(),
            layers.Recompute(keras.layers.Dense(8, "tanh")),
            layers.SerialDense(3, 2, "input_rows_kernel_columns", kernel_regularizer="l2"),
        ],
        WORDS,
    ),
    "groups": (
        lambda: [
            keras.layers.Conv2D(4, 3),
            keras.layers.GroupNormalization(2),
            keras.layers.GroupNormalization(4),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ],
        lambda: [
            keras.layers.Conv2D(4, 3),
            layers.Recompute(layers.GroupNormalization(2, strided_channel_grouping=False)),
            layers.InstanceNormalization(),
            layers.AssumeEqualAcrossReplicas(),
            layers.RecomputationCheckpoint(),
            keras.layers.Flatten(),
            layers.CaptureUpstreamGradients(layers.Dense(3)),
        ],
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_in_the_scope_as_plain_ones_do(strategy, name):
    make_plain, make_with_ipu_layers, x = MODELS[name]
    # XLA takes long to compile the unrolled recurrent layers.
    losses, weights, expected_weights = trained(make_plain, x, jit_compile=name != "recurrent")
    with strategy.scope():
        for make in [make_with_ipu_layers] if make_with_ipu_layers else [make_plain]:
            scope_losses, _, weights_after = trained(make, x, weights)
            np.testing.assert_allclose(scope_losses, losses, 1e-4)
            for weight, expected_weight in zip(weights_after, expected_weights, strict=True):
                np.testing.assert_allclose(weight, expected_weight, 1e-3, 1e-4)


def test_masks_leave_a_recomputed_model(strategy):
    def make(wrap):
        inner = keras.Sequential([keras.Input([6], dtype="int32"), keras.layers.Embedding(20, 8, mask_zero=True)])
        return [wrap(inner), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]

    losses, weights, _ = trained(lambda: make(lambda inner: inner), WORDS)
    with strategy.scope():
        recomputed_losses, _, _ = trained(lambda: make(layers.Recompute), WORDS, weights)
    np.testing.assert_allclose(recomputed_losses, losses, 1e-4)


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_half_precision_trains_beside_single(strategy, policy):
    make = MODELS["groups"][1]
    losses, weights, _ = trained(make, IMAGES)
    original = keras.backend.floatx(), keras.mixed_precision.global_policy()
    keras.backend.set_floatx("float16" if policy == "float16" else "float32")
    keras.mixed_precision.set_global_policy(policy)
    try:
        with strategy.scope():
            half, _, half_weights = trained(make, IMAGES, weights)
    finally:
        keras.backend.set_floatx(original[0])
        keras.mixed_precision.set_global_policy(original[1])
    np.testing.assert_allclose(half, losses, 1e-2)
    assert {weight.dtype.name for weight in half_weights} == {"float16" if policy == "float16" else "float32"}


def masks(layer, seed):
    """Returns the dropout masks of two steps on two replicas after `tf.random.set_seed`."""
    results = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(2):
            results.enqueue(layer(tf.ones([40, 50]), training=True))

    tf.random.set_seed(seed)
    ipu.IPUStrategy().run(program)
    return results.dequeue().numpy().reshape(4, 40, 50)


@pytest.mark.parametrize("kind", [layers.Dropout, keras.layers.Dropout])
def test_masks_differ_by_step_and_replica_and_follow_the_seed(kind, configure):
    configure(2)
    first, repeated, second = (masks(kind(0.5), seed) for seed in (1, 1, 2))
    assert len({mask.tobytes() for mask in (*first, *second)}) == 8
    assert np.array_equal(first, repeated)
    reset_ipu_seed(5)  # This seed has priority.
    assert not np.array_equal(masks(kind(0.5), 1), first)


def test_seed_outlives_a_configuration(configure):
    tf.random.set_seed(3)
    configure(2)
    first = masks(layers.Dropout(0.5), 3)
    tf.random.set_seed(3)
    configure(2)
    assert np.array_equal(masks(layers.Dropout(0.5), 3), first)


class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x * x))
        return x


def block(draws):
    return keras.Sequential([
        keras.layers.Dense(8, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1)),
        keras.layers.BatchNormalization(),
        *([keras.layers.Dropout(0.5, seed=3)] if draws else []),
        Penalty(),
    ])  # fmt: skip


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("draws", [False, True])
def test_recomputed_block_draws_once_updates_once_and_computes_twice(strategy, compiled_text, draws, policy):
    x, all_results, texts = tf.constant(IMAGES[:8, :4, 0, 0]), [], []
    for wrap in (lambda layer: layer, layers.Recompute):
        with strategy.scope():
            keras.mixed_precision.set_global_policy(policy)
            layer = wrap(block(draws))
            keras.mixed_precision.set_global_policy("float32")
            layer.build([8, 4])

        @tf.function(jit_compile=True)
        def step(x, layer=layer):
            with tf.GradientTape() as tape:
                total = tf.cast(tf.reduce_sum(layer(x, training=True) ** 3), tf.float32) + tf.cast(
                    layer.losses[0], tf.float32
                )
            return total, *tape.gradient(total, layer.trainable_variables)

        tf.random.set_seed(1)
        results = [tensor.numpy() for tensor in strategy.run(step, (x,))]
        all_results.append([*results, *layer.get_weights()])
        texts.append(compiled_text(strategy, step, x))
    for expected, result in zip(*all_results, strict=True):
        np.testing.assert_allclose(result, expected, *((1e-4, 1e-4) if policy == "float32" else (2e-2, 2e-2)))
    assert texts[1].count(" tanh(") == 2 * texts[0].count(" tanh(") > 0


def test_replicas_of_a_group_share_the_statistics_of_batch_normalization(configure):
    configure(2, norms__experimental__distributed_batch_norm_replica_group_size=2)
    plain_layer = keras.layers.BatchNormalization(momentum=0.5)
    x = tf.constant(IMAGES)
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.layers.BatchNormalization(momentum=0.5)])
        model.compile("sgd", "mse", steps_per_execution=1)
        model.fit(x, tf.zeros_like(x), batch_size=16, epochs=1, shuffle=False, verbose=0)
    plain_layer(x, training=True)
    for weight, expected in zip(model.get_weights()[2:], plain_layer.get_weights()[2:], strict=True):
        np.testing.assert_allclose(weight, expected, 2e-2, 1e-4)
