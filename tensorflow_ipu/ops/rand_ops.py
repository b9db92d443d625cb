"""Dropout with masks that a seed reproduces."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["dropout"]


def dropout(
    x: TensorLike,
    rate: float = 0.5,
    noise_shape: Sequence[int | tf.Tensor | None] | tf.Tensor | None = None,
    seed: TensorLike | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> tf.Tensor:
    """Sets random elements to zero, and divides the others by `1 - rate`, which preserves the mean.

    The gradient uses the same mask.

    Args:
      x: A floating-point tensor.
      rate: The fraction of elements that become zero, from 0 to below 1.
      noise_shape: The shape of the mask, of the rank of `x`. Each size is the size of `x`, or None for it, or 1 to share
        the mask along that dimension. A list, which may hold scalar tensors, or a vector. None or empty: the shape of `x`.
        (In TensorFlow's own dropout, an empty shape is a scalar, which keeps or drops all of `x`.)
      seed: Two integers: the same pair gives the same mask, on all replicas. None: every call, step and replica has
        another mask.
      name: A name for the operation.
      **kwargs: `ref`, a bool that selects one of two implementations on the machine; it has no effect here.

    Returns:
      A tensor of the shape and dtype of `x`.

    Raises:
      ValueError: `rate` is not from 0 to below 1, `seed` does not have the shape [2], or `noise_shape` does not match `x`.
      TypeError: `x` is not a floating-point tensor, `seed` or `noise_shape` does not hold integers, `ref` is not a bool,
        or `kwargs` has other names.
    """
    check_bool("ref", kwargs.pop("ref", True))
    if kwargs:
        raise TypeError(f"`dropout` has no argument `{min(kwargs)}`")
    with tf.name_scope(name or "dropout"):
        x = tf.convert_to_tensor(x, name="x")
        if not x.dtype.is_floating:
            raise TypeError(f"`x` must hold floating-point numbers, but holds {x.dtype.name}")
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be from 0 to below 1, but is `{rate}`")
        mask_shape = _mask_shape(x, noise_shape)
        pair = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32) if seed is None else _pair(seed)
        if rate == 0:
            return tf.identity(x)
        # Philox returns the same values eagerly and compiled.
        return tf.nn.experimental.stateless_dropout(x, rate, pair, rng_alg="philox", noise_shape=mask_shape)


def _pair(seed: TensorLike) -> tf.Tensor:
    for integer in tf.nest.flatten(seed):
        if isinstance(integer, int) and not tf.int64.min <= integer <= tf.int64.max:
            raise ValueError(f"`seed` must be two integers of 64 bits, but is {seed!r}")
    value = tf.convert_to_tensor(seed, name="seed")
    if value.shape.rank is not None and value.shape != [2]:
        raise ValueError(f"`seed` must be two integers, of shape [2], but has shape {value.shape}")
    if not value.dtype.is_integer:
        raise TypeError(f"`seed` must be two integers, but holds {value.dtype.name}")
    return value


def _mask_shape(
    x: tf.Tensor, noise_shape: Sequence[int | tf.Tensor | None] | tf.Tensor | None
) -> list[int | tf.Tensor] | None:
    if noise_shape is None:
        return None
    sizes = _sizes(noise_shape)
    if not sizes:
        return None
    if x.shape.rank not in (None, len(sizes)):
        raise ValueError(
            f"`noise_shape={noise_shape!r}` must have the rank of `x`, which has shape {x.shape}, or be empty"
        )
    static_shape = x.shape if x.shape.rank is not None else [None] * len(sizes)
    for static_size, size in zip(static_shape, sizes, strict=False):
        if isinstance(size, int) and size != 1 and (size < 0 or static_size not in (None, size)):
            raise ValueError(
                f"`noise_shape={noise_shape!r}` must have a size of 1, or that of `x`, in each dimension, and `x` has"
                f" shape {x.shape}"
            )
    dynamic_shape = tf.shape(x)
    return [dynamic_shape[axis] if size is None else size for axis, size in enumerate(sizes)]


def _sizes(noise_shape: Sequence[int | tf.Tensor | None] | tf.Tensor) -> list[int | tf.Tensor | None]:
    """Returns the sizes of the mask: ints if they are known when the call is traced."""
    try:
        if isinstance(noise_shape, tf.Tensor):
            value = tf.get_static_value(noise_shape)
            noise_shape = tf.unstack(noise_shape) if value is None else list(value)
        return [_size(size) for size in noise_shape]
    except (TypeError, ValueError) as exc:
        raise TypeError(
            f"`noise_shape` must be a list of integers and Nones, or a vector of integers of known length, but is"
            f" {noise_shape!r}"
        ) from exc


def _size(size: int | tf.Tensor | None) -> int | tf.Tensor | None:
    if isinstance(size, tf.Tensor):
        if not size.dtype.is_integer:
            raise TypeError(size.dtype)
        value = tf.get_static_value(size)
        return tf.cast(size, tf.int32) if value is None else int(value)
    return None if size is None else operator.index(size)
