"""An embedding layer that can look up parts of its table one after the other."""

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
    """A `keras.layers.Embedding` that can split its table into parts and look them up one after the other.

    On real IPUs, parts reduce the peak memory and take more time.
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

        `input_length` is the size, or the sizes, of the dimensions of inputs without the batch. Inputs are checked
        against it unless it is None. `serialization_factor` is the number of parts of the table, and must divide
        `input_dim`.

        Raises:
          ValueError: `serialization_factor` is below 1 or does not divide `input_dim`; or Keras rejects another
            argument.
          TypeError: `serialization_factor` is not a whole number.
        """
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer=embeddings_initializer,  # pyright: ignore[reportArgumentType]  # Keras annotates no type, so pyright infers that of the default.
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
        """Returns the vectors [batch, ..., output_dim] of integer ids [batch, ...]. Floating-point ids are cast to int32.

        `inputs_are_sorted` promises that the ids are in ascending order.

        Raises:
          ValueError: The shape does not match `input_length`.
        """
        del training
        inputs = tf.convert_to_tensor(inputs)
        self._check_length(inputs.shape)
        if not inputs.dtype.is_integer:
            inputs = tf.cast(inputs, tf.int32)
        table = tf.convert_to_tensor(self.embeddings)
        vectors = embedding_ops.embedding_lookup(table, inputs, self.serialization_factor, inputs_are_sorted)
        return tf.cast(vectors, self.compute_dtype)

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
            raise ValueError(f"`inputs` must match `input_length={self.input_length}`, but have shape {tuple(shape)}")
