"""What to do with tensors of a type that feeds do not carry."""

from __future__ import annotations

import tensorflow as tf


def for_type(dtype: tf.DType) -> str:
    """The way out for tensors of a type that an IPU does not have: a clause, with the tensors as `x`."""
    if dtype.is_floating:
        return "cast them to float32, `tf.cast(x, tf.float32)`"
    if dtype.is_integer:
        return "cast them to int32, `tf.cast(x, tf.int32)`"
    if dtype.is_complex:
        return "split them into `tf.math.real(x)` and `tf.math.imag(x)`"
    if dtype == tf.string:
        return "turn them to numbers, as `tf.strings.to_number(x)` or a lookup table do"
    return "leave them out"
