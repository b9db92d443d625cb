"""Histograms of floating-point tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, check_bool, check_int

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["fixed_width_bins", "histogram", "histogram_normalize", "histogram_update"]


def fixed_width_bins(inputs: TensorLike, n_bins: int) -> tf.Tensor:
    """Computes equidistant levels for a histogram, from the minimum of `inputs` to the maximum.

    Args:
      inputs: Floats.
      n_bins: The number of levels, 1 or more. A histogram with these levels has `n_bins + 1` bins.

    Returns:
      The ascending levels, of shape [n_bins] and the dtype of `inputs`.

    Raises:
      ValueError: `n_bins` is below 1.
      TypeError: `inputs` does not hold floats.
    """
    with tf.name_scope("fixed_width_bins"):
        values = tf.convert_to_tensor(inputs)
        if not values.dtype.is_floating:
            raise TypeError(f"`inputs` must have floats, but is {values.dtype.name}")
        if isinstance(n_bins, int):
            check_int("n_bins", n_bins, 1)
        # Half precision cannot represent the steps of a large range.
        low, high = (tf.cast(end(values), tf.float32) for end in (tf.reduce_min, tf.reduce_max))
        return tf.cast(tf.linspace(low, high, n_bins), values.dtype)


def histogram(inputs: TensorLike, levels: TensorLike, absolute_of_input: bool = False) -> tf.Tensor:
    """Counts the elements of `inputs` in each bin between the levels.

    With n levels there are n + 1 bins: below the first level, between each pair of neighbours, and from the last level on.
    An element that equals a level belongs to the bin above it. NaN belongs to the first bin.

    Args:
      inputs: A float16 or float32 tensor of rank 1.
      levels: Ascending values: a float16 or float32 tensor of rank 1.
      absolute_of_input: Whether to count the absolute values of `inputs`.

    Returns:
      The counts, float32 [n + 1], exact below `2 ** 24`.

    Raises:
      ValueError: `inputs` or `levels` has another dtype or rank.
      TypeError: `absolute_of_input` is not a bool.
    """
    check_bool("absolute_of_input", absolute_of_input)
    with tf.name_scope("histogram"):
        values, bounds = _operands(inputs, levels)
        if absolute_of_input:
            values = tf.abs(values)
        # The number of elements at or above each level. The differences are the counts of the bins.
        at_or_above = tf.reduce_sum(tf.cast(values >= bounds[:, tf.newaxis], tf.int32), axis=1)
        edges = tf.concat([tf.size(values)[tf.newaxis], at_or_above, [0]], 0)
        return tf.cast(edges[:-1] - edges[1:], tf.float32)


def histogram_update(
    hist: TensorLike, inputs: TensorLike, levels: TensorLike, absolute_of_input: bool = False
) -> tf.Tensor:
    """Adds the counts of `inputs` to `hist`, float32 [n + 1]. See `histogram` for the other arguments.

    Raises:
      ValueError: `hist` is not float32, or does not have one element more than `levels`; or as for `histogram`.
      TypeError: `absolute_of_input` is not a bool.
    """
    with tf.name_scope("histogram_update"):
        counts, bounds = tf.convert_to_tensor(hist), tf.convert_to_tensor(levels, dtype_hint=tf.float32)
        faults = Faults()
        if counts.dtype != tf.float32:
            faults.add(ValueError, f"`hist` must be float32, but is {counts.dtype.name}")
        level_count = bounds.shape[0] if bounds.shape.rank == 1 else None
        size = None if level_count is None else level_count + 1
        if not counts.shape.is_compatible_with([size]):
            faults.add(
                ValueError,
                f"`hist` must have one element more than `levels`, but has shape {counts.shape}, and `levels` has"
                f" {bounds.shape}",
            )
        faults.raise_any()
        return counts + histogram(inputs, bounds, absolute_of_input)


def histogram_normalize(hist: TensorLike) -> tf.Tensor:
    """Divides the counts of a floating-point histogram by their sum."""
    with tf.name_scope("histogram_normalize"):
        counts = tf.convert_to_tensor(hist)
        return counts / tf.reduce_sum(counts)


def _operands(inputs: TensorLike, levels: TensorLike) -> tuple[tf.Tensor, tf.Tensor]:
    values, bounds = tf.convert_to_tensor(inputs), tf.convert_to_tensor(levels, dtype_hint=tf.float32)
    faults = Faults()
    for name, tensor in (("inputs", values), ("levels", bounds)):
        if tensor.dtype not in (tf.float16, tf.float32):
            faults.add(ValueError, f"`{name}` must be float16 or float32, but is {tensor.dtype.name}")
    if values.shape.rank != 1:
        faults.add(ValueError, f"`inputs` must be of rank 1, but has shape {values.shape}; use `tf.reshape(x, [-1])`")
    if bounds.shape.rank != 1:
        faults.add(ValueError, f"`levels` must be of rank 1, but has shape {bounds.shape}")
    faults.raise_any()
    return values, tf.cast(bounds, values.dtype)
