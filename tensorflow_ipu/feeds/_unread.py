"""The elements that an iteration over an outfeed took along with the one that it wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf


class Unread:
    """The rest of a chunk of rows, for whoever reads next: an iteration may end early, by a `break` or an exception.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """There is nothing at first."""
        self._leaves: list[list[tf.Tensor]] = []
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count - self._next

    def fill(self, leaves: list[tf.Tensor]) -> None:
        """Takes a chunk in place of what there is.

        Args:
          leaves: A tensor for each leaf of the elements, which are the rows.
        """
        # One op a leaf splits all rows at once; a slice a row would cost many times that. The bare op takes less than half
        # the time of `tf.unstack`, and it is on the way of a thread that waits for a single row.
        self._leaves = [tf.raw_ops.Unpack(value=leaf, num=len(leaf)) for leaf in leaves]
        self._next = 0
        self._count = len(self._leaves[0])

    def pop(self) -> list[tf.Tensor]:
        """Takes the first element: a tensor for each leaf."""
        element = [rows[self._next] for rows in self._leaves]
        self._drop(1)
        return element

    def _drop(self, count: int) -> None:
        self._next += count
        if self._next == self._count:
            self.clear()

    def pop_before(self, take: Callable[[int | None], list[tf.Tensor]], most: int | None) -> list[tf.Tensor]:
        """Takes elements from here first, then a chunk, and returns all together.

        Args:
          take: Takes a chunk of so many elements at most, or of all.
          most: How many elements to return at most; None for all.

        Raises:
          tf.errors.ResourceExhaustedError: There is no memory for that. What was here is here still, and so is what was
            taken.
        """
        here = len(self)
        if here == 0:
            return take(most)
        if most is not None and most <= here:
            taken = [tf.stack(rows[self._next : self._next + most]) for rows in self._leaves]
            self._drop(most)
            return taken
        rest = [tf.stack(rows[self._next :]) for rows in self._leaves]
        chunk = take(None if most is None else most - here)
        try:
            joined = [tf.concat(parts, 0) for parts in zip(rest, chunk, strict=True)]
        except tf.errors.ResourceExhaustedError:
            self._leaves = [[*rows, *_rows(leaf)] for rows, leaf in zip(self._leaves, chunk, strict=True)]
            self._count += len(chunk[0])
            raise
        self.clear()
        return joined

    def clear(self) -> None:
        """Drops everything."""
        self._leaves = []
        self._next = self._count = 0


def _rows(leaf: tf.Tensor) -> Iterator[tf.Tensor]:
    """The rows of a tensor, in its own memory as far as TensorFlow can: there is none left for others."""
    return (leaf[i] for i in range(len(leaf)))
