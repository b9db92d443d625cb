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
    assert np.array_equal(dropout(ONES, 0), ONES)
    for dtype in (tf.float16, tf.bfloat16, tf.float64):
        assert dropout(tf.ones([4], dtype)).dtype == dtype


def test_same_seed_gives_the_same_mask_eagerly_and_compiled():
    compiled = tf.function(lambda: dropout(ONES, 0.5, seed=[1, 2]), jit_compile=True)
    assert np.array_equal(dropout(ONES, seed=[1, 2]), compiled())
    assert not np.array_equal(dropout(ONES, seed=[1, 2]), dropout(ONES, seed=[2, 1]))
    assert np.array_equal(dropout(ONES, seed=[1, 2], ref=True), dropout(ONES, seed=[1, 2], ref=False))


def test_without_a_seed_each_call_and_each_step_of_a_compiled_loop_has_another_mask():
    assert not np.array_equal(dropout(ONES), dropout(ONES))

    @tf.function(jit_compile=True)
    def program():
        masks = tf.TensorArray(tf.float32, 3)
        for i in tf.range(3):
            masks = masks.write(i, dropout(ONES))
        return masks.stack()

    assert len({mask.tobytes() for mask in [*program().numpy(), *program().numpy()]}) == 6


def test_gradient_has_the_mask_of_the_result():
    for options in ({}, {"seed": [3, 4]}, {"noise_shape": []}):
        with tf.GradientTape() as tape:
            tape.watch(ONES)
            out = dropout(ONES, **options)
        assert np.array_equal(tape.gradient(out, ONES), out)


def test_mask_is_the_same_along_dimensions_of_size_one():
    out = dropout(ONES, noise_shape=[1, None], seed=[1, 2]).numpy()
    assert np.array_equal(out, np.repeat(out[:1], 30, axis=0))
    assert len(np.unique(out)) == 2


@pytest.mark.parametrize("empty", [[], tf.TensorShape([]), tf.constant([], tf.int32)])
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


NO_INTEGERS = "`noise_shape` must be a list of integers and Nones, or a vector"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        *(({"rate": rate}, ValueError, "`rate` must be from 0 to below 1") for rate in (-0.1, 1, 2)),
        *(({"seed": seed}, ValueError, "`seed` must be two integers") for seed in (1, [1], [1, 2, 3], [[1, 2]])),
        ({"seed": [1, 2**64]}, ValueError, r"two integers of 64 bits, but is \[1, 18446744073709551616\]"),
        ({"seed": [0.5, 1.5]}, TypeError, "`seed` must be two integers"),
        ({"x": [1, 2]}, TypeError, "`x` must hold floating-point numbers"),
        ({"ratio": 0.5}, TypeError, "no argument `ratio`"),
        ({"ref": 1}, TypeError, "`ref` must be True or False, but is 1"),
        *(
            ({"noise_shape": shape}, TypeError, NO_INTEGERS)
            for shape in (4, "ab", [1.0, 40], tf.constant([1.0, 40]), [[30], 40], tf.TensorShape(None))
        ),
        ({"noise_shape": [40]}, ValueError, "must have the rank of `x`"),
        *(
            ({"noise_shape": shape}, ValueError, "must have a size of 1")
            for shape in ([30, 2], [-1, 40], tf.constant([2, 1]))
        ),
    ],
)
def test_arguments_that_cannot_be_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        dropout(**{"x": ONES, **options})
