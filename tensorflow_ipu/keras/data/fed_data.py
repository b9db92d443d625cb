"""The data of `fit`, `evaluate` and `predict`: which is accepted, and how many steps and executions it makes."""

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

_BITS = 40  # Of a number for an order: passes are counted on from it.


class Share:
    """The batches of a worker."""

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
        own: int = batches if batches is not None else -1
        if not self._is_dealt:
            own = int(self.of_next_pass().cardinality()) * cluster.workers
        self.batches = own if own >= 0 else None

    @property
    def changes(self) -> bool:
        """Returns True if each pass has another order."""
        return self._order is not None

    def of_next_pass(self) -> tf.data.Dataset:
        dataset = self._dataset
        if self._make is not None and self._order is not None:
            dataset = self._make(self._order)
            self._order += 1
        return share_of(dataset, self._cluster, self._replicas)

    def agreed(self, steps: int) -> int:
        """Returns how many steps each worker runs, of those that its data makes."""
        form = str(self._dataset.element_spec)
        own = tf.constant([[steps, zlib.crc32(form.encode())]], tf.int64)
        counts, forms = exchange.collective(self._cluster, "gather", own, "how many steps the data makes").numpy().T
        faults = []
        if np.any(counts != steps):
            each = ", ".join(f"worker {worker} has {count}" for worker, count in enumerate(counts.tolist()))
            faults.append(f"of steps, {each}")
        others = [str(worker) for worker, other in enumerate(forms.tolist()) if other != forms[self._cluster.worker]]
        if others:
            faults.append(
                f"batches of worker {', '.join(others)} have other shapes or types than the ones here, {form}"
            )
        if self._is_dealt and faults:
            raise ValueError(
                f"workers share the batches of their data, and must all give the same; but {'; and '.join(faults)}. Give all of"
                " them the same data; or each its own as a dataset whose options say"
                " `experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF`"
            )
        return int(counts.min())


def _agreed_order(cluster: Cluster) -> int | None:
    """Returns a number for the order of all workers; None if `tf.random.set_seed` gave all the same seed."""
    seed = devices.global_seed()
    own = tf.constant([[seed is not None, seed or 0, secrets.randbits(_BITS)]], tf.int64)
    of_all = exchange.collective(cluster, "gather", own, "the order of the data").numpy()
    given, seeds, drawn = of_all.T
    return None if given.all() and (seeds == seeds[0]).all() else int(drawn[0])


class EpochIterator:
    """One pass over the data, fed to programs. Keras takes it for an iterator."""

    def __init__(self, data: FedData, elements: Elements, is_counted: bool) -> None:
        self.elements = elements
        self.steps = data.steps_per_execution
        self.replicas = data.replicas
        self.batches_done = 0  # Of all replicas.
        # What the executions share: a queue for what the steps return, and the prepared program.
        self.outfeed: IPUOutfeedQueue | None = None
        self.prepared: PreparedProgram | None = None
        self.has_failed = False
        self.at_end = contextlib.ExitStack()  # What `close` does.
        self._data = data
        self._queue: IPUInfeedQueue | None = None
        # Whether the data counts how often Keras iterates over it: `shuffle` has another order each time.
        self._is_counted = is_counted

    @property
    def queue(self) -> IPUInfeedQueue:
        """Returns the queue that the programs of this pass take elements from; nothing is read before the first use."""
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
        """Returns what Keras takes for a batch: the spec, by which it builds a model, or in prediction the pass itself."""
        if self._data.for_prediction:
            return self
        self._is_counted = False  # Without a strategy, Keras does not iterate to build.
        return self.elements.spec


