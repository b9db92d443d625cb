"""The bits of numbers of eight bits.

    F143   s eeee mmm   bias 8
    F152   s eeeee mm   bias 16

Without infinities and without a negative zero, whose bits are those of NaN: the formats of
https://arxiv.org/abs/2206.02915.
"""

from __future__ import annotations

import tensorflow as tf

from tensorflow_ipu import replicas

_NAN = 0x80


# By this attribute `kernels/precision/quarter.h` knows what of a conversion rounds, and what is beyond its format.
_ATTRIBUTE = "ipu_f8"


def encode(values: tf.Tensor, metadata: tf.Tensor, nan_on_overflow: bool = False) -> tf.Tensor:
    """The bits of float32 numbers, uint8. NaN stays NaN.

    Args:
      values: The numbers.
      metadata: The format and the scale.
      nan_on_overflow: What is too large becomes NaN, and not the largest number.
    """
    bits, lowest, scale = _parameters(metadata)
    magnitude = tf.abs(values) * _power(-scale)
    exponent = tf.maximum(exponent_of(magnitude), lowest)
    # Infinities and NaN have the largest exponent of float32, for which there is no power to divide by.
    exponent = tf.minimum(exponent, 64)
    steps = tf.minimum(magnitude * _power(bits - exponent), 64.0)
    with replicas.instructions_attributed({_ATTRIBUTE: "rounds"}):
        steps = tf.round(steps)
    # A fraction that was rounded up to the next power of 2 carries over into the exponent.
    code = tf.bitwise.left_shift(exponent - lowest, bits) + tf.cast(steps, tf.int32)
    over = tf.logical_and(code > 0x7F, tf.logical_not(tf.math.is_nan(values)))
    beyond = tf.where(over, tf.abs(values), 0.0)
    with replicas.instructions_attributed({_ATTRIBUTE: "overflows"}):
        beyond = tf.negative(beyond, name="overflow")
    code = tf.where(beyond < 0, _NAN if nan_on_overflow else 0x7F, code)
    code = tf.where(tf.logical_and(values < 0, code > 0), tf.bitwise.bitwise_or(code, 0x80), code)
    return tf.cast(tf.where(tf.math.is_nan(values), _NAN, code), tf.uint8)


def decode(codes: tf.Tensor, metadata: tf.Tensor) -> tf.Tensor:
    """The numbers of bits, float32."""
    bits, lowest, scale = _parameters(metadata)
    code = tf.cast(codes, tf.int32)
    magnitude = tf.bitwise.bitwise_and(code, 0x7F)
    exponent = tf.bitwise.right_shift(magnitude, bits)
    one = tf.bitwise.left_shift(tf.ones_like(bits), bits)
    fraction = tf.bitwise.bitwise_and(magnitude, one - 1) + tf.where(exponent > 0, one, 0)
    value = tf.cast(fraction, tf.float32) * _power(tf.maximum(exponent, 1) - 1 + lowest - bits + scale)
    value = tf.where(code > 0x80, -value, value)
    return tf.where(tf.equal(code, _NAN), float("nan"), value)


def _parameters(metadata: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The bits of the fraction, the exponent of the smallest normal number, and that of the scale; int32 scalars."""
    packed = tf.cast(metadata, tf.int32)
    is_143 = packed >= 0x80
    low = tf.bitwise.bitwise_and(packed, 0x3F)
    scale = tf.where(low >= 32, low - 64, low)
    return tf.where(is_143, 3, 2), tf.where(is_143, -7, -15), scale


def exponent_of(magnitude: tf.Tensor) -> tf.Tensor:
    """The exponent of positive float32 numbers: -127 of zero and what is almost, 128 of infinity and NaN."""
    return tf.bitwise.right_shift(tf.bitcast(magnitude, tf.int32), 23) - 127


def scaled(values: tf.Tensor, exponent: tf.Tensor) -> tf.Tensor:
    """Float32 numbers times 2 to the power of it, which may be too large or small for a number of its own."""
    half = tf.bitwise.right_shift(exponent, 1)
    return values * _power(half) * _power(exponent - half)


def _power(exponent: tf.Tensor) -> tf.Tensor:
    """2 to the power of it, exactly, float32."""
    return tf.bitcast(tf.bitwise.left_shift(exponent + 127, 23), tf.float32)
