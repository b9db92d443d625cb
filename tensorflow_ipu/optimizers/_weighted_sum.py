"""The arithmetic of gradient accumulation: a weighted sum, which is a sum, a mean or a running mean by its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu.optimizers._reduction import GradientAccumulationReductionMethod as Method

if TYPE_CHECKING:
    from tensorflow_ipu._types import Number


class Weights(NamedTuple):
    """The factors of one addition, `total * keep + gradient * scale`: scalars of the total's dtype, None for 1."""

    keep: tf.Tensor | None
    scale: tf.Tensor | None


def weights(method: Method, index: Number, count: Number, dtype: tf.DType) -> Weights:
    """The factors with which a gradient is added to what has accumulated before it.

    With gradients g(0), ..., g(N - 1), the total t(n) after gradient n is

        SUM           t(n) = t(n - 1) + g(n)                               = g(0) + ... + g(n)
        MEAN          t(n) = t(n - 1) + g(n) * 1/N                         = (g(0) + ... + g(n)) / N
        RUNNING_MEAN  t(n) = t(n - 1) * n/(n + 1) + g(n) * 1/(n + 1)       = (g(0) + ... + g(n)) / (n + 1)

    The last line holds by induction: with t(n - 1) = (g(0) + ... + g(n - 1)) / n, the first product is the sum of these
    divided by n + 1. For n = 0 it is 0, so that it does not matter what the total began with.

    The factors are computed in float32 (float64 for a float64 total) and rounded to `dtype` once. float32 holds each
    integer up to 2^24, so up to that many gradients n/(n + 1) and 1/(n + 1) are off by 2^-24 of themselves at most, less
    than what the rounding to a narrower type adds: 2^-11 for float16, 2^-8 for bfloat16. In float16 itself, n + 1 would
    be n from 2048 on, and infinite from 65520 on; in bfloat16, n + 1 would be n from 256 on. The mean would then go
    wrong without a word.

    Args:
      method: How gradients become one.
      index: The number of the gradient, from 0: an integer, or an integer scalar.
      count: N, likewise.
      dtype: The type of the total.
    """
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    if method is Method.SUM:
        return Weights(None, None)
    if method is Method.MEAN:
        return Weights(None, tf.cast(1 / tf.cast(count, wide), dtype))
    before = tf.cast(index, wide)
    return Weights(tf.cast(before / (before + 1), dtype), tf.cast(1 / (before + 1), dtype))


def accumulated(total: tf.Tensor, gradient: tf.Tensor, index: Number, count: Number, method: Method) -> tf.Tensor:
    """What has accumulated after one more gradient.

    Args:
      total: What had accumulated before: a tensor, zeros before the first gradient.
      gradient: A dense tensor of the same shape. It is rounded to the type of `total` first.
      index: The number of the gradient, from 0: an integer, or an integer scalar.
      count: How many there are in all, likewise.
      method: How gradients become one; `weights` has the formulas.
    """
    keep, scale = weights(method, index, count, total.dtype)
    value = tf.cast(gradient, total.dtype)
    return (total if keep is None else total * keep) + (value if scale is None else value * scale)
