"""What a program does besides computing: it prints, counts its micro-batches, remembers values, and hints at layouts."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import check_bool, check_instance, check_int
from tensorflow_ipu._tensorflow import graphs, xla
from tensorflow_ipu.ops import host_callbacks, kept_variables, sites

if TYPE_CHECKING:
    from typing_extensions import Never

    from tensorflow_ipu._base.types import TensorLike

__all__ = ["fifo", "get_current_iteration_counter", "print_tensor", "remap", "remap_deduce"]


def print_tensor(input: TensorLike, name: str = "") -> tf.Operation | None:  # noqa: A002  (Graphcore's name.)
    """Prints `name: ` and all elements of a tensor to stderr, each time that the program runs this, in its order.

    On a device of several replicas, `replica 0: ` or the like is before each line. Outside of a program it prints as
    `tf.print` does.

    Args:
      input: The tensor.
      name: What is printed before it; the tensor's own name if empty.

    Returns:
      The operation that prints, which runs whether or not anything depends on it; None in eager execution.

    Raises:
      TypeError: `name` is no string.
    """
    check_instance("name", name, str, "a string")
    value = tf.convert_to_tensor(input)
    shown = name or ("tensor" if tf.executing_eagerly() else value.op.name)
    return tf.print(f"{shown}:", value, summarize=-1, output_stream=sys.stderr)


def remap(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Returns the same tensor. On hardware its elements are laid out over the tiles anew; there are no tiles here."""
    return tf.identity(x, name or "remap")


def remap_deduce(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Returns the same tensor. On hardware its layout is deduced anew from how it is used; there are no tiles here."""
    return tf.identity(x, name or "remap_deduce")


def get_current_iteration_counter(name: str | None = None, **kwargs: Never) -> tf.Tensor:
    """Returns which micro-batch of a pass a stage works on: an int32 scalar below `gradient_accumulation_count`.

    A backward pass has the number of the forward pass that it belongs to.

    Raises:
      RuntimeError: It is not called in a stage of a pipeline.
      TypeError: There is an argument besides `name`.
    """
    if kwargs:
        raise TypeError(f"`get_current_iteration_counter` takes no argument `{next(iter(kwargs))}`")
    for graph in [] if tf.executing_eagerly() else graphs.being_traced():
        number = getattr(graph, MICRO_BATCH, None)
        if number is not None:
            return tf.identity(number, name or "iteration_counter")
    raise RuntimeError(
        "`get_current_iteration_counter` counts the micro-batches of a pipeline: call it in one of its"
        " `computational_stages`"
    )


# What the graph of a stage of a pipeline has the number of its micro-batch as.
MICRO_BATCH = "ipu_micro_batch"


def fifo(x: TensorLike, depth: int, offload: bool = False, name: str | None = None) -> tf.Tensor:
    """Returns what was put in `depth` calls ago, zeros at first: a delay line, whose state lasts from run to run.

    Each call in a program has a queue of its own, which begins anew when the program is traced anew, and each replica has
    its own values. No gradient goes through.

    Args:
      x: The tensor that is put in, of a known shape.
      depth: After how many calls it comes out; below 1, at once.
      offload: Whether hardware keeps the queue off the chip. Checked: the host has one memory.
      name: A name for the operation.

    Raises:
      RuntimeError: It is called outside of a program.
      ValueError: The shape of `x` is not known.
      TypeError: `depth` is no int, or `offload` no bool.
    """
    check_bool("offload", offload)
    check_int("depth", depth)
    with tf.name_scope(name or "fifo"):
        value = tf.convert_to_tensor(x)
        if depth < 1:
            return tf.identity(value)
        if not programs.is_tracing():
            raise RuntimeError(
                "`fifo` keeps values for a program: call it in the `tf.function` that `strategy.run` runs"
            )
        if not value.shape.is_fully_defined():
            raise ValueError(f"`x` must have a static shape, but has {value.shape}; state it with `tf.ensure_shape`")
        device = sites.device_of_program("fifo")
        kept = kept_variables.zeros([depth, *value.shape], value.dtype, "fifo", device)
        calls = kept_variables.zeros([], tf.int32, "fifo_calls", device)
        sites.keep_with_trace(kept, calls)  # Of variables that nobody else holds, a graph keeps the resources alone.
        call = calls.read_value()
        place = tf.stack([call, *[0] * len(value.shape)])
        values = kept.read_value()
        oldest = xla.read_at(values, place, tf.constant(np.array([1, *value.shape], np.int32)))
        kept.assign(xla.written_at(values, value[tf.newaxis], place), read_value=False)
        calls.assign(tf.math.floormod(call + 1, depth), read_value=False)
        return tf.reshape(oldest, value.shape)


def formatting(plain: Callable[..., tf.Tensor]) -> Callable[..., object]:
    """Leaves the text of a print in a program to the host, which has strings."""

    @functools.wraps(plain)
    def string_format(*args: object, **kwargs: object) -> object:
        later = functools.partial(plain, *args, **kwargs)
        return later if programs.is_tracing() else later()

    return string_format


def printing(plain: Callable[..., tf.Operation | None]) -> Callable[..., tf.Operation | None]:
    """Prints on the host what a program prints."""

    @functools.wraps(plain)
    def print_v2(text: Any, *args: object, **kwargs: object) -> tf.Operation | None:
        if not programs.is_tracing():
            return plain(text, *args, **kwargs)
        with host_callbacks.host_part("print") as part:
            plain(text() if callable(text) else text, *args, **kwargs)
        return part.call

    return print_v2
