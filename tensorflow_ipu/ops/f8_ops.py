"""Eight-bit floats with a common scale, as on IPUs: conversions, matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.enums import NamedIntEnum

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, TensorLike

_NAN = 0x80


# The attribute that marks the operation that rounds, and the operation whose elements overflow. The code in
# `kernels/precision/rounding.h` finds them by it.
_ATTRIBUTE = "ipu_f8"


def encode(values: tf.Tensor, metadata: tf.Tensor, nan_on_overflow: bool = False) -> tf.Tensor:
    """Encodes float32 values as codes of eight bits, uint8. NaN stays NaN.

    A magnitude is `steps * 2 ** (exponent - bits)`, where `bits` is the size of the fraction. The steps of a normal value
    are from `2 ** bits` to `2 ** (bits + 1) - 1`. The format does not store their leading bit, which is always 1:

        code = ((exponent - lowest) << bits) + steps

    In this sum, the leading bit adds 1 to the exponent field. Denormal values have fewer steps and do not add it. Steps
    that are rounded up to `2 ** (bits + 1)` add 2. So neither needs a special case.

    An example in F143, where `bits` is 3 and `lowest` is -7: 1.5 = 12 * 2 ** (0 - 3) -> (7 << 3) + 12 = 0x44.
    """
    bits, lowest, scale = _parameters(metadata)
    magnitude = tf.abs(values) * _power(-scale)
    exponent = tf.maximum(exponent_of(magnitude), lowest)
    # The exponent of infinities and NaN is 128, whose power of 2 is beyond float32.
    exponent = tf.minimum(exponent, 64)
    steps = tf.minimum(magnitude * _power(bits - exponent), 64.0)
    with programs.attributed({_ATTRIBUTE: "rounds"}):
        steps = tf.round(steps)
    code = tf.bitwise.left_shift(exponent - lowest, bits) + tf.cast(steps, tf.int32)
    overflows = tf.logical_and(code > 0x7F, tf.logical_not(tf.math.is_nan(values)))
    overflow = tf.where(overflows, tf.abs(values), 0.0)
    with programs.attributed({_ATTRIBUTE: "overflows"}):
        overflow = tf.negative(overflow, name="overflow")
    code = tf.where(overflow < 0, _NAN if nan_on_overflow else 0x7F, code)
    code = tf.where(tf.logical_and(values < 0, code > 0), tf.bitwise.bitwise_or(code, 0x80), code)
    return tf.cast(tf.where(tf.math.is_nan(values), _NAN, code), tf.uint8)


def decode(codes: tf.Tensor, metadata: tf.Tensor) -> tf.Tensor:
    """Decodes codes of eight bits to float32 values."""
    bits, lowest, scale = _parameters(metadata)
    code = tf.cast(codes, tf.int32)
    magnitude = tf.bitwise.bitwise_and(code, 0x7F)
    exponent = tf.bitwise.right_shift(magnitude, bits)
    unit = tf.bitwise.left_shift(tf.ones_like(bits), bits)
    fraction = tf.bitwise.bitwise_and(magnitude, unit - 1) + tf.where(exponent > 0, unit, 0)
    value = tf.cast(fraction, tf.float32) * _power(tf.maximum(exponent, 1) - 1 + lowest - bits + scale)
    value = tf.where(code > 0x80, -value, value)
    return tf.where(tf.equal(code, _NAN), float("nan"), value)


def _parameters(metadata: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns three int32 scalars: the bits of the fraction, the lowest exponent of a normal value, and the scale."""
    packed = tf.cast(metadata, tf.int32)
    is_143 = packed >= 0x80
    low = tf.bitwise.bitwise_and(packed, 0x3F)
    scale = tf.where(low >= 32, low - 64, low)
    return tf.where(is_143, 3, 2), tf.where(is_143, -7, -15), scale


def exponent_of(magnitude: tf.Tensor) -> tf.Tensor:
    """Returns the exponents of positive float32 values: -127 for zero and denormals, 128 for infinity and NaN."""
    return tf.bitwise.right_shift(tf.bitcast(magnitude, tf.int32), 23) - 127


def scaled(values: tf.Tensor, exponent: tf.Tensor) -> tf.Tensor:
    """Multiplies float32 values by `2 ** exponent`, as two factors: the power may be out of range."""
    half = tf.bitwise.right_shift(exponent, 1)
    return values * _power(half) * _power(exponent - half)


def _power(exponent: tf.Tensor) -> tf.Tensor:
    """Returns `2 ** exponent` as float32, exactly, for exponents from -126 to 127."""
    return tf.bitcast(tf.bitwise.left_shift(exponent + 127, 23), tf.float32)


