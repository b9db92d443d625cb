"""Variables in which operations and optimizers keep values from run to run, without the user's doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import variables

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import ShapeLike


def zeros(shape: ShapeLike, dtype: tf.DType, name: str, device: str | None) -> tf.Variable:
    """Makes a variable of zeros outside of the functions that are being traced.

    In a graph of TensorFlow 1 it needs no initializer, and is in no collection: the user, who does not know of it, may
    initialize or restore what a model has and no more.
    """
    with tf.init_scope(), tf.device(device):
        if tf.executing_eagerly():
            return variables.of_trace(tf.zeros(shape, dtype), name)
        handle = ops.ipu_kept_variable(dtype=dtype, shape=shape, name=name)
        return variables.of_handle(handle, tf.TensorSpec(shape, dtype), name)
