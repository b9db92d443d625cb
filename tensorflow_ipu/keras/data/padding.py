"""Predictions of examples that do not fill the last batch, or the last execution: padded, and without padding after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Nested


class Examples:
    """How many of the rows of each batch are examples; the others are padding."""

    def __init__(self, size: int, total: int, rows: tf.lookup.experimental.MutableHashTable | None = None) -> None:
        """Takes the rows of a batch, the examples of all, and where batches in the midst may be partial, what they have."""
        self._size = size
        self._total = total
        self._rows = rows

    def limited(self, batches: int) -> Examples:
        """Those of the first batches: further ones are padding."""
        return Examples(self._size, min(self._total, batches * self._size), self._rows)

    def without_padding(self, predictions: Nested, first: int, batches: int) -> Nested:
        """Those of the predictions of some batches, along one axis, that are of examples; None if none is."""
        at = np.arange(first, first + batches, dtype=np.int64)
        counts = np.clip(self._total - self._size * at, 0, self._size)
        if self._rows is not None:
            counts = np.minimum(counts, self._rows.lookup(tf.constant(at)).numpy())
        kept = (np.arange(self._size) < counts[:, None]).reshape(-1)
        if kept.all() or not kept.any():
            return predictions if kept.all() else None

        def cut(part: Any) -> tf.Tensor:
            if not part.shape.rank or part.shape[0] != len(kept):
                raise ValueError(
                    f"a prediction has the shape {part.shape} for {batches} batches of {self._size} examples, so that those"
                    " of the padding cannot be left out: give batches that are full, and fill all executions and replicas"
                )
            return tf.boolean_mask(part, kept)

        return tf.nest.map_structure(cut, predictions)


def rows_of(spec: Nested) -> int | None:
    """The rows of a batch of this spec, if it has any, and their number is known."""
    leaves = [leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec)]
    return leaves[0].shape[0] if leaves and leaves[0].shape.rank else None


def known_size(dataset: tf.data.Dataset) -> int | None:
    """The rows of the batches that a dataset makes, where it says so; the last one may be partial."""
    variant = tf.data.experimental.to_variant(dataset)
    size = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
    return size if size > 0 else None


def filled(dataset: tf.data.Dataset, size: int) -> tuple[tf.data.Dataset, Examples]:
    """Fills partial batches by repeating their last example."""
    with tf.device("/device:CPU:0"):
        rows = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=size)

    def fill(number: tf.Tensor, *element: Any) -> Nested:
        given = element[0] if len(element) == 1 else element
        leaves: Sequence[Any] = tf.nest.flatten(given)
        count = next(tf.shape(leaf, tf.int64)[0] for leaf in leaves if tf.is_tensor(leaf))
        with tf.control_dependencies([rows.insert(number, count)]):
            places = tf.minimum(tf.range(size, dtype=tf.int64), count - 1)

        def full(leaf: Any) -> Any:
            if not tf.is_tensor(leaf):
                return leaf
            return tf.ensure_shape(tf.gather(leaf, places), [size, *leaf.shape[1:]])

        return tf.nest.pack_sequence_as(given, [full(leaf) for leaf in leaves])

    return dataset.enumerate().map(fill, name="filled"), Examples(size, tf.int64.max, rows)


def extended(dataset: tf.data.Dataset, batches: int, more: int) -> tf.data.Dataset:
    """The first batches of a dataset, and the last of them so many times more."""
    spec = dataset.element_spec
    given = tf.nest.flatten(spec)
    empty = tuple(tf.zeros(leaf.shape, leaf.dtype) for leaf in given if isinstance(leaf, tf.TensorSpec))

    def flat(*element: Any) -> tuple[tf.Tensor, ...]:
        return tuple(leaf for leaf in tf.nest.flatten(element) if tf.is_tensor(leaf))

    def step(last: Any, marked: Any) -> tuple[Any, Any]:
        is_real, batch = marked
        chosen = tf.cond(is_real, lambda: batch, lambda: last)
        return chosen, chosen

    def packed(*leaves: tf.Tensor) -> Nested:
        left = iter(leaves)
        return tf.nest.pack_sequence_as(
            spec, [next(left) if isinstance(leaf, tf.TensorSpec) else None for leaf in given]
        )

    real = tf.data.Dataset.zip(tf.data.Dataset.from_tensors(True).repeat(batches), dataset.take(batches).map(flat))
    padding = tf.data.Dataset.from_tensors((False, empty)).repeat(more)
    return real.concatenate(padding).scan(empty, step).map(packed)
