"""Recurrent layers: order of dimensions, states, masks, seeds, errors; and a model of many layers trained by `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers

PAIRS = [(layers.PopnnLSTM, keras.layers.LSTM), (layers.PopnnGRU, keras.layers.GRU)]
KINDS = [kind for kind, _ in PAIRS]


@pytest.fixture
def pair(twins, normal):
    """`pair(kind, plain, **options)` returns a layer and its counterpart in Keras, with the same weights."""
    return lambda kind, plain, **options: twins(kind(4, **options), plain(4, **options), normal([3, 5, 2]))


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
def test_masks_initial_states_and_dropout_of_a_seed_are_those_of_the_plain_layer(
    kind, plain, pair, twins, normal, assert_close
):
    layer, other = pair(kind, plain, return_sequences=True)
    mask = tf.constant([[True] * 5, [True, True, False, False, False], [True, False, True, False, True]])
    state = [normal([3, 4], seed=1), normal([3, 4], seed=2)][: len(layer.state_size)]
    for options in ({"mask": mask}, {"initial_state": state}):
        assert_close(layer(normal([3, 5, 2]), **options), other(normal([3, 5, 2]), **options))
    layer, other = kind(4, dropout=0.5, dropout_seed=9), plain(4, dropout=0.5, seed=9)
    twins(layer, other, normal([3, 5, 2]))
    results = [layer(normal([3, 5, 2]), training=True) for _ in range(2)]
    assert_close(results, [other(normal([3, 5, 2]), training=True) for _ in range(2)])
    assert not np.array_equal(*results)


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
def test_stateful_layer_goes_on_where_it_ended(kind, plain, pair, normal, assert_close):
    layer, other = pair(kind, plain, stateful=True)
    for recurrent in (layer, other):
        recurrent.reset_state()
    for seed in (5, 6):
        assert_close(layer(normal([3, 5, 2], seed=seed)), other(normal([3, 5, 2], seed=seed)))
    layer.reset_state()
    fresh = kind(4)
    fresh(normal([3, 5, 2]))
    fresh.set_weights([variable.numpy() for variable in layer.trainable_variables])
    assert_close(layer(normal([3, 5, 2])), fresh(normal([3, 5, 2])))


@pytest.mark.parametrize("kind", KINDS)
def test_seed_is_that_of_the_initial_weights_and_options_for_hardware_are_kept(kind, normal, assert_close):
    def weights(**options):
        layer = kind(4, **options)
        layer(normal([3, 5, 2]))
        return layer.get_weights()

    assert_close(weights(seed=3), weights(seed=3))
    assert not np.array_equal(weights(seed=3)[0], weights(seed=4)[0])
    seeded = keras.initializers.GlorotUniform(seed=8)
    assert_close(weights(kernel_initializer=seeded, seed=3)[0], weights(kernel_initializer=seeded, seed=4)[0])
    layer = kind(4, partials_dtype=tf.float16, options={"a": "b"}, options_bwd={"c": "d"})
    copy = kind.from_config(layer.get_config())
    assert (copy.partials_dtype, copy.options, copy.options_bwd) == (tf.float16, {"a": "b"}, {"c": "d"})


def test_shapes_of_states_are_told_and_bias_has_a_row_for_each_gate_and_forgets_little(normal):
    assert layers.PopnnLSTM(4).state_shape(3) == ((3, 4), (3, 4))
    assert layers.PopnnGRU(4).state_shape(3) == (3, 4)
    layer = layers.PopnnLSTM(4)
    layer(normal([3, 5, 2]))
    assert layer.get_bias().numpy().tolist() == [[0] * 4, [1] * 4, [0] * 4, [0] * 4]


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
def test_time_comes_first_if_so_wished(kind, plain, pair, normal, assert_close):
    x = normal([3, 5, 2])
    turned = tf.transpose(x, [1, 0, 2])
    for sequences, states in ((False, False), (True, False), (True, True)):
        options = {"return_sequences": sequences, "return_state": states}
        _, other = pair(kind, plain, **options)
        layer = kind(4, time_major=True, **options)
        layer(turned)
        layer.set_weights(other.get_weights())
        outputs, *last = other(x) if states else [other(x)]
        if sequences:
            outputs = tf.transpose(outputs, [1, 0, 2])
        results = tf.nest.flatten(layer(turned))
        assert_close(results, [outputs, *last])
        symbolic = tf.nest.flatten(layer(keras.Input(batch_shape=[5, 3, 2])))
        assert [symbol.shape for symbol in symbolic] == [tuple(result.shape) for result in results]


REFUSED = {
    "use_bias": False,
    **{f"{name}_regularizer": "l2" for name in ("kernel", "recurrent", "bias", "activity")},
    **{f"{name}_constraint": "non_neg" for name in ("kernel", "recurrent", "bias")},
    "recurrent_dropout": 0.5,
    "implementation": 1,
    "go_backwards": True,
    "unroll": True,
    "partials_dtype": tf.int32,
}


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_the_layer_does_not_have_are_refused(kind, normal, refused):
    for name, value in REFUSED.items():
        refused(ValueError, f"`{name}", kind, 4, **{name: value})
    refused(ValueError, r"2 faults:[^$]*`use_bias=False`[^$]*`unroll=True`", kind, 4, use_bias=False, unroll=True)
    for name, value in (("options", "fast"), ("options_bwd", 3), ("time_major", 1)):
        refused(TypeError, f"`{name}` must be", kind, 4, **{name: value})
    refused(ValueError, "ndim=3|three dimensions", kind(4), normal([3, 5]))


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
    ids, labels = random.integers(0, 20, [64, 5]).astype(np.int32), random.integers(0, 3, 64).astype(np.int32)
    losses = model.fit(ids, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, model.get_weights()


def test_weights_after_fit_are_those_of_plain_layers(assert_close):
    model = keras.Sequential([keras.layers.Input([5], dtype="int32"), *plain()])
    weights = model.get_weights()
    losses, expected = fit(model, weights)
    with ipu.IPUStrategy().scope():
        own_losses, actual = fit(keras.Sequential([keras.layers.Input([5], dtype="int32"), *ours()]), weights)
    assert own_losses == pytest.approx(losses, rel=1e-4)
    assert_close(actual, expected, 1e-3, 1e-4)
