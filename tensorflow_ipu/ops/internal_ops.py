"""Operations for prints, for the index of a micro-batch, for delay lines, and for hints at layouts."""

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
    """Prints `<name>: ` and all elements of a tensor to stderr each time the program executes the operation.

    Prints keep the order of the trace. On a device of several replicas, each line begins with the replica, such as
    `replica 0: `. Outside of a program, it prints as `tf.print` does.

    Args:
      input: The tensor.
      name: The text before the tensor; if empty, the tensor's name.

    Returns:
      The operation that prints, which runs even if nothing depends on it; None in eager execution.

    Raises:
      TypeError: `name` is not a string.
    """
    check_instance("name", name, str, "a string")
    value = tf.convert_to_tensor(input)
    label = name or ("tensor" if tf.executing_eagerly() else value.op.name)
    return tf.print(f"{label}:", value, summarize=-1, output_stream=sys.stderr)


def remap(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Returns the same tensor. On hardware, its elements get a new layout over the tiles."""
    return tf.identity(x, name or "remap")


def remap_deduce(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Returns the same tensor. On hardware, its uses determine a new layout over the tiles."""
    return tf.identity(x, name or "remap_deduce")


def get_current_iteration_counter(name: str | None = None, **kwargs: Never) -> tf.Tensor:
    """Returns the index of the micro-batch that a stage computes: an int32 scalar below `gradient_accumulation_count`.

    A backward pass returns the same index as the forward pass of its micro-batch.

    Raises:
      RuntimeError: It is not called in a stage of a pipeline.
      TypeError: There is another argument than `name`.
    """
    if kwargs:
        raise TypeError(f"`get_current_iteration_counter` has no argument `{next(iter(kwargs))}`")
    for graph in [] if tf.executing_eagerly() else graphs.being_traced():
        index = getattr(graph, MICRO_BATCH, None)
        if index is not None:
            return tf.identity(index, name or "iteration_counter")
    raise RuntimeError(
        "`get_current_iteration_counter` returns the index of a micro-batch of a pipeline: call it in one of the"
        " `computational_stages`"
    )


# The attribute of the graph of a pipeline stage that holds the index of the micro-batch.
MICRO_BATCH = "ipu_micro_batch"


def fifo(x: TensorLike, depth: int, offload: bool = False, name: str | None = None) -> tf.Tensor:
    """Adds `x` to a queue and returns the tensor that was added `depth` executions of this call ago, zeros at first.

    Each call in a program has a separate queue, and each replica has separate values. The queue keeps its values
    between runs. It is empty again when the program is traced again. No gradient flows through.

    Args:
      x: The tensor to add, of static shape.
      depth: The length of the queue. If it is below 1, `x` is returned.
      offload: Whether hardware keeps the queue off-chip. It has no effect here: the host has only one memory.
      name: A name for the operation.

    Raises:
      RuntimeError: It is called outside of a program.
      ValueError: The shape of `x` is not static.
      TypeError: `depth` is not an int, or `offload` is not a bool.
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
        queue = kept_variables.zeros([depth, *value.shape], value.dtype, "fifo", device)
        calls = kept_variables.zeros([], tf.int32, "fifo_calls", device)
        # Nothing else keeps the variables alive: a graph holds only their handles.
        sites.keep_with_trace(queue, calls)
        call = calls.read_value()
        place = tf.stack([call, *[0] * len(value.shape)])
        values = queue.read_value()
        oldest = xla.read_at(values, place, tf.constant(np.array([1, *value.shape], np.int32)))
        queue.assign(xla.written_at(values, value[tf.newaxis], place), read_value=False)
        calls.assign(tf.math.floormod(call + 1, depth), read_value=False)
        return tf.reshape(oldest, value.shape)


def formatting(original: Callable[..., tf.Tensor]) -> Callable[..., object]:
    """Returns the replacement of the function that formats the text of a print: in a program, the host formats it."""

    @functools.wraps(original)
    def string_format(*args: object, **kwargs: object) -> object:
        format_text = functools.partial(original, *args, **kwargs)
        return format_text if programs.is_tracing() else format_text()

    return string_format


def printing(original: Callable[..., tf.Operation | None]) -> Callable[..., tf.Operation | None]:
    """Returns the replacement of the function that prints: in a program, the host prints."""

    @functools.wraps(original)
    def print_v2(text: Any, *args: object, **kwargs: object) -> tf.Operation | None:
        if not programs.is_tracing():
            return original(text, *args, **kwargs)
        with host_callbacks.host_part("print") as part:
            original(text() if callable(text) else text, *args, **kwargs)
        return part.call

    return print_v2
