"""`Program`: a `tf.function` that was traced for a target, with its inputs and its device."""

from __future__ import annotations

# The `signal` module wraps these functions with enums, which would make every run slower.
import _signal  # pyright: ignore[reportMissingImports]
import contextlib
import functools
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from signal import SIGINT, default_int_handler
from typing import Any, TypeVar

import tensorflow as tf

from tensorflow_ipu import _upcalls, hosts, metrics
from tensorflow_ipu._base import active_runs, environment, progress, tracepoints
from tensorflow_ipu._base.types import Gradient, Nested
from tensorflow_ipu._native import journal
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import functions, gradients, graphs, patches
from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu._tensorflow.functions import ConcreteFunction, Function
from tensorflow_ipu.config import DeviceConnectionType, _state
from tensorflow_ipu.errors import ForkedProcessError
from tensorflow_ipu.programs import _attributes, _host_kernels, _trace_context
from tensorflow_ipu.programs._trace_context import Target
from tensorflow_ipu.programs.diagnostics import faults, retracing

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

GRAPH_FUNCTIONS = (Function, ConcreteFunction)
"""The types of functions that can become a program."""


class Program:
    """A traced function with its flat inputs, which can run any number of times on its device.

    The caller enters the device around `find`, `trace`, `compile` and `run`.

    Attributes:
      function: The concrete function.
      inputs: The flat inputs, without captured ones.
      device: The full name of the device.
      target: The target of the trace.
    """

    __slots__ = ("device", "function", "inputs", "target")

    def __init__(self, function: ConcreteFunction, inputs: list[tf.Tensor], device: str, target: Target) -> None:
        self.function = function
        self.inputs = inputs
        self.device = device
        self.target = target

    @classmethod
    def find(
        cls,
        fn: Callable[..., Nested],
        args: Sequence[Nested],
        kwargs: Mapping[str, Nested],
        device: str,
        target: Target,
    ) -> Program | None:
        """Returns the program of `fn` for these arguments, or None if there is no such trace in the current context."""
        function = _compiled(fn)
        if isinstance(function, ConcreteFunction):
            return cls(function, functions.flat_inputs_of_call(function, args, kwargs), device, target)
        trace_and_inputs = functions.known_trace(function, args, kwargs, target)
        return None if trace_and_inputs is None else cls(*trace_and_inputs, device, target)

    @classmethod
    def trace(
        cls,
        fn: Callable[..., Nested],
        args: Sequence[Nested],
        kwargs: Mapping[str, Nested],
        device: str,
        target: Target,
    ) -> Program:
        """Finds or traces the program of `fn` for these arguments, without running it."""
        function = _compiled(fn)
        if isinstance(function, ConcreteFunction):
            return cls(function, functions.flat_inputs_of_call(function, args, kwargs), device, target)
        begin = time.monotonic_ns()
        with progress.of(f"tracing `{retracing.name_of(function)}`"), tracing_program(target):
            trace, inputs = functions.new_trace(function, args, kwargs, target)
        retracing.note(function, trace, target, begin)
        return cls(trace, inputs, device, target)

    @property
    def ordinal(self) -> int:
        """The number of the device."""
        return int(self.device[self.device.rfind(":") + 1 :])

    @property
    def name(self) -> str:
        """The name of the Python function: `step` for TensorFlow's `__inference_step_33`."""
        name = self.function.name
        name = name.decode() if isinstance(name, bytes) else name
        return re.sub(r"^__inference_(.*)_\d+$", r"\1", name)

    @property
    def arguments(self) -> list[tf.Tensor]:
        """The inputs and the captured tensors."""
        return [*self.inputs, *self.function.captured_inputs]

    @property
    def ipus_of_replica(self) -> int:
        """The number of IPUs of one replica: the IPUs of its stages or shards, rounded up to a power of 2."""
        ipus: int | None = getattr(self.function, _IPUS_OF_REPLICA, None)
        if ipus is None:
            ipus = _attributes.power_of_2(_attributes.shards_of(self.function))
            setattr(self.function, _IPUS_OF_REPLICA, ipus)
        return ipus

    def check(self) -> bool:
        """Checks the program once per device, and the devices of its resource inputs each time.

        Returns:
          True if the program had been checked for this device before.
        """
        function, device = self.function, self.device
        checked: tuple[str, list[int]] | None = getattr(function, _CHECKED, None)
        was_checked = checked is not None and checked[0] == device
        if checked is None or not was_checked:
            faults.check(function, self.inputs, device)
            handles = [
                index for index, tensor in enumerate(function.inputs[: len(self.inputs)]) if tensor.dtype == tf.resource
            ]
            checked = device, handles
            setattr(function, _CHECKED, checked)
        if checked[1]:
            places = [(function.inputs[index].op.name, self.inputs[index].device) for index in checked[1]]
            faults.check_places(places, device)
        return was_checked

    def compile(self, key: str = "") -> tuple[str, bytes]:
        """Compiles the program into the executable cache.

        With a key, returns a name and the executable for `executable_cache.hold` instead of storing them.
        """
        try:
            with progress.of(self._compiling()):
                name, executable = ops.ipu_compile(self.arguments, f=self.function, key=key)
        except tf.errors.InvalidArgumentError as exc:
            raise self.explain(exc)  # noqa: B904  (The error has its cause.)
        return name.numpy().decode(), executable.numpy()

    def run(self) -> Nested:
        """Runs the program and returns the results of its function; in a graph, adds the run to the graph."""
        if not tf.executing_eagerly():
            self._check_in_graph()
            return self._execute()
        if _forked:
            raise ForkedProcessError(
                "this process was forked from one that had loaded TensorFlow. A fork has none of TensorFlow's threads,"
                " so no program can run here. Start processes with `multiprocessing.get_context('spawn')`"
            )
        was_checked = self.check()
        connection = _state.connection_type(self.ordinal)
        if connection is DeviceConnectionType.PRE_COMPILE or connection is DeviceConnectionType.NEVER:
            return self._without_device(connection)
        this_run = threading.Lock()
        this_run.acquire()
        compilations = self._log_begin() if _logger.isEnabledFor(logging.INFO) else None
        begin = time.monotonic_ns()
        try:
            active_runs.under_way.add(this_run)
            if was_checked:
                return interruptible(self._execute)
            compiled_before = metrics.compilations()[0]
            with progress.of(self._compiling(), until=lambda _: metrics.compilations()[0] != compiled_before):
                return interruptible(self._execute)
        except BaseException as exc:
            tracepoints.failed_runs.add()
            # The error is logged as text. A log that keeps the exception would keep the objects in its frames alive.
            if _logger.isEnabledFor(logging.INFO):
                error = f"{type(exc).__name__}: {exc!s:.300}"
                _logger.info("the run of `%s` on `%s` ended with %s", self.name, faults.short(self.device), error)
            raise
        finally:
            active_runs.under_way.discard(this_run)
            this_run.release()
            duration = tracepoints.run_times.add(begin)
            if tracepoints.is_recording():
                tracepoints.mark(tracepoints.PROGRAMS, f"run of {self.name}", begin)
            if compilations is not None:
                self._log_end(compilations, duration)

    def explain(self, error: tf.errors.OpError) -> Exception:
        """Returns an error that explains `error`, from compiling or running the program, and has it as its cause."""
        if isinstance(error, tf.errors.UnimplementedError):
            resources = [id(value) for value in self.arguments if value.dtype == tf.resource]
            if len(set(resources)) < len(resources):
                explained = ValueError(
                    "the program gets the same queue twice: in two arguments, or in an argument and by capture. Pass it"
                    " once, or only capture it"
                )
                explained.__cause__ = error
                return explained
        return faults.explained(self.function, error)

    def _execute(self) -> Nested:
        """Runs the program directly or on replicas, or adds the run to the graph. Returns the results of replica 0."""
        function, is_eager = self.function, tf.executing_eagerly()
        try:
            if not self._needs_replicas(is_eager):
                return functions.execute(function, self.inputs, function.captured_inputs)
            results = self._run_on_replicas(timed=False) if is_eager else self._insert()
            return functions.results_of(function, results)
        except tf.errors.OpError as exc:
            raise self.explain(exc)  # noqa: B904  (The error has its cause.)

    def _needs_replicas(self, is_eager: bool) -> bool:
        # A graph may run under another configuration, so the operation counts the replicas when it runs. A call inside
        # a program runs as a part of that program.
        if not is_eager:
            return not graphs.is_compiled(tf.compat.v1.get_default_graph())
        # A program of one IPU on one IPU runs directly, unless other workers run it too or a trap may stop it.
        return (
            _state.ipus_or_one(self.ordinal) > 1
            or self.ipus_of_replica > 1
            or hosts.joined() is not None
            or hasattr(self.function.graph, _trace_context.STOPS)
        )

    def _run_on_replicas(self, *, timed: bool) -> list[tf.Tensor]:
        """Creates the operation that runs the program on all replicas; with `timed`, it measures its own time."""
        results = ops.ipu_replicated_run(
            self.arguments,
            Tout=[output.dtype for output in self.function.outputs],
            f=self.function,
            shards=self.ipus_of_replica,
            shapes=[output.shape for output in self.function.outputs],
            timed=timed,
        )
        # If the program has no results, `results` is an operation in a graph, and None in eager execution.
        return list(results) if isinstance(results, (list, tuple)) else []

    def _check_in_graph(self) -> None:
        """Checks the program before it is added to a graph, and places its variables that have no device."""
        self.check()
        for tensor in self.arguments:
            # A variable that was captured from eager execution has a device, and no operation.
            is_variable = (
                tensor.dtype == tf.resource and tf.is_symbolic_tensor(tensor) and tensor.op.type == "VarHandleOp"
            )
            if is_variable and not tensor.device:
                graphs.place(tensor.op, self.device)
        faults.refuse(self.function)  # A compilation error in a session could not name the user's line.

    def _insert(self) -> list[tf.Tensor]:
        """Adds the run on replicas to the graph, with the gradient of a function call.

        The gradient raises an error if several replicas run.
        """
        function, graph = self.function, tf.compat.v1.get_default_graph()
        if hasattr(graph, "watch_variable"):
            for variable in function.graph.variables:  # The outer function has to keep these variables alive.
                gradients.note_use_of(variable)
        of_call = gradients.of_call(function)

        def gradient(op: tf.Operation, *upstream: Gradient | None) -> tuple[Gradient | None, ...]:
            graphs.set_attribute(op, "differentiated", tf.compat.v1.AttrValue(b=True))
            return of_call(op, *upstream)

        with gradients.overridden(graph, _RUN, gradient), gradients.unrecorded():
            results = self._run_on_replicas(timed=True)
        for result, output in zip(results, function.outputs, strict=True):
            result.set_shape(output.shape)
        if results:
            gradients.record_as(_RUN, results, self.arguments, lambda *upstream: gradient(results[0].op, *upstream))
        return results

    def _without_device(self, connection: DeviceConnectionType) -> Nested:
        if connection is DeviceConnectionType.NEVER:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"`{self.device}` cannot run a program: its `device_connection.type` is `NEVER`, which only compiles."
                " Configure the system with `DeviceConnectionType.ALWAYS` to run",
            )
        if not hasattr(self.function, _COMPILED_ONLY):
            self.compile()
            setattr(self.function, _COMPILED_ONLY, True)
        return tf.nest.map_structure(
            lambda output: tf.zeros(output.shape, output.dtype) if tf.is_tensor(output) else output,
            self.function.structured_outputs,
        )

    def _compiling(self) -> str:
        return f"compiling `{retracing.name_of_trace(self.function) or self.name}`"

    def _log_begin(self) -> tuple[int, float]:
        _logger.log(environment.TRACE, "`%s` runs on `%s`", self.name, faults.short(self.device))
        return metrics.compilations()

    def _log_end(self, compilations_before: tuple[int, float], duration: int) -> None:
        journal.log()
        counts = zip(metrics.compilations(), compilations_before, strict=True)
        count, seconds = (current - earlier for current, earlier in counts)
        if count:
            _logger.info("XLA compiled for `%s`: %d programs, %.3f s", self.name, count, seconds)
        _logger.log(environment.TRACE, "`%s` ran for %.6f s", self.name, duration / 1e9)


# Attributes of concrete functions:
_IPUS_OF_REPLICA = "_ipu_shards"  # The IPUs of one replica.
_CHECKED = "_ipu_checked"  # The device of the last check, and the positions of resource inputs.
_COMPILED_ONLY = "_ipu_compiled_only"  # True once compiled for a device that only compiles.
_RUN = "IpuReplicatedRun"


@tf.RegisterGradient(_RUN)
def _refuse_gradient(op: tf.Operation, *upstream: Gradient | None) -> None:
    del op, upstream
    raise NotImplementedError(
        "there is no gradient through a run on replicas, because its inputs and results are those of replica 0 only:"
        " compute the gradient inside of the program, where `tf.GradientTape` and optimizers see all replicas"
    )


_forked = False


def _note_fork() -> None:
    global _forked  # noqa: PLW0603
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def _compiled(fn: Callable[..., Nested] | Function | ConcreteFunction) -> Function | ConcreteFunction:
    """Returns `fn` if it is compiled, else its compiled copy."""
    if isinstance(fn, Function):
        if functions.is_compiled(fn):
            return fn
    elif isinstance(fn, ConcreteFunction):
        attributes = fn.function_def.attr
        # Reading a missing attribute from a protobuf's map would add an empty one.
        if "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b:
            return fn
    else:
        return tf.function(fn, jit_compile=True)
    copies = vars(fn)
    # The copy may create variables, so threads that call it first at the same time must get the same copy.
    return copies.get("_ipu_compiled") or copies.setdefault("_ipu_compiled", _compiled_copy(fn))


