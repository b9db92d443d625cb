"""An embedding layer whose table is used in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.ops import embedding_ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, Constraint, Initializer, Regularizer, Shape, TensorLike

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class Embedding(keras.layers.Embedding):
    """Turns whole numbers into vectors, as `keras.layers.Embedding` does, if asked for in parts of the table.

    On hardware, parts need less memory at once and more time.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        embeddings_constraint: Constraint = None,
        mask_zero: bool = False,
        input_length: int | Sequence[int | None] | None = None,
        serialization_factor: int = 1,
        **kwargs: Any,
    ) -> None:
        """Creates the layer. Arguments that are not named here are as for `keras.layers.Embedding`.

        `input_length` has the sizes of the inputs' dimensions after that of the batch, if they are to be checked.
        `serialization_factor` says in how many parts the table is used, and divides `input_dim`.

        Raises:
          ValueError: `serialization_factor` is below 1 or does not divide `input_dim`; or Keras refuses another argument.
          TypeError: `serialization_factor` is no whole number.
        """
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer=embeddings_initializer,  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.serialization_factor = embedding_ops.checked_factor(serialization_factor)
        if input_dim % self.serialization_factor:
            raise ValueError(
                f"`serialization_factor={serialization_factor}` must divide `input_dim`, which is {input_dim}"
            )
        lengths = (input_length,) if isinstance(input_length, int) else input_length
        self.input_length = None if lengths is None else tuple(lengths)

    def call(self, inputs: TensorLike, inputs_are_sorted: bool = False, training: bool | None = None) -> tf.Tensor:
        """Looks vectors up, [batch, ..., output_dim], by whole numbers [batch, ...]; what is of another type is cast to int32.

        `inputs_are_sorted` is a promise that all numbers ascend.

        Raises:
          ValueError: The shape is not that of `input_length`.
        """
        del training
        inputs = tf.convert_to_tensor(inputs)
        self._check_length(inputs.shape)
        if not inputs.dtype.is_integer:
            inputs = tf.cast(inputs, tf.int32)
        table = tf.convert_to_tensor(self.embeddings)
        found = embedding_ops.embedding_lookup(table, inputs, self.serialization_factor, inputs_are_sorted)
        return tf.cast(found, self.compute_dtype)

    def compute_output_spec(
        self, inputs: keras.KerasTensor, inputs_are_sorted: bool = False, training: bool | None = None
    ) -> keras.KerasTensor:
        del inputs_are_sorted, training
        self._check_length(inputs.shape)
        return super().compute_output_spec(inputs)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "input_length": self.input_length,
            "serialization_factor": self.serialization_factor,
        }

    def _check_length(self, shape: tf.TensorShape | Shape) -> None:
        if self.input_length is not None and not tf.TensorShape(shape[1:]).is_compatible_with(self.input_length):
            raise ValueError(f"`input_length` is {self.input_length}, and the inputs have the shape {tuple(shape)}")
