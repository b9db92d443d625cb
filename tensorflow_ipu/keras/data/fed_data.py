"""Checks the data of `fit`, `evaluate` and `predict`, and counts its steps and executions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._tensorflow import devices
from tensorflow_ipu._tensorflow.variables import OwnedIterator
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.hosts import Cluster, exchange
from tensorflow_ipu.keras._keras import internals
from tensorflow_ipu.keras.data import elements as data_elements
from tensorflow_ipu.keras.data.elements import Elements, device_dtype
from tensorflow_ipu.programs.diagnostics import tracebacks
from tensorflow_ipu.strategy.share import is_dealt, share_of

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested, TensorLike
    from tensorflow_ipu.strategy.ipu_strategy import PreparedProgram

# The size of a random number that determines the order of the first pass. Each later pass uses the next number.
_BITS = 40


class Share:
    """The batches of one worker."""

    def __init__(
        self,
        cluster: Cluster,
        batches: int | None,
        replicas: int,
        dataset: tf.data.Dataset,
        make: Callable[[int], tf.data.Dataset] | None,
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._make = make
        self._order = _agreed_order(cluster) if make is not None else None
        self._dataset = dataset
        self._is_dealt = is_dealt(dataset)
        count: int = batches if batches is not None else -1
        if not self._is_dealt:
            count = int(self.of_next_pass().cardinality()) * cluster.workers
        self.batches = count if count >= 0 else None

    @property
    def changes(self) -> bool:
        """True if `of_next_pass` returns the data in another order each time."""
        return self._order is not None

    def of_next_pass(self) -> tf.data.Dataset:
        dataset = self._dataset
        if self._make is not None and self._order is not None:
            dataset = self._make(self._order)
            self._order += 1
        return share_of(dataset, self._cluster, self._replicas)

    def agreed(self, steps: int) -> int:
        """Returns the number of steps that all workers run: the smallest of their `steps`.

        Raises `ValueError` if workers share the batches of their data, and pass different data.
        """
        form = str(self._dataset.element_spec)
        status = tf.constant([[steps, zlib.crc32(form.encode())]], tf.int64)
        counts, forms = exchange.collective(self._cluster, "gather", status, "how many steps the data makes").numpy().T
        differences = []
        if np.any(counts != steps):
            counts_by_worker = ", ".join(f"worker {worker} has {count}" for worker, count in enumerate(counts.tolist()))
            differences.append(f"of steps, {counts_by_worker}")
        mismatched = [
            str(worker)
            for worker, form_of_worker in enumerate(forms.tolist())
            if form_of_worker != forms[self._cluster.worker]
        ]
        if mismatched:
            differences.append(
                f"batches of worker {', '.join(mismatched)} have other shapes or types than the ones here, {form}"
            )
        if self._is_dealt and differences:
            raise ValueError(
                "workers share the batches of their data, so all must pass the same data, but"
                f" {'; and '.join(differences)}. Give all of them the same data; or pass each its own data as a dataset with"
                " the option `experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF`"
            )
        return int(counts.min())


def _agreed_order(cluster: Cluster) -> int | None:
    """Returns a number that determines the order of the data on all workers.

    Returns None if `tf.random.set_seed` set the same seed on all workers, so that they draw the same order anyway.
    """
    seed = devices.global_seed()
    proposal = tf.constant([[seed is not None, seed or 0, secrets.randbits(_BITS)]], tf.int64)
    proposals = exchange.collective(cluster, "gather", proposal, "the order of the data").numpy()
    has_seed, seeds, drawn = proposals.T
    return None if has_seed.all() and (seeds == seeds[0]).all() else int(drawn[0])


class EpochIterator:
    """One pass over the data, which programs read. Keras uses it as the iterator of an epoch."""

    def __init__(self, data: FedData, elements: Elements, is_counted: bool) -> None:
        self.elements = elements
        self.steps = data.steps_per_execution
        self.replicas = data.replicas
        self.batches_done = 0  # The batches of all replicas.
        # All executions of the pass share a queue for results, and the prepared program.
        self.outfeed: IPUOutfeedQueue | None = None
        self.prepared: PreparedProgram | None = None
        self.has_failed = False
        self.at_end = contextlib.ExitStack()  # Runs in `close`.
        self._data = data
        self._queue: IPUInfeedQueue | None = None
        # True if the pass must iterate even without a read: each iteration changes the order of a shuffled dataset.
        self._is_counted = is_counted

    @property
    def queue(self) -> IPUInfeedQueue:
        """The infeed of this pass. Nothing is read before its first use."""
        if self._queue is None:
            queue = IPUInfeedQueue(
                self.elements.dataset, device_ordinal=self._data.ordinal, **self._data.infeed_options
            )
            queue.initializer  # noqa: B018
            self._queue = queue
            self.at_end.callback(lambda: queue.deleter)
        return self._queue

    def close(self) -> None:
        if self._queue is None and self._is_counted:
            OwnedIterator(self.elements.dataset)
        self._queue, self._is_counted = None, False
        self.at_end.close()

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Nested:
        """Returns the spec of a batch, from which Keras builds the model. In prediction, returns this object."""
        if self._data.for_prediction:
            return self
        # This pass only builds the model. Plain Keras iterates over no data for that, so the order must not change.
        self._is_counted = False
        return self.elements.spec


class FedData(internals.DataAdapter):
    """The data of one call of `fit` or a similar method, and its number of steps. It replaces the user's data in the call."""

    def __init__(
        self,
        adapter: internals.DataAdapter,
        elements: Elements,
        *,
        steps: int | None,
        steps_argument: str,
        steps_per_execution: int,
        replicas: int,
        ordinal: int,
        infeed_options: Mapping[str, Any],
        for_prediction: bool,
        cluster: Cluster | None = None,
    ) -> None:
        self.ordinal = ordinal
        self.infeed_options = infeed_options
        self.for_prediction = for_prediction
        self.replicas = replicas
        self.on_iteration: Callable[[], None] = lambda: None  # Called when Keras begins to iterate.
        self._adapter = adapter
        self._passes: list[EpochIterator] = []
        self._share: Share | None = None
        batches = adapter.num_batches
        all_replicas = replicas * (1 if cluster is None else cluster.workers)
        if for_prediction and (cluster is None or is_dealt(elements.source)):
            _check_enough(batches, steps, steps_argument, 1)
            elements, added = _fill_executions(elements, steps or batches or 0, all_replicas, steps_per_execution)
            batches, steps = (None if count is None else count + added for count in (batches, steps))
        self._elements = elements
        if cluster is not None:
            # `make` returns the data in the order that a number determines; None if this package does not shuffle the data.
            make = None
            if isinstance(adapter, internals.ArrayDataAdapter) and data_elements.is_ours_to_shuffle(adapter):
                make = functools.partial(data_elements.dataset_of, adapter)
            self._share = Share(cluster, batches, replicas, elements.source, make)
            self._elements = Elements(self._share.of_next_pass(), elements.examples)
            batches = self._share.batches
        _check_enough(batches, steps, steps_argument, all_replicas)
        total = steps or batches
        assert total is not None
        self.steps = total // all_replicas
        if self._share is not None:
            self.steps = self._share.agreed(self.steps)
        self.steps_per_epoch = None if steps is None else self.steps
        self._num_batches = None if batches is None else self.steps if self._share else batches // replicas
        self.steps_per_execution = _checked_steps_per_execution(steps_per_execution, self.steps)
        # True if one pass has the batches of all epochs.
        of_arrays = isinstance(adapter, internals.ArrayDataAdapter)
        self.has_all_epochs = self._share is None and of_arrays and internals.has_all_epochs(adapter)

    @property
    def spec(self) -> Nested:
        """The `tf.TensorSpec` structure of a batch, with None for missing data."""
        return self._elements.spec

    @property
    def num_batches(self) -> int | None:
        """The number of batches of a replica, or None if it is unknown."""
        return self._num_batches

    @property
    def batch_size(self) -> int | None:
        return self._adapter.batch_size

    @property
    def has_partial_batch(self) -> bool:
        return False

    @property
    def partial_batch_size(self) -> None:
        return

    def on_epoch_begin(self) -> None:
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._adapter.on_epoch_end()

    def get_tf_dataset(self) -> FedData:
        """Returns this object, over which Keras iterates."""
        self.on_iteration()
        return self

    def __iter__(self) -> EpochIterator:
        self.close()
        if self._share is not None and self._share.changes:
            self._elements = Elements(self._share.of_next_pass())
        started = EpochIterator(self, self._elements, isinstance(self._adapter, internals.TFDatasetAdapter))
        self._passes.append(started)
        return started

    def close(self) -> None:
        while self._passes:
            self._passes.pop().close()


