"""The trace context: marks the graphs of a program, while it is traced, with the program's target."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import _upcalls
from tensorflow_ipu._base import environment, poplar_options
from tensorflow_ipu._tensorflow import devices, functions, graphs, patches
from tensorflow_ipu._tensorflow.graphs import FunctionGraph
from tensorflow_ipu.config import StochasticRoundingBehaviour, _state
from tensorflow_ipu.programs import _attributes

_ROUNDING = {
    StochasticRoundingBehaviour.OFF: "off",
    StochasticRoundingBehaviour.ON: "on",
    StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY: "identical",
}


class FloatingPoint(NamedTuple):
    """The options of a device for floating-point arithmetic: rounding, traps, and the types of partial sums."""

    inv: bool = False
    div0: bool = False
    oflo: bool = False
    nanoo: bool = False
    esr: str = "off"
    stable: bool = False
    partials_matmul: str = ""
    partials_conv: str = ""
    batch_norm_replicas: int = 1

    @property
    def are_plain(self) -> bool:
        """True if no option changes how XLA computes."""
        return self._replace(batch_norm_replicas=1) == _PLAIN

    @property
    def stops(self) -> bool:
        """True if a floating-point exception may stop a program."""
        return self.inv or self.div0 or self.oflo

    def without_traps(self) -> FloatingPoint:
        """Returns the options without traps. If only PRNG stability remains then, returns the plain options of XLA."""
        unstable = self._replace(inv=False, div0=False, oflo=False, stable=False)
        return unstable if unstable.are_plain else self._replace(inv=False, div0=False, oflo=False)

    def text(self) -> str:
        """Returns the text `inv=1 ... esr=off` of a program's attribute, which `kernels/precision/rounding.h` reads."""
        return " ".join(
            f"{name}={int(value) if isinstance(value, bool) else value}"
            for name, value in self._asdict().items()
            if name != "batch_norm_replicas"
        )


_PLAIN = FloatingPoint()

# Each run looks up the options of its device. An entry is valid as long as the configuration is the same object.
_floating_points: dict[int, tuple[Mapping[str, Any], FloatingPoint]] = {}


def floating_point_of(ordinal: int) -> FloatingPoint:
    options = _state.options_of_device(ordinal)
    if options is None:
        return _PLAIN
    cached = _floating_points.get(ordinal)
    if cached is None or cached[0] is not options:
        cached = _floating_points[ordinal] = (options, _read(options))
    return cached[1]


def _read(options: Mapping[str, Any]) -> FloatingPoint:
    configured = FloatingPoint(
        *(options[f"floating_point_behaviour.{name}"] for name in ("inv", "div0", "oflo", "nanoo")),
        esr=_ROUNDING[options["floating_point_behaviour.esr"]],
        stable=options["experimental.enable_prng_stability"],
        partials_matmul=options["matmuls.poplar_options"].get(poplar_options.PARTIALS, ""),
        partials_conv=options["convolutions.poplar_options"].get(poplar_options.PARTIALS, ""),
        batch_norm_replicas=options["norms.experimental.distributed_batch_norm_replica_group_size"],
    )
    return configured if configured.stops else configured.without_traps()


class Target(NamedTuple):
    """The properties of a device that a trace depends on. Each target has separate traces.

    Attributes:
      ipus: The number of IPUs of the device; None in a graph, where each run looks it up.
      host_kernels: Whether TensorFlow's kernels may compute layers.
      floating_point: The floating-point options of the device.
    """

    ipus: int | None
    host_kernels: bool
    floating_point: FloatingPoint = _PLAIN

    @classmethod
    def of_device(cls, device: str | None, host_kernels: bool | None = None, ipus: int | None = None) -> Target:
        """Returns the target of a device under the current configuration, for programs without a strategy."""
        ordinal = tf.DeviceSpec.from_string(device or "").device_index or 0
        return cls(
            ipus, environment.host_kernels() if host_kernels is None else host_kernels, floating_point_of(ordinal)
        )

    def without_traps(self) -> Target:
        return self._replace(floating_point=self.floating_point.without_traps())


_HOLDS_PROGRAM = "_ipu_holds_program"  # An attribute of graphs.


class _Thread(threading.local):
    caller_graph: tf.Graph | None = None  # The default graph when the trace of the program began.


