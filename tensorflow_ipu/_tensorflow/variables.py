"""Handles of variables and other resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.data.util import structure
from tensorflow.python.framework import composite_tensor
from tensorflow.python.ops import handle_data_util, resource_variable_ops
from tensorflow.python.util import nest

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu._base.types import Nested

# The class of variables on devices. `tf.Variable` is public, and a base class of others. When it is gone:
# `type(tf.Variable(0)).__mro__` has its heir.
ResourceVariable = resource_variable_ops.BaseResourceVariable


def of_trace(initial: tf.Tensor, name: str, *, trainable: bool = False) -> tf.Variable:
    """A variable on the present device that a trace may make each time, as `tf.function` lets none of the user's be made.

    Stands on `resource_variable_ops.ResourceVariable`, whose instances TensorFlow's variable creators do not see;
    `tf.Variable` asks them. When it is gone: make it on another thread, where nothing is traced.
    """
    made: Any = resource_variable_ops.ResourceVariable(initial, trainable=trainable, name=name)
    return made


def type_behind(handle: tf.Tensor) -> Any:
    """What is known of the shape and type of the resource behind a handle, eager or not (`HandleData`); None for nothing.

    Stands on `get_eager_safe_handle_data`; `tf.__internal__.ops.get_resource_handle_data` takes symbolic handles alone.
    When it is gone: that one, and `handle._handle_data` of an eager tensor.
    """
    return resource_variable_ops.get_eager_safe_handle_data(handle)


def say_same_behind(source: tf.Tensor, target: tf.Tensor) -> None:
    """Has TensorFlow know of one handle what it knows of another.

    Stands on `handle_data_util.copy_handle_data`: placeholders of resources say nothing of what is behind them. When it
    is gone: capture the handle, which says it.
    """
    handle_data_util.copy_handle_data(source, target)


# The base class of what is a tensor of several parts to TensorFlow: an argument of traced functions, with a `_type_spec`.
# `tf.experimental.ExtensionType` is public, and makes values without identity: a queue is one object. When it is gone:
# `tf.__internal__.CompositeTensor`, which Keras has, or `tf.types.experimental.TraceType` by `__tf_tracing_type__`.
CompositeTensor = composite_tensor.CompositeTensor

# The spec of None in the elements of a dataset, as Keras makes them. It has no public name. When it is gone:
# `type(tf.data.Dataset.from_tensors(None).element_spec)`.
NoneSpec = structure.NoneTensorSpec


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
