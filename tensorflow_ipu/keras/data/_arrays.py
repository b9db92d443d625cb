"""Arrays as a dataset of batches, in the order in which Keras would take them, and with less work for each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras._keras_internals import ArrayDataAdapter
from tensorflow_ipu.keras.data import _ordered_arrays, _shuffled_arrays
from tensorflow_ipu.keras.data.elements import device_dtype

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested


def is_ours_to_shuffle(adapter: ArrayDataAdapter) -> bool:
    """Whether the batches are in random order, one that is drawn here."""
    return internals.is_shuffled(adapter) is True and all(map(_is_dense, tf.nest.flatten(internals.arrays_of(adapter))))


def dataset_of(adapter: ArrayDataAdapter, order: int | None = None) -> tf.data.Dataset:
    """The batches of arrays that a user gave, which are all full.

    Keras gathers each batch by its indices. Here batches in order are views of the arrays, and shuffled ones are gathered
    some at a time; types that no IPU has are converted once.

    Args:
      adapter: Keras's view of the arrays. Its order is kept: shuffled, by batch, or as they are.
      order: A number that says the random order, the same for everybody; None for one that is drawn.
    """
    inputs = internals.arrays_of(adapter)
    inputs = keras.tree.lists_to_tuples(inputs)
    if not all(map(_is_dense, tf.nest.flatten(inputs))):
        return adapter.get_tf_dataset()
    with tf.device("/device:CPU:0"):
        arrays = tf.nest.map_structure(_to_device_type, inputs)
        size = adapter.batch_size
        assert size is not None
        shuffled = internals.is_shuffled(adapter)
        if shuffled:
            return _shuffled_arrays.dataset_of(arrays, adapter.num_batches, size, shuffled == "batch", order)
        return _ordered_arrays.dataset_of(_batched(arrays, adapter.num_batches, size))


def _is_dense(array: object) -> bool:
    return isinstance(array, tf.Tensor) or (isinstance(array, np.ndarray) and array.dtype.kind in "biuf")


def _to_device_type(array: tf.Tensor | np.ndarray) -> tf.Tensor:
    """The array as a tensor of a type that an IPU has."""
    wanted = device_dtype(tf.as_dtype(array.dtype))
    if isinstance(array, np.ndarray):
        return tf.constant(array.astype(wanted.as_numpy_dtype, copy=False))
    return tf.cast(array, wanted)


def _batched(arrays: Nested, batches: int, size: int) -> Nested:
    return tf.nest.map_structure(lambda array: tf.reshape(array, [batches, size, *array.shape[1:]]), arrays)
