"""Runs the executions of a Keras model on the device, and orders the threads that use the model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.fair_lock import FairLock
from tensorflow_ipu._tensorflow import devices
from tensorflow_ipu.config import DeviceConnectionType, _state
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.hosts import Cluster, exchange
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.data.elements import Elements, checked_results
from tensorflow_ipu.keras.data.fed_data import EpochIterator, take_elements, to_tensors
from tensorflow_ipu.keras.model.callbacks import AsynchronousCallbacks, Reader
from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation, accumulated_step
from tensorflow_ipu.keras.pipeline.graph import PipelinedModel
from tensorflow_ipu.ops.replica_variables import read_all, write_all

if TYPE_CHECKING:
    from collections.abc import Hashable

    from typing_extensions import Self

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.strategy.ipu_strategy import PreparedProgram

# Returns the logs or predictions of a batch, as a step of Keras does.
Step: TypeAlias = "Callable[[Nested], Nested]"


class Call:
    """A context for one call of `fit` or a similar method, with the state of this call."""

    def __init__(self, calls: Calls, method: str, version: int) -> None:
        self._calls = calls
        self._outer: Call | None = None  # The call whose callback made this one, on the same thread.
        self.method = method
        self.version = version  # The version of the model's programs when the call began.
        self.outermost = self
        self.callbacks: AsynchronousCallbacks | None = None
        self.replicas = 1  # The number in the latest execution.
        # The variables of metrics and their values on all replicas, saved while another call uses the variables.
        self.metrics: list[tuple[Any, list[tf.Tensor]]] = []
        self.has_ended = False

    def __enter__(self) -> Self:
        calls = self._calls
        self._outer = calls.current
        if self._outer is not None:
            self.outermost = self._outer.outermost
        calls.in_progress.add(self)
        calls.thread.call = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        calls = self._calls
        calls.thread.call = self._outer
        calls.in_progress.discard(self)
        self.has_ended = True
        if self._outer is None:
            calls.release()


class Calls:
    """The calls of one model's methods, on any threads.

    A turn is one thread's use of the model: an execution, a trace, or a change of the model. Threads get their turns in
    the order of their requests, so one thread can predict between the executions of another one that trains.

    The variables of metrics hold the values of one call at a time. Before a call updates them, it calls
    `claim_metrics`, which saves the values of the last call and restores its own. Only a change of the call costs
    time: a read and a write of all metrics on all replicas.

        thread 1   fit: execution                          fit: execution (metrics of `fit` restored)
        thread 2                   evaluate: execution
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._turns = FairLock()
        self._fits = FairLock()
        self._metrics_owner: Call | None = None  # The call whose values the metrics hold. Used in turns only.
        self.thread = threading.local()
        self.in_progress: set[Call] = set()  # Changed by one operation each, without a lock.

    @property
    def current(self) -> Call | None:
        """The innermost call of this thread, or None."""
        return getattr(self.thread, "call", None)

    def release(self) -> None:
        """Ends the turns of this thread, which an exception in a signal handler may have left open."""
        self._turns.release_all()
        self._fits.release_all()

    def fitting(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for one `fit` at a time: Keras stores the status of a `fit` in the model."""
        return self._fits

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that waits for the turn of this thread, and at its end ends the turn."""
        return self._turns

    def claim_metrics(self, replicas: int = 1) -> None:
        """Makes metrics hold the values of this thread's call, with `replicas` replicas. Must be called in a turn."""
        call = self.current and self.current.outermost
        if call is not self._metrics_owner:
            self._swap_metrics(call)
        if call is not None:
            call.replicas = replicas

    def _swap_metrics(self, call: Call | None) -> None:
        previous = self._metrics_owner
        if previous is not None and not previous.has_ended:
            variables = internals.variables_of_metrics(self._model)
            previous.metrics = [(variable, read_all(variable, previous.replicas)) for variable in variables]
        self._metrics_owner = call
        if call is not None:
            for variable, values in call.metrics:
                write_all(variable, values)
            call.metrics = []


class Loop:
    """Runs the executions of one mode, `"train"`, `"test"` or `"predict"`. Keras calls it once per execution.

    It traces a program once for each spec of elements. Queues and the number of steps are arguments of the program, so
    all epochs run the same executable. An `EpochIterator` holds the state of one pass over the data. Other
    state is used in turns only.
    """

    def __init__(
        self,
        extension: Extension,
        mode: str,
        step: Step,
        accumulation: StepAccumulation | None = None,
        pipelined: PipelinedModel | None = None,
    ) -> None:
        self._extension = extension
        self._mode = mode
        self._model = extension.model
        self._strategy = extension.strategy
        self._calls = extension.calls
        self._name = f"{'evaluate' if mode == 'test' else mode} {extension.model.name}"
        self._step = step
        self._accumulation = accumulation
        self._pipelined = pipelined
        self._programs: dict[tuple[str, object], Callable[..., None]] = {}
        self._counts: dict[int, tf.Tensor] = {}
        self._traces = 0
        self._shapes = programs.ShapesOfData()
        self._specs: dict[str, Nested] = {}  # The specs of the results of a step, by the key of its elements.
        # Empty outfeeds that no pass uses, by elements, mode and replicas.
        self._outfeeds: dict[Hashable, list[IPUOutfeedQueue]] = {}
        single = tf.function(self._one_step, jit_compile=True, autograph=False, reduce_retracing=False)
        self._single = self._with_name(single)

    @property
    def traces(self) -> int:
        """The number of programs traced so far. Each of them compiles once."""
        return self._traces

    def __call__(self, source: Nested) -> Nested:
        fed = source[0] if isinstance(source, list) and source else source
        if not isinstance(fed, EpochIterator):
            return self._predict_singly(source) if self._mode == "predict" else self._run_singly(source)
        device = devices.of_eager_thread()
        try:
            with self._strategy.extended.counting(fed.replicas):
                result = self._run_fed(fed)
        except KeyboardInterrupt:
            # The interrupt may have left a device scope open, but the end of Keras's own scope expects the original device.
            devices.place_eager_thread(device)
            raise
        self._extension.seen[self._mode] = fed.elements.spec
        return result

    def described(
        self, elements: Elements, infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, steps: int
    ) -> Callable[[], None]:
        """Returns the program of an execution for analysis. Its number of steps is constant, and its queues stay empty."""

        @tf.function(jit_compile=True, autograph=False)
        def program() -> None:
            count = tf.constant(steps) if self._is_looped(steps) else None
            self._insert(elements, infeed, outfeed, steps, count)

        return self._with_name(program)

    # Programs.

    def _run(self, fed: EpochIterator) -> None:
        """Runs the steps of an execution on the device. Results go to the outfeed. The caller has the turn."""
        if self._mode != "predict":
            self._calls.claim_metrics(fed.replicas)
        if fed.prepared is None or not fed.prepared.is_current:
            fed.prepared = self._prepare(fed, self._outfeed_of(fed))
        fed.prepared.run()

    def _prepare(self, fed: EpochIterator, outfeed: IPUOutfeedQueue) -> PreparedProgram:
        elements, steps = fed.elements, fed.steps
        if elements.key not in self._specs:
            self._shapes.note(f"a step of the model {self._model.name}", elements.spec)
        arguments: tuple[object, ...] = (fed.queue, outfeed)
        is_looped = self._is_looped(steps)
        # The program of a pipeline has a fixed number of steps.
        key = (elements.key, is_looped if self._pipelined is None else steps)
        if is_looped:
            if steps not in self._counts:
                # TensorFlow keeps an int32 in host memory, and copies it to the program through an object that all threads
                # share. The copy fails if an operation of another thread fails, for example at the end of a dataset.
                with tf.device(self._strategy.extended.ipu_device):
                    self._counts[steps] = tf.constant(steps, tf.int64)
            arguments = (*arguments, self._counts[steps])
        if key not in self._programs:
            self._programs[key] = self._make(elements, steps)
        internals.note_program(self._model, self._mode, self._programs[key])
        return self._strategy.prepare(self._programs[key], arguments)

    def _is_looped(self, steps: int) -> bool:
        """Returns True if steps run in a loop. With one step, a loop would only add copies of the weights."""
        return self._pipelined is None and (steps > 1 or self._accumulation is not None)

    def _make(self, elements: Elements, steps: int) -> Callable[..., None]:
        @tf.function(jit_compile=True, autograph=False)
        def program(infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, count: tf.Tensor | None = None) -> None:
            self._traces += 1
            count = None if count is None else tf.cast(count, tf.int32)
            self._insert(elements, infeed, outfeed, steps, count)
            internals.count_steps(self._model, self._mode, steps if count is None else count)

        return self._with_name(program)

    def _insert(
        self,
        elements: Elements,
        infeed: IPUInfeedQueue,
        outfeed: IPUOutfeedQueue,
        steps: int,
        count: tf.Tensor | None,
    ) -> None:
        """Adds steps to the program being traced: as a pipeline, in a loop of `count` steps, or one without a loop."""

        def step() -> None:
            outfeed.enqueue(self._checked_step(elements.unpack(infeed._dequeue())))

        if self._pipelined is not None:
            self._pipelined.run(elements, infeed, outfeed, steps)
        elif count is None:
            step()
        elif self._accumulation is None:
            _repeat(count, step)
        else:
            update = accumulated_step(self._model, step, self._accumulation)
            _repeat(count // self._accumulation.steps, update)
        self._specs[elements.key] = outfeed.element_spec
        if self._pipelined is None:
            self._extension.check_traced(elements.spec)

    def _one_step(self, batch: Nested) -> Nested:
        self._traces += 1
        internals.count_steps(self._model, self._mode, 1)
        return self._checked_step(batch)

    def _checked_step(self, batch: Nested) -> Nested:
        return checked_results(self._model, self._step(batch))

    def _with_name(self, program: Any) -> Callable[..., Any]:
        program.__name__ = self._name
        return program

    # Executions.

    def _run_fed(self, fed: EpochIterator) -> Nested:
        outfeed = self._outfeed_of(fed)
        callbacks = self._calls.current.callbacks if self._calls.current else None
        try:
            if callbacks is not None:
                return self._run_and_report(fed, outfeed, callbacks)
            with self._calls.turn():
                self._run(fed)
            element = self._zeros(fed, outfeed) if self._only_compiles else outfeed.dequeue()
            if self._mode == "predict":
                return self._joined(element, fed)
            if outfeed.outfeed_mode is IPUOutfeedMode.ALL:
                element = _map(lambda part: part[-1], element)
            return self._logs(element, fed.replicas)
        except BaseException:
            fed.has_failed = True  # The outfeed may still hold results of this run, so no other pass may use it.
            raise

    def _outfeed_of(self, fed: EpochIterator) -> IPUOutfeedQueue:
        """Returns the outfeed of a pass. The first execution of the pass selects it, and the end of the pass frees it."""
        if fed.outfeed is not None:
            return fed.outfeed
        each_step = bool(self._calls.current and self._calls.current.callbacks)
        # Queues have fixed shapes, which depend on the data.
        key = (fed.elements.key, self._extension.outfeed_mode(self._mode, each_step), fed.replicas)
        free = self._outfeeds.setdefault(key, [])
        try:
            outfeed = free.pop()
        except IndexError:
            outfeed = self._extension.outfeed(self._mode, each_step)
        fed.outfeed = outfeed

        def end() -> None:
            fed.outfeed = fed.prepared = None
            if not fed.has_failed:
                free.append(outfeed)

        fed.at_end.callback(end)
        return outfeed

    @property
    def _only_compiles(self) -> bool:
        """True if the device only compiles programs. Each execution then returns zeros."""
        return _state.connection_type(self._extension.ordinal) is DeviceConnectionType.PRE_COMPILE

    def _zeros(self, fed: EpochIterator, outfeed: IPUOutfeedQueue) -> Nested:
        """Returns zeros in the shapes of the outfeed's results."""
        outer = [fed.replicas] if fed.replicas > 1 else []
        if outfeed.outfeed_mode is IPUOutfeedMode.ALL:
            # In evaluation, one pass through the pipeline has all steps of an execution.
            passed = self._extension.steps_per_update if self._mode == "train" else fed.steps
            outer = [fed.steps // passed if self._extension.accumulates(self._mode) else fed.steps, *outer]
        spec = self._specs[fed.elements.key]
        return _map(lambda part: tf.zeros([*outer, *part.shape], part.dtype), spec)

    def _run_and_report(self, fed: EpochIterator, outfeed: IPUOutfeedQueue, callbacks: AsynchronousCallbacks) -> Nested:
        elements: list[Nested] = []
        predicts = self._mode == "predict"

        def handle(element: Nested) -> None:
            if not predicts:
                elements.clear()
            elements.append(element)
            for replica in range(fed.replicas):
                value = element if fed.replicas == 1 else _map(lambda part: part[replica], element)  # noqa: B023
                if not predicts:
                    callbacks.report(self._mode, self._named(value))
                    continue
                worker = 0 if self._extension.cluster is None else self._extension.cluster.worker
                number = (len(elements) - 1) * self._all_replicas(fed) + worker * fed.replicas + replica
                value = _without_padding(fed, value, number, 1)
                if value is not None:
                    callbacks.report(self._mode, {"outputs": value})

        if self._only_compiles:
            with self._calls.turn():
                self._run(fed)
            rows = self._zeros(fed, outfeed)
            for step in range(fed.steps):
                handle(_map(lambda part: part[step], rows))  # noqa: B023
        else:
            reader = Reader(outfeed, fed.steps, handle)
            try:
                with self._calls.turn():
                    reader.start()
                    self._run(fed)
                reader.join()
            except BaseException:
                reader.give_up()  # Outside of the turn, because a callback may be waiting for a turn.
                raise
        if not predicts:
            return self._logs(elements[-1], fed.replicas)
        return self._joined(_map(lambda *parts: tf.stack(parts), *elements), fed)

    def _logs(self, element: Nested, replicas: int) -> Nested:
        element = self._named(element)
        cluster = self._extension.cluster
        if cluster is not None:
            element = of_all_workers(cluster, element, replicas)
        elif replicas == 1:
            return element
        reduction = self._extension.options.replication.replicated_metric_reduction_method
        return _map(lambda part: reduction.reduce(np.asarray(part)), element)

    def _named(self, element: Nested) -> Nested:
        """Returns the logs by name. A pipeline in training returns them as a list, after the loss."""
        if isinstance(element, list) and self._mode == "train":
            assert self._pipelined is not None
            return dict(zip(self._pipelined.log_names, element[1:], strict=True))
        return element

    def _all_replicas(self, fed: EpochIterator) -> int:
        """Returns the number of replicas of all workers."""
        cluster = self._extension.cluster
        return fed.replicas * (1 if cluster is None else cluster.workers)

    def _joined(self, elements: Nested, fed: EpochIterator) -> Nested:
        """Returns the predictions of all steps and replicas in the order of the data, without padding."""
        cluster = self._extension.cluster
        if cluster is not None:
            elements = steps_of_all_workers(cluster, elements, fed.replicas)
        axes = 2 if fed.replicas > 1 or cluster is not None else 1

        def join(part: tf.Tensor) -> tf.Tensor:
            shape = part.shape.as_list()
            inner_shape = shape[axes + 1 :] if len(shape) > axes else []
            return tf.reshape(part, [-1, *inner_shape])

        batches = fed.steps * self._all_replicas(fed)
        joined = _without_padding(fed, _map(join, elements), 0, batches)
        fed.batches_done += batches
        return joined

    def _batches(self, source: Nested) -> list[Nested]:
        """Returns the batches of one execution from `source`, data that no infeed reads."""
        batches = list(map(to_tensors, take_elements(source, self._extension.steps_per_execution)))
        if not batches:
            raise StopIteration
        return batches

    def _predict_singly(self, source: Nested) -> Nested:
        batches = self._batches(source)
        with self._calls.turn():
            results = [self._strategy.run(self._single, (batch,)) for batch in batches]
        self._extension.seen[self._mode] = _map(_spec_of, batches[-1])
        return results[0] if len(results) == 1 else _map(lambda *parts: tf.concat(parts, 0), *results)

    def _run_singly(self, source: Nested) -> Nested:
        batches = self._batches(source)
        with self._calls.turn():
            self._calls.claim_metrics()
            self._check_single(batches[0])
            logs = [self._strategy.run(self._single, (batch,)) for batch in batches][-1]
        self._extension.seen[self._mode] = _map(_spec_of, batches[-1])
        return logs if self._extension.cluster is None else self._logs(logs, 1)

    def _check_single(self, batch: Nested) -> None:
        replicas = self._extension.replicas_for(_map(_spec_of, batch))
        if replicas > 1:
            raise ValueError(
                f"The provided dataset contains 1 items, but all {replicas} replicas are requested to run 1 steps each. A"
                f" single batch cannot be shared: use `fit` or `evaluate` with {replicas} batches or more, or configure one"
                " IPU"
            )
        batches = self._extension.steps_per_update if self._mode == "train" else 1
        if batches > 1:
            raise RuntimeError(
                f"The model has been configured to use gradient accumulation for training, but a single batch is not the"
                f" {batches} batches of `gradient_accumulation_steps_per_replica`: use `fit`"
            )


def _without_padding(fed: EpochIterator, predictions: Nested, number: int, batches: int) -> Nested:
    """Returns the predictions of batches from index `number` of the execution on; None if all are of padding."""
    examples = fed.elements.examples
    return (
        predictions if examples is None else examples.without_padding(predictions, fed.batches_done + number, batches)
    )


def _repeat(count: tf.Tensor, body: Callable[[], None]) -> None:
    def run_body(i: tf.Tensor) -> tuple[tf.Tensor]:
        body()
        return (i + 1,)

    tf.while_loop(lambda i: i < count, run_body, (tf.constant(0),), parallel_iterations=1)


def of_all_workers(cluster: Cluster, element: Nested, replicas: int) -> Nested:
    """Returns the outfeed elements of the replicas of all workers, concatenated along the first axis."""
    parts = [np.asarray(part) for part in tf.nest.flatten(element)]
    rows = [part if replicas > 1 else part[None] for part in parts]
    gathered: list[Any] = [None] * len(rows)
    for kind in sorted({row.dtype.str for row in rows}):
        # Tensors of one dtype are gathered together.
        places = [index for index, row in enumerate(rows) if row.dtype.str == kind]
        flat = np.concatenate([rows[index].reshape(replicas, -1) for index in places], axis=1)
        joined = exchange.collective(cluster, "gather", flat, "what the replicas of a model return").numpy()
        begin = 0
        for index in places:
            size = int(np.prod(rows[index].shape[1:]))
            part = joined[:, begin : begin + size]
            gathered[index] = part.reshape(cluster.workers * replicas, *rows[index].shape[1:])
            begin += size
    return tf.nest.pack_sequence_as(element, gathered)


def steps_of_all_workers(cluster: Cluster, elements: Nested, replicas: int) -> Nested:
    """Returns the outfeed elements of several steps on all workers.

    The steps are along the first axis, and the replicas of all workers along the second.
    """

    def joined(part: tf.Tensor) -> tf.Tensor:
        with_replicas = part if replicas > 1 else tf.expand_dims(part, 1)
        # `gather` puts the axis of workers first. The result has it after the axis of steps.
        gathered = exchange.collective(cluster, "gather", with_replicas, "what the replicas of a model predict")
        by_worker = tf.reshape(gathered, [cluster.workers, *with_replicas.shape])
        order = [1, 0, *range(2, len(by_worker.shape))]
        steps, _, *inner_shape = with_replicas.shape
        return tf.reshape(tf.transpose(by_worker, order), [steps, cluster.workers * replicas, *inner_shape])

    return tf.nest.map_structure(joined, elements)


def _spec_of(tensor: tf.Tensor | None) -> tf.TensorSpec | None:
    return None if tensor is None else tf.TensorSpec(tensor.shape, tensor.dtype)


def _map(function: Callable[..., Nested], *structures: Nested) -> Nested:
    return tf.nest.map_structure(function, *structures)
