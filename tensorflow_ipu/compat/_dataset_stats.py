"""The dataset statistics of TensorFlow up to 2.5, implemented with the kernels that TensorFlow still has for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import tensorflow as tf

from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._tensorflow.patches import Changes

_ATTRIBUTE = "_ipu_stats"


class StatsAggregator:
    """Collects the statistics of the datasets whose options name it."""

    def __init__(self) -> None:
        self._resource = tf.raw_ops.StatsAggregatorHandle()

    def get_summary(self) -> tf.Tensor:
        """Returns the statistics so far as a string tensor that holds a serialized `tf.compat.v1.Summary`."""
        return tf.raw_ops.StatsAggregatorSummary(iterator=self._resource)


@dataclass(eq=False)
class StatsOptions:
    """The statistics options of a dataset, as in `tf.data.Options().experimental_stats`."""

    aggregator: StatsAggregator | None = None
    prefix: str = ""  # All tags begin with it.
    counter_prefix: str = ""
    latency_all_edges: bool = False  # If True, records the latency of the whole dataset, not of each edge.


class _RecordingDataset(tf.data.Dataset):
    """A dataset with the elements of another one. `operation` creates it and records statistics of the elements."""

    def __init__(self, dataset: tf.data.Dataset, operation: Callable[..., tf.Tensor], **arguments: object) -> None:
        self._input = dataset
        specs = tf.nest.flatten(dataset.element_spec)
        variant = operation(
            input_dataset=tf.data.experimental.to_variant(dataset),
            output_types=[getattr(spec, "dtype", tf.variant) for spec in specs],
            output_shapes=[spec.shape if isinstance(spec, tf.TensorSpec) else None for spec in specs],
            **arguments,
        )
        super().__init__(variant)  # pyright: ignore[reportCallIssue]  # The stub of `Dataset` has no `__init__`.

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._input]

    @property
    def element_spec(self) -> Nested:
        return cast("Nested", self._input.element_spec)


def latency_stats(tag: str) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a function for `Dataset.apply` that records how long each element takes, in microseconds."""
    return lambda dataset: _RecordingDataset(dataset, tf.raw_ops.LatencyStatsDataset, tag=tag)


def bytes_produced_stats(tag: str) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a function for `Dataset.apply` that records how many bytes each element has."""
    return lambda dataset: _RecordingDataset(dataset, tf.raw_ops.BytesProducedStatsDataset, tag=tag)


def bridge(changes: Changes) -> None:
    """Adds `experimental_stats` to `tf.data.Options` and makes datasets apply it. Undoing `changes` reverts both."""
    changes.put(tf.data.Options, "experimental_stats", property(_stats_of, _set_stats))
    changes.put(tf.data.Dataset, "with_options", _with_options(tf.data.Dataset.with_options))


def _stats_of(options: tf.data.Options) -> StatsOptions:
    stats = vars(options).get(_ATTRIBUTE)
    if stats is None:
        stats = StatsOptions()
        _set_stats(options, stats)
    return stats


def _set_stats(options: tf.data.Options, stats: StatsOptions) -> None:
    object.__setattr__(options, _ATTRIBUTE, stats)  # `Options.__setattr__` rejects names that it does not declare.


def _with_options(original: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    @functools.wraps(original)
    def with_options(
        self: tf.data.Dataset, options: tf.data.Options, *args: object, **kwargs: object
    ) -> tf.data.Dataset:
        dataset = original(self, options, *args, **kwargs)
        stats: StatsOptions | None = vars(options).get(_ATTRIBUTE)
        if stats is None or stats.aggregator is None:
            return dataset
        if stats.latency_all_edges:
            dataset = latency_stats("record_latency")(dataset)
        return _RecordingDataset(
            dataset,
            tf.raw_ops.SetStatsAggregatorDataset,
            stats_aggregator=stats.aggregator._resource,
            tag=stats.prefix,
            counter_prefix=stats.counter_prefix,
        )

    return with_options