def adapt(
    x: Nested,
    y: Nested,
    sample_weight: Nested,
    batch_size: int | None,
    steps: int | None,
    shuffle: bool | str,
    class_weight: Mapping[int, float] | None,
    padded: bool = False,
) -> internals.DataAdapter:
    """Returns Keras's adapter of the user's data. Arrays shorter than a batch become one batch, unless `padded`."""
    if x is None or (hasattr(x, "shape") and len(x.shape) and x.shape[0] == 0):
        raise ValueError(f"Expect `x` to be a non-empty array or dataset, but it is {x!r}")
    for name, part in (("x", x), ("y", y)):
        leaves = [leaf for leaf in tf.nest.flatten(part) if isinstance(leaf, (np.ndarray, np.generic, str, bytes))]
        if any(np.asarray(leaf).dtype.kind in "SU" for leaf in leaves):
            raise ValueError(
                f"`{name}` holds strings, which IPUs do not support: convert them to numbers, for example names of classes with"
                f" `np.unique({name}, return_inverse=True)`"
            )
    options = {"batch_size": batch_size, "steps_per_epoch": steps, "shuffle": shuffle, "class_weight": class_weight}
    adapter = internals.adapter_for(x, y, sample_weight, **options)
    if isinstance(adapter, internals.ArrayDataAdapter) and not padded:
        rows = internals.examples_of(adapter)
        if adapter.batch_size is not None and rows < adapter.batch_size:
            return internals.adapter_for(x, y, sample_weight, **{**options, "batch_size": rows})
    return adapter


