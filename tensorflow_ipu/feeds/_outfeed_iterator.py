"""The iterator over an outfeed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.feeds._arguments import IPUOutfeedMode

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.feeds.outfeed import IPUOutfeedQueue


class IPUOutfeedQueueIterator(Iterator):
    """Yields one element after the other, and stops where the queue is empty at the moment.

    It does not wait for a running program: loop again, until all expected elements have come. An element leaves the queue
    when it is yielded: after a `break` or an exception, `dequeue` and other iterators go on with the next one.
    """

    def __init__(self, outfeed_queue: IPUOutfeedQueue) -> None:
        """Creates an iterator over what `outfeed_queue` holds.

        Raises:
          RuntimeError: The call is not eager, or the mode is not `ALL`.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("IPUOutfeedQueue can only be iterated over in eager mode; in a graph, use `dequeue`")
        if outfeed_queue._mode is not IPUOutfeedMode.ALL:
            raise RuntimeError(
                "IPUOutfeedQueue can only be iterated over if the `outfeed_mode` is set to `IPUOutfeedMode.ALL`; for"
                " `LAST`, use `dequeue`"
            )
        self._queue = outfeed_queue

    def __iter__(self) -> IPUOutfeedQueueIterator:
        return self

    def __next__(self) -> Nested:
        return self._queue._next_element()


class ReadBuffer:
    """The rest of a chunk of elements, for whoever reads next: an iteration may end early, by a `break` or an exception.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """There is nothing at first."""
        self._elements: deque[list[tf.Tensor]] = deque()

    def __len__(self) -> int:
        return len(self._elements)

    def fill(self, elements: Sequence[list[tf.Tensor]]) -> None:
        """Takes a chunk in place of what there is."""
        self._elements = deque(elements)

    def pop(self) -> list[tf.Tensor]:
        """Takes the first element: a tensor for each leaf."""
        return self._elements.popleft()

    def pop_before(self, take: Callable[[int | None], list[tf.Tensor]], most: int | None) -> list[tf.Tensor]:
        """Takes elements from here first, then a chunk, and returns all together."""
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
    """The elements of a chunk, in its own memory as far as TensorFlow can: there may be none left for others."""
    return [[leaf[i] for leaf in chunk] for i in range(len(chunk[0]))]