def _compiled_copy(fn: Function | ConcreteFunction) -> Function:
    if isinstance(fn, Function):
        return functions.compiled_copy(fn)
    reference = weakref.ref(fn)  # The function refers to its copy; a weak reference back avoids a cycle.

    def call(*args: Any, **kwargs: Any) -> Any:
        concrete = reference()
        assert concrete is not None  # The caller holds the function that runs.
        return concrete(*args, **kwargs)

    return tf.function(call, jit_compile=True, autograph=False)


# The patches of TensorFlow that apply while a program is traced; `_upcalls.replaced_in_traces` has more.
_REPLACED: list[tuple[patches.Patch, patches.Make]] = [
    (patches.OPERATIONS, _host_kernels.marking),
    (patches.CONVOLUTION_GRADIENT, _host_kernels.convolution_gradient),
    (patches.CUSTOM_GRADIENTS, _attributes.registering),
    (patches.GRAPH_RANGES, _trace_context.finish),
    (patches.FUNCTION_CALLS, _trace_context.calling),
]


@contextlib.contextmanager
def tracing_program(target: Target, placed: bool = True) -> Iterator[None]:
    """Runs the block as the trace of a program, or as a part of the program that is already being traced."""
    if _trace_context.is_tracing():
        yield
        return
    replaced = [*_REPLACED, *_upcalls.replaced_in_traces()]
    with patches.all_applied(replaced), _trace_context.of_program(target, placed):
        yield


def insert(
    fn: Callable[..., Nested] | ConcreteFunction,
    args: Sequence[Nested],
    kwargs: Mapping[str, Nested],
    device: str,
    host_kernels: bool | None = None,
) -> Nested:
    """Adds `fn` as one compiled program to the graph that is being built, on the device of the caller.

    If a Python function returns an operation, the result in its place is the operation that runs the program.
    """
    target = Target.of_device(device, host_kernels)
    if isinstance(fn, GRAPH_FUNCTIONS):
        return Program.trace(fn, args, kwargs, device, target).run()
    wrapped = _WithOperations(fn)
    function = tf.function(wrapped, jit_compile=True, autograph=False)
    return wrapped.results(Program.trace(function, args, kwargs, device, target).run())


class _WithOperations:
    """A Python function that returns a tensor in place of each operation, because programs return only tensors."""

    def __init__(self, fn: Callable[..., Nested]) -> None:
        self._fn = user_code(fn, by_default=True)
        self._are_operations: list[bool] = []
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Nested, **kwargs: Nested) -> Nested:
        returned = self._fn(*args, **kwargs)
        flat = tf.nest.flatten(returned)
        operations = [value for value in flat if isinstance(value, tf.Operation)]
        self._are_operations = [isinstance(value, tf.Operation) for value in flat]
        if not operations:
            return returned
        with tf.control_dependencies(operations):
            flat = [tf.constant(0) if isinstance(value, tf.Operation) else value for value in flat]
            return tf.nest.pack_sequence_as(returned, flat)

    def results(self, results: Nested) -> Nested:
        """Returns the results of the program; its operation replaces the operations that the function returned."""
        if not any(self._are_operations):
            return results
        flat = zip(tf.nest.flatten(results), self._are_operations, strict=True)
        return tf.nest.pack_sequence_as(results, [value.op if is_op else value for value, is_op in flat])


# Ctrl-C ends a program that runs on the main thread. Python runs signal handlers only between bytecodes, so none runs
# while TensorFlow executes the program. But Python's C code writes the signal's number to the wake-up file descriptor
# at once. A native thread reads it from a pipe, and ends the waits of feeds. The program then fails, and Python raises
# `KeyboardInterrupt`. Handlers of other signals run when the program has ended, as for any operation of TensorFlow.
_MAIN_IDENT = threading.main_thread().ident
# The SIGINT handler of Jupyter cells with `await`. It only notifies the event loop, which the program blocks.
_JUPYTER_MODULE = "ipykernel.ipkernel"
_pipe: int | None = None


def _interrupt_pipe() -> int:
    """Returns the writing end of the pipe to the native thread; the first call starts the thread."""
    global _pipe  # noqa: PLW0603
    if _pipe is None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        if not native.ipu_interrupt_watch(reading):
            os.close(reading)
            os.close(writing)
            raise tf.errors.ResourceExhaustedError(
                None,
                None,
                "the system cannot start another thread for this process: raise the limit of the user (`ulimit -u`) or"
                " the container",
            )
        _pipe = writing
    return _pipe


def interruptible(program: Callable[[], _T]) -> _T:
    """Calls `program`. On the main thread, Ctrl-C raises `KeyboardInterrupt`, unless the user has set a handler.

    The program ends at once if it waits for data or is about to use a feed. Otherwise, the exception is raised when the
    program returns.
    """
    if threading.get_ident() != _MAIN_IDENT:
        return program()
    on_interrupt = _signal.getsignal(SIGINT)
    if on_interrupt is not default_int_handler and getattr(on_interrupt, "__module__", "") != _JUPYTER_MODULE:
        return program()
    is_pressed = False

    def record(*_: object) -> None:
        nonlocal is_pressed
        is_pressed = True

    writing = _interrupt_pipe()
    previous = -1
    try:
        # Python's own handler could raise while TensorFlow converts the failure of the run to an error, which
        # TensorFlow does not support.
        _signal.signal(SIGINT, record)
        previous = _signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        native.ipu_interrupt_arm(previous)
        if is_pressed:  # Ctrl-C was pressed before the native thread watched the pipe.
            raise KeyboardInterrupt
        return program()
    finally:
        # The blocks are nested because handlers of other signals may raise after each of these calls.
        try:
            _signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
        finally:
            try:
                native.ipu_interrupt_disarm()
            finally:
                _signal.signal(SIGINT, on_interrupt)
        if is_pressed:
            raise KeyboardInterrupt from None