def elements_of(adapter: internals.DataAdapter, padded: bool = False) -> Elements:
    """Checks data and returns its elements. If `padded`, partial batches are filled."""
    _check_kind(adapter)
    if not padded:
        _check_full(adapter)
    of_arrays = isinstance(adapter, internals.ArrayDataAdapter)
    dataset = data_elements.dataset_of(adapter) if of_arrays else adapter.get_tf_dataset()
    if not padded:
        return Elements(dataset)
    if data_elements.may_be_partial(dataset.element_spec):
        size = adapter.batch_size or data_elements.known_size(dataset)
        return Elements(dataset) if size is None else Elements(*data_elements.filled(dataset, size))
    if adapter.has_partial_batch:
        assert isinstance(adapter, internals.ArrayDataAdapter)
        assert adapter.batch_size is not None
        return Elements(dataset, data_elements.Examples(adapter.batch_size, internals.examples_of(adapter)))
    return Elements(dataset)


def _check_kind(adapter: internals.DataAdapter) -> None:
    if not isinstance(adapter, (internals.ArrayDataAdapter, internals.TFDatasetAdapter)):
        kind = type(adapter).__name__.removesuffix("Adapter").removesuffix("Data")
        raise ValueError(
            f"The provided set of data is of type `{kind}`, which has no static shapes and runs Python at each step. Pass"
            " arrays, or a `tf.data.Dataset`: `tf.data.Dataset.from_generator(f, output_signature=...)` makes one of a"
            " generator"
        )


def _check_full(adapter: internals.DataAdapter) -> None:
    if not adapter.has_partial_batch:
        return
    size, remainder = adapter.batch_size, adapter.partial_batch_size
    assert size is not None
    assert remainder is not None
    assert isinstance(adapter, internals.ArrayDataAdapter)
    examples = internals.examples_of(adapter)
    suggestions = [
        f"Set `batch_size` to a divisor of {examples}, such as {_join_with_or(_nearest(_divisors(examples), size))}"
    ]
    if examples > size:
        suggestions.append(f"leave {remainder} examples out")
        suggestions.append("make a dataset of full batches with `batch(..., drop_remainder=True)`")
    raise ValueError(
        f"The provided set of data has a partial batch: of {examples} examples, batches of {size} leave a last one of"
        f" {remainder}, but a program for an IPU has static shapes. {'; or '.join(suggestions)}"
    )


