"""Variables that operations and optimizers create to keep values between runs, and that the user does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import variables

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import ShapeLike


def zeros(shape: ShapeLike, dtype: tf.DType, name: str, device: str | None) -> tf.Variable:
    """Creates a variable of zeros outside of the functions that are being traced.

    In a graph of TensorFlow 1, the variable needs no initializer and is in no collection. A script that initializes or
    restores the variables of its model does not touch it.
    """
    with tf.init_scope(), tf.device(device):
        if tf.executing_eagerly():
            return variables.of_trace(tf.zeros(shape, dtype), name)
        handle = ops.ipu_kept_variable(dtype=dtype, shape=shape, name=name)
        return variables.of_handle(handle, tf.TensorSpec(shape, dtype), name)
