"""Compiles a function into a file that another process runs: see `embedded_runtime`."""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu.executables import _application
from tensorflow_ipu.executables._compile import current_strategy

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested

__all__ = ["experimental_application_compile_op"]


def experimental_application_compile_op(
    func: Callable[..., Nested],
    inputs: Sequence[Nested] | None = None,
    output_path: str | os.PathLike[str] | None = None,
    freeze_variables: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Compiles a function into a file, without running it.

    The function is a program as `IPUStrategy.run` runs one: it takes elements of an infeed, in a loop or a pipeline, and
    enqueues an answer to each to an outfeed. With several infeeds a call brings an element of each; with several outfeeds its
    answer is an element of each. The data of these queues do not matter. It is compiled for the strategy whose scope is
    around, or else for `/device:IPU:0`, and for as many IPUs as that has now.

    Args:
      func: The function.
      inputs: Its arguments, tensors, of which types and shapes alone matter.
      output_path: Where to put the file; one in a new temporary folder if omitted.
      freeze_variables: Whether the values of variables go into the file. Otherwise they are given at the start.
      name: A name for the temporary file.

    Returns:
      The path of the file, a string tensor.

    Raises:
      RuntimeError: A graph is being built, where nothing is compiled.
      ValueError: The function has no infeed or no outfeed, or uses what only this process has.
      tf.errors.InvalidArgumentError: XLA cannot compile it: the message says what of it, and the way out.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("an application is compiled in eager execution, and a graph is being built: call it outside")
    program = func if replicas.is_graph_function(func) else tf.function(_without_operation(func), jit_compile=True)
    strategy = current_strategy()
    given = [tf.convert_to_tensor(value) for value in inputs or ()]
    prepared = strategy.prepare(program, given)._prepared
    extended = strategy.extended
    path = (
        os.path.join(tempfile.mkdtemp(), f"{name or 'application'}.poplar_exec") if output_path is None else output_path
    )
    try:
        names = list(inspect.signature(getattr(func, "python_function", func)).parameters)
    except (TypeError, ValueError):
        names = []
    application = _application.of_program(
        prepared, extended.ipu_device, replicas.ipus_or_one(extended.ordinal), names, bool(freeze_variables)
    )
    _application.save(application, os.fspath(path))
    return tf.constant(os.fspath(path))


def _without_operation(func: Callable[..., Nested]) -> Callable[..., Nested]:
    """The function, returning nothing where it returns an operation, as loops do whose body returns nothing."""

    @functools.wraps(func)
    def program(*args: tf.Tensor) -> Nested:
        returned = func(*args)
        return None if isinstance(returned, tf.Operation) else returned

    return program
