"""Checks a program, once for a device, and runs it there."""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import metrics
from tensorflow_ipu._base import active_runs, environment, progress, tracepoints
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native import journal
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu._tensorflow.functions import ConcreteFunction
from tensorflow_ipu.config import DeviceConnectionType, _state
from tensorflow_ipu.errors import ForkedProcessError
from tensorflow_ipu.programs import _floating_point
from tensorflow_ipu.programs._interrupts import run_interruptibly
from tensorflow_ipu.programs._program import Prepared, Target, call, is_graph_function, trace
from tensorflow_ipu.programs.diagnostics import retracing, uncompilable

_logger = logging.getLogger(__name__)


def compile_only(prepared: Prepared, key: str = "") -> tuple[str, bytes]:
    """Compiles a program, on the device of the caller, into the executable cache.

    With a key, returns a name and the executable instead, for `executable_cache.hold`.
    """
    program, inputs = prepared
    try:
        with progress.of(_compiling(program)):
            name, executable = ops.ipu_compile([*inputs, *program.captured_inputs], f=program, key=key)
    except tf.errors.InvalidArgumentError as exc:
        uncompilable.raise_explained(program, exc)
    return name.numpy().decode(), executable.numpy()


class RunLog:
    """The log of one run, from its creation to `end`; no context manager, which would slow down short runs."""

    __slots__ = ("_begin", "_compiled", "_device", "_name")

    def __init__(self, name: str | bytes, device: str) -> None:
        """Notes that a run of the program of this name begins on this device."""
        self._name = name
        self._device = device
        self._compiled = None
        if _logger.isEnabledFor(logging.INFO):
            self._compiled = _compiled()
            _logger.log(environment.TRACE, "`%s` runs on `%s`", self._program(), _short(device))
        self._begin = time.monotonic_ns()

    def fail(self, error: BaseException) -> None:
        """Notes the error of the run, before `end`."""
        tracepoints.failed_runs.add()
        if _logger.isEnabledFor(logging.INFO):
            # As text: a log that keeps records would keep all that the frames of the error hold.
            words = f"{type(error).__name__}: {error!s:.300}"
            _logger.info("the run of `%s` on `%s` ended with %s", self._program(), _short(self._device), words)

    def end(self) -> None:
        """Notes that the run ends."""
        duration = tracepoints.run_times.add(self._begin)
        if tracepoints.is_recording():
            tracepoints.mark(tracepoints.PROGRAMS, f"run of {self._program()}", self._begin)
        if self._compiled is None:
            return
        journal.log()
        count, seconds = (now - before for now, before in zip(_compiled(), self._compiled, strict=True))
        if count:
            _logger.info("XLA compiled for `%s`: %d programs, %.3f s", self._program(), count, seconds)
        _logger.log(environment.TRACE, "`%s` ran for %.6f s", self._program(), duration / 1e9)

    def _program(self) -> str:
        return _plain(self._name)


def _plain(name: str | bytes) -> str:
    """The function's own name: TensorFlow adds something as in `__inference_step_33`."""
    name = name.decode() if isinstance(name, bytes) else name
    return re.sub(r"^__inference_(.*)_\d+$", r"\1", name)


def _compiling(program: ConcreteFunction) -> str:
    return f"compiling `{retracing.name_of_trace(program) or _plain(program.name)}`"


def _short(device: str) -> str:
    return device[device.rfind("/device:") :]


def _compiled() -> tuple[int, float]:
    count, seconds, _ = metrics.metric_data("CompileTime") or (0, 0.0, [])
    return count, seconds


_forked = False


def _note_fork() -> None:
    global _forked  # noqa: PLW0603
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


# Attributes of programs: that they were compiled for a device that only compiles, and what they passed.
_COMPILED, _PASSED = "_ipu_compiled_only", "_ipu_passed"


class _CheckResult(NamedTuple):
    """The checks that a program has passed."""

    device: str
    handles: tuple[int, ...]  # The positions of its inputs that are handles of state.


