"""The trace context, which marks the graphs of a program while it is traced, with the target that it is traced for."""

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
    """The options of a device for floating-point numbers: rounding, traps, and the types of partial sums."""

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
        """Whether programs compute as XLA does by itself."""
        return self._replace(batch_norm_replicas=1) == _PLAIN

    @property
    def stops(self) -> bool:
        """Whether a floating-point exception may stop a program."""
        return self.inv or self.div0 or self.oflo

    def without_traps(self) -> FloatingPoint:
        """Returns the same options without traps."""
        unstable = self._replace(inv=False, div0=False, oflo=False, stable=False)
        return unstable if unstable.are_plain else self._replace(inv=False, div0=False, oflo=False)

    def text(self) -> str:
        """Returns the options as the program's attribute lists them; `kernels/precision/rounding.h` reads it."""
        return " ".join(
            f"{name}={int(value) if isinstance(value, bool) else value}"
            for name, value in self._asdict().items()
            if name != "batch_norm_replicas"
        )


_PLAIN = FloatingPoint()

# The options of each device, with the configuration that they were read from: each run looks them up.
_floating_points: dict[int, tuple[Mapping[str, Any], FloatingPoint]] = {}


def floating_point_of(ordinal: int) -> FloatingPoint:
    options = _state.options_of_device(ordinal)
    if options is None:
        return _PLAIN
    known = _floating_points.get(ordinal)
    if known is None or known[0] is not options:
        known = _floating_points[ordinal] = (options, _read(options))
    return known[1]


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
    """What a program is traced for: each target needs a trace of its own.

    Attributes:
      ipus: The IPUs of the device; None in a graph, where a run looks them up.
      host_kernels: Whether TensorFlow's kernels may compute layers.
      floating_point: The floating-point options of the device.
    """

    ipus: int | None
    host_kernels: bool
    floating_point: FloatingPoint = _PLAIN

    @classmethod
    def of_device(cls, device: str | None, host_kernels: bool | None = None, ipus: int | None = None) -> Target:
        """Returns the target of programs of a device, if no strategy has one, as the system is configured now."""
        ordinal = tf.DeviceSpec.from_string(device or "").device_index or 0
        return cls(
            ipus, environment.host_kernels() if host_kernels is None else host_kernels, floating_point_of(ordinal)
        )

    def without_traps(self) -> Target:
        return self._replace(floating_point=self.floating_point.without_traps())


_HOLDS_PROGRAM = "_ipu_holds_program"  # An attribute of graphs.


class _Around(threading.local):
    graph: tf.Graph | None = None


_around = _Around()


