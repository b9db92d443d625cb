"""Instructions of which none can be skipped, or all together: several at a time, each with all that it computes in the open.

The stages of a step do not need each other. Where none can be skipped by itself, no loop has to be around an instruction,
so XLA sees all that they compute, and works on several at once. Two things bound that:

* A place in a ring is written once what was there was read (see `_rings`). So what an instruction computes from a ring is
  fenced, and who writes the ring waits for the fence.
* What is being computed takes memory. So an instruction waits for the one that is `WINDOW` before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorflow_ipu.pipelining._buffers import Buffer
from tensorflow_ipu.pipelining._rings import Order, Position

WINDOW = 2  # Instructions at a time. More are no faster on a few cores, and take more memory than a plan tells of.


class Overlap:
    """The instructions of one iteration, or of one region of it, in their order."""

    def __init__(self, order: Order, begin: Position = None) -> None:
        """Begins.

        Args:
          order: The order of the program's instructions.
          begin: In a region that may be skipped, an int32 scalar that is 0, and that nothing may be computed ahead of.
        """
        self._order = order
        self._begin: Any = 0 if begin is None else begin
        self._in_region = begin is not None
        self._fences: list[Position] = []  # Of the instructions so far.
        self._read: list[Buffer] = []  # The rings that the instruction at hand reads.
        self._behind: dict[Buffer, Position] = {}

    def run(
        self,
        reads: Sequence[Any],
        before: Sequence[Any],
        body: Callable[[Position, Sequence[Any], Sequence[Any]], Sequence[Any]],
    ) -> list[Any]:
        """Runs an instruction, as `Order.once` does where nothing is skipped.

        Args:
          reads: Tensors that `body` uses, other than those that it reads at a position.
          before: What the results take the place of.
          body: From an int32 scalar that is 0, to be added to the positions of reads, `reads` and `before`, to the results.
        """
        wait: Any = self._fences[-WINDOW] if len(self._fences) >= WINDOW else self._begin
        if reads and (self._fences or self._in_region):
            _, reads = self._order.fence(reads, wait)
        results = body(wait, reads, before)
        for one, old in zip(results, before, strict=True):
            one.set_shape(old.shape)
        fence, fenced = self._order.fence(results)
        self._behind.update(dict.fromkeys(self._read, fence))
        self._read.clear()
        self._fences.append(fence)
        return fenced

    def note_read(self, ring: Buffer) -> None:
        """Says that the instruction at hand reads a ring."""
        self._read.append(ring)

    def behind_reads(self, ring: Buffer) -> Position:
        """What is added to the position of a write to a ring: an int32 scalar that is 0 once the ring was read."""
        return self._behind.get(ring, self._begin)
