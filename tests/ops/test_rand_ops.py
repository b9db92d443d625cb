"""Dropout as a function: masks, seeds, replicas, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops.rand_ops import dropout

ONES = tf.ones([30, 40])


def test_elements_are_dropped_at_the_rate_and_the_others_scaled():
    out = dropout(ONES, 0.2).numpy()
    assert set(np.unique(out)) == {0, np.float32(1 / 0.8)}
    assert np.mean(out == 0) == pytest.approx(0.2, abs=0.05)


def test_same_seed_gives_the_same_mask_eagerly_and_compiled():
    compiled = tf.function(lambda: dropout(ONES, 0.5, seed=[1, 2]), jit_compile=True)
    assert np.array_equal(dropout(ONES, seed=[1, 2]), compiled())
    assert not np.array_equal(dropout(ONES, seed=[1, 2]), dropout(ONES, seed=[2, 1]))


@pytest.mark.parametrize("compiled", [False, True])
def test_without_a_seed_each_call_has_another_mask(compiled):
    def call():
        return dropout(ONES)

    function = tf.function(call, jit_compile=True) if compiled else call
    assert not np.array_equal(function(), function())


def test_without_a_seed_each_step_of_a_compiled_loop_has_another_mask():
    @tf.function(jit_compile=True)
    def program():
        masks = tf.TensorArray(tf.float32, 3)
        for i in tf.range(3):
            masks = masks.write(i, dropout(ONES))
        return masks.stack()

    assert len({mask.tobytes() for mask in program().numpy()}) == 3


def test_gradient_has_the_mask_of_the_result():
    for seed in (None, [3, 4]):
        with tf.GradientTape() as tape:
            tape.watch(ONES)
            out = dropout(ONES, seed=seed)
        assert np.array_equal(tape.gradient(out, ONES), out)


def test_mask_is_the_same_along_dimensions_of_size_one():
    out = dropout(ONES, noise_shape=[1, None], seed=[1, 2]).numpy()
    assert np.array_equal(out, np.repeat(out[:1], 30, axis=0))
    assert len(np.unique(out)) == 2


@pytest.mark.parametrize("empty", [[], (), tf.TensorShape([]), np.zeros([0], np.int32), tf.constant([], tf.int32)])
def test_empty_noise_shape_keeps_or_drops_all_as_tensorflow_does(empty):
    """It was refused, as a shape of another rank."""
    kept = set()
    for seed in range(8):
        out = dropout(ONES, 0.5, empty, [seed, 0])
        compiled = tf.function(lambda s=seed: dropout(ONES, 0.5, empty, [s, 0]), jit_compile=True)
        expected = tf.nn.experimental.stateless_dropout(ONES, 0.5, [seed, 0], "philox", noise_shape=[])
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(compiled(), expected)
        kept |= set(np.unique(out))
    assert kept == {0, 2}
    assert dropout(tf.ones([]), noise_shape=empty).shape == []


def test_mask_of_empty_noise_shape_is_that_of_the_gradient():
    with tf.GradientTape() as tape:
        tape.watch(ONES)
        out = dropout(ONES, noise_shape=[])
    assert np.array_equal(tape.gradient(out, ONES), out)


@pytest.mark.parametrize(
    "shape",
    [
        lambda x: [tf.shape(x)[0], 1],
        lambda x: [None, tf.constant(1, tf.int64)],
        lambda x: tf.concat([tf.shape(x)[:1], [1]], 0),
        lambda x: tf.constant([30, 1], tf.int64),
        lambda x: np.array([30, 1]),
        lambda x: tf.TensorShape([None, 1]),
    ],
)
@pytest.mark.parametrize("signature", [None, [tf.TensorSpec([None, 40])]])
def test_sizes_of_noise_may_be_tensors(shape, signature):
    """Graphs refused tensors, by a `TypeError` about an index."""
    expected = dropout(ONES, 0.5, [None, 1], [1, 2])
    assert len(np.unique(expected, axis=1)[0]) == 1
    function = tf.function(lambda x: dropout(x, 0.5, shape(x), [1, 2]), signature)
    np.testing.assert_array_equal(function(ONES), expected)
    np.testing.assert_array_equal(dropout(ONES, 0.5, shape(ONES), [1, 2]), expected)


@pytest.mark.parametrize("shape", [4, "ab", [1.0, 40], tf.constant([1.0, 40]), [[30], 40], tf.TensorShape(None)])
def test_noise_shape_of_no_integers_is_refused(shape):
    with pytest.raises(TypeError, match="`noise_shape` must be a list of integers and Nones, or a vector"):
        dropout(ONES, noise_shape=shape)


def test_rate_of_zero_drops_nothing():
    assert np.array_equal(dropout(ONES, 0), ONES)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_type_is_kept(dtype):
    assert dropout(tf.ones([4], dtype)).dtype == dtype


@pytest.mark.parametrize("rate", [-0.1, 1, 2])
def test_rate_that_is_no_share_is_refused(rate):
    with pytest.raises(ValueError, match="`rate` must be from 0 to below 1"):
        dropout(ONES, rate)


@pytest.mark.parametrize("seed", [1, [1], [1, 2, 3], [[1, 2]]])
def test_seed_of_another_shape_is_refused(seed):
    with pytest.raises(ValueError, match="`seed` must be two integers"):
        dropout(ONES, seed=seed)


def test_seed_of_more_than_64_bits_is_refused():
    with pytest.raises(ValueError, match=r"`seed` must be two integers of 64 bits, but is \[1, 18446744073709551616\]"):
        dropout(ONES, seed=[1, 2**64])


def test_things_of_other_types_are_refused():
    with pytest.raises(TypeError, match="`seed` must be two integers"):
        dropout(ONES, seed=[0.5, 1.5])
    with pytest.raises(TypeError, match="`x` must hold floating-point numbers"):
        dropout([1, 2])
    with pytest.raises(TypeError, match="no argument `ratio`"):
        dropout(ONES, ratio=0.5)
    with pytest.raises(TypeError, match="`ref` must be True or False, but is 1"):
        dropout(ONES, ref=1)


def test_reference_chooses_no_other_mask():
    masks = [dropout(ONES, seed=[1, 2], ref=ref).numpy() for ref in (True, False)]
    assert np.array_equal(*masks)
    assert np.array_equal(masks[0], dropout(ONES, seed=[1, 2]))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([40], "must have the rank of `x`"),
        ([30, 2], "must have a size of 1"),
        ([-1, 40], "must have a size of 1"),
        (tf.constant([2, 1]), "must have a size of 1"),
    ],
)
def test_noise_shape_that_does_not_fit_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        dropout(ONES, noise_shape=shape)
