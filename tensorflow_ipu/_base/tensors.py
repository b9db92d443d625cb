"""What many modules ask of tensors, variables and their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from tensorflow_ipu._base.checks import Faults
    from tensorflow_ipu._base.types import DTypeLike, DTypeOf, Variable


def is_function(dtype: object) -> TypeIs[Callable[..., DTypeLike | None]]:
    """Returns True if a `DTypeOf` is a function: dtypes and types can be called too."""
    return callable(dtype) and not isinstance(dtype, (tf.DType, type))


def note_dtype(argument: str, value: Any, faults: Faults) -> None:
    """Records a fault for a value that is no `DTypeOf`."""
    if value is None or is_function(value):
        return
    try:
        tf.as_dtype(value)
    except TypeError:
        faults.add(TypeError, f"`{argument}` must be a dtype, a function that returns one, or None, but is {value!r}")


def dtype_for(choice: DTypeOf, tensor: tf.Tensor | Variable) -> tf.DType:
    """Returns the type to accumulate in: that of the variable or tensor, one for all, or what a function returns."""
    chosen = choice(tensor) if is_function(choice) else choice
    return tf.as_dtype(tensor.dtype if chosen is None else chosen)


def known_size(tensor: tf.Tensor, axis: int) -> int:
    """Returns the size of an axis of a tensor that is sure to be known."""
    size = tensor.shape[axis]
    assert size is not None
    return size


def name_of(variable: Any) -> str:
    """Returns the full name of a variable: of Keras 3 its path, of TensorFlow and Keras 2 its name."""
    return getattr(variable, "path", variable.name)


def tf_variable(variable: object) -> Any:
    """Returns the variable of TensorFlow that a variable of Keras has; any other value as it is."""
    if isinstance(variable, tf.Variable):
        return variable
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable
