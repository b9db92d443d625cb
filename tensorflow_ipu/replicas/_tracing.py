"""Which graphs belong to a program, and what TensorFlow does differently with functions while one is traced."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import devices, functions, graphs, patches
from tensorflow_ipu.replicas import _floating_point

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu._tensorflow import graphs


def leave_out(graph: graphs.FunctionGraph) -> None:
    """Has the function that TensorFlow is about to make of a graph do without the ranges that nothing uses.

    `for _ in tf.range(n)` becomes a loop over numbers, and leaves the tensor of `tf.range` behind. XLA has to know the
    length of a tensor when it compiles: with that tensor, a program would be compiled once for each value of `n`, and not
    at all where a loop around computes `n`.
    """
    if any(map(_is_left_over, graph.get_operations())):
        # TensorFlow deletes no operation of a graph, and makes the function of those that the graph names.
        operations = graph.get_operations
        graph.get_operations = lambda: [op for op in operations() if not _is_left_over(op)]


def _is_left_over(op: tf.Operation) -> bool:
    if op.type != "Range" or op.outputs[0].consumers():
        return False
    return not any(op.outputs[0] is output for output in op.graph.outputs)


# Graphs of functions that hold a program.
_callers: weakref.WeakSet[tf.Graph] = weakref.WeakSet()


class _Around(threading.local):
    """The graph that the program of a thread is being traced in, and inside of which its own graphs are."""

    graph: tf.Graph | None = None


_around = _Around()


class _ContextKind(NamedTuple):
    """What is known of code that is being traced."""

    on_ipu: bool | None
    ipus: int | None = None
    host_kernels: bool = False
    floating_point: _floating_point.FloatingPoint = _floating_point.PLAIN


_HOSTS = _ContextKind(on_ipu=False)


class _TraceContext(graphs.XlaContext):
    """Marks a graph, and all that are built inside of it, as parts of a program, or as the host's in the midst of one.

    The mark is on the graph and not on the thread, so that what `tf.init_scope` lifts out of the program, such as the
    initial value of a variable, is none of the program's. To TensorFlow it is the context of what XLA compiles, in which
    loops are traced differently: with bounded stacks for their gradients, for one. And TensorFlow traces a function that
    a program calls once for each mark, so there is one mark for all programs of a kind.
    """

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
def tracing_program(
    ipus: int | None,
    host_kernels: bool | None = None,
    placed: bool = True,
    floating_point: _floating_point.FloatingPoint = _floating_point.PLAIN,
) -> Iterator[None]:
    """A block that traces a program; one inside of another is part of that program."""
    if is_tracing():
        yield
        return
    if host_kernels is None:
        host_kernels = environment.host_kernels()
    _note_callers()
    before, _around.graph = _around.graph, tf.compat.v1.get_default_graph()
    try:
        with patches.in_trace(), _in_context(_ContextKind(placed or None, ipus, host_kernels, floating_point)):
            yield
    finally:
        _around.graph = before


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """A block whose operations are not the program's that is being traced, though they may be built in its graph."""
    with _in_context(_HOSTS) if is_tracing() else contextlib.nullcontext():
        yield


def is_tracing() -> bool:
    """Whether what is called now becomes a part of a program."""
    return _kind_of_context() is not None


def _kind_of_context() -> _ContextKind | None:
    """What is known of the program that what is called now becomes a part of; None where it becomes a part of none."""
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
    """How many IPUs the device has for which a program is being traced; None where that is not known, or none is."""
    context = None if tf.executing_eagerly() else _context_of(tf.compat.v1.get_default_graph())
    return None if context is None else context.kind.ipus


def floating_point_now() -> _floating_point.FloatingPoint:
    """What is asked of the numbers of the program that what is called now becomes a part of."""
    kind = _kind_of_context()
    return _floating_point.PLAIN if kind is None else kind.floating_point


def wants_host_kernels(type_: tf.DType | None = None) -> bool:
    """Whether what is called now becomes a part of a program whose layers kernels of the host may compute."""
    kind = _kind_of_context()
    return kind is not None and kind.host_kernels and (type_ != tf.float16 or kind.floating_point.are_plain)


def _note_callers() -> None:
    """Notes that the functions being traced hold a program."""
    for graph in graphs.being_traced():
        _callers.add(graph)
        patches.COMPILED_CALLERS.apply_while(graph)


def _transform(graph: graphs.FunctionGraph) -> None:
    """Called with each graph that TensorFlow is about to make a function of."""
    context = _context_of(graph)
    if context is not None:
        leave_out(graph)
        if graphs.enclosing(graph) is _around.graph and not functions.initializes_variables(graph):
            _floating_point.finish(graph, context.kind.floating_point)


def _release(function: functions.ConcreteFunction) -> None:
    """Called with each traced function: one that holds a program is not compiled.

    Keras, for one, compiles the steps of its own loops where a model is to be compiled. TensorFlow would compile them,
    program and all, for the host, and find the program's variables on another device.
    """
    if function.graph in _callers:
        functions.keep_from_compiling(function)


patches.GRAPH_RANGES.by(_transform)
patches.COMPILED_CALLERS.by(_release)


STATE_OP = "IpuFeedState"


def in_function(state: tf.Tensor) -> tf.Tensor:
    """Has the function around loops and branches capture the state, for those to capture it from there.

    What the gradient of a loop captures straight from eager execution, TensorFlow forgets among the loop's results. And
    a loop that captured a state from here and from there would have it twice, and lose what one of the two has become.
    """
    graph = graphs.outside_control_flow()
    return graph.capture(state) if graphs.is_function(graph) else state


def source_of(tensor: tf.Tensor) -> tf.Tensor:
    """Where a tensor comes from that functions captured one from the other: as far out as they did."""
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


def _calling(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Puts the call of a function into a graph, with the states that it captured captured as those of others are."""

    def call(function: Any, inputs: Sequence[tf.Tensor], attributes: object) -> Any:
        return plain(function, with_states(inputs), attributes)

    return call


def with_states(inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The inputs of a call in the graph that is being built, with the states among them captured; see `in_function`."""
    if not graphs.is_control_flow(tf.compat.v1.get_default_graph()):
        return inputs
    return [in_function(one) if names_a_feed(one) else one for one in inputs]


def names_a_feed(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a state: what names a feed, and the like, to a program."""
    if tensor.dtype != tf.resource:
        return False
    return tensor.op.type == STATE_OP if hasattr(tensor, "graph") else hasattr(tensor, "_ipu_feed")


patches.FUNCTION_CALLS.by(_calling)
