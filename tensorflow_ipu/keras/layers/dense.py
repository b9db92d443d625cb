"""Dense layers: one whose product is computed in parts, and one whose product may be of eight bits."""

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

# The names of the SDK's operation for the layer's dimensions.
_DIMENSIONS = {
    "input_columns": "a_columns",
    "input_rows_kernel_columns": "a_rows_b_columns",
    "kernel_rows": "b_rows",
}


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class SerialDense(keras.layers.Layer):
    """Computes `activation(inputs @ kernel + bias)` as `keras.layers.Dense` does, the product in parts.

    With the inputs as a matrix [m, k] (m: the elements of a batch, and of further dimensions) and the kernel [k, units],
    what is split is

        serialization_dimension        is split
        "input_columns"                m
        "input_rows_kernel_columns"    k, and the parts are summed up
        "kernel_rows"                  units

    On hardware, parts need less memory at once and more time.
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

        `serialization_factor` is the number of parts, and divides the dimension that `serialization_dimension` says.

        Raises:
          ValueError: `serialization_factor` or `units` is below 1, or there is no such dimension.
          TypeError: `serialization_factor` is no whole number.
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
        """Makes the weights for inputs of this shape.

        Raises:
          ValueError: The size of the last dimension is not known, or a split does not divide its dimension.
        """
        size = _last(input_shape)
        split = {"input_rows_kernel_columns": size, "kernel_rows": self.units}.get(self.serialization_dimension)
        if split is not None and split % self.serialization_factor:
            raise ValueError(
                f"`serialization_factor={self.serialization_factor}` must divide the dimension that"
                f" `serialization_dimension={self.serialization_dimension!r}` splits, which has the size {split}"
            )
        self.kernel = _added(self, "kernel", (size, self.units))
        self.bias = _added(self, "bias", (self.units,)) if self.use_bias else None
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: size})
        self.built = True

    def call(self, inputs: tf.Tensor, **kwargs: Any) -> tf.Tensor:
        """Computes the layer of a dense tensor [batch, ..., k], a tensor [batch, ..., units].

        Raises:
          TypeError: `inputs` is sparse.
          ValueError: `serialization_factor` does not divide the dimension that is split.
        """
        del kwargs
        if isinstance(inputs, tf.SparseTensor):
            raise TypeError("`inputs` must be dense, and is a `SparseTensor`; use `tf.sparse.to_dense`")
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
        return self.activation(result)  # pyright: ignore[reportReturnType]  # Keras infers those of all backends.

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, SerialDense)}


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, which for inputs of eight bits has a kernel of eight bits.

    Inputs are of eight bits where they are what `ConvertToF8` returns, a list of bits and metadata. Then the weights are,
    in this order, the bits of the kernel, uint8 [k, units], its metadata, a uint8 scalar, and the bias, float16 [units].
    Of these the bias alone can be trained, and no gradient reaches the inputs.
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
          kernel_scale: Its scale, from -32 to 31: its numbers are what its bits say, times `2 ** kernel_scale`.
          kernel_data_initializer: Gives its bits, uint8, their first values. None: any number but NaN.
          **kwargs: Other arguments of `keras.layers.Dense`.

        Raises:
          ValueError: `kernel_format` is no format, or `kernel_scale` out of range.
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
        self.input_spec = None  # Both kinds of inputs pass.
        self.kernel_data = self.kernel_metadata = None

    def build(self, input_shape: Shape | Sequence[Shape]) -> None:
        """Makes the weights for inputs of this shape, or of eight bits and these two shapes.

        Raises:
          ValueError: The size of the last dimension is not known.
        """
        if not _are_two(input_shape):
            super().build(input_shape)
            return
        shape, data = (_last(input_shape[0]), self.units), self.kernel_data_initializer or _any_number
        metadata = keras.initializers.Constant(f8_ops.create_metadata(self.kernel_format, self.kernel_scale))
        self.kernel_data = self.add_weight(
            name="kernel_data", shape=shape, initializer=data, dtype="uint8", trainable=False
        )
        self.kernel_metadata = self.add_weight(
            name="kernel_metadata", shape=(), initializer=metadata, dtype="uint8", trainable=False
        )
        self.bias = _added(self, "bias", (self.units,), dtype="float16", autocast=False) if self.use_bias else None
        self.built = True

    def call(self, inputs: tf.Tensor | Sequence[tf.Tensor], **kwargs: Any) -> tf.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the layer of a tensor [batch, ..., k], or of its bits and metadata, a tensor [batch, ..., units].

        For inputs of eight bits it is float16.
        """
        del kwargs
        if not isinstance(inputs, (list, tuple)):
            return super().call(inputs)  # pyright: ignore[reportReturnType]  # Keras infers those of all backends.
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
        return self.activation(result) if self.activation is not None else result  # pyright: ignore[reportReturnType]  # Keras infers those of all backends.

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
        for number, weight in enumerate(self.weights):
            store[str(number)] = weight.numpy()

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        if self.kernel_data is None:
            super().load_own_variables(store)
            return
        for number, weight in enumerate(self.weights):
            weight.assign(store[str(number)])

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, Dense), "kernel_format": int(self.kernel_format)}


def _last(shape: Shape) -> int:
    """The size of the last dimension of inputs."""
    if shape[-1] is None:
        raise ValueError(f"the last dimension of `inputs` must be known, and the shape is {tuple(shape)}")
    return shape[-1]


def _added(layer: Any, name: str, shape: Sequence[int], **options: Any) -> keras.Variable:
    """A weight with the initializer, regularizer and constraint that the layer has for it."""
    for kind in ("initializer", "regularizer", "constraint"):
        options[kind] = getattr(layer, f"{name}_{kind}")
    return layer.add_weight(name=name, shape=shape, **options)


def _are_two(shape: Shape | Sequence[Shape]) -> TypeGuard[Sequence[Shape]]:
    return len(shape) == 2 and all(isinstance(each, (list, tuple, tf.TensorShape)) for each in shape)


def _any_number(shape: Sequence[int], dtype: DTypeLike | None = None) -> tf.Tensor:
    """Bits of any number, with the same chance each."""
    bits = tf.random.uniform(shape, 0, 256, tf.int32)
    return tf.cast(tf.where(tf.equal(bits, 0x80), 0, bits), dtype or "uint8")
