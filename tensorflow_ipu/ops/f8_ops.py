"""Numbers of eight bits with a common scale, as IPUs have them: conversions, products and convolutions."""

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


# By this attribute `kernels/precision/rounding.h` knows what of a conversion rounds, and what is beyond its format.
_ATTRIBUTE = "ipu_f8"


def encode(values: tf.Tensor, metadata: tf.Tensor, nan_on_overflow: bool = False) -> tf.Tensor:
    """Encodes float32 numbers as eight bits, uint8. NaN stays NaN."""
    bits, lowest, scale = _parameters(metadata)
    magnitude = tf.abs(values) * _power(-scale)
    exponent = tf.maximum(exponent_of(magnitude), lowest)
    # Infinities and NaN have the largest exponent of float32, for which there is no power to divide by.
    exponent = tf.minimum(exponent, 64)
    steps = tf.minimum(magnitude * _power(bits - exponent), 64.0)
    with programs.attributed({_ATTRIBUTE: "rounds"}):
        steps = tf.round(steps)
    # A fraction that was rounded up to the next power of 2 carries over into the exponent.
    code = tf.bitwise.left_shift(exponent - lowest, bits) + tf.cast(steps, tf.int32)
    over = tf.logical_and(code > 0x7F, tf.logical_not(tf.math.is_nan(values)))
    beyond = tf.where(over, tf.abs(values), 0.0)
    with programs.attributed({_ATTRIBUTE: "overflows"}):
        beyond = tf.negative(beyond, name="overflow")
    code = tf.where(beyond < 0, _NAN if nan_on_overflow else 0x7F, code)
    code = tf.where(tf.logical_and(values < 0, code > 0), tf.bitwise.bitwise_or(code, 0x80), code)
    return tf.cast(tf.where(tf.math.is_nan(values), _NAN, code), tf.uint8)


def decode(codes: tf.Tensor, metadata: tf.Tensor) -> tf.Tensor:
    """Decodes eight bits to float32 numbers."""
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
    """Returns the bits of the fraction, and the exponents of the smallest normal number and of the scale; int32."""
    packed = tf.cast(metadata, tf.int32)
    is_143 = packed >= 0x80
    low = tf.bitwise.bitwise_and(packed, 0x3F)
    scale = tf.where(low >= 32, low - 64, low)
    return tf.where(is_143, 3, 2), tf.where(is_143, -7, -15), scale


def exponent_of(magnitude: tf.Tensor) -> tf.Tensor:
    """Returns the exponent of positive float32 numbers: -127 of zero and denormals, 128 of infinity and NaN."""
    return tf.bitwise.right_shift(tf.bitcast(magnitude, tf.int32), 23) - 127


def scaled(values: tf.Tensor, exponent: tf.Tensor) -> tf.Tensor:
    """Multiplies float32 numbers by a power of 2, which may be too large or small for a number of its own."""
    half = tf.bitwise.right_shift(exponent, 1)
    return values * _power(half) * _power(exponent - half)


def _power(exponent: tf.Tensor) -> tf.Tensor:
    """Computes a power of 2 exactly, in float32."""
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

# Bits and metadata as users have them.
_Data: TypeAlias = "tf.Tensor | tf.Variable | np.ndarray"


class Format(NamedIntEnum):
    """How the bits are used: F143 has 4 bits of exponent and 3 of the fraction, F152 has 5 and 2.

    Both have one NaN, no infinity and one zero; their largest numbers are 240 and 57344.
    """

    F143 = 0
    F152 = 1


def create_metadata(fmt: Format | int, scale: int = 0) -> int:
    """Packs the format and the scale of a tensor into eight bits: its numbers are those of the bits times `2 ** scale`.

    Raises:
      ValueError: `fmt` is no `Format`, or `scale` not from -32 to 31.
    """
    if fmt not in (Format.F143, Format.F152):
        raise ValueError(f"`fmt` must be `Format.F143` or `Format.F152`, but is `{fmt!r}`")
    if not -32 <= scale <= 31:
        raise ValueError(f"`scale={scale}` must be from -32 to 31")
    return (128 if fmt == Format.F143 else 0) | (scale & 63)


