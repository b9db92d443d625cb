"""What orders the operations of a program: barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu._tensorflow import xla

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["barrier"]


def barrier(
    tensors: Sequence[TensorLike], insert_barrier_for_gradients: bool = False, name: str | None = None
) -> list[tf.Tensor]:
    """The same tensors, each of which is there only once all of them are.

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
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"`tensors` must be a list of tensors, but is {tensors!r}")
    if not tensors:
        raise ValueError("`tensors` must have a tensor or more, but is empty")

    @tf.custom_gradient
    def through(*values: tf.Tensor) -> tuple[list[tf.Tensor], object]:
        def gradient(*upstream: tf.Tensor | None) -> list[tf.Tensor | None]:
            found = {at: one for at, one in enumerate(upstream) if one is not None and one.dtype.is_floating}
            if insert_barrier_for_gradients and found:
                found = dict(zip(found, _barred(list(found.values())), strict=True))
            return [found.get(at, one) for at, one in enumerate(upstream)]

        return _barred(values), gradient

    with tf.name_scope(name or "barrier"):
        values: Any = through(*map(tf.convert_to_tensor, tensors))
        return list(values)


def _barred(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return xla.barred(tensors) if programs.is_tracing() else list(tf.tuple(list(tensors)))
