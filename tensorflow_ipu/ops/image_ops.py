"""Normalization of images for the first layer of a model."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["normalise_image"]

_invalid = functools.partial(tf.errors.InvalidArgumentError, None, None)


def normalise_image(
    image: TensorLike,
    channel_offsets: TensorLike,
    channel_scales: TensorLike,
    scale: TensorLike = 1,
    name: str | None = None,
) -> tf.Tensor:
    """Normalises images of three channels and adds a fourth channel of zeros, which makes convolutions on IPUs faster.

    Each channel becomes `(image * scale - channel_offsets) * channel_scales`.

    Args:
      image: Images of shape [..., 3], with two dimensions or more: uint8, float16 or float32.
      channel_offsets: A vector of three elements.
      channel_scales: A vector of three elements.
      scale: A scalar other than 0.
      name: A name for the operation.

    Returns:
      Images of shape [..., 4] and of the same type, or float16 for uint8.

    Raises:
      TypeError: `image` has another type.
      tf.errors.InvalidArgumentError: `image` has fewer than two dimensions or not three channels, or there are not
        three offsets and three scales.
      ValueError: `scale` is 0.
    """
    with tf.name_scope(name or "normalise_image"):
        pixels = tf.convert_to_tensor(image, name="image")
        if pixels.dtype not in (tf.uint8, tf.float16, tf.float32):
            raise TypeError(f"`image` must be uint8, float16 or float32, but is {pixels.dtype.name}")
        kind = tf.float16 if pixels.dtype == tf.uint8 else pixels.dtype
        offsets, scales = tf.cast(channel_offsets, kind), tf.cast(channel_scales, kind)
        faults = Faults()
        if pixels.shape.rank is None or pixels.shape.rank < 2:
            faults.add(_invalid, f"`image` must have two dimensions or more, but has shape {pixels.shape}")
        elif pixels.shape[-1] != 3:
            faults.add(_invalid, f"The image has {pixels.shape[-1]} channels, expected 3: `image` is {pixels.shape}")
        for argument, value in (("channel_offsets", offsets), ("channel_scales", scales)):
            if not value.shape.is_compatible_with([3]):
                message = f"`{argument}` must be the same size as the number of image channels 3"
                faults.add(_invalid, f"{message}, but has shape {value.shape}")
        if tf.get_static_value(tf.convert_to_tensor(scale)) == 0:
            faults.add(ValueError, "`scale` must not be 0, which the IPU does not support")
        faults.raise_any()
        normalised = (tf.cast(pixels, kind) * tf.cast(scale, kind) - offsets) * scales
        return tf.pad(normalised, [*[[0, 0]] * (len(pixels.shape) - 1), [0, 1]])
