"""What programs print: `print_tensor`, and TensorFlow's own `tf.print`, which works in them as everywhere."""

from __future__ import annotations

import functools
import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import logging_ops

from tensorflow_ipu import replicas
from tensorflow_ipu.ops import host_parts

__all__ = ["print_tensor"]

_plain: Any = logging_ops.print_v2


def print_tensor(input: Any, name: str = "") -> Any:  # noqa: A002  (Graphcore's name.)
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
    return _print(f"{shown}:", value, summarize=-1, output_stream=sys.stderr)


@functools.wraps(_plain)
def _print(*inputs: Any, **kwargs: Any) -> Any:
    if not replicas.is_tracing():
        return _plain(*inputs, **kwargs)
    with host_parts.host_part("print") as part:
        _plain(*inputs, **kwargs)
    return part.call


# All names under which TensorFlow has it.
for _module, _name in ((tf, "print"), (tf.compat.v1, "print"), (tf.compat.v2, "print"), (logging_ops, "print_v2")):
    setattr(_module, _name, _print)