__all__ = [
    "Format",
    "QuarterTensor",
    "convert_from_f8",
    "convert_to_f8",
    "create_metadata",
    "f8_conv_1d",
    "f8_conv_2d",
    "f8_conv_3d",
    "f8_matmul",
]

# The types of data that users may pass.
_Data: TypeAlias = "tf.Tensor | tf.Variable | np.ndarray"


class Format(NamedIntEnum):
    """The format of eight-bit floats: F143 has 4 bits of exponent and 3 of fraction, F152 has 5 and 2.

    Both have one NaN, no infinity and one zero. Their largest values are 240 and 57344.
    """

    F143 = 0
    F152 = 1


def create_metadata(fmt: Format | int, scale: int = 0) -> int:
    """Packs the format and the scale of a tensor into eight bits. The scale multiplies all values by `2 ** scale`.

    Raises:
      ValueError: `fmt` is not a `Format`, or `scale` is not from -32 to 31.
    """
    if fmt not in (Format.F143, Format.F152):
        raise ValueError(f"`fmt` must be `Format.F143` or `Format.F152`, but is `{fmt!r}`")
    if not -32 <= scale <= 31:
        raise ValueError(f"`scale={scale}` must be from -32 to 31")
    return (128 if fmt == Format.F143 else 0) | (scale & 63)


class QuarterTensor:
    """A tensor of eight-bit floats: `data` has the codes, and `metadata` the format and the scale."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # It is compared by value and is mutable.

    def __init__(self, data: _Data, metadata: TensorLike) -> None:
        """Creates the tensor from codes and metadata.

        Args:
          data: The codes, a uint8 tensor or variable; an array becomes a variable.
          metadata: The result of `create_metadata`, or a uint8 scalar tensor or variable of that value.

        Raises:
          TypeError: `data` is not uint8.
        """
        self.data = _codes(data)
        self.metadata = metadata

    def numpy(self) -> list[TensorLike]:
        """Returns the codes as an array, and the metadata."""
        return [self.data.numpy(), self.metadata]

    def assign(self, new_values: Sequence[TensorLike], **kwargs: Any) -> None:
        """Replaces the codes and the metadata by `new_values`, a pair as `numpy` returns it.

        `kwargs` are ignored: Keras passes some when it assigns variables.

        Raises:
          TypeError: The codes are not uint8.
        """
        del kwargs
        self.data = _codes(new_values[0])  # pyright: ignore[reportArgumentType]  # The first value is an array.
        self.metadata = new_values[1]

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the data."""
        return self.data.shape

    @property
    def dtype(self) -> tf.DType:
        """The type of the data, uint8."""
        return tf.uint8

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, QuarterTensor)
            and np.array_equal(self.data, other.data)
            and np.array_equal(np.asarray(self.metadata), np.asarray(other.metadata))
        )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> tf.Tensor:
        return self.data[index]

    def __iter__(self) -> Iterator[TensorLike]:
        return iter([self.data, self.metadata])


def convert_to_f8(values: TensorLike, metadata: TensorLike, name: str | None = None) -> QuarterTensor:
    """Rounds values to float16, then to the nearest eight-bit float, with ties to even.

    Values that overflow become the largest eight-bit float. In a program, `IPUConfig.floating_point_behaviour` and
    `scopes.stochastic_rounding` apply. With `esr`, values are rounded at random. With `nanoo`, values that overflow
    become NaN. With `oflo`, they end the run with an error. No gradient flows through. `metadata` is the result of
    `create_metadata`, or a tensor of that value.
    """
    with tf.name_scope(name or "convert_to_f8"):
        half = tf.cast(values, tf.float16)
        packed = _metadata(metadata)
        return QuarterTensor(encode(tf.cast(half, tf.float32), packed, programs.floating_point_now().nanoo), packed)


def convert_from_f8(
    packed_input: QuarterTensor | Sequence[TensorLike], dtype: DTypeLike = tf.float16, name: str | None = None
) -> tf.Tensor:
    """Converts a `QuarterTensor`, or its data and metadata, to `dtype`. Values beyond float16 become infinite."""
    with tf.name_scope(name or "convert_from_f8"):
        data, metadata = packed_input
        half = tf.cast(decode(tf.convert_to_tensor(data), _metadata(metadata)), tf.float16)
        return tf.cast(half, dtype)


def f8_matmul(lhs: QuarterTensor | TensorLike, rhs: QuarterTensor | TensorLike, name: str = "f8_matmul") -> tf.Tensor:
    """Multiplies two matrices, each a `QuarterTensor` or a tensor of floats. Sums in float32, and returns float16."""
    with tf.name_scope(name):
        return tf.cast(tf.matmul(_to_float32(lhs), _to_float32(rhs)), tf.float16)


