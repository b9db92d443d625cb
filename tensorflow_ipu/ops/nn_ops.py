"""Functions of neural networks: activations, softmax, and losses over many classes and over sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.ops._ctc_loss import (
    ctc_beam_search_decoder,
    ctc_beam_search_decoder_with_log_probs,
    ctc_loss_v2,
    ctc_loss_with_log_probs,
)
from tensorflow_ipu.ops._sampled_losses import nce_loss, sampled_softmax_loss

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = [
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_with_log_probs",
    "ctc_loss_v2",
    "ctc_loss_with_log_probs",
    "gelu",
    "hard_sigmoid",
    "multi_conv",
    "nce_loss",
    "sampled_softmax_loss",
    "softmax",
    "swish",
]


def gelu(x: TensorLike, approximate: bool = True, name: str | None = None) -> tf.Tensor:
    """The Gaussian error linear unit, https://arxiv.org/abs/1606.08415.

    Args:
      x: A tensor of floating-point numbers.
      approximate: Whether to compute it by the hyperbolic tangent; else by the error function.
      name: A name for the operation.

    Returns:
      A tensor like `x`.
    """
    with tf.name_scope(name or "gelu"):
        x = tf.convert_to_tensor(x, name="x")
        if not approximate or x.dtype != tf.float16:
            return tf.nn.gelu(x, approximate)
        # The gradient squares `x`, which half precision cannot from 256 on.
        return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate), tf.float16)


def hard_sigmoid(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """`0.2 x + 0.5`, cut off below 0 and above 1.

    Args:
      x: A tensor of floating-point numbers.
      name: A name for the operation.

    Returns:
      A tensor like `x`.
    """
    with tf.name_scope(name or "hard_sigmoid"):
        x = tf.convert_to_tensor(x, name="x")
        return tf.clip_by_value(0.2 * x + 0.5, 0, 1)


def swish(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """`x` times the sigmoid of `x`.

    Args:
      x: A tensor of floating-point numbers.
      name: A name for the operation.

    Returns:
      A tensor like `x`.
    """
    with tf.name_scope(name or "swish"):
        return tf.nn.silu(tf.convert_to_tensor(x, name="x"))


def softmax(x: TensorLike, stable: bool = False, name: str | None = None) -> tf.Tensor:
    """The softmax over the last dimension.

    Args:
      x: A tensor of floating-point numbers, of rank 1 or more.
      stable: Whether large numbers may occur. The emulator is prepared for them either way.
      name: A name for the operation.

    Returns:
      A tensor like `x`.

    Raises:
      TypeError: `stable` is no bool.
    """
    check_bool("stable", stable)
    return tf.nn.softmax(tf.convert_to_tensor(x, name="x"), name=name)


def multi_conv(func: Callable[..., Any] | None = None, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Decorates a function whose convolutions are to run at the same time. They compute the same with and without.

    Both `@multi_conv` and `@multi_conv(options=...)` are right.

    Args:
      func: The function.
      options: Options for the convolutions on hardware. The emulator checks that it is a dict, and has no use for it.

    Returns:
      The function; without `func`, a decorator.

    Raises:
      TypeError: `options` is no dict.
    """
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"`options` must be a dict, but is `{options!r}`")
    if func is None:
        return functools.partial(multi_conv, options=options)

    return func
