"""Functions around a program: TensorFlow compiles none of them, since the program runs on a device of its own."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from tensorflow.python.eager.polymorphic_function import attributes, concrete_function, transform
from tensorflow.python.framework import func_graph, ops

# Graphs of functions that hold a program.
_graphs: weakref.WeakSet[Any] = weakref.WeakSet()

_thread = threading.local()


@contextlib.contextmanager
def tracing_program() -> Iterator[None]:
    """A block that traces a program, into which another program merges."""
    inside = getattr(_thread, "inside", False)
    if not inside:
        _note_callers()
    _thread.inside = True
    try:
        yield
    finally:
        _thread.inside = inside


def _note_callers() -> None:
    """Notes that the functions being traced hold a program.

    One of them may be compiled, as the steps of Keras's own loops are where a model is to be compiled. TensorFlow would
    compile it, program and all, for the host, and find the program's variables on another device.
    """
    graph = ops.get_default_graph()
    while isinstance(graph, func_graph.FuncGraph):
        _graphs.add(graph)
        graph = graph.outer_graph


def _release(program: Any) -> None:
    """Makes a function that was just traced one that is not compiled, if it holds a program."""
    if program.graph not in _graphs or attributes.XLA_COMPILE not in program._attrs:
        return
    remaining = {name: value for name, value in program._attrs.items() if name != attributes.XLA_COMPILE}
    # TensorFlow has no call for it: the function becomes another one of the same graph.
    program._garbage_collector.release()
    other = concrete_function.ConcreteFunction.from_func_graph(
        program.graph, program.function_type, remaining, shared_func_graph=False
    )
    signature = ("_arg_keywords", "_num_positional_args")
    vars(program).update({name: value for name, value in vars(other).items() if name not in signature})


transform.CONCRETE_FUNCTION_CALLBACKS.append(_release)
