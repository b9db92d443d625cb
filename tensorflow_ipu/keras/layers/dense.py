"""Dense layers: `SerialDense` computes its product in parts, `Dense` also multiplies values of eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import tensorflow as tf

from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.keras.layers._config import arguments_of
from tensorflow_ipu.ops import embedding_ops, f8_ops, math_ops

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    import numpy as np

    from tensorflow_ipu._base.types import Activation, Config, Constraint, DTypeLike, Initializer, Regularizer, Shape

__all__ = ["Dense", "SerialDense"]

# From the layer's names of dimensions to those of `math_ops.serialized_matmul`.
_DIMENSIONS = {
    "input_columns": "a_columns",
    "input_rows_kernel_columns": "a_rows_b_columns",
    "kernel_rows": "b_rows",
}


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class SerialDense(keras.layers.Layer):
    """Computes `activation(inputs @ kernel + bias)` like `keras.layers.Dense`, but computes the product in parts.

    The inputs are reshaped to a matrix [m, k], in which m is the product of all dimensions but the last. The kernel is
    [k, units]. `serialization_dimension` selects the dimension that is split:

        serialization_dimension        split dimension
        "input_columns"                m
        "input_rows_kernel_columns"    k; the partial products are summed
        "kernel_rows"                  units

    On real IPUs, parts reduce the peak memory and take more time.
    """

    def __init__(
        self,
        units: int,
        serialization_factor: int,
        serialization_dimension: str,
        activation: Activation = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        **kwargs: Any,
    ) -> None:
        """Creates the layer. Arguments that are not named here are as for `keras.layers.Dense`.

        `serialization_factor` is the number of parts. It must divide the dimension of `serialization_dimension`.

        Raises:
          ValueError: `serialization_factor` or `units` is below 1, or there is no such dimension.
          TypeError: `serialization_factor` is not a whole number.
        """
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        if not isinstance(units, int) or units < 1:
            raise ValueError(f"`units` must be a whole number of 1 or more, but is `{units!r}`")
        if serialization_dimension not in _DIMENSIONS:
            raise ValueError(
                f"`serialization_dimension` must be one of {', '.join(map(repr, _DIMENSIONS))}, but is"
                f" `{serialization_dimension!r}`"
            )
        self.units = units
        self.serialization_factor = embedding_ops.checked_factor(serialization_factor)
        self.serialization_dimension = serialization_dimension
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        """Creates the weights for inputs of this shape.

        Raises:
          ValueError: The size of the last dimension is unknown, or `serialization_factor` does not divide its
            dimension.
        """
        size = _last_size(input_shape)
        split = {"input_rows_kernel_columns": size, "kernel_rows": self.units}.get(self.serialization_dimension)
        if split is not None and split % self.serialization_factor:
            raise ValueError(
                f"`serialization_factor={self.serialization_factor}` must divide the dimension that"
                f" `serialization_dimension={self.serialization_dimension!r}` splits, which has the size {split}"
            )
        self.kernel = _add_weight(self, "kernel", (size, self.units))
        self.bias = _add_weight(self, "bias", (self.units,)) if self.use_bias else None
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: size})
        self.built = True

    def call(self, inputs: tf.Tensor, **kwargs: Any) -> tf.Tensor:
        """Computes the layer for a dense tensor [batch, ..., k]; returns a tensor [batch, ..., units].

        Raises:
          TypeError: `inputs` is sparse.
          ValueError: `serialization_factor` does not divide the dimension that is split.
        """
        del kwargs
        if isinstance(inputs, tf.SparseTensor):
            raise TypeError("`inputs` must be dense, but is a `SparseTensor`; use `tf.sparse.to_dense`")
        matrix = inputs if inputs.shape.rank == 2 else tf.reshape(inputs, [-1, inputs.shape[-1]])
        result = math_ops.serialized_matmul(
            matrix,
            tf.convert_to_tensor(self.kernel),
            self.serialization_factor,
            _DIMENSIONS[self.serialization_dimension],
        )
        if self.bias is not None:
            result = tf.nn.bias_add(result, tf.convert_to_tensor(self.bias))
        if inputs.shape.rank != 2:
            result = tf.reshape(result, tf.concat([tf.shape(inputs)[:-1], [self.units]], 0))
            result = tf.ensure_shape(result, [*inputs.shape[:-1], self.units])
        return self.activation(result)  # pyright: ignore[reportReturnType]  # Keras infers the types of all backends.

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, SerialDense)}


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class Dense(keras.layers.Dense):
    """A `keras.layers.Dense` that also accepts inputs of eight bits and then has a kernel of eight bits.

    Inputs of eight bits are the results of `ConvertToF8`: a list of bits and metadata. The weights are then the bits of
    the kernel (uint8 [k, units]), its metadata (a uint8 scalar) and the bias (float16 [units]), in this order. Only the
    bias can be trained, and the inputs get no gradient.
    """

    def __init__(
        self,
        units: int,
        kernel_format: f8_ops.Format | int = f8_ops.Format.F143,
        kernel_scale: int = 0,
        kernel_data_initializer: Initializer = None,
        **kwargs: Any,
    ) -> None:
        """Creates the layer. Arguments that are not named here are as for `keras.layers.Dense`.

        Args:
          units: The size of the last dimension of the result.
          kernel_format: The format of a kernel of eight bits.
          kernel_scale: The scale of this kernel, from -32 to 31. Its values are multiplied by `2 ** kernel_scale`.
          kernel_data_initializer: The initializer of its bits, uint8. None: random bits, but never those of NaN.
          **kwargs: Other arguments of `keras.layers.Dense`.

        Raises:
          ValueError: `kernel_format` is not a format, or `kernel_scale` is out of range.
        """
        super().__init__(units, **kwargs)
        try:
            f8_ops.create_metadata(kernel_format, kernel_scale)
        except ValueError as exc:
            raise ValueError(
                "`kernel_format` must be a `Format`, and `kernel_scale` be from -32 to 31, but they are"
                f" `{kernel_format!r}` and `{kernel_scale!r}`"
            ) from exc
        self.kernel_format = f8_ops.Format(kernel_format)
        self.kernel_scale = kernel_scale
        self.kernel_data_initializer = keras.initializers.get(kernel_data_initializer)
        self.input_spec = None  # Keras would reject a list of bits and metadata.
        self.kernel_data = self.kernel_metadata = None

    def build(self, input_shape: Shape | Sequence[Shape]) -> None:
        """Creates the weights. `input_shape` is a shape, or for inputs of eight bits the shapes of bits and metadata.

        Raises:
          ValueError: The size of the last dimension is unknown.
        """
        if not _is_pair_of_shapes(input_shape):
            super().build(input_shape)
            return
        shape, data = (_last_size(input_shape[0]), self.units), self.kernel_data_initializer or _random_bits
        metadata = keras.initializers.Constant(f8_ops.create_metadata(self.kernel_format, self.kernel_scale))
        self.kernel_data = self.add_weight(
            name="kernel_data", shape=shape, initializer=data, dtype="uint8", trainable=False
        )
        self.kernel_metadata = self.add_weight(
            name="kernel_metadata", shape=(), initializer=metadata, dtype="uint8", trainable=False
        )
        self.bias = _add_weight(self, "bias", (self.units,), dtype="float16", autocast=False) if self.use_bias else None
        self.built = True

    def call(self, inputs: tf.Tensor | Sequence[tf.Tensor], **kwargs: Any) -> tf.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the layer for a tensor [batch, ..., k] or for its bits and metadata; returns a tensor [batch, ..., units].

        The result is float16 for inputs of eight bits.
        """
        del kwargs
        if not isinstance(inputs, (list, tuple)):
            return super().call(inputs)  # pyright: ignore[reportReturnType]  # Keras infers the types of all backends.
        data, metadata = inputs
        matrix = f8_ops.QuarterTensor(tf.reshape(data, [-1, data.shape[-1]]), metadata)
        kernel = f8_ops.QuarterTensor(
            tf.convert_to_tensor(self.kernel_data), tf.convert_to_tensor(self.kernel_metadata)
        )
        result = f8_ops.f8_matmul(matrix, kernel)
        result = tf.reshape(result, tf.concat([tf.shape(data)[:-1], [self.units]], 0))
        result = tf.ensure_shape(result, [*data.shape[:-1], self.units])
        if self.bias is not None:
            result = tf.nn.bias_add(result, tf.convert_to_tensor(self.bias))
        return self.activation(result) if self.activation is not None else result  # pyright: ignore[reportReturnType]  # Keras infers the types of all backends.

    def compute_output_spec(
        self, inputs: keras.KerasTensor | Sequence[keras.KerasTensor], **kwargs: Any
    ) -> keras.KerasTensor:
        if not isinstance(inputs, (list, tuple)):
            return super().compute_output_spec(inputs, **kwargs)
        return keras.KerasTensor((*inputs[0].shape[:-1], self.units), "float16")

    @property
    def weights(self) -> list[keras.Variable]:
        """The weights, in the order of `get_weights` and `set_weights`."""
        if self.kernel_data is None:
            return super().weights
        return [weight for weight in (self.kernel_data, self.kernel_metadata, self.bias) if weight is not None]

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        if self.kernel_data is None:
            super().save_own_variables(store)
            return
        for index, weight in enumerate(self.weights):
            store[str(index)] = weight.numpy()

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        if self.kernel_data is None:
            super().load_own_variables(store)
            return
        for index, weight in enumerate(self.weights):
            weight.assign(store[str(index)])

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, Dense), "kernel_format": int(self.kernel_format)}


def _last_size(shape: Shape) -> int:
    if shape[-1] is None:
        raise ValueError(f"the last dimension of `inputs` must be known, and the shape is {tuple(shape)}")
    return shape[-1]


def _add_weight(layer: Any, name: str, shape: Sequence[int], **options: Any) -> keras.Variable:
    """Adds a weight with the initializer, regularizer and constraint of this name, such as `layer.bias_initializer`."""
    for kind in ("initializer", "regularizer", "constraint"):
        options[kind] = getattr(layer, f"{name}_{kind}")
    return layer.add_weight(name=name, shape=shape, **options)


def _is_pair_of_shapes(shape: Shape | Sequence[Shape]) -> TypeGuard[Sequence[Shape]]:
    return len(shape) == 2 and all(isinstance(part, (list, tuple, tf.TensorShape)) for part in shape)


def _random_bits(shape: Sequence[int], dtype: DTypeLike | None = None) -> tf.Tensor:
    """Returns random bytes; 0x80, which is NaN, becomes 0."""
    bits = tf.random.uniform(shape, 0, 256, tf.int32)
    return tf.cast(tf.where(tf.equal(bits, 0x80), 0, bits), dtype or "uint8")
