"""Arrays as a dataset of batches, in the order in which Keras would take them, and with less work for each batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from tensorflow_ipu.keras._elements import device_dtype

# What is gathered at once of shuffled arrays, in bytes and in batches.
_CHUNK_BYTES = 4 << 20
_MOST_BATCHES = 32


def dataset_of(adapter: ArrayDataAdapter) -> tf.data.Dataset:
    """The batches of arrays that a user gave, which are all full.

    Keras gathers each batch by its indices. Here batches in order are views of the arrays, and shuffled ones are gathered
    some at a time; types that no IPU has are converted once.

    Args:
      adapter: Keras's view of the arrays. Its order is kept: shuffled, by batch, or as they are.
    """
    inputs = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    inputs = keras.tree.lists_to_tuples(inputs)
    if not all(map(_is_dense, tf.nest.flatten(inputs))):
        return adapter.get_tf_dataset()
    with tf.device("/device:CPU:0"):
        arrays = tf.nest.map_structure(_to_device_type, inputs)
        size = adapter.batch_size
        if adapter._shuffle:
            return _shuffled(arrays, adapter.num_batches, size, adapter._shuffle)
        return tf.data.Dataset.from_tensor_slices(_batched(arrays, adapter.num_batches, size))


def _is_dense(array: Any) -> bool:
    return isinstance(array, tf.Tensor) or (isinstance(array, np.ndarray) and array.dtype.kind in "biuf")


def _to_device_type(array: Any) -> tf.Tensor:
    """The array as a tensor of a type that an IPU has."""
    wanted = device_dtype(tf.as_dtype(array.dtype))
    if isinstance(array, np.ndarray):
        return tf.constant(array.astype(wanted.as_numpy_dtype, copy=False))
    return tf.cast(array, wanted)


def _batched(arrays: Any, batches: int, size: int) -> Any:
    return tf.nest.map_structure(lambda array: tf.reshape(array, [batches, size, *array.shape[1:]]), arrays)


def _shuffled(arrays: Any, batches: int, size: int, shuffle: Any) -> tf.data.Dataset:
    # Where the numbers are drawn, all is as Keras has it, so that one seed gives one order.
    def permutation(_: Any) -> Any:
        indices = tf.range(batches * size, dtype=tf.int64)
        return indices if shuffle == "batch" else tf.random.shuffle(indices)

    def indices_of_batches(indices: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(tf.reshape(indices, [batches, size]))

    def gather(indices: Any, held: Any) -> Any:
        return tf.nest.map_structure(lambda array: tf.gather(array, indices), held)

    def split(*chunk: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(chunk if isinstance(arrays, tuple) else chunk[0])

    indices = tf.data.Dataset.range(1).map(permutation).prefetch(1).flat_map(indices_of_batches)
    if shuffle == "batch":
        indices = indices.map(tf.random.shuffle)
    held = tf.data.Dataset.from_tensors(arrays).repeat()
    at_once = tf.data.Dataset.zip((indices.batch(_batches_at_once(arrays, size)), held))
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    return at_once.map(gather).prefetch(1).flat_map(split).with_options(options)


def _batches_at_once(arrays: Any, size: int) -> int:
    parts = tf.nest.flatten(arrays)
    example = sum(part.dtype.size * part.shape[1:].num_elements() for part in parts)
    return max(1, min(_MOST_BATCHES, _CHUNK_BYTES // max(1, example * size)))
