"""The data of Keras 2 with the words of Keras 3; part of `_keras2`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tf_keras.src.engine import data_adapter

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested


class DataAdapter:
    """Data with the properties that the adapters of Keras 3 have."""

    batch_size: int | None = None
    num_batches: int | None = None
    has_partial_batch = False
    partial_batch_size: int | None = None
    goes_on = False  # Whether one pass has the batches of all epochs.

    def get_tf_dataset(self) -> Any:
        """What is iterated over."""
        raise NotImplementedError

    def on_epoch_begin(self) -> None:
        """Hears of an epoch."""

    def on_epoch_end(self) -> None:
        """Hears of an epoch."""


class TFDatasetAdapter(DataAdapter):
    """A dataset, with weights of classes."""

    def __init__(self, adapter: Any, class_weight: Mapping[int, float] | None) -> None:
        self._dataset = adapter.get_dataset()
        if class_weight:
            self._dataset = self._dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
        cardinality = int(self._dataset.cardinality())
        self.num_batches = cardinality if cardinality >= 0 else None

    def get_tf_dataset(self) -> tf.data.Dataset:
        """The dataset."""
        return self._dataset


class ArrayDataAdapter(DataAdapter):
    """Arrays; stands on `data_adapter.TensorLikeDataAdapter`, and on what makes tensors of its arguments."""

    def __init__(
        self, adapter: Any, tensors: Any, class_weight: Mapping[int, float] | None, shuffle: bool | str
    ) -> None:
        weigh = data_adapter._make_class_weight_map_fn(class_weight) if class_weight else None
        if weigh is not None:
            tensors = weigh(*tensors)
        dataset = adapter.get_dataset()
        self._dataset = dataset if weigh is None else dataset.map(weigh)
        self.arrays = data_adapter.pack_x_y_sample_weight(*tensors)
        self.examples = int(tf.nest.flatten(self.arrays)[0].shape[0])
        self.shuffle = shuffle
        self.batch_size = adapter.batch_size()
        self.num_batches = adapter.get_size()
        self.has_partial_batch = adapter.has_partial_batch()
        self.partial_batch_size = adapter.partial_batch_size()

    def get_tf_dataset(self) -> tf.data.Dataset:
        """The dataset as Keras makes it."""
        return self._dataset


class _OtherData(DataAdapter):
    """Data of other kinds."""


class _FedDataAdapter(data_adapter.DataAdapter):
    """How Keras 2 takes a `DataAdapter` of this file, such as data that a device is fed with, for data."""

    @staticmethod
    def can_handle(x: object, y: object = None) -> bool:
        """Whether it is such data."""
        del y
        return isinstance(x, DataAdapter)

    def __init__(self, x: Any, y: Any = None, **options: Any) -> None:
        super().__init__(x, y)
        self.data = x
        self._steps = options.get("steps")

    def get_dataset(self) -> Any:
        """What is iterated over."""
        return self.data.get_tf_dataset()

    def get_size(self) -> int | None:
        """How many batches there are."""
        return self.data.num_batches

    def batch_size(self) -> int | None:
        """How many examples a batch has."""
        return self.data.batch_size

    def has_partial_batch(self) -> bool:
        """Whether the last batch is smaller."""
        return self.data.has_partial_batch

    def partial_batch_size(self) -> int | None:
        """How many examples the last batch has."""
        return self.data.partial_batch_size

    def should_recreate_iterator(self) -> bool:
        """Whether an epoch begins anew with the data, as for datasets."""
        return not self.data.goes_on and self._steps in (None, self.data.num_batches)

    def on_epoch_end(self) -> None:
        """Tells the data."""
        self.data.on_epoch_end()


# A class of our own in the list is asked for our own data alone.
data_adapter.ALL_ADAPTER_CLS.append(_FedDataAdapter)


_FOR_EVER: dict[str, Any] = {"epochs": None}


def adapter_for(x: Nested, y: Nested, weights: Nested, **options: Any) -> DataAdapter:
    """Keras's view of what a user gave as data; stands on `data_adapter.select_data_adapter`."""
    kind: Any = data_adapter.select_data_adapter(x, y)
    shuffle, class_weight = options["shuffle"], options["class_weight"]
    named = {"sample_weights": weights, "batch_size": options["batch_size"], "steps": options["steps_per_epoch"]}
    if kind is data_adapter.ListsOfScalarsDataAdapter:
        x, y, weights = (None if part is None else tf.convert_to_tensor(part) for part in (x, y, weights))
        return adapter_for(x, y, weights, **options)
    if kind in (data_adapter.TensorLikeDataAdapter, data_adapter.GenericArrayLikeDataAdapter):
        tensors: Any = data_adapter._process_tensorlike((x, y, weights))
        if kind is data_adapter.TensorLikeDataAdapter:
            x, y, named["sample_weights"] = tensors  # Which it would convert anew.
        made = kind(x, y, shuffle=shuffle, **named, **_FOR_EVER)
        return ArrayDataAdapter(made, tensors, class_weight, shuffle)
    if kind is data_adapter.DatasetAdapter:
        return TFDatasetAdapter(kind(x, y, sample_weights=weights, steps=options["steps_per_epoch"]), class_weight)
    if kind is data_adapter.DatasetCreatorAdapter:
        kind(x, y, steps=options["steps_per_epoch"])  # It refuses a missing number of steps.
        return adapter_for(x(tf.distribute.InputContext()), None, None, **options)
    return type(kind.__name__, (_OtherData,), {})()


def arrays_of(adapter: ArrayDataAdapter) -> Nested:
    """The arrays of an adapter."""
    return adapter.arrays


def is_shuffled(adapter: ArrayDataAdapter) -> bool | str:
    """Whether its order is random: True, False, or "batch" for whole batches."""
    return adapter.shuffle


def goes_on(adapter: ArrayDataAdapter) -> bool:
    """Whether one pass over it has the batches of all epochs: where their order is random."""
    return bool(adapter.shuffle)


def examples_of(adapter: ArrayDataAdapter) -> int:
    """How many examples it has."""
    return adapter.examples


def split_off(parts: Nested, fraction: float) -> Any:
    """Arrays to train with, and the rest to validate with; stands on `data_adapter.train_validation_split`."""
    return data_adapter.train_validation_split(parts, validation_split=fraction)
