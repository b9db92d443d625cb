"""Dropout: whose mask is the same, and whose is another."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers

ONES = tf.ones([40, 50])


def steps(layer, count=3):
    """What a loop of training steps on the IPU gets of the layer."""
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
    out = layers.Dropout(0.25)(ONES, training=True).numpy()
    assert set(np.unique(out)) == {0, np.float32(1 / 0.75)}
    assert np.mean(out == 0) == pytest.approx(0.25, abs=0.05)


def test_each_step_of_a_loop_has_another_mask():
    masks = steps(made(0.5))
    assert len({mask.tobytes() for mask in masks}) == 3


@pytest.mark.parametrize(("seed", "count"), [(None, 2), ([1, 2], 1)])
def test_each_replica_has_another_mask_but_with_a_seed(seed, count):
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    masks = steps(made(0.5, seed=seed), 1)
    assert masks.shape == (1, 2, 40, 50)
    assert len({mask.tobytes() for mask in masks[0]}) == count


def test_with_a_seed_each_step_has_the_same_mask_and_so_has_each_layer():
    masks = [*steps(made(0.5, seed=[3, 4])), layers.Dropout(0.5, seed=np.array([3, 4]))(ONES, training=True).numpy()]
    assert len({mask.tobytes() for mask in masks}) == 1
    other = layers.Dropout(0.5, seed=tf.constant([4, 3]))(ONES, training=True).numpy()
    assert other.tobytes() != masks[0].tobytes()


def test_masks_without_a_seed_follow_from_the_seed_of_keras():
    def three():
        keras.utils.set_random_seed(7)
        return steps(made(0.5))

    assert np.array_equal(three(), three())


def test_the_gradient_has_the_mask_of_the_result():
    layer = layers.Dropout(0.5)
    with tf.GradientTape() as tape:
        tape.watch(ONES)
        out = layer(ONES, training=True)
    assert np.array_equal(tape.gradient(out, ONES), out)


def test_mask_is_the_same_along_dimensions_of_size_one():
    out = layers.Dropout(0.5, noise_shape=[None, 1])(ONES, training=True).numpy()
    assert len(np.unique(out)) == 2
    assert np.array_equal(out, np.repeat(out[:, :1], 50, axis=1))


def test_nothing_is_dropped_outside_of_training_and_at_a_rate_of_zero():
    assert np.array_equal(layers.Dropout(0.5)(ONES), ONES)
    assert np.array_equal(layers.Dropout(0)(ONES, training=True), ONES)


def test_mask_of_keras_passes():
    masked = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]]))
    assert layers.Dropout(0.5)(masked)._keras_mask.numpy().tolist() == [[False, True]]


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5])
def test_rate_that_is_no_share_is_refused(rate):
    with pytest.raises(ValueError, match="`rate`"):
        layers.Dropout(rate)


def test_reference_is_taken_and_checked():
    masks = [layers.Dropout(0.5, seed=[1, 2], ref=ref)(ONES, training=True).numpy() for ref in (True, False)]
    assert np.array_equal(*masks)
    with pytest.raises(TypeError, match="`ref` must be True or False, but is None"):
        layers.Dropout(0.5, ref=None)


@pytest.mark.parametrize("seed", [3, [1], [1, 2, 3], [0.5, 1.5], [1, 2**31]])
def test_seed_that_is_no_pair_of_integers_is_refused(seed):
    with pytest.raises(ValueError, match="`seed` must be two integers"):
        layers.Dropout(0.5, seed=seed)
