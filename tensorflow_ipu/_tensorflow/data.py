"""Datasets as the runtime has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.util import nest

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested

# The base class of iterators over which AutoGraph turns `for` into a loop of the graph, by `get_next_as_optional`. Of
# `tf.data.Iterator`, which is public, it knows nothing: such a `for` would be unrolled as it is traced, without an end.
# When it is gone: `type(iter(tf.data.Dataset.range(1)))`.
OwnedIterator = iterator_ops.OwnedIterator


def as_run(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset with what `tf.data.experimental.enable_debug_mode` asks for, as TensorFlow's own iterators begin.

    Stands on `DatasetV2._apply_debug_options`, which nothing public calls. When it is gone: the dataset as it is.
    """
    return dataset._apply_debug_options()


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """The options of a dataset; stands on `DatasetV2._options_attr`.

    In a graph, `options()` gives the same with a warning that is not for the user. When it is gone: that, in
    `warnings.catch_warnings`.
    """
    return dataset.options() if tf.executing_eagerly() else dataset._options_attr


def with_paths(structure: Nested) -> list[tuple[str, Any]]:
    """The leaves of a structure in `tf.nest` order, each with the way to it: keys and positions, with `/` between.

    Stands on `nest.flatten_with_joined_string_paths`; `tf.nest` flattens without paths. When it is gone: `tf.nest.flatten`
    of what `tf.nest.map_structure` makes, and a walk through dicts, tuples and attributes.
    """
    found: Any = nest.flatten_with_joined_string_paths(structure)
    return list(found)


def auto_sharded(dataset: tf.data.Dataset, workers: int, worker: int) -> tf.data.Dataset:
    """The share of a worker by the policy of the dataset's options: by files, or where the dataset says `SHARD_HINT`.

    Stands on `_AutoShardDataset`, by which the strategies of `tf.distribute` shard. When it is gone:
    `tf.raw_ops.AutoShardDataset` on the variant of the dataset.
    """
    sharded: Any = distribute._AutoShardDataset(dataset, workers, worker)
    return sharded
