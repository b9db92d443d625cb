"""Functions that run a program from a file of another process. Any number of threads can call the program."""

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

# The time, in microseconds, after which the thread that waits for answers checks whether the engine was stopped.
_WAIT_US = 20_000

_engines: set[Engine] = set()  # The running engines; guarded by `_lock`.
_lock = threading.Lock()


@dataclass(eq=False)
class _Call:
    """One call of a program: an element of each infeed, and the future of the answer, or None for padding."""

    elements: list[tuple[np.ndarray, ...]]
    future: Future | None
    taken: bool = False


class Engine:
    """Runs a stored program until it is stopped, and answers calls of any threads in their order.

    A call appends an element for each infeed to `_calls` and to the queue of each infeed, and returns a future. Three
    threads work on the calls:

    * "program" runs the program again and again. The infeeds' datasets get their elements from `_next`, which waits for
      calls.
    * "answers" reads the outfeeds. Elements arrive in the order of calls, so the n-th answer belongs to the n-th call.
    * "end" stops the engine after the `RuntimeContext` is deleted.

    A pipeline or a program on replicas takes several elements before it gives the first answer. If there is no call
    within the timeout, `_next` therefore passes zeros, whose answer is dropped. So the last calls do not wait for later
    ones.
    """

    def __init__(
        self, application: Application, values: Sequence[tf.Tensor], device: str, ipus: int, timeout_us: int
    ) -> None:
        self._application = application
        self._device = device
        self._timeout = timeout_us / 1e6
        self._condition = threading.Condition()
        # The calls without an answer, in order; and for each infeed, the calls whose elements it has not taken yet.
        self._calls: collections.deque[_Call] = collections.deque()
        self._inputs = [len(specs) for specs in application.elements("infeed")]
        self._waiting: list[collections.deque[_Call]] = [collections.deque() for _ in self._inputs]
        self._stopped = False
        self._failure: BaseException = RuntimeError()  # The error of calls after the end.
        self._infeeds: list[Any] = []
        self._results: list[stored_feeds.StoredResults] = []
        self._executables: list[str] = []
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
        """Reserves IPUs of a device that has `ipus`, because a program uses its IPUs until it is stopped.

        Raises:
          RuntimeError: Other applications use the IPUs.
        """
        needed = self._application.ipus
        with _lock:
            used = sum(
                engine._application.ipus
                for engine in _engines
                if engine._device == self._device and not engine._stopped
            )
            if ipus > 1 and used + needed > ipus:
                raise RuntimeError(
                    f"`{self._device}` has {ipus} IPUs, but other applications use {used}, and this one needs {needed}: stop"
                    " another one first by `embedded_runtime_stop`"
                )
            _engines.add(self)

    def stop_after(self, context: RuntimeContext) -> None:
        """Stops the program when `context` is deleted."""
        # If the callback were a Python function, a `KeyboardInterrupt` in it would be lost. `SimpleQueue.put` is
        # written in C.
        self._context = weakref.ref(context, self._end_of_context.put)

    def _stop_with_context(self) -> None:
        self._end_of_context.get()
        self.stop()

    def call(self, values: list[np.ndarray]) -> Future:
        """Calls the program with `values`, and returns the future of its answer, a list of arrays."""
        future: Future = Future()
        with self._condition:
            if self._stopped:
                raise self._failure
            self._add(values, future)
        return future

    def _add(self, values: Sequence[np.ndarray], future: Future | None) -> None:
        iterator = iter(values)
        call = _Call([tuple(itertools.islice(iterator, count)) for count in self._inputs], future)
        self._calls.append(call)
        for waiting in self._waiting:
            waiting.append(call)
        self._condition.notify_all()

    def stop(self) -> None:
        """Ends the program. Calls without an answer fail."""
        self._end(RuntimeError("the application was stopped: start it again"))
        self._end_of_context.put(None)
        for thread in set(self._threads) - {threading.current_thread()}:
            if thread.is_alive():
                thread.join()
        self._release()

    def _release(self) -> None:
        """Releases the IPUs, infeeds and executables of the program. Further calls do nothing."""
        with _lock:
            _engines.discard(self)
        with self._condition:
            infeeds, self._infeeds = self._infeeds, []
            executables, self._executables = self._executables, []
        for infeed in infeeds:
            infeed.deleter  # noqa: B018  (Reading the attribute ends it.)
        for name in executables:
            executable_cache.release(name)

    def _define(self, values: Sequence[tf.Tensor]) -> None:
        application = self._application
        if application.key == executable_cache.machine_key():  # Otherwise XLA compiles for this processor and release.
            for name, executable in application.executables.items():
                executable_cache.hold(name, executable)
                self._executables.append(name)
        self._application = application = dataclasses.replace(application, executables={})
        self._function = functions.define(application.functions, application.name)
        inputs = dict(zip(application.input_indices, values, strict=True))
        self._references: list[Any] = []  # Keeps the owners of resource handles alive.
        self._arguments = [
            self._argument(index, argument, inputs) for index, argument in enumerate(application.arguments)
        ]

    def _argument(self, index: int, argument: dict[str, Any], inputs: dict[int, tf.Tensor]) -> tf.Tensor:
        kind = argument["kind"]
        if kind == "variable":
            with tf.device(self._device):
                value: Any = inputs[index] if index in inputs else self._application.weights[index]
                self._references.append(tf.Variable(value, dtype=argument["dtype"], shape=argument["shape"]))
            return self._references[-1].handle
        if kind == "input":
            return inputs[index]
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
        self._references.append(stored_states.object_of(kind, self._device))
        return self._references[-1].state(self._device)

    def _next(self, infeed: int) -> tuple[np.ndarray, ...] | None:
        """Waits for a call, and returns its element for an infeed; None if the engine was stopped."""
        waiting = self._waiting[infeed]
        with self._condition:
            # While a pipeline waits for the next call, the answers of earlier calls are delayed. Only such a wait has a
            # timeout.
            delays_answers = self._application.ahead and any(
                call.taken and call.future is not None for call in self._calls
            )
            self._condition.wait_for(lambda: self._stopped or waiting, self._timeout if delays_answers else None)
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
                    if application.runs_without_replicas:
                        functions.call_defined(self._function, self._arguments, len(application.results))
                        continue
                    ops.ipu_replicated_run(
                        self._arguments,
                        Tout=[tf.as_dtype(result["dtype"]) for result in application.results],
                        f=self._function,
                        shards=application.shards,
                        shapes=[result["shape"] for result in application.results],
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
                    answer = [array for rows in answers for array in rows.popleft()]
                    with self._condition:
                        future = self._calls.popleft().future if self._calls else None  # Empty after a stop.
                    if future is not None:
                        future.set_result(answer)
        except BaseException as exc:
            self._end(exc)

    def _rows(self, results: stored_feeds.StoredResults) -> Iterator[list[np.ndarray]]:
        rows = [row.numpy() for row in results.take(_WAIT_US)]
        if not rows or not len(rows[0]):
            return iter(())
        if self._application.ipus > self._application.shards:  # A row holds the results of all replicas, in order.
            rows = [row.reshape([-1, *row.shape[2:]]) for row in rows]
        return ([row[index] for row in rows] for index in range(len(rows[0])))

    def _end(self, failure: BaseException) -> None:
        with self._condition:
            if self._stopped:
                return
            self._stopped, self._failure = True, failure
            unanswered = [call.future for call in self._calls if call.future is not None]
            for calls in (self._calls, *self._waiting):
                calls.clear()
            self._condition.notify_all()
        for future in unanswered:
            future.set_exception(failure)


def _elements(reference: weakref.ref[Engine], infeed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the elements of an infeed. Holds no reference to the engine while it is suspended, so that it can be deleted."""
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
      inputs: The start-up inputs: the arguments of the function, then the variables, unless they are frozen.
      streamed_inputs: The inputs of a call: the tensors of an element of each infeed. If tensors of several infeeds
        have the same name, the number of the infeed is added, as in `0.x`.
      streamed_outputs: The outputs of a call: the tensors of an element of each outfeed, with names of the same form.
    """

    inputs: list[tf.TensorSpec]
    streamed_inputs: list[tf.TensorSpec]
    streamed_outputs: list[tf.TensorSpec]


class RuntimeContext:
    """A running program, started by `embedded_runtime_start`. The program stops when this object is deleted."""

    def __init__(self, name: str, executable_file: str, executable_proto: Signature, start_output: Engine) -> None:
        """Creates the context for `embedded_runtime_start`; do not call it elsewhere."""
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
        """Returns the specs of its inputs and outputs."""
        return self._signature

    def output_types(self) -> list[tf.DType]:
        """Returns the types of the outputs of a call."""
        return [spec.dtype for spec in self._signature.streamed_outputs]

    def __repr__(self) -> str:
        return f"<RuntimeContext {self._name} of {self._file}>"


def embedded_runtime_start(
    executable_file: str | os.PathLike[str],
    inputs: Sequence[TensorLike] | Mapping[str, TensorLike],
    name: str,
    timeout: int | None = None,
) -> RuntimeContext:
    """Starts a program that `experimental_application_compile_op` compiled. It runs until it is stopped.

    It runs on the device of the current strategy, or else on `/device:IPU:0`. The device must have the number of IPUs
    for which the program was compiled. Most programs for one IPU also run on a device with more IPUs, one on each.
    On another processor or with another release, the program is compiled again.

    Args:
      executable_file: The path of the file.
      inputs: The start-up inputs, in the order of `signature().inputs` or by their names.
      name: The name of the application.
      timeout: The time, in microseconds, for which a pipeline or a program on several replicas waits for the next call
        before it answers earlier calls; 5000 if omitted. Other programs answer each call at once.

    Raises:
      FileNotFoundError: There is no such file.
      RuntimeError: A graph is being built, or other applications use the device's IPUs.
      TypeError: `inputs` is neither a list nor a dict.
      ValueError: The file is no application; the number, a shape or a type of `inputs` is wrong; `timeout` is not
        positive; or the device has another number of IPUs.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("a graph is being built, but applications are started in eager execution: start it outside")
    timeout = _DEFAULT_TIMEOUT_US if timeout is None else timeout
    if not is_int(timeout) or timeout <= 0:
        raise ValueError(f"`timeout` must be a positive number of microseconds, but is {timeout!r}")
    application = application_compile_op.load(executable_file)
    signature = Signature(
        application.inputs,
        _concatenated(application.elements("infeed")),
        _concatenated(application.elements("outfeed")),
    )
    extended = current_strategy().extended
    ipus = _state.ipus_or_one(extended.ordinal)
    if ipus != application.ipus and not (application.runs_without_replicas and ipus > 1):
        raise ValueError(
            f"`executable_file` is `{os.fspath(executable_file)}`, which was compiled for a device of {application.ipus} IPUs,"
            f" but `/device:IPU:{extended.ordinal}` has {ipus}: configure {application.ipus} IPUs, or compile again"
        )
    values = _checked(_listed(inputs, signature.inputs), signature.inputs, "Embedded application runtime expects")
    engine = Engine(application, values, extended.ipu_device, ipus, timeout)
    return RuntimeContext(name, os.fspath(executable_file), signature, engine)


def embedded_runtime_call(
    inputs: Sequence[TensorLike], context: RuntimeContext, timeout_seconds: float | None = None
) -> list[tf.Tensor]:
    """Calls a running program, and waits for its answer. It is thread-safe.

    Args:
      inputs: The tensors of `signature().streamed_inputs`, in order.
      context: The result of `embedded_runtime_start`.
      timeout_seconds: The maximum time to wait for the answer, in seconds; unlimited if omitted. The SDK's function
        does not have this argument.

    Returns:
      The answer: the tensors of `signature().streamed_outputs`.

    Raises:
      RuntimeError: The program was stopped.
      ValueError: The number or a shape of `inputs` is wrong.
      TypeError: A type of `inputs` is wrong.
      tf.errors.DeadlineExceededError: There was no answer in time.
      tf.errors.OpError: The program has failed.
    """
    signature = context.signature()
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array) for array in _call(inputs, context, timeout_seconds)]
    values = _checked(list(inputs), signature.streamed_inputs, "Embedded application call expects", TypeError)
    outputs = tf.numpy_function(
        lambda *arrays: _call(arrays, context, timeout_seconds), values, context.output_types(), stateful=True
    )
    for tensor, spec in zip(outputs, signature.streamed_outputs, strict=True):
        tensor.set_shape(spec.shape)
    return list(outputs)


def embedded_runtime_stop(context: RuntimeContext) -> None:
    """Stops the program of a context. Unanswered and later calls fail. The SDK does not have this function."""
    context._engine.stop()


def embedded_runtime_start_and_call(
    executable_file: str | os.PathLike[str],
    startup_inputs: Sequence[TensorLike] | Mapping[str, TensorLike],
    call_inputs: Sequence[TensorLike],
    name: str,
) -> tuple[list[tf.Tensor], RuntimeContext]:
    """Starts a program and calls it once: `embedded_runtime_start`, then `embedded_runtime_call`, with their errors.

    Returns:
      The answer, and the context for further calls.
    """
    context = embedded_runtime_start(executable_file, startup_inputs, name)
    return embedded_runtime_call(call_inputs, context), context


def _concatenated(queues: list[list[tf.TensorSpec]]) -> list[tf.TensorSpec]:
    """Returns the specs of the elements of all queues, with unique names: `x` of the first queue may become `0.x`."""
    counts = collections.Counter(spec.name for specs in queues for spec in specs)
    return [
        tf.TensorSpec(spec.shape, spec.dtype, spec.name if counts[spec.name] == 1 else f"{index}.{spec.name}")
        for index, specs in enumerate(queues)
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
    values: list[Any], specs: list[tf.TensorSpec], message_start: str, dtype_error: type[Exception] = ValueError
) -> list[tf.Tensor]:
    if len(values) != len(specs):
        names = ", ".join(f"`{spec.name}`" for spec in specs)
        raise ValueError(f"{message_start} {len(specs)} inputs ({names}), but {len(values)} were provided")
    tensors = []
    for index, (value, spec) in enumerate(zip(values, specs, strict=True)):
        tensor = tf.convert_to_tensor(value)
        if not spec.shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"Mismatched input shape at position {index} (`{spec.name}`). Expected {spec.shape}, but input {index} has"
                f" shape {tensor.shape}"
            )
        if tensor.dtype != spec.dtype:
            raise dtype_error(
                f"Mismatched input dtype at position {index} (`{spec.name}`). Expected {spec.dtype.name}, but input {index} has"
                f" dtype {tensor.dtype.name}"
            )
        tensors.append(tensor)
    return tensors
