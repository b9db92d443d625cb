"""Checks of arguments that many functions have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import tensorflow as tf

from tensorflow_ipu._faults import Faults

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an int, which Python says of True and False too."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is an int or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_bool(argument: str, value: object) -> None:
    """Refuses what is not a bool.

    Raises:
      TypeError: `value` is not True or False.
    """
    if not isinstance(value, bool):
        raise TypeError(_no_bool(argument, value, ""))


def note_bool(argument: str, value: object, faults: Faults, *, optional: bool = False) -> bool:
    """Records a fault where a value is not a bool, nor None where it is `optional`; returns whether it is one of these."""
    if isinstance(value, bool) or (optional and value is None):
        return True
    faults.add(TypeError, _no_bool(argument, value, ", False or None" if optional else ""))
    return False


def _no_bool(argument: str, value: object, choices: str) -> str:
    return f"`{argument}` must be True{choices or ' or False'}, but is {value!r}"


def is_function(dtype: object) -> TypeIs[Callable[..., Any]]:
    """Whether what was given as a dtype is a function that gives one: dtypes and types can be called too."""
    return callable(dtype) and not isinstance(dtype, (tf.DType, type))


def known_size(tensor: tf.Tensor, axis: int) -> int:
    """The size of an axis of a tensor, where it is sure to be known."""
    size = tensor.shape[axis]
    assert size is not None
    return size


def tf_variable(variable: object) -> Any:
    """The variable of TensorFlow in which Keras keeps one of its own; any other value as it is."""
    if isinstance(variable, tf.Variable):
        return variable
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable
