"""Layers that convert floating-point values to eight bits and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.ops import f8_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Config, DTypeLike, Nested, TensorLike

__all__ = ["ConvertFromF8", "ConvertToF8"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class ConvertToF8(keras.layers.Layer):
    """Rounds values to eight bits by `tensorflow_ipu.ops.f8_ops.convert_to_f8`. Its inputs get no gradient."""

    def __init__(self, **kwargs: Any) -> None:
        """Creates the layer, with the arguments of every Keras layer."""
        super().__init__(**kwargs)

    def __call__(
        self, data: TensorLike | keras.KerasTensor, metadata: TensorLike | keras.KerasTensor, **kwargs: Any
    ) -> Nested:
        """Calls the layer; see `call`. Passes `metadata` by name, because it may be an int, which Keras rejects by position."""
        return super().__call__(data, metadata=metadata, **kwargs)

    def call(self, data: tf.Tensor, metadata: TensorLike, **kwargs: Any) -> list[TensorLike]:
        """Converts floating-point values. `metadata` is a result of `f8_ops.create_metadata`, as an int or a uint8 tensor.

        Returns:
          The bits, uint8 of the shape of `data`, and the metadata, a uint8 scalar.
        """
        del kwargs
        return list(f8_ops.convert_to_f8(data, metadata))


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class ConvertFromF8(keras.layers.Layer):
    """Converts values of eight bits to another type by `tensorflow_ipu.ops.f8_ops.convert_from_f8`."""

    def __init__(self, dtype: DTypeLike = tf.float16, **kwargs: Any) -> None:
        """Creates the layer; `dtype` is the type of the result."""
        super().__init__(dtype=dtype.name if isinstance(dtype, tf.DType) else dtype, **kwargs)

    def call(self, inputs: Sequence[TensorLike], **kwargs: Any) -> tf.Tensor:
        """Converts a list of bits and metadata, such as the result of `ConvertToF8`."""
        del kwargs
        return f8_ops.convert_from_f8(inputs, self.compute_dtype)

    def get_config(self) -> Config:
        return super().get_config()
