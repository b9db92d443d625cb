"""What TensorFlow does differently with functions while a program is traced."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from tensorflow.python.eager.polymorphic_function import attributes, concrete_function, transform

from tensorflow_ipu.replicas import _ranges, _shards

# Graphs of functions that hold a program.
_callers: weakref.WeakSet[Any] = weakref.WeakSet()

_thread = threading.local()


@contextlib.contextmanager
def tracing_program() -> Iterator[None]:
    """A block that traces a program; one inside of another is part of that program."""
    inside = is_tracing()
    if not inside:
        _note_callers()
    _thread.inside = True
    try:
        yield
    finally:
        _thread.inside = inside


def is_tracing() -> bool:
    """Whether this thread traces a program."""
    return getattr(_thread, "inside", False)


def _note_callers() -> None:
    """Notes that the functions being traced hold a program."""
    for graph in _shards.being_traced():
        _callers.add(graph)


def _transform(graph: Any) -> None:
    """Called with each graph that TensorFlow is about to make a function of."""
    if is_tracing():
        _ranges.leave_out(graph)


def _release(function: Any) -> None:
    """Called with each traced function: one that holds a program is not compiled.

    Keras, for one, compiles the steps of its own loops where a model is to be compiled. TensorFlow would compile them,
    program and all, for the host, and find the program's variables on another device.
    """
    if function.graph not in _callers or attributes.XLA_COMPILE not in function._attrs:
        return
    remaining = {name: value for name, value in function._attrs.items() if name != attributes.XLA_COMPILE}
    # TensorFlow has no call for it: the function becomes another one of the same graph.
    function._garbage_collector.release()
    other = concrete_function.ConcreteFunction.from_func_graph(
        function.graph, function.function_type, remaining, shared_func_graph=False
    )
    signature = ("_arg_keywords", "_num_positional_args")
    vars(function).update({name: value for name, value in vars(other).items() if name not in signature})


transform.FUNC_GRAPH_TRANSFORMS.append(_transform)
transform.CONCRETE_FUNCTION_CALLBACKS.append(_release)