class _TraceContext(graphs.XlaContext):
    """Marks a graph, and all built inside of it, as part of a program, or as the host's within one.

    `on_ipu` is None if the device of each operation decides.
    """

    # The mark is on the graph and not on the thread, so that what `tf.init_scope` lifts out of the program, such as an
    # initial value, is not marked. To TensorFlow it is the context of what XLA compiles, in which loops have bounded
    # stacks for gradients. TensorFlow traces a called function for each mark, so all programs of a target share one.
    def __init__(self, on_ipu: bool | None, target: Target) -> None:
        with tf.Graph().as_default():  # Inside of no other context.
            super().__init__()
        self.on_ipu = on_ipu
        self.target = target

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802  (TensorFlow's name.)  # pyright: ignore[reportIncompatibleMethodOverride]
        return True


# Kept for ever, since TensorFlow tells them apart by their address.
_contexts: dict[tuple[bool | None, Target], _TraceContext] = {}
_HOST = Target(None, False)


def _in_context(on_ipu: bool | None, target: Target) -> contextlib.AbstractContextManager[None]:
    key = on_ipu, target
    return graphs.in_compilation_context(_contexts.get(key) or _contexts.setdefault(key, _TraceContext(*key)))


@contextlib.contextmanager
def of_program(target: Target, placed: bool) -> Iterator[None]:
    """A block whose graphs are those of a program."""
    for graph in graphs.being_traced():
        setattr(graph, _HOLDS_PROGRAM, True)
        patches.COMPILED_CALLERS.apply_while(graph, _keep_from_compiling)
    before, _around.graph = _around.graph, tf.compat.v1.get_default_graph()
    pause_garbage_collector(1)
    try:
        with _in_context(placed or None, target):
            yield
    finally:
        pause_garbage_collector(-1)
        _around.graph = before


_garbage_lock = threading.Lock()  # Guards the two names below.
_pauses = 0
_was_collecting = False


def pause_garbage_collector(traces: int) -> None:
    """Pauses the garbage collector of the process while programs are traced, on any number of threads."""
    # A trace makes many objects that all live on. Collections during it would take up to a tenth of its time.
    global _pauses, _was_collecting  # noqa: PLW0603  (There is one collector.)
    with _garbage_lock:
        if not _pauses:
            _was_collecting = gc.isenabled()
            gc.disable()
        _pauses += traces
        if not _pauses and _was_collecting:
            gc.enable()


def _keep_from_compiling(function: functions.ConcreteFunction) -> None:
    """Keeps a function that holds a program from being compiled for the host, as Keras would compile its loops."""
    if hasattr(function.graph, _HOLDS_PROGRAM):
        functions.keep_from_compiling(function)


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """A block whose operations are the host's, though they may be built in the graph of a program."""
    with _in_context(False, _HOST) if is_tracing() else contextlib.nullcontext():
        yield


def _context_of(graph: tf.Graph) -> _TraceContext | None:
    return graphs.compilation_context(graph, _TraceContext)


def _target_now() -> Target | None:
    """Returns the target of the program that is being traced; None if none is."""
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
    """Returns True if what is called now becomes part of a program."""
    return _target_now() is not None


def ipus_traced_for() -> int | None:
    """Returns the IPUs of the device for which a program is being traced; None if they are unknown, or none is traced."""
    context = None if tf.executing_eagerly() else _context_of(tf.compat.v1.get_default_graph())
    return None if context is None else context.target.ipus


def floating_point_now() -> FloatingPoint:
    """Returns the floating-point options of the program that is being traced."""
    target = _target_now()
    return _PLAIN if target is None else target.floating_point


def wants_host_kernels(type_: tf.DType | None = None, results: int = 1) -> bool:
    """Returns True if host kernels may compute a layer of this type and number of results in the program being traced."""
    target = _target_now()
    if target is None or not target.host_kernels:
        return False
    # Partial sums are XLA's, and the numbers of several results are not checked.
    options = target.floating_point
    return type_ != tf.float16 or not (options.partials_conv or (options.stops and results > 1))


def summed_in(partials: tf.DType, type_: tf.DType | str) -> contextlib.AbstractContextManager[None]:
    """A block in which a layer with a type of partial sums multiplies; a scope around it takes precedence."""
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
    """Finishes a graph of a program that TensorFlow is about to make a function of."""
    context = _context_of(graph)
    if context is None:
        return
    # `for _ in tf.range(n)` becomes a loop over numbers, and leaves the tensor of `tf.range` unused. XLA would compile the
    # program anew for each `n`, and not at all where a loop around computes `n`.
    if any(map(_is_left_over, graph.get_operations())):
        # TensorFlow deletes no operation of a graph, and makes the function of those that the graph names.
        operations = graph.get_operations
        graph.get_operations = lambda: [op for op in operations() if not _is_left_over(op)]
    if is_of_program(graph) and not functions.initializes_variables(graph):
        _mark_floating_point(graph, context.target.floating_point)


def _is_left_over(op: tf.Operation) -> bool:
    if op.type != "Range" or op.outputs[0].consumers():
        return False
    return not any(op.outputs[0] is output for output in op.graph.outputs)


# The run of a program reads by this attribute of its outermost graph that a floating-point exception may stop it.
STOPS = "_ipu_stops"


def _mark_floating_point(graph: FunctionGraph, floating_point: FloatingPoint) -> None:
    has_scopes = hasattr(graph, _attributes.HAS_SCOPES)
    if not floating_point.are_plain or has_scopes:
        entries = _attributes.marker_entries(graph) if has_scopes else ()
        _upcalls.mark_half_precision(graph, " ".join([floating_point.text(), *entries]))
        if floating_point.stops:
            setattr(graph, STOPS, True)


def is_of_program(graph: tf.Graph) -> bool:
    """Returns True for the graph of the program that is being traced, and False for those of functions in it."""
    return graphs.enclosing(graph) is _around.graph


STATE_OP = "IpuFeedState"


def in_function(state: tf.Tensor) -> tf.Tensor:
    """Has the function around loops and branches capture the state, for those to capture it from there."""
    # TensorFlow forgets a state that the gradient of a loop captures straight from eager execution. And a loop that
    # captured a state twice would lose what one of the two has become.
    graph = graphs.outside_control_flow()
    return graph.capture(state) if graphs.is_function(graph) else state


def source_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the outermost tensor that functions captured this one from."""
    while hasattr(tensor, "graph") and graphs.is_function(tensor.graph):
        outside = next((outside for outside, inside in tensor.graph.captures if inside is tensor), None)
        if outside is None:
            break
        tensor = outside
    return tensor


def in_plain_graph() -> bool:
    """Returns True if a graph for a session is being built, outside of any function."""
    return not tf.executing_eagerly() and not graphs.is_function(tf.compat.v1.get_default_graph())


def calling(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Makes calls of functions capture states by way of the function around; see `in_function`."""
    return lambda function, inputs, attributes: plain(function, with_states(inputs), attributes)


def with_states(inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Returns the inputs of a call in the current graph, with the states among them captured; see `in_function`."""
    if not graphs.is_control_flow(tf.compat.v1.get_default_graph()):
        return inputs
    return [in_function(tensor) if is_native_state(tensor) else tensor for tensor in inputs]


def is_native_state(tensor: tf.Tensor) -> bool:
    """Returns True for the state of an object of the kernels, such as a queue or a call site."""
    if tensor.dtype != tf.resource:
        return False
    return tensor.op.type == STATE_OP if hasattr(tensor, "graph") else hasattr(tensor, "_ipu_native")
