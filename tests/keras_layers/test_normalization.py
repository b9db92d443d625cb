"""Normalisation: groups of channels, statistics, and errors. Dropout: equal and different masks."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers


def by_definition(x, groups_of_channels, epsilon=1e-3):
    """Normalises an array [n, ..., channels] by the definition."""
    out = np.empty_like(x)
    for channels in groups_of_channels:
        part = x[..., channels]
        axes = tuple(range(1, x.ndim))
        mean, variance = part.mean(axes, keepdims=True), part.var(axes, keepdims=True)
        out[..., channels] = (part - mean) / np.sqrt(variance + epsilon)
    return out


def test_channels_go_to_groups_in_turn_or_in_blocks(normal):
    for kwargs, shape, groups in (
        ({"groups": 3}, [2, 3, 4, 6], [[0, 3], [1, 4], [2, 5]]),
        ({"groups": 3, "strided_channel_grouping": False}, [2, 3, 4, 6], [[0, 1], [2, 3], [4, 5]]),
        ({}, [2, 5, 4], [[0, 2], [1, 3]]),
    ):
        x = normal(shape)
        assert np.allclose(layers.GroupNormalization(**kwargs)(x), by_definition(x.numpy(), groups), atol=1e-5)


def test_batches_of_unknown_size_are_normalised(normal):
    inputs = keras.Input([None, 4])
    model = keras.Model(inputs, layers.LayerNormalization()(layers.GroupNormalization()(inputs)))
    assert model.predict(normal([3, 5, 4]).numpy(), verbose=0).shape == (3, 5, 4)


def test_parameters_come_as_asked_for(normal):
    for kind in (layers.GroupNormalization, layers.InstanceNormalization, layers.LayerNormalization):
        bare, frozen = kind(center=False, scale=False), kind(trainable=False)
        bare(normal([2, 3, 4]))
        frozen(normal([2, 3, 4]))
        assert bare.variables == []
        assert [variable.name for variable in frozen.non_trainable_variables] == ["gamma", "beta"]


@pytest.mark.parametrize("stable", [False, True])
def test_stable_statistics_are_exact_far_from_zero_and_half_precision_accumulates_in_single(configure, normal, stable):
    configure(1, norms__use_stable_statistics=stable)
    x = normal([2, 50, 4]).numpy() + 1000
    far = layers.GroupNormalization(1)(x)
    assert np.allclose(far, by_definition(x.astype(np.float64), [[0, 1, 2, 3]]), atol=1e-3) == stable
    x = (normal([2, 4000, 2]).numpy() * 4 + 100).astype(np.float16)
    out = layers.InstanceNormalization(dtype="float16")(x).numpy()
    assert np.allclose(out, by_definition(x.astype(np.float64), [[0], [1]]), atol=0.05)


def test_channels_and_axes_that_do_not_fit_are_refused(refused):
    for kind, options, shape, message in (
        (layers.GroupNormalization, {"groups": 4}, [2, 3, 6], "`groups=4` must divide"),
        (layers.GroupNormalization, {"groups": 8}, [2, 3, 6], "`groups=8` must be from 1"),
        (layers.GroupNormalization, {"channels_axis": 3}, [2, 3, 6], "`channels_axis=3` is out of bounds"),
        (layers.GroupNormalization, {"channels_axis": 2}, [2, 3, 6, 4], "must be 1 .* or -1"),
        (layers.GroupNormalization, {}, [2, 3, None], "the number of channels of `inputs` must be known"),
        (layers.LayerNormalization, {"axis": 3}, [2, 3], "out of bounds"),
        (layers.LayerNormalization, {"axis": [1, -1]}, [2, 3], "twice"),
        (layers.LayerNormalization, {"axis": -1}, [2, None], "must be known"),
    ):
        refused(ValueError, message, kind(**options).build, shape)
    refused(ValueError, "`groups`", layers.GroupNormalization, 0)
    for axis in ("last", 1.5, [], [1, "2"], True):
        refused(ValueError, "`axis` must be an int", layers.LayerNormalization, axis)


def test_regularizers_and_constraints_reach_their_parameters():
    options = {"beta_regularizer": "l1", "gamma_regularizer": "l2"}
    options |= {"beta_constraint": "non_neg", "gamma_constraint": "unit_norm"}
    layer: Any = layers.LayerNormalization(**options)
    layer.build([2, 3])
    assert type(layer.beta.regularizer) is keras.regularizers.L1
    assert type(layer.gamma.regularizer) is keras.regularizers.L2
    assert type(layer.beta.constraint) is keras.constraints.NonNeg
    assert type(layer.gamma.constraint) is keras.constraints.UnitNorm


ONES = tf.ones([40, 50])


def steps(layer, count=3):
    """Returns the outputs of the layer in a loop of training steps on the IPU."""
    results = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(count):
            results.enqueue(layer(ONES, training=True))

    ipu.IPUStrategy().run(program)
    return results.dequeue().numpy()


def made(*args, **kwargs):
    with ipu.IPUStrategy().scope():
        return layers.Dropout(*args, **kwargs)


def test_inputs_are_dropped_and_the_others_scaled():
    layer = layers.Dropout(0.25)
    with tf.GradientTape() as tape:
        tape.watch(ONES)
        out = layer(ONES, training=True)
    assert set(np.unique(out)) == {0, np.float32(1 / 0.75)}
    assert np.mean(out == 0) == pytest.approx(0.25, abs=0.05)
    assert np.array_equal(tape.gradient(out, ONES), out)
    assert np.array_equal(layers.Dropout(0.5)(ONES), ONES)
    assert np.array_equal(layers.Dropout(0)(ONES, training=True), ONES)
    same = layers.Dropout(0.5, noise_shape=[None, 1])(ONES, training=True).numpy()
    assert len(np.unique(same)) == 2
    assert np.array_equal(same, np.repeat(same[:, :1], 50, axis=1))


def test_each_step_of_a_loop_has_another_mask_that_follows_from_the_seed_of_keras():
    def three():
        keras.utils.set_random_seed(7)
        return steps(made(0.5))

    masks = three()
    assert len({mask.tobytes() for mask in masks}) == 3
    assert np.array_equal(masks, three())


@pytest.mark.parametrize(("seed", "count"), [(None, 2), ([1, 2], 1)])
def test_each_replica_has_another_mask_but_with_a_seed(seed, count, configure):
    configure(2)
    masks = steps(made(0.5, seed=seed), 1)
    assert masks.shape == (1, 2, 40, 50)
    assert len({mask.tobytes() for mask in masks[0]}) == count


def test_with_a_seed_each_step_has_the_same_mask_and_so_has_each_layer():
    masks = [*steps(made(0.5, seed=[3, 4])), layers.Dropout(0.5, seed=np.array([3, 4]))(ONES, training=True).numpy()]
    assert len({mask.tobytes() for mask in masks}) == 1
    different = layers.Dropout(0.5, seed=tf.constant([4, 3]))(ONES, training=True).numpy()
    assert different.tobytes() != masks[0].tobytes()


def test_arguments_are_checked(refused):
    masks = [layers.Dropout(0.5, seed=[1, 2], ref=ref)(ONES, training=True).numpy() for ref in (True, False)]
    assert np.array_equal(*masks)
    refused(TypeError, "`ref` must be True or False, but is None", layers.Dropout, 0.5, ref=None)
    for rate in (-0.1, 1, 1.5):
        refused(ValueError, "`rate`", layers.Dropout, rate)
    for seed in (3, [1], [1, 2, 3], [0.5, 1.5], [1, 2**31]):
        refused(ValueError, "`seed` must be two integers", layers.Dropout, 0.5, seed=seed)
