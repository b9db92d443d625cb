"""Queries of tensors, variables and dtypes that many modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from tensorflow_ipu._base.checks import Faults
    from tensorflow_ipu._base.types import DTypeLike, DTypeOf, Variable


def is_function(dtype: object) -> TypeIs[Callable[..., DTypeLike | None]]:
    """Returns True if a `DTypeOf` is a function. Dtypes and types do not count, though they are callable."""
    return callable(dtype) and not isinstance(dtype, (tf.DType, type))


def note_dtype(argument: str, value: Any, faults: Faults) -> None:
    """Adds an error to `faults` if `value` is not a `DTypeOf`."""
    if value is None or is_function(value):
        return
    try:
        tf.as_dtype(value)
    except TypeError:
        faults.add(TypeError, f"`{argument}` must be a dtype, a function that returns one, or None, but is {value!r}")


def dtype_for(choice: DTypeOf, tensor: tf.Tensor | Variable) -> tf.DType:
    """Returns the dtype in which values of `tensor` accumulate.

    `choice` is that dtype, a function of `tensor` that returns it, or None for the dtype of `tensor`.
    """
    chosen = choice(tensor) if is_function(choice) else choice
    return tf.as_dtype(tensor.dtype if chosen is None else chosen)


def known_size(tensor: tf.Tensor, axis: int) -> int:
    """Returns the size of an axis, which must be static."""
    size = tensor.shape[axis]
    assert size is not None
    return size


def name_of(variable: Any) -> str:
    """Returns the full name of a variable: the `path` of a Keras 3 variable, otherwise the `name`."""
    return getattr(variable, "path", variable.name)


def tf_variable(variable: object) -> Any:
    """Returns the `tf.Variable` inside a variable of Keras, and any other value unchanged."""
    if isinstance(variable, tf.Variable):
        return variable
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable
