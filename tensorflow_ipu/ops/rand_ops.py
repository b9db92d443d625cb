"""Dropout, whose masks a seed repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._checks import check_bool

if TYPE_CHECKING:
    from tensorflow_ipu._types import TensorLike

__all__ = ["dropout"]


def dropout(
    x: TensorLike,
    rate: float = 0.5,
    noise_shape: Sequence[int | None] | None = None,
    seed: TensorLike | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> tf.Tensor:
    """Sets elements to zero at random, and divides the others by `1 - rate`, so that the mean stays what it is.

    The gradient has the same mask.

    Args:
      x: A tensor of floating-point numbers.
      rate: The share of elements that become zero, from 0 to below 1.
      noise_shape: The shape of the mask, of the rank of `x`: each size is that of `x`, or None for it, or 1 for a mask
        that is the same all along that dimension. None: that of `x`.
      seed: Two 32-bit integers: the same pair gives the same mask, on all replicas. None: every call, step and replica
        has another mask.
      name: A name for the operation.
      **kwargs: `ref`, True or False, by which the machine chooses between two ways to the same kind of mask; it changes
        nothing here. An argument by another name is refused.

    Returns:
      A tensor like `x`.

    Raises:
      ValueError: `rate` is not from 0 to below 1, `seed` has not the shape [2], or `noise_shape` does not fit.
      TypeError: `x` holds no floating-point numbers, `seed` no integers, `ref` is no bool, or there are other arguments.
    """
    check_reference(kwargs.pop("ref", True))
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
        # Philox has the same numbers eagerly and compiled.
        return tf.nn.experimental.stateless_dropout(x, rate, pair, rng_alg="philox", noise_shape=mask_shape)


def check_reference(ref: object) -> None:
    """Checks the argument `ref` of dropout.

    Raises:
      TypeError: It is no bool.
    """
    check_bool("ref", ref)


def _pair(seed: TensorLike) -> tf.Tensor:
    """The pair of integers that a user gave as a seed, as a tensor.

    Raises:
      ValueError: It is no pair, or does not fit into 64 bits.
      TypeError: It holds no integers.
    """
    for each in tf.nest.flatten(seed):
        if isinstance(each, int) and not tf.int64.min <= each <= tf.int64.max:
            raise ValueError(f"`seed` must be two integers of 64 bits, but is {seed!r}")
    value = tf.convert_to_tensor(seed, name="seed")
    if value.shape.rank is not None and value.shape != [2]:
        raise ValueError(f"`seed` must be two integers, of shape [2], but has shape {value.shape}")
    if not value.dtype.is_integer:
        raise TypeError(f"`seed` must be two integers, but holds {value.dtype.name}")
    return value


def _mask_shape(x: tf.Tensor, noise_shape: Sequence[int | None] | None) -> list[int | tf.Tensor] | None:
    if noise_shape is None:
        return None
    wanted = tf.TensorShape(noise_shape)
    if x.shape.rank is not None and wanted.rank != x.shape.rank:
        raise ValueError(f"`noise_shape={noise_shape!r}` must have the rank of `x`, which has shape {x.shape}")
    for own, size in zip(x.shape, wanted, strict=True) if x.shape.rank is not None else ():
        if size not in (None, 1) and own is not None and own != size:
            raise ValueError(
                f"`noise_shape={noise_shape!r}` must have a size of 1, or that of `x`, in each dimension, and `x` has"
                f" shape {x.shape}"
            )
    actual = tf.shape(x)
    return [actual[axis] if size is None else size for axis, size in enumerate(wanted)]
