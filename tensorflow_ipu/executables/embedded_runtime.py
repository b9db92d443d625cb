"""Runs a program from a file of another process, for any number of threads that call it."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import dataclasses
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.types import TensorLike
from tensorflow_ipu._native import executable_cache
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.config import _state
from tensorflow_ipu.executables import application_compile_op
from tensorflow_ipu.executables._compile import current_strategy
from tensorflow_ipu.executables.application_compile_op import Application
from tensorflow_ipu.feeds import stored as stored_feeds
from tensorflow_ipu.ops import sites as stored_states
from tensorflow_ipu.programs.diagnostics import faults

# How long the answering thread waits natively for an answer before it checks whether the engine was stopped.
_WAIT_US = 20_000

_engines: set[Engine] = set()  # Those that run; guarded by `_lock`.
_lock = threading.Lock()


@dataclass(eq=False)
class _Call:
    elements: list[tuple[np.ndarray, ...]]
    future: Future | None
    taken: bool = False


class Engine:
    """A stored program that runs until it is stopped; thread-safe, and answers come in the order of calls."""

    def __init__(
        self, application: Application, values: Sequence[tf.Tensor], device: str, ipus: int, timeout_us: int
    ) -> None:
        """Starts it."""
        self._application = application
        self._device = device
        self._timeout = timeout_us / 1e6
        self._condition = threading.Condition()
        # Calls without an answer, in order, and for each infeed those of them that it has yet to take.
        self._calls: collections.deque[_Call] = collections.deque()
        self._inputs = [len(specs) for specs in application.elements("infeed")]
        self._waiting: list[collections.deque[_Call]] = [collections.deque() for _ in self._inputs]
        self._stopped = False
        self._failure: BaseException = RuntimeError()  # Where it was stopped.
        self._infeeds: list[Any] = []
        self._results: list[stored_feeds.StoredResults] = []
        self._held: list[str] = []
        self._end_of_context: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._context: weakref.ref[RuntimeContext] | None = None
        self._threads = [
            threading.Thread(target=target, name=f"ipu-application-{name}", daemon=True)
            for name, target in (("program", self._run), ("answers", self._answer), ("end", self._stop_with_context))
        ]
        self._reserve(ipus)
        try:
            self._define(values)
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.stop()
            raise

    def _reserve(self, ipus: int) -> None:
        """Reserves IPUs of a device that has `ipus`. A program does not end, and shares no IPUs."""
        wanted = self._application.ipus
        with _lock:
            used = sum(
                other._application.ipus for other in _engines if other._device == self._device and not other._stopped
            )
            if ipus > 1 and used + wanted > ipus:
                raise RuntimeError(
                    f"`{self._device}` has {ipus} IPUs, of which other applications use {used}, and this one wants"
                    f" {wanted}: stop one first, by `embedded_runtime_stop`"
                )
            _engines.add(self)

    def stop_after(self, context: RuntimeContext) -> None:
        """Has the program stop when `context` ends."""
        # A finalizer in Python would lose a `KeyboardInterrupt`, so the reference calls a function that is written in C.
        self._context = weakref.ref(context, self._end_of_context.put)

    def _stop_with_context(self) -> None:
        self._end_of_context.get()
        self.stop()

    def call(self, values: list[np.ndarray]) -> Future:
        """Adds an element; the answer comes in the future, as a list of arrays."""
        future: Future = Future()
        with self._condition:
            if self._stopped:
                raise self._failure
            self._add(values, future)
        return future

    def _add(self, values: Sequence[np.ndarray], future: Future | None) -> None:
        rest = iter(values)
        call = _Call([tuple(itertools.islice(rest, count)) for count in self._inputs], future)
        self._calls.append(call)
        for waiting in self._waiting:
            waiting.append(call)
        self._condition.notify_all()

    def stop(self) -> None:
        """Ends the program, and fails the calls that it has not answered."""
        self._end(RuntimeError("the application was stopped: start it again"))
        self._end_of_context.put(None)
        for thread in set(self._threads) - {threading.current_thread()}:
            if thread.is_alive():
                thread.join()
        self._drop()

    def _drop(self) -> None:
        """Gives up what the program uses; the second of several calls does nothing."""
        with _lock:
            _engines.discard(self)
        with self._condition:
            infeeds, self._infeeds = self._infeeds, []
            held, self._held = self._held, []
        for infeed in infeeds:
            infeed.deleter  # noqa: B018  (The access ends it.)
        for name in held:
            executable_cache.release(name)

    def _define(self, values: Sequence[tf.Tensor]) -> None:
        application = self._application
        if application.key == executable_cache.machine_key():  # Else it is compiled for this processor and release.
            for name, executable in application.executables.items():
                executable_cache.hold(name, executable)
                self._held.append(name)
        self._application = application = dataclasses.replace(application, executables={})
        self._function = functions.define(application.functions, application.name)
        started_with = dict(zip(application.started_with, values, strict=True))
        self._kept: list[Any] = []
        self._arguments = [
            self._argument(at, argument, started_with) for at, argument in enumerate(application.arguments)
        ]

    def _argument(self, at: int, argument: dict[str, Any], started_with: dict[int, tf.Tensor]) -> tf.Tensor:
        kind = argument["kind"]
        if kind == "variable":
            with tf.device(self._device):
                value: Any = started_with[at] if at in started_with else self._application.weights[at]
                self._kept.append(tf.Variable(value, dtype=argument["dtype"], shape=argument["shape"]))
            return self._kept[-1].handle
        if kind == "input":
            return started_with[at]
        if kind == "order":
            return stored_feeds.order(self._device)
        if kind == "outfeed":
            self._results.append(stored_feeds.StoredResults(argument, self._device))
            return self._results[-1].state
        if kind == "infeed":
            specs = tuple(tf.TensorSpec(spec.shape, spec.dtype) for spec in stored_feeds.specs_of(argument["elements"]))
            reference: weakref.ref[Engine] = weakref.ref(self)
            number = len(self._infeeds)
            dataset = tf.data.Dataset.from_generator(lambda: _elements(reference, number), output_signature=specs)
            infeed, state = stored_feeds.infeed_of(dataset, self._device)
            self._infeeds.append(infeed)
            return state
        self._kept.append(stored_states.object_of(kind, self._device))
        return self._kept[-1].state(self._device)

    def _next(self, infeed: int) -> tuple[np.ndarray, ...] | None:
        """Returns the next element for the program from one of its infeeds; None at the end."""
        waiting = self._waiting[infeed]
        with self._condition:
            # A pipeline that waits for calls holds back the answers to earlier ones.
            holding = self._application.ahead and any(call.taken and call.future is not None for call in self._calls)
            self._condition.wait_for(lambda: self._stopped or waiting, self._timeout if holding else None)
            if self._stopped:
                return None
            if not waiting:
                specs = itertools.chain.from_iterable(self._application.elements("infeed"))
                self._add([tf.zeros(spec.shape, spec.dtype).numpy() for spec in specs], None)
            call = waiting.popleft()
            call.taken = True
            self._condition.notify_all()
            return call.elements[infeed]

    def _run(self) -> None:
        application = self._application
        native.ipu_run_application_on_this_thread()
        try:
            while not self._stopped:
                with tf.device(self._device):
                    if application.by_itself:
                        functions.call_defined(self._function, self._arguments, len(application.results))
                        continue
                    ops.ipu_replicated_run(
                        self._arguments,
                        Tout=[tf.as_dtype(one["dtype"]) for one in application.results],
                        f=self._function,
                        shards=application.shards,
                        shapes=[one["shape"] for one in application.results],
                    )
        except tf.errors.OpError as exc:
            self._end(faults.explained(None, exc))
        except BaseException as exc:
            self._end(exc)

    def _answer(self) -> None:
        answers: list[collections.deque[list[np.ndarray]]] = [collections.deque() for _ in self._results]
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._stopped or any(call.taken for call in self._calls))
                    if self._stopped:
                        return
                for results, rows in zip(self._results, answers, strict=True):
                    if not rows:
                        rows.extend(self._rows(results))
                while all(answers):
                    answer = [one for rows in answers for one in rows.popleft()]
                    with self._condition:
                        future = self._calls.popleft().future if self._calls else None  # None: it was stopped.
                    if future is not None:
                        future.set_result(answer)
        except BaseException as exc:
            self._end(exc)

    def _rows(self, results: stored_feeds.StoredResults) -> Iterator[list[np.ndarray]]:
        rows = [row.numpy() for row in results.take(_WAIT_US)]
        if not rows or not len(rows[0]):
            return iter(())
        if self._application.ipus > self._application.shards:  # A row has the results of all replicas, in order.
            rows = [row.reshape([-1, *row.shape[2:]]) for row in rows]
        return ([row[at] for row in rows] for at in range(len(rows[0])))

    def _end(self, failure: BaseException) -> None:
        with self._condition:
            if self._stopped:
                return
            self._stopped, self._failure = True, failure
            left = [call.future for call in self._calls if call.future is not None]
            for calls in (self._calls, *self._waiting):
                calls.clear()
            self._condition.notify_all()
        for future in left:
            future.set_exception(failure)


def _elements(reference: weakref.ref[Engine], infeed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Returns the elements of the program's dataset, which must not keep the engine alive."""
    while True:
        engine = reference()
        element = None if engine is None else engine._next(infeed)
        del engine
        if element is None:
            return
        yield element