def f8_conv_1d(
    inputs: QuarterTensor | TensorLike,
    filters: QuarterTensor | TensorLike,
    strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NWC",
    dilations: int | Sequence[int] = (1,),
    name: str = "f8_conv_1d",
) -> tf.Tensor:
    """Convolves sequences of eight-bit floats. Sums in float32, and returns float16.

    Args:
      inputs: A `QuarterTensor` or a tensor of floats. Its shape is [batch, width, channels], or [batch, channels,
        width] if `data_format` is "NCW". The result has the same order of dimensions.
      filters: A `QuarterTensor` or a tensor of floats, of shape [width, input channels, output channels].
      strides: The distance between two positions of the filter.
      padding: "SAME", "VALID" or a list of pairs.
      data_format: "NWC" or "NCW".
      dilations: The distance between two elements of the filter.
      name: A name for the operation.

    Raises:
      ValueError: `data_format` has another value. Or the number of entries of `strides` or `dilations` is not 1,
        the number of spatial dimensions, or the number of all dimensions.
    """
    return _convolution(inputs, filters, strides, padding, ("NWC", "NCW"), data_format, dilations, name)


def f8_conv_2d(
    inputs: QuarterTensor | TensorLike,
    filters: QuarterTensor | TensorLike,
    strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NHWC",
    dilations: int | Sequence[int] = (1, 1, 1, 1),
    name: str = "f8_conv_2d",
) -> tf.Tensor:
    """Convolves images of eight-bit floats, in the format "NHWC" or "NCHW". See `f8_conv_1d`."""
    return _convolution(inputs, filters, strides, padding, ("NHWC", "NCHW"), data_format, dilations, name)


def f8_conv_3d(
    inputs: QuarterTensor | TensorLike,
    filters: QuarterTensor | TensorLike,
    strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NDHWC",
    dilations: int | Sequence[int] = (1, 1, 1, 1, 1),
    name: str = "f8_conv_3d",
) -> tf.Tensor:
    """Convolves volumes of eight-bit floats, in the format "NDHWC" or "NCDHW". See `f8_conv_1d`."""
    return _convolution(inputs, filters, strides, padding, ("NDHWC", "NCDHW"), data_format, dilations, name)


def _convolution(
    inputs: QuarterTensor | TensorLike,
    filters: QuarterTensor | TensorLike,
    strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]],
    formats: tuple[str, str],
    data_format: str,
    dilations: int | Sequence[int],
    name: str,
) -> tf.Tensor:
    if data_format not in formats:
        raise ValueError(f"`data_format` must be {formats[0]!r} or {formats[1]!r}, but is `{data_format!r}`")
    rank = len(data_format)
    with tf.name_scope(name):
        images, kernel = _to_float32(inputs), _to_float32(filters)
        is_channels_first = data_format[1] == "C"
        if is_channels_first:  # TensorFlow's convolutions on the CPU require the channels last.
            images = tf.transpose(images, [0, *range(2, rank), 1])
        result = tf.nn.convolution(
            images,
            kernel,
            _spatial("strides", strides, data_format),
            _padding(padding, is_channels_first),  # pyright: ignore[reportArgumentType]  # The stub has only strings.
            dilations=_spatial("dilations", dilations, data_format),
        )
        if is_channels_first:
            result = tf.transpose(result, [0, rank - 1, *range(1, rank - 1)])
        return tf.cast(result, tf.float16)


def _spatial(argument: str, value: int | Sequence[int], data_format: str) -> list[int]:
    """Returns one entry for each spatial dimension. `value` has 1 entry, or one per dimension or spatial dimension."""
    spatial = len(data_format) - 2
    values = [value] if isinstance(value, int) else list(value)
    if len(values) == 1:
        return values * spatial
    if len(values) == len(data_format):
        return values[1:-1] if data_format[-1] == "C" else values[2:]
    if len(values) != spatial:
        raise ValueError(f"`{argument}` must have 1, {spatial} or {len(data_format)} entries, but is `{value}`")
    return values


def _padding(padding: str | Sequence[Sequence[int]], channels_first: bool) -> str | list[Sequence[int]]:
    if isinstance(padding, str):
        return padding
    return [padding[0], *padding[2:], padding[1]] if channels_first else list(padding)


def _to_float32(tensor: QuarterTensor | TensorLike) -> tf.Tensor:
    if isinstance(tensor, QuarterTensor):
        return convert_from_f8(tensor, tf.float32)
    return tf.cast(tensor, tf.float32)


def _metadata(metadata: TensorLike) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(metadata), tf.uint8)


def _codes(data: _Data) -> tf.Tensor | tf.Variable:
    if isinstance(data, np.ndarray):
        data = tf.Variable(tf.constant(data))
    if tf.as_dtype(data.dtype) != tf.uint8:
        raise TypeError(
            f"`data` must be uint8, but is {tf.as_dtype(data.dtype).name}; use `convert_to_f8` to convert floats"
        )
    return data
