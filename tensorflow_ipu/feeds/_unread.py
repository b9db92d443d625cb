"""The elements that an iteration over an outfeed took along with the one that it wanted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import tensorflow as tf


class Unread:
    """The rest of a chunk of elements, for whoever reads next: an iteration may end early, by a `break` or an exception.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """There is nothing at first."""
        self._elements: deque[list[tf.Tensor]] = deque()

    def __len__(self) -> int:
        return len(self._elements)

    def fill(self, elements: Sequence[list[tf.Tensor]]) -> None:
        """Takes a chunk in place of what there is.

        Args:
          elements: A tensor for each leaf of each.
        """
        self._elements = deque(elements)

    def pop(self) -> list[tf.Tensor]:
        """Takes the first element: a tensor for each leaf."""
        return self._elements.popleft()

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
        first = list(self._elements)[:most]
        stacked = [tf.stack(leaves) for leaves in zip(*first, strict=True)]
        if most is not None and most <= here:
            for _ in first:
                self._elements.popleft()
            return stacked
        chunk = take(None if most is None else most - here)
        try:
            joined = [tf.concat(parts, 0) for parts in zip(stacked, chunk, strict=True)]
        except tf.errors.ResourceExhaustedError:
            self._elements.extend(rows_of(chunk))
            raise
        self.clear()
        return joined

    def clear(self) -> None:
        """Drops everything."""
        self._elements.clear()


def rows_of(chunk: list[tf.Tensor]) -> list[list[tf.Tensor]]:
    """The elements of a chunk, in its own memory as far as TensorFlow can: there may be none left for others.

    Args:
      chunk: A tensor for each leaf, whose rows the elements are.
    """
    return [[leaf[i] for leaf in chunk] for i in range(len(chunk[0]))]