class FedData(internals.DataAdapter):
    """Data with its steps, which takes the place of the data that the user gave, for Keras."""

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
        self.when_taken: Callable[[], None] = lambda: None  # Called as Keras begins to iterate.
        self._adapter = adapter
        self._passes: list[EpochIterator] = []
        self._share: Share | None = None
        batches = adapter.num_batches
        everywhere = replicas * (1 if cluster is None else cluster.workers)
        if for_prediction and (cluster is None or is_dealt(elements.source)):
            _check_enough(batches, steps, steps_argument, 1)
            elements, added = _filling(elements, steps or batches or 0, everywhere, steps_per_execution)
            batches, steps = (None if count is None else count + added for count in (batches, steps))
        self._elements = elements
        if cluster is not None:
            # What makes the data in the order of a number; None where its order does not change, or is not ours to say.
            make = None
            if isinstance(adapter, internals.ArrayDataAdapter) and data_elements.is_ours_to_shuffle(adapter):
                make = functools.partial(data_elements.dataset_of, adapter)
            self._share = Share(cluster, batches, replicas, elements.source, make)
            self._elements = Elements(self._share.of_next_pass(), elements.examples)
            batches = self._share.batches
        _check_enough(batches, steps, steps_argument, everywhere)
        total = steps or batches
        assert total is not None
        self.steps = total // everywhere
        if self._share is not None:
            self.steps = self._share.agreed(self.steps)
        self.steps_per_epoch = None if steps is None else self.steps
        self._num_batches = None if batches is None else self.steps if self._share else batches // replicas
        self.steps_per_execution = _executed_at_once(steps_per_execution, self.steps)
        # Whether one pass has the batches of all epochs.
        of_arrays = isinstance(adapter, internals.ArrayDataAdapter)
        self.goes_on = self._share is None and of_arrays and internals.goes_on(adapter)

    @property
    def spec(self) -> Nested:
        """Returns the structure of `tf.TensorSpec` of a batch, None where data is missing."""
        return self._elements.spec

    @property
    def num_batches(self) -> int | None:
        """Returns how many batches a replica gets; None if that is not known."""
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
        """Returns what Keras iterates over, which is the object itself."""
        self.when_taken()
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
    """Adapts the user's data by Keras. Arrays of fewer rows than a batch are one batch, unless `padded`."""
    if x is None or (hasattr(x, "shape") and len(x.shape) and x.shape[0] == 0):
        raise ValueError(f"Expect `x` to be a non-empty array or dataset, but it is {x!r}")
    for name, part in (("x", x), ("y", y)):
        leaves = [leaf for leaf in tf.nest.flatten(part) if isinstance(leaf, (np.ndarray, np.generic, str, bytes))]
        if any(np.asarray(leaf).dtype.kind in "SU" for leaf in leaves):
            raise ValueError(
                f"`{name}` holds strings, which no IPU has: turn them to numbers, as `np.unique({name}, return_inverse=True)`"
                " does of the names of classes"
            )
    options = {"batch_size": batch_size, "steps_per_epoch": steps, "shuffle": shuffle, "class_weight": class_weight}
    adapter = internals.adapter_for(x, y, sample_weight, **options)
    if isinstance(adapter, internals.ArrayDataAdapter) and not padded:
        rows = internals.examples_of(adapter)
        if adapter.batch_size is not None and rows < adapter.batch_size:
            return internals.adapter_for(x, y, sample_weight, **{**options, "batch_size": rows})
    return adapter


def elements_of(adapter: internals.DataAdapter, padded: bool = False) -> Elements:
    """Checks data, and returns its elements, of which the last is padded where it may be."""
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
            f"The provided set of data is of type `{kind}`, which has no static shapes and runs Python at each step. Give"
            " arrays, or a `tf.data.Dataset`: `tf.data.Dataset.from_generator(f, output_signature=...)` makes one of a"
            " generator"
        )


