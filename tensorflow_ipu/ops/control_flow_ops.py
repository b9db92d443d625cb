"""Barriers, which order the operations of a program."""

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
    """Returns the same tensors. Each is available only when all of them are.

    XLA does not move or merge operations across the barrier.

    Args:
      tensors: A list or tuple of tensors.
      insert_barrier_for_gradients: Whether the gradients pass through a barrier too.
      name: A name for the operation.

    Raises:
      TypeError: `insert_barrier_for_gradients` is not a bool, or `tensors` is not a list or tuple.
      ValueError: `tensors` is empty.
    """
    check_bool("insert_barrier_for_gradients", insert_barrier_for_gradients)
    check_instance("tensors", tensors, (list, tuple), "a list of tensors")
    if not tensors:
        raise ValueError("`tensors` must have at least one tensor, but is empty")

    @tf.custom_gradient
    def pass_through(*values: tf.Tensor) -> tuple[list[tf.Tensor], object]:
        def gradient(*upstream: tf.Tensor | None) -> list[tf.Tensor | None]:
            floats = {i: grad for i, grad in enumerate(upstream) if grad is not None and grad.dtype.is_floating}
            if insert_barrier_for_gradients and floats:
                floats = dict(zip(floats, _add_barrier(list(floats.values())), strict=True))
            return [floats.get(i, grad) for i, grad in enumerate(upstream)]

        return _add_barrier(values), gradient

    with tf.name_scope(name or "barrier"):
        values: Any = pass_through(*map(tf.convert_to_tensor, tensors))
        return list(values)


def _add_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return xla.optimization_barrier(tensors) if programs.is_tracing() else list(tf.tuple(list(tensors)))
