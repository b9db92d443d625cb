"""What programs print: `print_tensor`, and TensorFlow's own `tf.print`, which works in them as everywhere."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu.ops import host_parts

if TYPE_CHECKING:
    from tensorflow_ipu._types import TensorLike

__all__ = ["print_tensor"]


def print_tensor(input: TensorLike, name: str = "") -> tf.Operation | None:  # noqa: A002  (Graphcore's name.)
    """Prints a tensor to stderr, each time that the program comes by, in its order.

    It prints `name: ` and all elements, on a device of several replicas with `replica 0: ` or the like before each line.
    Outside of a program it prints as `tf.print` does.

    Args:
      input: A tensor.
      name: What is printed before the value; the tensor's own name if empty.

    Returns:
      The operation that prints, which runs whether or not anything depends on it; None in eager execution.

    Raises:
      TypeError: `name` is no string.
    """
    if not isinstance(name, str):
        raise TypeError(f"`name` must be a string, but is {name!r}")
    value = tf.convert_to_tensor(input)
    shown = name or ("tensor" if tf.executing_eagerly() else value.op.name)
    return tf.print(f"{shown}:", value, summarize=-1, output_stream=sys.stderr)


@functools.cache  # TensorFlow has it under several names.
def _printing(plain: Callable[..., tf.Operation | None]) -> Callable[..., tf.Operation | None]:
    @functools.wraps(plain)
    def print_(*inputs: object, **kwargs: Any) -> tf.Operation | None:
        if not replicas.is_tracing():
            return plain(*inputs, **kwargs)
        with host_parts.host_part("print") as part:
            plain(*inputs, **kwargs)
        return part.call

    return print_


patches.PRINT.by(_printing)
patches.PRINT.apply_for_good()
