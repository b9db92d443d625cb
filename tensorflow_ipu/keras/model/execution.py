"""One execution of Keras's loops: the steps of a program, and what they return put together for Keras."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.config import DeviceConnectionType, _state
from tensorflow_ipu.feeds import IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.hosts import Cluster, exchange
from tensorflow_ipu.keras.data import fed_data
from tensorflow_ipu.keras.model.callbacks import AsynchronousCallbacks, Reader
from tensorflow_ipu.keras.model.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras.model.extension import Extension


def of_all_workers(cluster: Cluster, element: Nested, replicas: int) -> Nested:
    """What the replicas of all workers have left in their outfeeds, one behind the other along the first axis."""
    parts = [np.asarray(part) for part in tf.nest.flatten(element)]
    rows = [part if replicas > 1 else part[None] for part in parts]
    gathered: list[Any] = [None] * len(rows)
    for kind in sorted({row.dtype.str for row in rows}):
        # Those of a type cross together.
        places = [at for at, row in enumerate(rows) if row.dtype.str == kind]
        flat = np.concatenate([rows[at].reshape(replicas, -1) for at in places], axis=1)
        joined = exchange.all_gather(cluster, flat, "what the replicas of a model return").numpy()
        begin = 0
        for at in places:
            size = int(np.prod(rows[at].shape[1:]))
            part = joined[:, begin : begin + size]
            gathered[at] = part.reshape(cluster.workers * replicas, *rows[at].shape[1:])
            begin += size
    return tf.nest.pack_sequence_as(element, gathered)


def steps_of_all_workers(cluster: Cluster, elements: Nested, replicas: int) -> Nested:
    """The same of several steps, which are along the first axis: in the result too, and all replicas along the second."""

    def joined(part: tf.Tensor) -> tf.Tensor:
        own = part if replicas > 1 else tf.expand_dims(part, 1)
        # The axis of workers comes in front, and belongs behind that of steps.
        of_all = exchange.all_gather(cluster, own, "what the replicas of a model predict")
        by_worker = tf.reshape(of_all, [cluster.workers, *own.shape])
        order = [1, 0, *range(2, len(by_worker.shape))]
        steps, _, *rest = own.shape
        return tf.reshape(tf.transpose(by_worker, order), [steps, cluster.workers * replicas, *rest])

    return tf.nest.map_structure(joined, elements)


class Execution:
    """Runs the steps of one execution, for Keras."""

    def __init__(self, extension: Extension, mode: str, loop: Loop) -> None:
        """Makes executions of `"train"`, `"test"` or `"predict"` by the programs of `loop`."""
        self._extension = extension
        self._mode = mode
        self._loop = loop
        self._outfeeds: dict[Hashable, IPUOutfeedQueue] = {}
        self._replicas = 1

    def __call__(self, source: Nested) -> Nested:
        """Runs an execution."""
        fed = source[0] if isinstance(source, list) and source else source
        if not isinstance(fed, fed_data.EpochIterator):
            return self._predict_singly(source) if self._mode == "predict" else self._run_singly(source)
        self._replicas = fed.replicas
        with self._extension.strategy.extended.counting(fed.replicas):
            result = self._run_fed(fed)
        self._extension.seen[self._mode] = fed.elements.spec
        return result

    def _run_fed(self, fed: fed_data.EpochIterator) -> Nested:
        outfeed = self._queue(fed)
        try:
            if self._extension.callbacks is None:
                self._loop.run(fed.elements, fed.queue, outfeed, fed.steps)
                element = self._zeros(fed, outfeed) if self._only_compiles else outfeed.dequeue()
                if self._mode != "predict" and outfeed._mode is IPUOutfeedMode.ALL:
                    element = _map(lambda part: part[-1], element)
                return self._logs(element) if self._mode != "predict" else self._joined(element)
            return self._run_and_report(fed, outfeed, self._extension.callbacks)
        except BaseException:
            self._outfeeds.clear()  # What they hold belongs to this run.
            raise

    @property
    def _only_compiles(self) -> bool:
        """Whether the device runs nothing, and each execution returns zeros."""
        return _state.connection_type(self._extension.ordinal) is DeviceConnectionType.PRE_COMPILE

    def _zeros(self, fed: fed_data.EpochIterator, outfeed: IPUOutfeedQueue) -> Nested:
        """What an execution would have left in the outfeed, all zeros."""
        outer = [self._replicas] if self._replicas > 1 else []
        if outfeed.outfeed_mode is IPUOutfeedMode.ALL:
            # Evaluation has all steps of an execution in the pipeline at once.
            passed = self._extension.steps_per_update if self._mode == "train" else fed.steps
            outer = [fed.steps // passed if self._extension.accumulates(self._mode) else fed.steps, *outer]
        spec = self._loop.returned_spec(fed.elements)
        return _map(lambda part: tf.zeros([*outer, *part.shape], part.dtype), spec)

    def _queue(self, fed: fed_data.EpochIterator) -> IPUOutfeedQueue:
        """The queue for what the steps return: another one for other shapes, which depend on the data."""
        wanted = self._extension.outfeed_mode(self._mode)
        key = (fed.elements.key, wanted, self._replicas)
        if key not in self._outfeeds:
            self._outfeeds[key] = self._extension.outfeed(self._mode)
        return self._outfeeds[key]

    def _run_and_report(
        self, fed: fed_data.EpochIterator, outfeed: IPUOutfeedQueue, callbacks: AsynchronousCallbacks
    ) -> Nested:
        elements: list[Nested] = []

        def handle(element: Nested) -> None:
            if self._mode != "predict":
                elements[:] = [element]
            else:
                elements.append(element)
            for replica in range(self._replicas):
                value = element if self._replicas == 1 else _map(lambda part: part[replica], element)  # noqa: B023
                if self._mode != "predict":
                    value = self._named(value)
                callbacks.report(self._mode, value if self._mode != "predict" else {"outputs": value})

        if self._only_compiles:
            self._loop.run(fed.elements, fed.queue, outfeed, fed.steps)
            rows = self._zeros(fed, outfeed)
            for step in range(fed.steps):
                handle(_map(lambda part: part[step], rows))  # noqa: B023
            return self._reported(elements)
        reader = Reader(outfeed, fed.steps, handle)
        try:
            self._loop.run(fed.elements, fed.queue, outfeed, fed.steps)
        except BaseException:
            reader.give_up()
            raise
        reader.join()
        return self._reported(elements)

    def _reported(self, elements: list[Nested]) -> Nested:
        if self._mode != "predict":
            return self._logs(elements[-1])
        return self._joined(_map(lambda *parts: tf.stack(parts), *elements))

    def _logs(self, element: Nested) -> Nested:
        element = self._named(element)
        cluster = self._extension.cluster
        if cluster is not None:
            element = of_all_workers(cluster, element, self._replicas)
        elif self._replicas == 1:
            return element
        reduction = self._extension.options.replication.replicated_metric_reduction_method
        return _map(lambda part: reduction.reduce(np.asarray(part)), element)

    def _named(self, element: Nested) -> Nested:
        """The logs. A pipeline in training hands them over in a list, behind the loss."""
        if isinstance(element, list) and self._mode == "train":
            return dict(zip(self._extension.log_names, element[1:], strict=True))
        return element

    def _joined(self, elements: Nested) -> Nested:
        """The predictions of all steps and replicas, in the order of the data."""
        cluster = self._extension.cluster
        if cluster is not None:
            elements = steps_of_all_workers(cluster, elements, self._replicas)
        axes = 2 if self._replicas > 1 or cluster is not None else 1

        def join(part: tf.Tensor) -> tf.Tensor:
            shape = part.shape.as_list()
            kept = shape[axes + 1 :] if len(shape) > axes else []
            return tf.reshape(part, [-1, *kept])

        return _map(join, elements)

    def _predict_singly(self, batches: Nested) -> Nested:
        results = []
        for batch in map(fed_data.to_tensors, batches):
            results.append(self._loop.run_single(batch))
            self._extension.seen[self._mode] = _map(_spec_of, batch)
        return results[0] if len(results) == 1 else _map(lambda *parts: tf.concat(parts, 0), *results)

    def _run_singly(self, source: Nested) -> Nested:
        batches = [
            fed_data.to_tensors(batch) for batch in itertools.islice(source, self._extension.model.steps_per_execution)
        ]
        if not batches:
            raise StopIteration
        self._replicas = replicas = self._extension.replicas_for(_map(_spec_of, batches[0]))
        if replicas > 1:
            raise ValueError(
                f"The provided dataset contains 1 items, but all {replicas} replicas are requested to run 1 steps each. A"
                f" single batch cannot be shared: use `fit` or `evaluate` with {replicas} batches or more, or configure one"
                " IPU"
            )
        wanted = self._extension.steps_per_update if self._mode == "train" else 1
        if wanted > 1:
            raise RuntimeError(
                f"The model has been configured to use gradient accumulation for training, and a single batch is not the"
                f" {wanted} that `gradient_accumulation_steps_per_replica` says: use `fit`"
            )
        logs = [self._loop.run_single(batch) for batch in batches][-1]
        self._extension.seen[self._mode] = _map(_spec_of, batches[-1])
        return logs if self._extension.cluster is None else self._logs(logs)


def _spec_of(tensor: tf.Tensor | None) -> tf.TensorSpec | None:
    return None if tensor is None else tf.TensorSpec(tensor.shape, tensor.dtype)


def _map(function: Callable[..., Nested], *structures: Nested) -> Nested:
    return tf.nest.map_structure(function, *structures)