def _check(program: ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> bool:
    """Checks a program, once for a device, and what it is called with; returns whether it had passed before."""
    known: _CheckResult | None = getattr(program, _PASSED, None)
    is_known = known is not None and known.device == device
    if known is None or not is_known:
        known = _check_program(program, inputs, device)
        setattr(program, _PASSED, known)
    if known.handles:
        _check_places([(program.inputs[at].op.name, inputs[at].device) for at in known.handles], device)
    return is_known


def _check_program(program: ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> _CheckResult:
    _check_types("input", program.inputs)
    _check_types("output", program.outputs)
    places = {id(variable.handle): (variable.name, variable.device) for variable in program.variables}
    named = len(places)
    for at, tensor in enumerate(program.captured_inputs):
        if tensor.dtype == tf.resource:
            places.setdefault(id(tensor), (f"captured state {at}", tensor.device))
    if any(place and not _same(place, device) for _, place in list(places.values())[named:]):
        uncompilable.refuse(
            program
        )  # State that has no name: of a summary, a dataset or a table, used in a line that has.
    _check_places(places.values(), device)
    if tf.executing_eagerly():
        uncompilable.refuse_shapes_of_data(program, inputs, device)
    handles = tuple(at for at, tensor in enumerate(program.inputs[: len(inputs)]) if tensor.dtype == tf.resource)
    return _CheckResult(device, handles)


def _check_types(kind: str, tensors: list[tf.Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype == tf.float64:
            raise TypeError(
                f"Unsupported data type for {kind}: float64 (`{tensor.name}` of shape {tensor.shape}). An IPU has no"
                f" float64: `tf.cast` the {kind} to float32 or float16"
            )
        if tensor.dtype == tf.string:
            raise TypeError(
                f"Unsupported data type for {kind}: string (`{tensor.name}` of shape {tensor.shape}). An IPU has no strings:"
                " turn them to numbers on the host, where the data is made (`dataset.map`)"
            )


_MOST_NAMED = 6


def _check_places(places: Iterable[tuple[str, str]], device: str) -> None:
    elsewhere = [
        f"`{name}` on `{_short(place)}`" for name, place in sorted(places) if place and not _same(place, device)
    ]
    more = len(elsewhere) - _MOST_NAMED
    if elsewhere:
        raise ValueError(
            f"the program runs on `{_short(device)}`, but uses variables (or iterators, or queues) of another device:"
            f" {', '.join(elsewhere[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}. Make the model inside"
            " `strategy.scope()` of the strategy that runs the program, as optimizers, variables and iterators; a lookup table"
            " stays on the host, so look up where the dataset is made"
        )


def _same(place: str, device: str) -> bool:
    """Whether two names are of one device: a graph may leave out parts of them."""
    if place == device:
        return True
    one, other = tf.DeviceSpec.from_string(place), tf.DeviceSpec.from_string(device)
    return (one.device_type, one.device_index or 0) == (other.device_type, other.device_index or 0)


def run(prepared: Prepared, device: str, ordinal: int) -> Nested:
    """Runs a program on the device of the caller, and returns when it has ended."""
    if _forked:
        raise ForkedProcessError(
            "this process was forked from one that had loaded TensorFlow, whose threads did not come along, so no program"
            " can run here. Start processes with `multiprocessing.get_context('spawn')`"
        )
    program, inputs = prepared
    is_known = _check(program, inputs, device)
    connection = _state.connection_type(ordinal)
    if connection is DeviceConnectionType.ALWAYS or connection is DeviceConnectionType.ON_DEMAND:
        this_run = threading.Lock()
        this_run.acquire()
        run_log = RunLog(program.name, device)
        try:
            active_runs.under_way.add(this_run)
            called = functools.partial(call, program, inputs, program.captured_inputs, ordinal)
            results = run_interruptibly(called) if is_known else _first_run(program, called)
        except BaseException as exc:
            run_log.fail(exc)
            raise
        finally:
            active_runs.under_way.discard(this_run)
            this_run.release()
            run_log.end()
        return results
    if connection is DeviceConnectionType.PRE_COMPILE:
        if not hasattr(program, _COMPILED):
            compile_only(prepared)
            setattr(program, _COMPILED, True)
        return tf.nest.map_structure(_zeros, program.structured_outputs)
    raise tf.errors.FailedPreconditionError(
        None,
        None,
        f"`{device}` cannot run a program: its `device_connection.type` is `NEVER`, which compiles alone. Configure the"
        " system with `DeviceConnectionType.ALWAYS` to run",
    )


def _first_run(program: ConcreteFunction, called: Callable[[], Nested]) -> Nested:
    """Runs a program that is compiled first, and says so while it takes long."""
    before = _compiled()[0]
    with progress.of(_compiling(program), until=lambda _: _compiled()[0] != before):
        return run_interruptibly(called)


def insert(
    fn: Callable[..., Nested] | ConcreteFunction,
    args: Sequence[Nested],
    kwargs: Mapping[str, Nested],
    device: str,
    host_kernels: bool | None = None,
) -> Nested:
    """Adds `fn` as one compiled program to the graph that is being built, on the device of the caller.

    An operation that a Python function returns is that of the program, which runs it.
    """
    wrapped = None if is_graph_function(fn) else _WithOperations(fn)
    if wrapped is not None:
        fn = tf.function(wrapped, jit_compile=True, autograph=False)
    # What depends on the configured system, such as the number of replicas, is looked up as the graph runs.
    if host_kernels is None:
        host_kernels = environment.host_kernels()
    ordinal = tf.DeviceSpec.from_string(device).device_index or 0
    program, inputs = trace(fn, args, kwargs, Target(None, host_kernels, _floating_point.of_device(ordinal)))
    _check(program, inputs, device)
    _place_variables([*inputs, *program.captured_inputs], device)
    uncompilable.refuse(program)  # When it compiles, in a session, nobody could say which line is meant.
    results = call(program, inputs, program.captured_inputs, ordinal)
    return results if wrapped is None else wrapped.results(results)


class _WithOperations:
    """A Python function that returns a tensor for each operation, as a program returns tensors alone."""

    def __init__(self, fn: Callable[..., Nested]) -> None:
        self._fn = user_code(fn, by_default=True)
        self._are_operations: list[bool] = []
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Nested, **kwargs: Nested) -> Nested:
        returned = self._fn(*args, **kwargs)
        flat = tf.nest.flatten(returned)
        self._are_operations = [isinstance(one, tf.Operation) for one in flat]
        if not any(self._are_operations):
            return returned
        with tf.control_dependencies([one for one in flat if isinstance(one, tf.Operation)]):
            flat = [tf.constant(0) if isinstance(one, tf.Operation) else one for one in flat]
            return tf.nest.pack_sequence_as(returned, flat)

    def results(self, found: Nested) -> Nested:
        """Returns what the program returned, with its operation in the places of those of the function."""
        if not any(self._are_operations):
            return found
        flat = zip(tf.nest.flatten(found), self._are_operations, strict=True)
        return tf.nest.pack_sequence_as(found, [one.op if is_operation else one for one, is_operation in flat])


def _place_variables(tensors: Sequence[tf.Tensor], device: str) -> None:
    """Places variables that were made without a device with the program; TensorFlow does so for operations alone."""
    for tensor in tensors:
        # What a function captured of eager execution has a place, and no operation.
        made = tensor.dtype == tf.resource and tf.is_symbolic_tensor(tensor) and tensor.op.type == "VarHandleOp"
        if made and not tensor.device:
            graphs.place(tensor.op, device)


def _zeros(output: Any) -> Any:
    return tf.zeros(output.shape, output.dtype) if tf.is_tensor(output) else output
