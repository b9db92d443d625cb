"""Normalised images against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops.image_ops import normalise_image

OFFSETS, SCALES = [0.5, 0.25, 0.125], [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("dtype", "shape"), [(np.uint8, [2, 4, 3]), (np.float16, [5, 3]), (np.float32, [2, 1, 2, 4, 3])]
)
def test_channels_are_normalised_and_a_fourth_is_added(dtype, shape, strategy):
    image = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    program = tf.function(lambda x: normalise_image(x, OFFSETS, SCALES, 1 / 16), jit_compile=True)
    result = strategy.run(program, [tf.constant(image)])
    assert result.dtype == (np.float16 if dtype == np.uint8 else dtype)
    assert np.array_equal(result[..., :3], (image.astype(np.float32) / 16 - OFFSETS) * SCALES)
    assert not np.any(result[..., 3])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((tf.ones([3]), OFFSETS, SCALES), ValueError, r"`image` must have two dimensions or more.* but has \(3,\)"),
        ((tf.ones([2, 3]), OFFSETS, SCALES, 0), ValueError, "`scale` must not be 0"),
        ((tf.ones([2, 3], tf.int32), OFFSETS, SCALES), TypeError, "`image` must be uint8, float16 or float32"),
        ((tf.ones([2, 4]), OFFSETS, SCALES[:2]), ValueError, r"2 faults:[^$]*three channels[^$]*`channel_scales`"),
    ],
)
def test_images_and_numbers_that_do_not_fit_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        normalise_image(*arguments)
