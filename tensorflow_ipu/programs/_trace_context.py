"""The trace context, which marks the graphs of a program while it is traced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu._tensorflow import devices, functions, graphs, patches
from tensorflow_ipu.programs import _floating_point


def leave_out(graph: graphs.FunctionGraph) -> None:
    """Leaves unused ranges out of the function that TensorFlow is about to make of a graph."""
    # `for _ in tf.range(n)` becomes a loop over numbers, and leaves the tensor of `tf.range` unused. XLA would compile the
    # program anew for each `n`, and not at all where a loop around computes `n`.
    if any(map(_is_left_over, graph.get_operations())):
        # TensorFlow deletes no operation of a graph, and makes the function of those that the graph names.
        operations = graph.get_operations
        graph.get_operations = lambda: [op for op in operations() if not _is_left_over(op)]


def _is_left_over(op: tf.Operation) -> bool:
    if op.type != "Range" or op.outputs[0].consumers():
        return False
    return not any(op.outputs[0] is output for output in op.graph.outputs)


_HOLDS_PROGRAM = "_ipu_holds_program"  # An attribute of graphs.


class _Around(threading.local):
    graph: tf.Graph | None = None


_around = _Around()


class _ContextKind(NamedTuple):
    on_ipu: bool | None
    ipus: int | None = None
    host_kernels: bool = False
    floating_point: _floating_point.FloatingPoint = _floating_point.PLAIN


_HOSTS = _ContextKind(on_ipu=False)


class _TraceContext(graphs.XlaContext):
    """Marks a graph, and all built inside of it, as part of a program, or as the host's within one."""

    # The mark is on the graph and not on the thread, so that what `tf.init_scope` lifts out of the program, such as an
    # initial value, is not marked. To TensorFlow it is the context of what XLA compiles, in which loops have bounded
    # stacks for gradients. TensorFlow traces a called function for each mark, so all programs of a kind share one.
    def __init__(self, kind: _ContextKind) -> None:
        with tf.Graph().as_default():  # Inside of no other context.
            super().__init__()
        self.kind = kind

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802  (TensorFlow's name.)  # pyright: ignore[reportIncompatibleMethodOverride]
        return True


# Kept for ever, since TensorFlow tells them apart by their address.
_contexts: dict[_ContextKind, _TraceContext] = {}


def _in_context(kind: _ContextKind) -> contextlib.AbstractContextManager[None]:
    return graphs.in_compilation_context(_contexts.get(kind) or _contexts.setdefault(kind, _TraceContext(kind)))


def _context_of(graph: tf.Graph) -> _TraceContext | None:
    """The innermost mark on a graph or one around it."""
    for one in graphs.around(graph):
        for context in graphs.compilation_contexts(one):
            if isinstance(context, _TraceContext):
                return context
    return None


@contextlib.contextmanager
def of_program(
    ipus: int | None, host_kernels: bool, placed: bool, floating_point: _floating_point.FloatingPoint
) -> Iterator[None]:
    """A block whose graphs are those of a program."""
    for graph in graphs.being_traced():
        setattr(graph, _HOLDS_PROGRAM, True)
        patches.COMPILED_CALLERS.apply_while(graph, _release)
    before, _around.graph = _around.graph, tf.compat.v1.get_default_graph()
    try:
        with _in_context(_ContextKind(placed or None, ipus, host_kernels, floating_point)):
            yield
    finally:
        _around.graph = before


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """A block whose operations are the host's, though they may be built in the graph of a program."""
    with _in_context(_HOSTS) if is_tracing() else contextlib.nullcontext():
        yield


def is_tracing() -> bool:
    """Whether what is called now becomes part of a program."""
    return _kind_of_context() is not None


def _kind_of_context() -> _ContextKind | None:
    """The kind of program that what is called now becomes part of; None for none."""
    if tf.executing_eagerly():
        return None
    context = _context_of(tf.compat.v1.get_default_graph())
    if context is None:
        return None
    on_ipu = context.kind.on_ipu
    if on_ipu is None:
        on_ipu = tf.DeviceSpec.from_string(devices.current()).device_type == "IPU"
    return context.kind if on_ipu else None


def ipus_traced_for() -> int | None:
    """The IPUs of the device for which a program is being traced; None where that is not known, or none is."""
    context = None if tf.executing_eagerly() else _context_of(tf.compat.v1.get_default_graph())
    return None if context is None else context.kind.ipus


def floating_point_now() -> _floating_point.FloatingPoint:
    """The floating-point options of the program that is being traced."""
    kind = _kind_of_context()
    return _floating_point.PLAIN if kind is None else kind.floating_point


def wants_host_kernels(type_: tf.DType | None = None, results: int = 1) -> bool:
    """Returns whether host kernels may compute a layer, of a type and so many results, of the program being traced."""
    kind = _kind_of_context()
    if kind is None or not kind.host_kernels:
        return False
    # Partial sums are XLA's, and the numbers of several results are not checked.
    numbers = kind.floating_point
    return type_ != tf.float16 or not (numbers.partials_conv or (numbers.stops and results > 1))


def finish(graph: graphs.FunctionGraph) -> None:
    """Finishes a graph of a program that TensorFlow is about to make a function of."""
    context = _context_of(graph)
    if context is not None:
        leave_out(graph)
        if is_of_program(graph) and not functions.initializes_variables(graph):
            _floating_point.finish(graph, context.kind.floating_point)


def is_of_program(graph: tf.Graph) -> bool:
    """Returns True for the graph of the program that is being traced, and False for those of functions in it."""
    return graphs.is_function(graph) and graphs.enclosing(graph) is _around.graph


def _release(function: functions.ConcreteFunction) -> None:
    """Keeps a function that holds a program from being compiled for the host, as Keras would compile its loops."""
    if hasattr(function.graph, _HOLDS_PROGRAM):
        functions.keep_from_compiling(function)


STATE_OP = "IpuFeedState"


def in_function(state: tf.Tensor) -> tf.Tensor:
    """Has the function around loops and branches capture the state, for those to capture it from there."""
    # TensorFlow forgets a state that the gradient of a loop captures straight from eager execution. And a loop that
    # captured a state twice would lose what one of the two has become.
    graph = graphs.outside_control_flow()
    return graph.capture(state) if graphs.is_function(graph) else state


def source_of(tensor: tf.Tensor) -> tf.Tensor:
    """The outermost tensor that functions captured this one from."""
    while hasattr(tensor, "graph") and graphs.is_function(tensor.graph):
        outside = next((outside for outside, inside in tensor.graph.captures if inside is tensor), None)
        if outside is None:
            break
        tensor = outside
    return tensor


def in_condition() -> bool:
    """Whether what is being traced is the condition of a loop, which cannot assign to a state."""
    return graphs.in_condition()


def in_plain_graph() -> bool:
    """Whether what is being built is a graph for a session, outside of any function."""
    return not tf.executing_eagerly() and not graphs.is_function(tf.compat.v1.get_default_graph())


def calling(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Has calls of functions take states by way of the function around; see `in_function`."""
    return lambda function, inputs, attributes: plain(function, with_states(inputs), attributes)


def with_states(inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The inputs of a call in the current graph, with the states among them captured; see `in_function`."""
    if not graphs.is_control_flow(tf.compat.v1.get_default_graph()):
        return inputs
    return [in_function(one) if is_native_state(one) else one for one in inputs]


def is_native_state(tensor: tf.Tensor) -> bool:
    """Returns True for the state of an object of the kernels, such as a queue or a call site."""
    if tensor.dtype != tf.resource:
        return False
    return tensor.op.type == STATE_OP if hasattr(tensor, "graph") else hasattr(tensor, "_ipu_native")
