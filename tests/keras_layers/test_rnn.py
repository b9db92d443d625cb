"""Recurrent layers: order of dimensions, states, masks, seeds, and what is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras import layers

PAIRS = [(layers.PopnnLSTM, keras.layers.LSTM), (layers.PopnnGRU, keras.layers.GRU)]
KINDS = [kind for kind, _ in PAIRS]


def pair(kind, plain, normal, **options):
    layer, other = kind(4, **options), plain(4, **options)
    layer(normal([3, 5, 2]))
    other(normal([3, 5, 2]))
    for variable, value in zip(other.variables, layer.variables, strict=True):
        variable.assign(value)
    return layer, other


def assert_same(one, other):
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
def test_masked_steps_are_left_out(kind, plain, normal):
    layer, other = pair(kind, plain, normal, return_sequences=True)
    mask = tf.constant([[True] * 5, [True, True, False, False, False], [True, False, True, False, True]])
    assert_same(layer(normal([3, 5, 2]), mask=mask), other(normal([3, 5, 2]), mask=mask))


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
def test_initial_state_is_where_it_starts(kind, plain, normal):
    layer, other = pair(kind, plain, normal)
    state = [normal([3, 4], seed=1), normal([3, 4], seed=2)][: len(layer.state_size)]
    assert_same(layer(normal([3, 5, 2]), initial_state=state), other(normal([3, 5, 2]), initial_state=state))


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
@pytest.mark.parametrize(("sequences", "states"), [(False, False), (True, False), (True, True)])
def test_time_comes_first_if_so_wished(kind, plain, normal, sequences, states):
    options = {"return_sequences": sequences, "return_state": states}
    _, other = pair(kind, plain, normal, **options)
    layer = kind(4, time_major=True, **options)
    x = normal([3, 5, 2])
    turned = tf.transpose(x, [1, 0, 2])
    layer(turned)
    layer.set_weights(other.get_weights())
    expected = other(x)
    outputs = expected[0] if states else expected
    if sequences:
        outputs = tf.transpose(outputs, [1, 0, 2])
    assert_same(layer(turned), [outputs, *expected[1:]] if states else outputs)
    symbolic = tf.nest.flatten(layer(keras.Input(batch_shape=[5, 3, 2])))
    assert [each.shape for each in symbolic] == [tuple(each.shape) for each in tf.nest.flatten(layer(turned))]


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
def test_stateful_layer_goes_on_where_it_ended(kind, plain, normal):
    layer, other = pair(kind, plain, normal, stateful=True)
    layer.reset_state()
    other.reset_state()
    for seed in (5, 6):
        assert_same(layer(normal([3, 5, 2], seed=seed)), other(normal([3, 5, 2], seed=seed)))
    layer.reset_state()
    fresh = kind(4)
    fresh(normal([3, 5, 2]))
    fresh.set_weights([variable.numpy() for variable in layer.trainable_variables])
    assert_same(layer(normal([3, 5, 2])), fresh(normal([3, 5, 2])))


@pytest.mark.parametrize(("kind", "plain"), PAIRS)
def test_dropout_has_the_masks_of_the_plain_layer_of_that_seed(kind, plain, normal):
    layer, other = kind(4, dropout=0.5, dropout_seed=9), plain(4, dropout=0.5, seed=9)
    layer(normal([3, 5, 2]))
    other(normal([3, 5, 2]))
    for variable, value in zip(other.trainable_variables, layer.trainable_variables, strict=True):
        variable.assign(value)
    results = [layer(normal([3, 5, 2]), training=True) for _ in range(2)]
    assert_same(results, [other(normal([3, 5, 2]), training=True) for _ in range(2)])
    assert not np.array_equal(*results)


@pytest.mark.parametrize("kind", KINDS)
def test_seed_is_that_of_the_initial_weights(kind, normal):
    def weights(**options):
        layer = kind(4, **options)
        layer(normal([3, 5, 2]))
        return layer.get_weights()

    assert_same(weights(seed=3), weights(seed=3))
    assert not np.array_equal(weights(seed=3)[0], weights(seed=4)[0])
    own = keras.initializers.GlorotUniform(seed=8)
    assert_same(weights(kernel_initializer=own, seed=3)[0], weights(kernel_initializer=own, seed=4)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_options_for_hardware_are_kept(kind):
    options = {"partials_dtype": tf.float16, "options": {"a": "b"}, "options_bwd": {"c": "d"}}
    layer = kind(4, **options)
    again = kind.from_config(layer.get_config())
    assert (again.partials_dtype, again.options, again.options_bwd) == (tf.float16, {"a": "b"}, {"c": "d"})


def test_shapes_of_states_are_told():
    assert layers.PopnnLSTM(4).state_shape(3) == ((3, 4), (3, 4))
    assert layers.PopnnGRU(4).state_shape(3) == (3, 4)


def test_bias_has_a_row_for_each_gate_and_forgets_little(normal):
    layer = layers.PopnnLSTM(4)
    layer(normal([3, 5, 2]))
    assert layer.get_bias().numpy().tolist() == [[0] * 4, [1] * 4, [0] * 4, [0] * 4]


REFUSED = {
    "use_bias": False,
    "kernel_regularizer": "l2",
    "recurrent_regularizer": "l2",
    "bias_regularizer": "l2",
    "activity_regularizer": "l2",
    "kernel_constraint": "non_neg",
    "recurrent_constraint": "non_neg",
    "bias_constraint": "non_neg",
    "recurrent_dropout": 0.5,
    "implementation": 1,
    "go_backwards": True,
    "unroll": True,
    "partials_dtype": tf.int32,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_option_that_the_layer_does_not_have_is_refused(kind, name):
    with pytest.raises(ValueError, match=f"`{name}"):
        kind(4, **{name: REFUSED[name]})


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_refused_is_told_at_once(kind):
    with pytest.raises(ValueError, match=r"2 faults:[^$]*`use_bias=False`[^$]*`unroll=True`"):
        kind(4, use_bias=False, unroll=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"options": "fast"}, {"options_bwd": 3}, {"time_major": 1}])
def test_option_of_another_type_is_refused(kind, options):
    with pytest.raises(TypeError, match=f"`{next(iter(options))}` must be"):
        kind(4, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_without_three_dimensions_are_refused(kind, normal):
    with pytest.raises(ValueError, match="ndim=3|three dimensions"):
        kind(4)(normal([3, 5]))
