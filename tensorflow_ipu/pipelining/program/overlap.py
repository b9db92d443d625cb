"""Instructions that run side by side: a few of them are in flight at a time.

The stages of a step do not depend on each other. An instruction that may be skipped has to be a loop of its own, and XLA
runs loops one after the other. Where no instruction is skipped, or all of them together, what they compute stands in the
program without such loops, and XLA runs several at once. Two things bound that:

* A place in a ring must not be overwritten before it was read (see `rings`). So the results of an instruction that reads
  a ring pass a fence, and what writes to the ring waits for the fence.
* Whatever is in flight takes memory. So an instruction waits for the fence of the one so many before it (`window_of`).

It costs copies: a buffer of one micro-batch is read by one instruction and written by another, and as nothing orders these two,
XLA copies it as an iteration begins and once more as it ends. And programs get each instruction's code twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tensorflow_ipu.pipelining.program.rings import Sequencer, Token
from tensorflow_ipu.pipelining.schedule.buffers import Buffer

# Of tensors of so many bytes, an instruction uses all cores by itself, and to copy them takes what overlapping gains: with
# 1 MiB, pipelines of convolutions take 1.20 to 1.26 times as long as one loop where they overlap, and 1.10 to 1.14 where
# not; with 64 KiB, those of products 0.89 and 1.05 times.
LARGE = 256 << 10


def window_of(stages: int) -> int:
    """How many instructions are in flight in a pipeline of so many stages.

    On two cores, with 64 micro-batches of 64 KiB and 8 stages, 2, 3 and 4 take 1.22, 1.14 and 0.99 times as long as one loop;
    with 4 stages 2 take 0.96. Each takes memory that a plan does not tell of, so they are as many as the plan's share allows:
    with 4 stages, 6.3 MiB of 5.4 planned are 6.9 with 4 in flight.
    """
    return max(2, stages // 2)


class Overlap:
    """The instructions of one iteration, or of one region of it, in their order."""

    def __init__(self, sequencer: Sequencer, window: int, begin: Token | None = None) -> None:
        """Begins.

        Args:
          sequencer: What runs the program's instructions one after the other.
          window: How many instructions may be in flight.
          begin: In a region that may be skipped, an int32 scalar that is 0, and that nothing may be computed ahead of.
        """
        self._sequencer = sequencer
        self._window = window
        self._begin: Token = tf.constant(0) if begin is None else begin
        self._in_region = begin is not None
        self._fences: list[Token] = []  # Of the instructions so far.
        self._read: list[Buffer] = []  # The rings that the current instruction reads.
        self._behind: dict[Buffer, Token] = {}

    def run(
        self,
        reads: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        body: Callable[[Token, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Runs an instruction, as `Sequencer.once` does where nothing is skipped.

        Args:
          reads: Tensors that `body` uses, other than those that it reads in places of rings.
          before: What the results take the place of.
          body: From an int32 scalar that is 0, for reads of rings, `reads` and `before`, to the results.
        """
        wait: Token = self._fences[-self._window] if len(self._fences) >= self._window else self._begin
        if reads and (self._fences or self._in_region):
            _, reads = self._sequencer.fence(reads, wait)
        results = body(wait, reads, before)
        for one, old in zip(results, before, strict=True):
            one.set_shape(old.shape)
        fence, fenced = self._sequencer.fence(results)
        self._behind.update(dict.fromkeys(self._read, fence))
        self._read.clear()
        self._fences.append(fence)
        return fenced

    def note_read(self, ring: Buffer) -> None:
        """Records that the current instruction reads a ring."""
        self._read.append(ring)

    def behind_reads(self, ring: Buffer) -> Token:
        """What a write to a ring waits for: an int32 scalar that is 0, and known once the ring was read."""
        return self._behind.get(ring, self._begin)
