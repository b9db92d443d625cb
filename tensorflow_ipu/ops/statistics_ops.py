"""Histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, check_bool, check_int

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["fixed_width_bins", "histogram", "histogram_normalize", "histogram_update"]


def fixed_width_bins(inputs: TensorLike, n_bins: int) -> tf.Tensor:
    """Computes numbers at equal distances from the smallest of `inputs` to the largest, as levels of a histogram.

    Args:
      inputs: Floats.
      n_bins: How many levels there are, 1 or more; a histogram of them has one bin more.

    Returns:
      The levels, [n_bins], of the type of `inputs`, ascending.

    Raises:
      ValueError: `n_bins` is below 1.
      TypeError: `inputs` has no floats.
    """
    with tf.name_scope("fixed_width_bins"):
        values = tf.convert_to_tensor(inputs)
        if not values.dtype.is_floating:
            raise TypeError(f"`inputs` must have floats, but is {values.dtype.name}")
        if isinstance(n_bins, int):
            check_int("n_bins", n_bins, 1)
        # Not in half precision, where steps of a large range are lost.
        low, high = (tf.cast(end(values), tf.float32) for end in (tf.reduce_min, tf.reduce_max))
        return tf.cast(tf.linspace(low, high, n_bins), values.dtype)


def histogram(inputs: TensorLike, levels: TensorLike, absolute_of_input: bool = False) -> tf.Tensor:
    """Counts how many of `inputs`, float16 or float32 of rank 1, are between two levels each.

    With n levels there are n + 1 bins: below the first level, from each level to the next, and from the last on. What
    equals a level is in the bin above it; NaN is in the first.

    Args:
      inputs: Numbers, float16 or float32, of rank 1.
      levels: Numbers that ascend, float16 or float32, of rank 1.
      absolute_of_input: Whether the sign of `inputs` is ignored.

    Returns:
      The counts, float32 [n + 1], exact below 2 to the power of 24.

    Raises:
      ValueError: `inputs` or `levels` have another type or rank.
      TypeError: `absolute_of_input` is no bool.
    """
    check_bool("absolute_of_input", absolute_of_input)
    with tf.name_scope("histogram"):
        values, bounds = _operands(inputs, levels)
        if absolute_of_input:
            values = tf.abs(values)
        # How many are at each level or above; the differences are those in the bins.
        above = tf.reduce_sum(tf.cast(values >= bounds[:, tf.newaxis], tf.int32), axis=1)
        edges = tf.concat([tf.size(values)[tf.newaxis], above, [0]], 0)
        return tf.cast(edges[:-1] - edges[1:], tf.float32)


def histogram_update(
    hist: TensorLike, inputs: TensorLike, levels: TensorLike, absolute_of_input: bool = False
) -> tf.Tensor:
    """Adds the counts of `inputs` to `hist`, float32 [n + 1]; see `histogram` for the other arguments.

    Raises:
      ValueError: `hist` is of another type, or does not have one element more than `levels`; see `histogram` too.
      TypeError: `absolute_of_input` is no bool.
    """
    with tf.name_scope("histogram_update"):
        counts, bounds = tf.convert_to_tensor(hist), tf.convert_to_tensor(levels, dtype_hint=tf.float32)
        faults = Faults()
        if counts.dtype != tf.float32:
            faults.add(ValueError, f"`hist` must be float32, but is {counts.dtype.name}")
        known = bounds.shape[0] if bounds.shape.rank == 1 else None
        size = None if known is None else known + 1
        if not counts.shape.is_compatible_with([size]):
            faults.add(
                ValueError,
                f"`hist` must have one element more than `levels`, but has shape {counts.shape}, and `levels` has"
                f" {bounds.shape}",
            )
        faults.raise_any()
        return counts + histogram(inputs, bounds, absolute_of_input)


def histogram_normalize(hist: TensorLike) -> tf.Tensor:
    """Divides the counts of a histogram of floats by their sum."""
    with tf.name_scope("histogram_normalize"):
        counts = tf.convert_to_tensor(hist)
        return counts / tf.reduce_sum(counts)


def _operands(inputs: TensorLike, levels: TensorLike) -> tuple[tf.Tensor, tf.Tensor]:
    values, bounds = tf.convert_to_tensor(inputs), tf.convert_to_tensor(levels, dtype_hint=tf.float32)
    faults = Faults()
    for name, numbers in (("inputs", values), ("levels", bounds)):
        if numbers.dtype not in (tf.float16, tf.float32):
            faults.add(ValueError, f"`{name}` must be float16 or float32, but is {numbers.dtype.name}")
    if values.shape.rank != 1:
        faults.add(ValueError, f"`inputs` must be of rank 1, but has shape {values.shape}; use `tf.reshape(x, [-1])`")
    if bounds.shape.rank != 1:
        faults.add(ValueError, f"`levels` must be of rank 1, but has shape {bounds.shape}")
    faults.raise_any()
    return values, tf.cast(bounds, values.dtype)
