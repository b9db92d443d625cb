"""Keras's dynamic loss scaling, on which the replicas of a program agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tensorflow_ipu.ops import reductions


def all_finite(gradients: Sequence[Any]) -> Any:
    """Whether all gradients are finite on all replicas: a bool scalar, equal on all of them.

    Args:
      gradients: Tensors, `tf.IndexedSlices`, and None, which counts as finite.
    """
    values = [getattr(gradient, "values", gradient) for gradient in gradients if gradient is not None]
    counts = [tf.reduce_sum(tf.cast(~tf.math.is_finite(value), tf.float32)) for value in values]
    infinite = tf.add_n(counts) if counts else tf.constant(0.0)
    if reductions.in_program():
        [infinite] = reductions.all_reduce([infinite])
    return tf.equal(infinite, 0)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's `LossScaleOptimizer` for programs with replicas.

    Keras's own lets each replica judge by its own gradients whether to skip an update, and the others wait for it to sum
    the gradients with them. This one skips on all replicas what is infinite on any of them.
    """

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Whether all gradients are finite on all replicas, as a bool scalar."""
        return all_finite(grads)