@atexit.register
def _stop_all() -> None:
    with _lock:
        engines = list(_engines)
    for engine in engines:
        engine.stop()


__all__ = [
    "RuntimeContext",
    "Signature",
    "embedded_runtime_call",
    "embedded_runtime_start",
    "embedded_runtime_start_and_call",
    "embedded_runtime_stop",
]

_DEFAULT_TIMEOUT_US = 5000


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a program, each a list of `tf.TensorSpec` with names.

    Attributes:
      inputs: What it is started with: its function's arguments, then its variables, if they are not frozen.
      streamed_inputs: What each call brings: an element of each infeed, one after the other. A name that several have is
        preceded by the number of the infeed, as in `0.x`.
      streamed_outputs: What each call is answered: an element of each outfeed, likewise.
    """

    inputs: list[tf.TensorSpec]
    streamed_inputs: list[tf.TensorSpec]
    streamed_outputs: list[tf.TensorSpec]


class RuntimeContext:
    """A program that runs until nobody holds this; `embedded_runtime_start` makes it."""

    def __init__(self, name: str, executable_file: str, executable_proto: Signature, start_output: Engine) -> None:
        """Takes the name, the file, its inputs and outputs, and the engine; for `embedded_runtime_start` alone."""
        self._name = name
        self._file = executable_file
        self._signature = executable_proto
        self._engine = start_output
        start_output.stop_after(self)

    def start_output(self) -> tf.Tensor:
        """Returns the name of the application, as a tensor."""
        return tf.constant(self._name)

    def name(self) -> str:
        """Returns the name of the application."""
        return self._name

    def signature(self) -> Signature:
        """Its inputs and outputs."""
        return self._signature

    def output_types(self) -> list[tf.DType]:
        """Returns the types of an answer's tensors."""
        return [spec.dtype for spec in self._signature.streamed_outputs]

    def __repr__(self) -> str:
        return f"<RuntimeContext {self._name} of {self._file}>"


