"""Keras's dynamic loss scaling, on which the replicas of a program agree."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu.keras.optimizers._wrapper import chain
from tensorflow_ipu.ops import reductions

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient


def all_finite(gradients: Sequence[Gradient | None]) -> tf.Tensor:
    """Whether all gradients are finite on all replicas: a bool scalar, equal on all of them."""
    values = [getattr(gradient, "values", gradient) for gradient in gradients if gradient is not None]
    counts = [tf.reduce_sum(tf.cast(~tf.math.is_finite(value), tf.float32)) for value in values]
    return _none_on_any_replica(tf.add_n(counts) if counts else tf.constant(0.0))


def _none_on_any_replica(count: tf.Tensor) -> tf.Tensor:
    """Whether a float scalar, of which each replica has its own, is 0 on all of them."""
    if reductions.in_program():
        [count] = reductions.all_reduce([count])
    return tf.equal(count, 0)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's `LossScaleOptimizer` for programs with replicas.

    Keras's own lets each replica judge by its own gradients whether to skip an update, and the others wait for it to sum
    the gradients with them. This one skips on all replicas what is infinite on any of them.
    """

    def check_finite(self, grads: Sequence[Gradient | None]) -> tf.Tensor:
        """Whether all gradients are finite on all replicas, as a bool scalar."""
        return all_finite(grads)


def scales_losses(optimizer: object) -> bool:
    """Whether a Keras optimizer, or one that it wraps, scales losses by itself."""
    return any(
        isinstance(one, keras.optimizers.LossScaleOptimizer) or hasattr(one, "get_scaled_loss")
        for one in chain(optimizer)
    )


def agree_on_finite(optimizer: object) -> None:
    """Has Keras's own loss scaling skip on all replicas what it skips on any of them.

    The optimizer keeps its class, which files name: the check goes into the object.
    """
    one: Any
    for one in chain(optimizer):
        if isinstance(one, keras.optimizers.LossScaleOptimizer) and not isinstance(one, LossScaleOptimizer):
            one.check_finite = types.MethodType(_check_finite_of_all, one)


def _check_finite_of_all(self: keras.optimizers.LossScaleOptimizer, grads: Sequence[Gradient | None]) -> tf.Tensor:
    finite = type(self).check_finite(self, grads)
    return _none_on_any_replica(tf.cast(tf.logical_not(finite), tf.float32))  # pyright: ignore[reportArgumentType, reportCallIssue]  # Keras infers those of all backends.