class QuarterTensor:
    """A tensor of numbers of eight bits: `data` has their bits, `metadata` their format and scale."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # It is compared by value, and can be changed.

    def __init__(self, data: _Data, metadata: TensorLike) -> None:
        """Creates the tensor of bits, uint8, and metadata.

        Args:
          data: A uint8 tensor or variable; an array becomes a variable.
          metadata: What `create_metadata` returns, or a uint8 scalar tensor or variable of it.

        Raises:
          TypeError: `data` is not uint8.
        """
        self.data = _bits(data)
        self.metadata = metadata

    def numpy(self) -> list[TensorLike]:
        """Returns the bits as an array, and the metadata."""
        return [self.data.numpy(), self.metadata]

    def assign(self, new_values: Sequence[TensorLike], **kwargs: Any) -> None:
        """Takes other bits and metadata, as `numpy` returns them; `kwargs` are what Keras adds when it assigns variables.

        Raises:
          TypeError: The bits are not uint8.
        """
        del kwargs
        self.data = _bits(new_values[0])  # pyright: ignore[reportArgumentType]  # An array comes first.
        self.metadata = new_values[1]

    @property
    def shape(self) -> tf.TensorShape:
        """Returns the shape of the data."""
        return self.data.shape

    @property
    def dtype(self) -> tf.DType:
        """Returns the type that holds the bits, uint8."""
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
    """Rounds numbers to float16, then to eight bits: to the nearest, of two to the even one, and to the largest at most.

    In a program `IPUConfig.floating_point_behaviour` and `scopes.stochastic_rounding` apply: with `esr` at random, with
    `nanoo` to NaN where they are larger, with `oflo` the program stops there. No gradient passes. `metadata`, of
    `create_metadata`, may be a tensor.
    """
    with tf.name_scope(name or "convert_to_f8"):
        half = tf.cast(values, tf.float16)
        packed = _metadata(metadata)
        return QuarterTensor(encode(tf.cast(half, tf.float32), packed, programs.floating_point_now().nanoo), packed)


def convert_from_f8(
    packed_input: QuarterTensor | Sequence[TensorLike], dtype: DTypeLike = tf.float16, name: str | None = None
) -> tf.Tensor:
    """Converts a `QuarterTensor`, or its data and metadata, to type `dtype`. What does not fit float16 is infinite."""
    with tf.name_scope(name or "convert_from_f8"):
        data, metadata = packed_input
        half = tf.cast(decode(tf.convert_to_tensor(data), _metadata(metadata)), tf.float16)
        return tf.cast(half, dtype)


def f8_matmul(lhs: QuarterTensor | TensorLike, rhs: QuarterTensor | TensorLike, name: str = "f8_matmul") -> tf.Tensor:
    """Multiplies two matrices, each a `QuarterTensor` or a tensor of floats, to float16. Sums are of float32."""
    with tf.name_scope(name):
        return tf.cast(tf.matmul(_wide(lhs), _wide(rhs)), tf.float16)


def f8_conv_1d(
    inputs: QuarterTensor | TensorLike,
    filters: QuarterTensor | TensorLike,
    strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NWC",
    dilations: int | Sequence[int] = (1,),
    name: str = "f8_conv_1d",
) -> tf.Tensor:
    """Convolves sequences of eight bits, a float16 result. Sums are of float32.

    Args:
      inputs: A `QuarterTensor`, or a tensor, of shape [batch, width, channels], or [batch, channels, width] with the
        `data_format` "NCW", as is the result.
      filters: Likewise, of shape [width, channels in, channels out].
      strides: By how much the filter moves on.
      padding: "SAME", "VALID" or a list of pairs.
      data_format: "NWC" or "NCW".
      dilations: How far the elements of the filter are apart.
      name: A name for the operation.

    Raises:
      ValueError: `data_format` is another.
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
    """Convolves pictures of eight bits: "NHWC" or "NCHW". See `f8_conv_1d`."""
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
    """Convolves volumes of eight bits: "NDHWC" or "NCDHW". See `f8_conv_1d`."""
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
        images, kernel = _wide(inputs), _wide(filters)
        first = data_format[1] == "C"
        if first:  # TensorFlow's convolutions on the CPU want the channels last.
            images = tf.transpose(images, [0, *range(2, rank), 1])
        result = tf.nn.convolution(
            images,
            kernel,
            _spatial("strides", strides, data_format),
            _explicit(padding, first),  # pyright: ignore[reportArgumentType]  # Its stub knows no explicit padding.
            dilations=_spatial("dilations", dilations, data_format),
        )
        return tf.cast(tf.transpose(result, [0, rank - 1, *range(1, rank - 1)]) if first else result, tf.float16)


def _spatial(argument: str, value: int | Sequence[int], data_format: str) -> list[int]:
    """Returns the entries for width, height and depth, of a number, of those alone, or of one for each dimension."""
    spatial = len(data_format) - 2
    values = [value] if isinstance(value, int) else list(value)
    if len(values) == 1:
        return values * spatial
    if len(values) == len(data_format):
        return values[1:-1] if data_format[-1] == "C" else values[2:]
    if len(values) != spatial:
        raise ValueError(f"`{argument}` must have 1, {spatial} or {len(data_format)} entries, but is `{value}`")
    return values


def _explicit(padding: str | Sequence[Sequence[int]], channels_first: bool) -> str | list[Sequence[int]]:
    if isinstance(padding, str):
        return padding
    return [padding[0], *padding[2:], padding[1]] if channels_first else list(padding)


def _wide(tensor: QuarterTensor | TensorLike) -> tf.Tensor:
    if isinstance(tensor, QuarterTensor):
        return convert_from_f8(tensor, tf.float32)
    return tf.cast(tensor, tf.float32)


def _metadata(metadata: TensorLike) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(metadata), tf.uint8)


def _bits(data: _Data) -> tf.Tensor | tf.Variable:
    if isinstance(data, np.ndarray):
        data = tf.Variable(tf.constant(data))
    if tf.as_dtype(data.dtype) != tf.uint8:
        raise TypeError(
            f"`data` must be uint8, but is {tf.as_dtype(data.dtype).name}; `convert_to_f8` makes numbers of eight bits"
        )
    return data
