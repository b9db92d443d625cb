"""Arrays as a dataset of batches in their own order."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.keras.data import _traced_datasets

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow import functions
    from tensorflow_ipu._types import Nested


def dataset_of(batches: Nested) -> tf.data.Dataset:
    """Makes the dataset.

    Args:
      batches: A structure of tensors, all of one first dimension, which counts the batches.
    """
    parts = tf.nest.flatten(batches)
    elements = tuple(tf.TensorSpec(part.shape[1:], part.dtype) for part in parts)
    maker = _maker(tuple(tf.TensorSpec(part.shape, part.dtype) for part in parts), elements)
    return _traced_datasets.made_by(maker, parts, tf.nest.pack_sequence_as(batches, elements))


@functools.lru_cache(maxsize=64)
def _maker(specs: _traced_datasets.Specs, elements: _traced_datasets.Specs) -> functions.ConcreteFunction:
    """A function of the batches that returns the variant of the dataset."""
    shapes = [element.shape for element in elements]

    def make(*parts: tf.Tensor) -> tf.Tensor:
        made = tf.raw_ops.TensorSliceDataset(components=parts, output_shapes=shapes)
        return _traced_datasets.as_it_is(made, elements)

    return tf.function(make, autograph=False).get_concrete_function(*specs)
