"""Handles of variables and other resources."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.data.util import structure
from tensorflow.python.distribute import numpy_dataset as numpy_datasets
from tensorflow.python.framework import composite_tensor
from tensorflow.python.ops import handle_data_util, resource_variable_ops
from tensorflow.python.util import nest

from tensorflow_ipu._base.types import Nested

# The class of variables on devices. `tf.Variable` is public, and a base class of others. When it is gone:
# `type(tf.Variable(0)).__mro__` has its heir.
ResourceVariable = resource_variable_ops.BaseResourceVariable


def of_trace(initial: tf.Tensor, name: str, *, trainable: bool = False) -> tf.Variable:
    """A variable that a trace may make each time; stands on `resource_variable_ops.ResourceVariable`."""
    # TensorFlow's variable creators do not see it; `tf.function` refuses `tf.Variable`. Without it: make it on another thread,
    # where nothing is traced.
    made: Any = resource_variable_ops.ResourceVariable(initial, trainable=trainable, name=name)
    return made


def of_handle(handle: tf.Tensor, spec: tf.TensorSpec, name: str) -> tf.Variable:
    """A variable of a graph that no collection has, by its handle; stands on `resource_variable_ops.BaseResourceVariable`."""
    # `tf.Variable` makes handles of its own. Without it: `tf.raw_ops.ReadVariableOp` and `AssignVariableOp`.
    fetched = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
    made: Any = resource_variable_ops.BaseResourceVariable(
        trainable=False, shape=spec.shape, dtype=spec.dtype, handle=handle, handle_name=name, graph_element=fetched
    )
    return made


def type_behind(handle: tf.Tensor) -> Any:
    """Returns the `HandleData` of a resource, eager or not, or None; stands on `get_eager_safe_handle_data`."""
    # `tf.__internal__.ops.get_resource_handle_data` takes symbolic handles alone. Without it: that one, and
    # `handle._handle_data` of an eager tensor.
    return resource_variable_ops.get_eager_safe_handle_data(handle)


def say_same_behind(source: tf.Tensor, target: tf.Tensor) -> None:
    """Copies what is known of one handle's resource to another; stands on `handle_data_util.copy_handle_data`."""
    # Placeholders of resources have no type of their own. Without it: capture the handle.
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
    """The dataset as TensorFlow's debug mode for datasets wants it; stands on `DatasetV2._apply_debug_options`."""
    # Without it: the dataset as it is.
    return dataset._apply_debug_options()


def numpy_dataset(arrays: Nested, device: str, session: tf.compat.v1.Session | None) -> tf.data.Dataset:
    """A dataset of the rows of arrays, which a graph does not have as constants; stands on `one_host_numpy_dataset`."""
    # Without it: `tf.data.Dataset.from_tensor_slices(arrays)`, for graphs of up to 2 GB.
    made: Any = numpy_datasets.one_host_numpy_dataset(arrays, numpy_datasets.SingleDevice(device), session)
    return made


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """Returns the options of a dataset; stands on `DatasetV2._options_attr`."""
    # In a graph, `options()` warns. Without it: that, in `warnings.catch_warnings`.
    return dataset.options() if tf.executing_eagerly() else dataset._options_attr


def with_paths(structure: Nested) -> list[tuple[str, Any]]:
    """Returns the leaves in `tf.nest` order, each with its path; stands on `nest.flatten_with_joined_string_paths`."""
    # A path is keys and positions, with `/` between. Without it: a walk through dicts, tuples and attributes.
    found: Any = nest.flatten_with_joined_string_paths(structure)
    return list(found)


def auto_sharded(dataset: tf.data.Dataset, workers: int, worker: int) -> tf.data.Dataset:
    """A worker's share by the dataset's policy: by files, or at `SHARD_HINT`; stands on `_AutoShardDataset`."""
    # Without it: `tf.raw_ops.AutoShardDataset` on the variant of the dataset.
    sharded: Any = distribute._AutoShardDataset(dataset, workers, worker)
    return sharded
