"""The elements that an iteration over an outfeed took along with the one that it wanted."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Unread:
    """The rest of a chunk of rows, for whoever reads next: an iteration may end early, by a `break` or an exception.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """There is nothing at first."""
        self._leaves: list[list[Any]] = []
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count - self._next

    def fill(self, leaves: list[Any]) -> None:
        """Takes a chunk in place of what there is.

        Args:
          leaves: A tensor for each leaf of the elements, which are the rows.
        """
        # One op a leaf splits all rows at once; a slice a row would cost many times that.
        self._leaves = [tf.unstack(leaf) for leaf in leaves]
        self._next = 0
        self._count = len(self._leaves[0])

    def pop(self) -> list[Any]:
        """Takes the first element: a tensor for each leaf."""
        element = [rows[self._next] for rows in self._leaves]
        self._next += 1
        if self._next == self._count:
            self.clear()
        return element

    def pop_before(self, leaves: list[Any]) -> list[Any]:
        """Takes everything, puts it before the rows of a chunk, and returns all together."""
        if len(self) == 0:
            return leaves
        joined = [
            tf.concat([tf.stack(rows[self._next :]), leaf], 0) for rows, leaf in zip(self._leaves, leaves, strict=True)
        ]
        self.clear()
        return joined

    def clear(self) -> None:
        """Drops everything."""
        self._leaves = []
        self._next = self._count = 0
