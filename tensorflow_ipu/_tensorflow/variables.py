"""Variables and their handles, iterators, and the specs and options of datasets."""

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

# The class of variables on devices. The public `tf.Variable` has other subclasses too. Without it: find the base class
# in `type(tf.Variable(0)).__mro__`.
ResourceVariable = resource_variable_ops.BaseResourceVariable


def of_trace(initial: tf.Tensor, name: str, *, trainable: bool = False) -> tf.Variable:
    """Returns a new variable, even in later traces of a function. Uses the private `ResourceVariable`."""
    # `tf.function` rejects a `tf.Variable` in later traces; this class bypasses the variable creators. Without it:
    # create the variable on another thread, which traces nothing.
    variable: Any = resource_variable_ops.ResourceVariable(initial, trainable=trainable, name=name)
    return variable


def of_handle(handle: tf.Tensor, spec: tf.TensorSpec, name: str) -> tf.Variable:
    """Returns the variable of a handle in a graph; it is in no collection. Uses the private `BaseResourceVariable`."""
    # `tf.Variable` always creates a new handle. Without it: use `tf.raw_ops.ReadVariableOp` and `AssignVariableOp`.
    fetched = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
    variable: Any = resource_variable_ops.BaseResourceVariable(
        trainable=False, shape=spec.shape, dtype=spec.dtype, handle=handle, handle_name=name, graph_element=fetched
    )
    return variable


def handle_data(handle: tf.Tensor) -> Any:
    """Returns the `HandleData` of an eager or symbolic resource, or None.

    Uses the private `get_eager_safe_handle_data`.
    """
    # `tf.__internal__.ops.get_resource_handle_data` accepts symbolic handles only. Without it: use that, and the
    # private `handle._handle_data` of eager tensors.
    return resource_variable_ops.get_eager_safe_handle_data(handle)


def copy_handle_data(source: tf.Tensor, target: tf.Tensor) -> None:
    """Copies shape and dtype of one handle's resource to another.

    Uses the private `handle_data_util.copy_handle_data`.
    """
    # A placeholder of a resource has no handle data. Without it: capture the handle.
    handle_data_util.copy_handle_data(source, target)


# The base class of arguments of traced functions that consist of several tensors and have a `_type_spec`. Values of the
# public `tf.experimental.ExtensionType` have no identity, but a queue is one object. Without it: use
# `tf.__internal__.CompositeTensor`, on which Keras relies, or a `tf.types.experimental.TraceType` by
# `__tf_tracing_type__`.
CompositeTensor = composite_tensor.CompositeTensor

# The spec of None in elements of datasets. Keras creates such elements. It has no public name. Without it:
# `type(tf.data.Dataset.from_tensors(None).element_spec)`.
NoneSpec = structure.NoneTensorSpec


# The base class of iterators over which AutoGraph turns `for` into a loop of the graph, by `get_next_as_optional`. A
# `for` over the public `tf.data.Iterator` would be unrolled without end. Without it:
# `type(iter(tf.data.Dataset.range(1)))`.
OwnedIterator = iterator_ops.OwnedIterator


def as_run(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Applies the debug mode of `tf.data`, if it is on, to `dataset`.

    Uses the private `DatasetV2._apply_debug_options`.
    """
    # Without it: return `dataset`.
    return dataset._apply_debug_options()


def numpy_dataset(arrays: Nested, device: str, session: tf.compat.v1.Session | None) -> tf.data.Dataset:
    """Returns a dataset of the rows of arrays, without constants in the graph.

    Uses the private `one_host_numpy_dataset`.
    """
    # Without it: use `tf.data.Dataset.from_tensor_slices(arrays)`, which is limited to graphs of 2 GB.
    dataset: Any = numpy_datasets.one_host_numpy_dataset(arrays, numpy_datasets.SingleDevice(device), session)
    return dataset


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """Returns the options of a dataset. Uses the private `DatasetV2._options_attr`."""
    # In a graph, the public `options()` warns. Without it: use that in `warnings.catch_warnings`.
    return dataset.options() if tf.executing_eagerly() else dataset._options_attr


def with_paths(structure: Nested) -> list[tuple[str, Any]]:
    """Returns the leaves in `tf.nest` order with their paths: `{"a": [x, y]} -> [("a/0", x), ("a/1", y)]`.

    Uses the private `nest.flatten_with_joined_string_paths`.
    """
    # Without it: walk through dicts, tuples and attributes.
    leaves: Any = nest.flatten_with_joined_string_paths(structure)
    return list(leaves)


def auto_sharded(dataset: tf.data.Dataset, workers: int, worker: int) -> tf.data.Dataset:
    """Returns the shard of one worker by the dataset's `auto_shard_policy`. Uses the private `_AutoShardDataset`.

    A policy shards by files, by elements, or at `SHARD_HINT`.
    """
    # Without it: use `tf.raw_ops.AutoShardDataset` on the variant of the dataset.
    sharded: Any = distribute._AutoShardDataset(dataset, workers, worker)
    return sharded
