"""Which graphs belong to a program, and what TensorFlow does differently with functions while one is traced."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.distribute import device_util
from tensorflow.python.eager.polymorphic_function import attributes, concrete_function, transform
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_ops

from tensorflow_ipu import _environment
from tensorflow_ipu.replicas import _ranges, _shards

# Graphs of functions that hold a program.
_callers: weakref.WeakSet[Any] = weakref.WeakSet()


class _Kind(NamedTuple):
    """What is known of code that is being traced.

    Attributes:
      on_ipu: Whether it is a program's: always, never, or by the device that each operation is placed on.
      ipus: How many IPUs the program's device has; None where that is known when it runs.
      host_kernels: Whether kernels of the host may compute layers of the program.
    """

    on_ipu: bool | None
    ipus: int | None = None
    host_kernels: bool = False


_HOSTS = _Kind(on_ipu=False)


class _Mark(control_flow_ops.XLAControlFlowContext):
    """Marks a graph, and all that are built inside of it, as parts of a program, or as the host's in the midst of one.

    The mark is on the graph and not on the thread, so that what `tf.init_scope` lifts out of the program, such as the
    initial value of a variable, is none of the program's. To TensorFlow it is the context of what XLA compiles, in which
    loops are traced differently: with bounded stacks for their gradients, for one. And TensorFlow traces a function that
    a program calls once for each mark, so there is one mark for all programs of a kind.
    """

    def __init__(self, kind: _Kind) -> None:
        with framework_ops.Graph().as_default():  # Inside of no other context.
            super().__init__()
        self.kind = kind

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802  (TensorFlow's name.)
        return True


# Kept for ever, since TensorFlow tells them apart by their address.
_marks: dict[_Kind, _Mark] = {}


@contextlib.contextmanager
def _marked(kind: _Kind) -> Iterator[None]:
    graph: Any = framework_ops.get_default_graph()
    around = graph._get_control_flow_context()
    graph._set_control_flow_context(_marks.get(kind) or _marks.setdefault(kind, _Mark(kind)))
    try:
        yield
    finally:
        graph._set_control_flow_context(around)


def _mark_of(graph: Any) -> _Mark | None:
    """The innermost mark on a graph or one around it."""
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if isinstance(context, _Mark):
                return context
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return None


@contextlib.contextmanager
def tracing_program(ipus: int | None, host_kernels: bool | None = None, placed: bool = True) -> Iterator[None]:
    """A block that traces a program; one inside of another is part of that program.

    Args:
      ipus: How many IPUs the device has; None where that is known when the program runs, and not before.
      host_kernels: Whether kernels of the host may compute layers of the program. None: what the environment says.
      placed: Whether all of it is on an IPU device. Else it is a program of those operations that name one.
    """
    if is_tracing():
        yield
        return
    if host_kernels is None:
        host_kernels = _environment.host_kernels()
    _note_callers()
    with _marked(_Kind(placed or None, ipus, host_kernels)):
        yield


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """A block whose operations are not the program's that is being traced, though they may be built in its graph."""
    with _marked(_HOSTS) if is_tracing() else contextlib.nullcontext():
        yield


def is_tracing() -> bool:
    """Whether what is called now becomes a part of a program."""
    return _kind_of_program() is not None


def _kind_of_program() -> _Kind | None:
    """What is known of the program that what is called now becomes a part of; None where it becomes a part of none."""
    if tf.executing_eagerly():
        return None
    mark = _mark_of(framework_ops.get_default_graph())
    if mark is None:
        return None
    on_ipu = mark.kind.on_ipu
    if on_ipu is None:
        on_ipu = tf.DeviceSpec.from_string(device_util.current() or "").device_type == "IPU"
    return mark.kind if on_ipu else None


def ipus_traced_for() -> int | None:
    """How many IPUs the device has for which a program is being traced; None where that is not known, or none is."""
    mark = None if tf.executing_eagerly() else _mark_of(framework_ops.get_default_graph())
    return None if mark is None else mark.kind.ipus


def wants_host_kernels() -> bool:
    """Whether what is called now becomes a part of a program whose layers kernels of the host may compute."""
    kind = _kind_of_program()
    return kind is not None and kind.host_kernels


def _note_callers() -> None:
    """Notes that the functions being traced hold a program."""
    for graph in _shards.being_traced():
        _callers.add(graph)


def _transform(graph: Any) -> None:
    """Called with each graph that TensorFlow is about to make a function of."""
    if _mark_of(graph) is not None:
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
