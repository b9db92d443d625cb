"""What orders the operations of a program: barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import check_bool, check_instance
from tensorflow_ipu._tensorflow import xla

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["barrier"]


def barrier(
    tensors: Sequence[TensorLike], insert_barrier_for_gradients: bool = False, name: str | None = None
) -> list[tf.Tensor]:
    """Returns the same tensors, each of which is available only once all of them are.

    In a program no computation of what comes in is moved after, or merged with that of what goes out.

    Args:
      tensors: A list or tuple of tensors.
      insert_barrier_for_gradients: Whether gradients go through a barrier too; else straight through.
      name: A name for the operation.

    Raises:
      TypeError: `insert_barrier_for_gradients` is no bool, or `tensors` is no list or tuple.
      ValueError: `tensors` is empty.
    """
    check_bool("insert_barrier_for_gradients", insert_barrier_for_gradients)
    check_instance("tensors", tensors, (list, tuple), "a list of tensors")
    if not tensors:
        raise ValueError("`tensors` must have a tensor or more, but is empty")

    @tf.custom_gradient
    def through(*values: tf.Tensor) -> tuple[list[tf.Tensor], object]:
        def gradient(*upstream: tf.Tensor | None) -> list[tf.Tensor | None]:
            floats = {at: grad for at, grad in enumerate(upstream) if grad is not None and grad.dtype.is_floating}
            if insert_barrier_for_gradients and floats:
                floats = dict(zip(floats, _barred(list(floats.values())), strict=True))
            return [floats.get(at, grad) for at, grad in enumerate(upstream)]

        return _barred(values), gradient

    with tf.name_scope(name or "barrier"):
        values: Any = through(*map(tf.convert_to_tensor, tensors))
        return list(values)


def _barred(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return xla.barred(tensors) if programs.is_tracing() else list(tf.tuple(list(tensors)))
