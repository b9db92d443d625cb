"""Group normalisation: the arithmetic, apart from where the parameters come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.config import _state

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import ShapeLike, TensorLike


def check_groups(shape: ShapeLike, groups: int, channels_axis: int) -> int:
    """The axis of the channels, counted from the front.

    Raises:
      ValueError: There is no such axis, its size or the rank is not known, it is neither the second nor the last, or
        `groups` does not divide its size.
    """
    shape = tf.TensorShape(shape)
    if shape.rank is None:
        raise ValueError("the rank of `inputs` must be known; use `tf.ensure_shape`")
    if not -shape.rank <= channels_axis < shape.rank:
        raise ValueError(f"`channels_axis={channels_axis}` is out of bounds: `inputs` has shape {shape}")
    axis = channels_axis % shape.rank
    if axis not in (1, shape.rank - 1):
        raise ValueError(
            f"`channels_axis={channels_axis}` must be 1 (NCHW) or -1 (NHWC), and `inputs` has shape {shape}; use"
            " `tf.transpose`"
        )
    channels = shape[axis]
    if channels is None:
        raise ValueError(f"the number of channels of `inputs` must be known, and the shape is {shape}")
    if not 1 <= groups <= channels:
        raise ValueError(f"`groups={groups}` must be from 1 to the number of channels, which is {channels}")
    if channels % groups:
        raise ValueError(f"`groups={groups}` must divide the number of channels, which is {channels}")
    return axis


def normalize(
    x: tf.Tensor,
    groups: int,
    axis: int,
    epsilon: float,
    strided: bool,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
) -> tf.Tensor:
    """Normalises the channels of each group of each sample to the mean 0 and the variance 1, then scales and shifts.

    Half precision is computed in float32.

    Args:
      x: A tensor [n, ..., channels, ...].
      groups: The number of groups.
      axis: The axis of the channels, counted from the front, 1 or more.
      epsilon: What is added to the variance.
      strided: Whether channel c is in group `c % groups`; else groups are consecutive channels.
      gamma: The scale of each channel, of shape [channels].
      beta: What is added to each channel, of shape [channels].

    Returns:
      A tensor like `x`.
    """
    channels = known_size(x, axis)
    values = tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x
    shape = [size if size is not None else tf.shape(x)[i] for i, size in enumerate(x.shape)]
    split = [channels // groups, groups] if strided else [groups, channels // groups]
    values = tf.reshape(values, [*shape[:axis], *split, *shape[axis + 1 :]])
    group_axis = axis + 1 if strided else axis
    axes = [i for i in range(1, len(shape) + 1) if i != group_axis]
    mean = tf.reduce_mean(values, axes, keepdims=True)
    if _stable():
        variance = tf.reduce_mean(tf.math.squared_difference(values, mean), axes, keepdims=True)
    else:
        # Cancellation may leave a little less than nothing.
        variance = tf.maximum(tf.reduce_mean(tf.square(values), axes, keepdims=True) - tf.square(mean), 0)
    values = tf.reshape((values - mean) * tf.math.rsqrt(variance + epsilon), shape)
    along = [channels if i == axis else 1 for i in range(len(shape))]
    if gamma is not None:
        values *= tf.reshape(tf.cast(gamma, values.dtype), along)
    if beta is not None:
        values += tf.reshape(tf.cast(beta, values.dtype), along)
    return tf.ensure_shape(tf.cast(values, x.dtype), x.shape)


def _stable() -> bool:
    """What the configuration of the strategy's device says of statistics, `norms.use_stable_statistics`."""
    records = _state.records()
    ordinal = getattr(tf.distribute.get_strategy().extended, "ordinal", 0)
    return ordinal < len(records) and records[ordinal].options["norms.use_stable_statistics"]