def _check_full(adapter: internals.DataAdapter) -> None:
    if not adapter.has_partial_batch:
        return
    size, rest = adapter.batch_size, adapter.partial_batch_size
    assert size is not None
    assert rest is not None
    assert isinstance(adapter, internals.ArrayDataAdapter)
    examples = internals.examples_of(adapter)
    ways = [f"Set `batch_size` to a divisor of {examples}, such as {_either(_near(_divisors(examples), size))}"]
    if examples > size:
        ways.append(f"leave {rest} examples out")
        ways.append("make a dataset of full batches with `batch(..., drop_remainder=True)`")
    raise ValueError(
        f"The provided set of data has a partial batch: of {examples} examples, batches of {size} leave a last one of"
        f" {rest}, and a program for an IPU has static shapes. {'; or '.join(ways)}"
    )


def _check_enough(batches: int | None, steps: int | None, argument: str, replicas: int) -> None:
    if steps is None and batches is None:
        raise ValueError(
            "Could not infer the size of the data, which is infinite or unknown. Say how many batches an epoch has: set"
            f" `{argument}`, or use `dataset.take(n)` or `dataset.apply(tf.data.experimental.assert_cardinality(n))`"
        )
    if steps is not None and batches is not None and steps > batches:
        raise ValueError(
            f"Your input does not have enough data: `{argument}` is {steps}, and the data makes {batches} batches. Set"
            f" `{argument}` to {batches} or less, leave it out, or `repeat()` the dataset"
        )
    total = steps or batches
    assert total is not None
    if total < replicas:
        raise ValueError(
            f"The provided dataset contains {total} items, but all {replicas} replicas are requested to run 1 steps each."
            f" Give {replicas} batches or more, such as by a smaller `batch_size`, or configure fewer IPUs"
        )


def _filling(elements: Elements, batches: int, everywhere: int, wanted: int) -> tuple[Elements, int]:
    """Adds batches until all replicas have as many, and all executions as many steps; returns how many it added."""
    steps = -(-batches // everywhere)
    added = -batches % (everywhere * min(wanted, steps))
    size = data_elements.rows_of(elements.spec)
    if not added or size is None:
        return elements, 0
    examples = (elements.examples or data_elements.Examples(size, batches * size)).limited(batches)
    return Elements(data_elements.extended(elements.source, batches, added), examples), added


def _executed_at_once(wanted: int, steps: int) -> int:
    """Returns how many steps an execution has, at most as many as the user wants."""
    if wanted > steps:
        warnings.warn(
            f"`steps_per_execution` is {wanted}, and there are {steps} steps: one execution runs them all",
            stacklevel=tracebacks.stack_level(),
        )
        return steps
    if steps % wanted:
        counts = [count for count in (steps // wanted * wanted, (steps // wanted + 1) * wanted) if count]
        raise ValueError(
            f"`steps_per_execution` ({wanted}) must be a divisor of the number of batches ({steps}) in the dataset provided:"
            f" compile the model with `steps_per_execution={_either(_near(_divisors(steps), wanted))}`, or give a number of"
            f" batches that {wanted} divides, such as {_either(counts)}"
        )
    return wanted


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _near(numbers: list[int], wanted: int) -> list[int]:
    """Returns the nearest number on each side of the wanted one."""
    return [n for n in numbers if n < wanted][-1:] + [n for n in numbers if n > wanted][:1]


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def taken(source: Iterable[Nested], count: int) -> Iterator[Nested]:
    """Yields so many elements of data, or those that it has left."""
    if isinstance(source, list) or not isinstance(source, tf.data.Iterator):
        yield from itertools.islice(source, count)
        return
    for _ in range(count):
        # The error of an operation at the end would reach copies between devices of other threads.
        element: Any = source.get_next_as_optional()
        if not element.has_value():
            return
        yield element.get_value()


def to_tensors(batch: Nested) -> Nested:
    """Returns a batch that the user passed by itself, in types that an IPU has. None stays None."""

    def convert(leaf: TensorLike | None) -> tf.Tensor | None:
        if leaf is None:
            return None
        tensor = tf.convert_to_tensor(leaf)
        return tf.cast(tensor, device_dtype(tensor.dtype))

    return tf.nest.map_structure(convert, batch)