_thread = _Thread()


class _TraceContext(graphs.XlaContext):
    """Marks a graph, and all graphs built inside it, as part of a program or of the host.

    `on_ipu` is True for the program and False for the host. It is None if the device of each operation decides.
    """

    # The mark is on the graph and not on the thread. So operations that `tf.init_scope` lifts out of the program, such
    # as initial values, are not marked. TensorFlow treats the mark as an XLA context, so gradients of loops use bounded
    # stacks. TensorFlow traces a called function once per mark, so all programs of a target share one mark.
    def __init__(self, on_ipu: bool | None, target: Target) -> None:
        with tf.Graph().as_default():  # A new graph has no outer context.
            super().__init__()
        self.on_ipu = on_ipu
        self.target = target

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802  (TensorFlow's name.)  # pyright: ignore[reportIncompatibleMethodOverride]
        return True


# The contexts are never deleted, because TensorFlow identifies them by their address.
_contexts: dict[tuple[bool | None, Target], _TraceContext] = {}
_HOST = Target(None, False)


def _in_context(on_ipu: bool | None, target: Target) -> contextlib.AbstractContextManager[None]:
    key = on_ipu, target
    return graphs.in_compilation_context(_contexts.get(key) or _contexts.setdefault(key, _TraceContext(*key)))


@contextlib.contextmanager
def of_program(target: Target, placed: bool) -> Iterator[None]:
    """Runs the block with its graphs marked as parts of a program."""
    for graph in graphs.being_traced():
        setattr(graph, _HOLDS_PROGRAM, True)
        patches.COMPILED_CALLERS.apply_while(graph, _keep_from_compiling)
    previous, _thread.caller_graph = _thread.caller_graph, tf.compat.v1.get_default_graph()
    pause_garbage_collector(1)
    try:
        with _in_context(placed or None, target):
            yield
    finally:
        pause_garbage_collector(-1)
        _thread.caller_graph = previous


_garbage_lock = threading.Lock()  # Guards the two names below.
_pauses = 0
_was_collecting = False


def pause_garbage_collector(traces: int) -> None:
    """Pauses the garbage collector while any thread traces: adds `traces` (1 or -1) to the number of running traces."""
    # A trace creates many objects, which all stay alive. Collections would take up to a tenth of its time.
    global _pauses, _was_collecting  # noqa: PLW0603  (There is one collector.)
    with _garbage_lock:
        if not _pauses:
            _was_collecting = gc.isenabled()
            gc.disable()
        _pauses += traces
        if not _pauses and _was_collecting:
            gc.enable()


def _keep_from_compiling(function: functions.ConcreteFunction) -> None:
    """Keeps XLA from compiling a function for the host if it contains a program, such as a loop of Keras."""
    if hasattr(function.graph, _HOLDS_PROGRAM):
        functions.keep_from_compiling(function)


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Runs the block with its operations marked for the host, even in the graph of a program."""
    with _in_context(False, _HOST) if is_tracing() else contextlib.nullcontext():
        yield


def _context_of(graph: tf.Graph) -> _TraceContext | None:
    return graphs.compilation_context(graph, _TraceContext)


def _target_now() -> Target | None:
    """Returns the target of the program that is being traced, or None if no program is."""
    if tf.executing_eagerly():
        return None
    context = _context_of(tf.compat.v1.get_default_graph())
    if context is None:
        return None
    on_ipu = context.on_ipu
    if on_ipu is None:
        on_ipu = tf.DeviceSpec.from_string(devices.current()).device_type == "IPU"
    return context.target if on_ipu else None


def is_tracing() -> bool:
    """Returns True if operations that are created now become part of a program."""
    return _target_now() is not None


def ipus_traced_for() -> int | None:
    """Returns the number of IPUs of the target that is being traced; None if it is unknown or no program is traced."""
    context = None if tf.executing_eagerly() else _context_of(tf.compat.v1.get_default_graph())
    return None if context is None else context.target.ipus


def floating_point_now() -> FloatingPoint:
    """Returns the floating-point options of the program that is being traced."""
    target = _target_now()
    return _PLAIN if target is None else target.floating_point


def wants_host_kernels(type_: tf.DType | None = None, results: int = 1) -> bool:
    """Returns True if host kernels may compute a layer with `results` of type `type_` in the program being traced."""
    target = _target_now()
    if target is None or not target.host_kernels:
        return False
    # Host kernels ignore the type of partial sums. Traps check the values of a single result only.
    options = target.floating_point
    return type_ != tf.float16 or not (options.partials_conv or (options.stops and results > 1))


def summed_in(partials: tf.DType, type_: tf.DType | str) -> contextlib.AbstractContextManager[None]:
    """Runs the block with its products summed in `partials`, unless an outer scope has set the type of partial sums."""
    in_half = partials == tf.float16
    if (
        (in_half or floating_point_now().partials_matmul == "half")
        and type_ == tf.float16
        and is_tracing()
        and _attributes.PARTIALS not in _attributes.attributes_now()
    ):
        return _attributes.computed_by({_attributes.PARTIALS: "half" if in_half else "float"})
    return contextlib.nullcontext()


def finish(graph: FunctionGraph) -> None:
    """Completes a graph of a program just before TensorFlow makes a function of it."""
    context = _context_of(graph)
    if context is None:
        return
    # AutoGraph turns `for _ in tf.range(n)` into a counting loop, so the `Range` operation is unused. XLA would compile
    # the program again for each `n` because of it, and would fail if an outer loop computes `n`.
    if any(map(_is_left_over, graph.get_operations())):
        # TensorFlow cannot delete operations. It makes the function of the operations that `get_operations` returns.
        operations = graph.get_operations
        graph.get_operations = lambda: [op for op in operations() if not _is_left_over(op)]
    if is_of_program(graph) and not functions.initializes_variables(graph):
        _mark_floating_point(graph, context.target.floating_point)


def _is_left_over(op: tf.Operation) -> bool:
    if op.type != "Range" or op.outputs[0].consumers():
        return False
    return not any(op.outputs[0] is output for output in op.graph.outputs)


# Set on the outermost graph of a program that a floating-point exception may stop. Runs read it.
STOPS = "_ipu_stops"


def _mark_floating_point(graph: FunctionGraph, floating_point: FloatingPoint) -> None:
    has_scopes = hasattr(graph, _attributes.HAS_SCOPES)
    if not floating_point.are_plain or has_scopes:
        entries = _attributes.marker_entries(graph) if has_scopes else ()
        _upcalls.mark_half_precision(graph, " ".join([floating_point.text(), *entries]))
        if floating_point.stops:
            setattr(graph, STOPS, True)


def is_of_program(graph: tf.Graph) -> bool:
    """Returns True if `graph` is the outermost graph of the program that is being traced."""
    return graphs.enclosing(graph) is _thread.caller_graph


STATE_OP = "IpuFeedState"


def in_function(state: tf.Tensor) -> tf.Tensor:
    """Captures the state variable in the function that contains the current loops and branches.

    Loops and branches then capture it from that function.
    """
    # TensorFlow loses a state variable that the gradient of a loop captures directly from eager execution. A loop that
    # captures a state variable twice loses one of the two updates.
    graph = graphs.outside_control_flow()
    return graph.capture(state) if graphs.is_function(graph) else state


def source_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the outermost tensor that nested functions captured as `tensor`."""
    while hasattr(tensor, "graph") and graphs.is_function(tensor.graph):
        captured = next((outer for outer, inner in tensor.graph.captures if inner is tensor), None)
        if captured is None:
            break
        tensor = captured
    return tensor


def in_plain_graph() -> bool:
    """Returns True if a graph for a session is being built, outside of any function."""
    return not tf.executing_eagerly() and not graphs.is_function(tf.compat.v1.get_default_graph())


def calling(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes calls of functions capture state variables as `in_function` does."""
    return lambda function, inputs, attributes: original(function, with_states(inputs), attributes)


def with_states(inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Returns the inputs of a call in the current graph; state variables are captured as `in_function` does."""
    if not graphs.is_control_flow(tf.compat.v1.get_default_graph()):
        return inputs
    return [in_function(tensor) if is_native_state(tensor) else tensor for tensor in inputs]


def is_native_state(tensor: tf.Tensor) -> bool:
    """Returns True if `tensor` is a state variable, which names a queue or a call site to XLA."""
    if tensor.dtype != tf.resource:
        return False
    return tensor.op.type == STATE_OP if hasattr(tensor, "graph") else hasattr(tensor, "_ipu_native")