def embedded_runtime_start(
    executable_file: str | os.PathLike[str],
    inputs: Sequence[TensorLike] | Mapping[str, TensorLike],
    name: str,
    timeout: int | None = None,
) -> RuntimeContext:
    """Starts a program of `experimental_application_compile_op`: it runs until it is stopped.

    It runs on the device of the strategy whose scope is around, or else on `/device:IPU:0`, with as many IPUs as it was
    compiled for; a program for one IPU runs on each IPU of a larger device. Another processor or version compiles it anew.

    Args:
      executable_file: The path of the file.
      inputs: What it is started with, in the order of `signature().inputs`, or by their names.
      name: A name for it.
      timeout: How long a pipeline, or a program of several replicas, waits for the next call before it goes on without, in
        microseconds; 5000 if omitted. Others answer each call by itself.

    Raises:
      FileNotFoundError: There is no such file.
      RuntimeError: A graph is being built, or other applications have the device's IPUs.
      TypeError: `inputs` is neither a list nor a dict.
      ValueError: The file is none of ours; `inputs` are more or less than it takes, or one has another shape or type;
        `timeout` is not positive; the device has another number of IPUs.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("an application is started in eager execution, and a graph is being built: start it outside")
    timeout = _DEFAULT_TIMEOUT_US if timeout is None else timeout
    if not is_int(timeout) or timeout <= 0:
        raise ValueError(f"`timeout` must be a positive number of microseconds, but is {timeout!r}")
    application = application_compile_op.load(executable_file)
    signature = Signature(
        application.inputs, _in_a_row(application.elements("infeed")), _in_a_row(application.elements("outfeed"))
    )
    extended = current_strategy().extended
    ipus = _state.ipus_or_one(extended.ordinal)
    if ipus != application.ipus and not (application.by_itself and ipus > 1):
        raise ValueError(
            f"`executable_file` is `{os.fspath(executable_file)}`, which was compiled for a device of {application.ipus} IPUs,"
            f" and `/device:IPU:{extended.ordinal}` has {ipus}: configure it so, or compile again"
        )
    values = _checked(_listed(inputs, signature.inputs), signature.inputs, "Embedded application runtime expects")
    engine = Engine(application, values, extended.ipu_device, ipus, timeout)
    return RuntimeContext(name, os.fspath(executable_file), signature, engine)


def embedded_runtime_call(
    inputs: Sequence[TensorLike], context: RuntimeContext, timeout_seconds: float | None = None
) -> list[tf.Tensor]:
    """Calls a program that was started, and waits for its answer; thread-safe.

    Args:
      inputs: What a call brings: `signature().streamed_inputs`, in order.
      context: What `embedded_runtime_start` returned.
      timeout_seconds: How long to wait for the answer, in seconds; for ever if omitted. The SDK's function lacks this.

    Returns:
      The answer: `signature().streamed_outputs`.

    Raises:
      RuntimeError: The program was stopped.
      ValueError: `inputs` are more or less than it takes, or one has another shape.
      TypeError: One has another type.
      tf.errors.DeadlineExceededError: There was no answer in time.
      tf.errors.OpError: The program has failed.
    """
    signature = context.signature()
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(one) for one in _call(inputs, context, timeout_seconds)]
    values = _checked(list(inputs), signature.streamed_inputs, "Embedded application call expects", TypeError)
    found = tf.numpy_function(
        lambda *arrays: _call(arrays, context, timeout_seconds), values, context.output_types(), stateful=True
    )
    for one, spec in zip(found, signature.streamed_outputs, strict=True):
        one.set_shape(spec.shape)
    return list(found)


def embedded_runtime_stop(context: RuntimeContext) -> None:
    """Stops the program of a context, as the SDK cannot: calls without an answer, and later ones, fail."""
    context._engine.stop()


def embedded_runtime_start_and_call(
    executable_file: str | os.PathLike[str],
    startup_inputs: Sequence[TensorLike] | Mapping[str, TensorLike],
    call_inputs: Sequence[TensorLike],
    name: str,
) -> tuple[list[tf.Tensor], RuntimeContext]:
    """Starts a program and calls it once: `embedded_runtime_start`, then `embedded_runtime_call`, with their errors.

    Returns the answer, and the context to call the program by.
    """
    context = embedded_runtime_start(executable_file, startup_inputs, name)
    return embedded_runtime_call(call_inputs, context), context


def _in_a_row(queues: list[list[tf.TensorSpec]]) -> list[tf.TensorSpec]:
    """Returns the tensors of the elements of all queues, with distinct names."""
    counts = collections.Counter(spec.name for specs in queues for spec in specs)
    return [
        tf.TensorSpec(spec.shape, spec.dtype, spec.name if counts[spec.name] == 1 else f"{at}.{spec.name}")
        for at, specs in enumerate(queues)
        for spec in specs
    ]


def _call(inputs: Sequence[Any], context: RuntimeContext, timeout_seconds: float | None) -> list[Any]:
    specs = context.signature().streamed_inputs
    values = _checked(list(inputs), specs, "Embedded application call expects", TypeError)
    future = context._engine.call([value.numpy() for value in values])
    try:
        return future.result(timeout_seconds)
    except concurrent.futures.TimeoutError:
        raise tf.errors.DeadlineExceededError(
            None, None, f"`{context.name()}` has not answered within {timeout_seconds} s"
        ) from None


def _listed(inputs: object, specs: list[tf.TensorSpec]) -> list[Any]:
    if isinstance(inputs, Mapping):
        missing = [spec.name for spec in specs if spec.name not in inputs]
        if missing:
            raise ValueError(
                f"Failed to find input tensors with the names {', '.join(f'`{name}`' for name in missing)} in `inputs`, which"
                f" has {', '.join(f'`{name}`' for name in inputs) or 'none'}"
            )
        return [inputs[spec.name] for spec in specs]
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"Expected the inputs to be a list: `inputs` is {inputs!r}; give a list, or a dict by name")
    return list(inputs)


def _checked(
    values: list[Any], specs: list[tf.TensorSpec], expects: str, of_type: type[Exception] = ValueError
) -> list[tf.Tensor]:
    if len(values) != len(specs):
        names = ", ".join(f"`{spec.name}`" for spec in specs)
        raise ValueError(f"{expects} {len(specs)} inputs ({names}), but {len(values)} were provided")
    found = []
    for at, (value, spec) in enumerate(zip(values, specs, strict=True)):
        tensor = tf.convert_to_tensor(value)
        if not spec.shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"Mismatched input shape at position {at} (`{spec.name}`). Expected {spec.shape}, but input {at} has shape"
                f" {tensor.shape}"
            )
        if tensor.dtype != spec.dtype:
            raise of_type(
                f"Mismatched input dtype at position {at} (`{spec.name}`). Expected {spec.dtype.name}, but input {at} has"
                f" dtype {tensor.dtype.name}"
            )
        found.append(tensor)
    return found