def _check_enough(batches: int | None, steps: int | None, argument: str, replicas: int) -> None:
    if steps is None and batches is None:
        raise ValueError(
            "Could not infer the size of the data, which is infinite or unknown. Specify how many batches an epoch has: set"
            f" `{argument}`, or use `dataset.take(n)` or `dataset.apply(tf.data.experimental.assert_cardinality(n))`"
        )
    if steps is not None and batches is not None and steps > batches:
        raise ValueError(
            f"Your input does not have enough data: `{argument}` is {steps}, but the data makes {batches} batches. Set"
            f" `{argument}` to {batches} or less, omit it, or `repeat()` the dataset"
        )
    total = steps or batches
    assert total is not None
    if total < replicas:
        raise ValueError(
            f"The provided dataset contains {total} items, but all {replicas} replicas are requested to run 1 steps each."
            f" Give {replicas} batches or more, such as by a smaller `batch_size`, or configure fewer IPUs"
        )


def _fill_executions(
    elements: Elements, batches: int, all_replicas: int, steps_per_execution: int
) -> tuple[Elements, int]:
    """Returns elements with batches added until all executions of all replicas are full, and how many were added.

    For example, 10 batches on 2 replicas with 3 steps per execution make 5 steps. One more step fills the second
    execution, so 2 batches are added.
    """
    steps = -(-batches // all_replicas)
    added = -batches % (all_replicas * min(steps_per_execution, steps))
    size = data_elements.rows_of(elements.spec)
    if not added or size is None:
        return elements, 0
    examples = (elements.examples or data_elements.Examples(size, batches * size)).limited(batches)
    return Elements(data_elements.extended(elements.source, batches, added), examples), added


def _checked_steps_per_execution(requested: int, steps: int) -> int:
    """Returns the number of steps in an execution: the requested number, or all steps if there are fewer.

    Raises `ValueError` if the number does not divide the number of steps.
    """
    if requested > steps:
        warnings.warn(
            f"`steps_per_execution` is {requested}, and there are {steps} steps: one execution runs them all",
            stacklevel=tracebacks.stack_level(),
        )
        return steps
    if steps % requested:
        counts = [count for count in (steps // requested * requested, (steps // requested + 1) * requested) if count]
        raise ValueError(
            f"`steps_per_execution` ({requested}) must be a divisor of the number of batches ({steps}) in the dataset provided:"
            f" compile the model with `steps_per_execution={_join_with_or(_nearest(_divisors(steps), requested))}`, or pass"
            f" a number of batches that {requested} divides, such as {_join_with_or(counts)}"
        )
    return requested


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _nearest(numbers: list[int], target: int) -> list[int]:
    """Returns the nearest values below and above a target."""
    return [n for n in numbers if n < target][-1:] + [n for n in numbers if n > target][:1]


def _join_with_or(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def take_elements(source: Iterable[Nested], count: int) -> Iterator[Nested]:
    """Yields the next `count` elements of data, or all that are left."""
    if isinstance(source, list) or not isinstance(source, tf.data.Iterator):
        yield from itertools.islice(source, count)
        return
    for _ in range(count):
        # `get_next` would raise an error at the end of the data, which fails copies between devices on other threads.
        element: Any = source.get_next_as_optional()
        if not element.has_value():
            return
        yield element.get_value()


def to_tensors(batch: Nested) -> Nested:
    """Returns a user's batch as tensors of dtypes that IPUs support. None stays None."""

    def convert(leaf: TensorLike | None) -> tf.Tensor | None:
        if leaf is None:
            return None
        tensor = tf.convert_to_tensor(leaf)
        return tf.cast(tensor, device_dtype(tensor.dtype))

    return tf.nest.map_structure(convert, batch)
