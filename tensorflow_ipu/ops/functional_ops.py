"""Functions that are in a program once, however often it calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._base.checks import Faults, note_bool
from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu.ops import _outlined

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested

__all__ = ["outlined_function"]

# What a decorated function tells of itself: not the user's module, or AutoGraph would rewrite it as code of the user's, and
# look for a lambda where there is none.
_TOLD = tuple(name for name in functools.WRAPPER_ASSIGNMENTS if name != "__module__")


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """Has the calls of a Python function share one piece of code of a program, forward and backward.

        @outlined_function
        def block(x, weights):
            return tf.nn.relu(tf.matmul(x, weights))

    Each call traces the function, as calls of Python functions do. What comes of it and differs in its inputs alone
    (arguments of the same shapes and types, variables and tensors that it captures) is in the program once; so several
    functions that do the same share their code too. Gradients flow to all inputs, and have gradients in their turn.

    Outside of a program the function is called as it is. So is, after a trace for nothing, one with a loop in it that has a
    gradient: what the loop leaves for that cannot leave the function.

    Args:
      func: The function, from tensors and any other arguments to a structure of tensors. None where the decorator is
        called with the other arguments.
      unique_sharding: Whether the function is for the one IPU of a program in shards that all its operations are on.
        Checked: it tunes hardware.
      keep_input_layouts: Whether all calls have to have inputs of one layout; None is decided by hardware. Checked
        likewise.
      name: A name for the function.

    Returns:
      The function, to be called as before; or a decorator.

    Raises:
      TypeError: `func` cannot be called, `unique_sharding` is no bool, `keep_input_layouts` neither bool nor None, or
        `name` no string.
    """
    faults = Faults()
    note_bool("unique_sharding", unique_sharding, faults)
    note_bool("keep_input_layouts", keep_input_layouts, faults, optional=True)
    if func is not None and not callable(func):
        faults.add(TypeError, f"`func` must be a function, but is {func!r}")
    if name is not None and not isinstance(name, str):
        faults.add(TypeError, f"`name` must be a string, but is {name!r}")
    faults.raise_any()

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        called = name or getattr(function, "__name__", "outlined")

        @functools.wraps(function, assigned=_TOLD, updated=())
        def call(*args: Any, **kwargs: Any) -> Nested:
            if tf.executing_eagerly() or not replicas.is_tracing():
                return user_code(function)(*args, **kwargs)
            return _outlined.call(function, called, args, kwargs)

        return call

    return decorated if func is None else decorated(func)
