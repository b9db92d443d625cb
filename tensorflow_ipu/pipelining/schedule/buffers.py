"""Buffers: where a plan keeps what one instruction leaves for a later one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class BufferKind(Enum):
    """What a buffer holds, by who writes it and who reads it.

    * `ACTIVATIONS`: the stash, written by `F`, read and freed by `B`.
    * `INPUTS`: the stash where a stage recomputes, written by `F`, read and freed by `R`.
    * `RECOMPUTED`: activations that `R` leaves for `B`.
    * `FORWARD_LINK`: the inputs of a stage, written by `F` of the stage before, read by `F`.
    * `BACKWARD_LINK`: the gradients of a stage's outputs, written by `B` of the stage behind, read by `B`.
    * `ACCUMULATOR`: the sum of the gradients of the stage's weights, written by `B`, read and cleared by `U`.
    """

    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    RECOMPUTED = "recomputed"
    FORWARD_LINK = "forward link"
    BACKWARD_LINK = "backward link"
    ACCUMULATOR = "accumulator"


STASHES = (BufferKind.ACTIVATIONS, BufferKind.INPUTS)
LINKS = (BufferKind.FORWARD_LINK, BufferKind.BACKWARD_LINK)


@dataclass(frozen=True)
class Buffer:
    """A ring of equal places, in the memory of one IPU.

    A write to a link is an exchange between IPUs: it happens at the end of the step, so that what was there can be read
    until then. All other reads and writes happen in the slot of their instruction.

    Attributes:
      kind: What it holds.
      stage: The stage that it belongs to: the one that reads it.
      part: The part of the stage, or None.
      ipu: The IPU that holds it.
      depth: How many micro-batches it holds at once.
      off_chip: Whether it rests off the chip between the instructions of its stage.
    """

    kind: BufferKind
    stage: int
    part: int | None
    ipu: int
    depth: int
    off_chip: bool = False

    def position(self, micro_batch: int) -> int:
        """The place of a micro-batch in the ring."""
        return 0 if self.kind is BufferKind.ACCUMULATOR else micro_batch % self.depth


@dataclass(frozen=True)
class Effects:
    """What an instruction does to the buffers and the queues of its plan.

    Attributes:
      reads: The buffers that it reads, at the position of its micro-batch. All but links are free afterwards.
      writes: The buffers that it writes, at the position of its micro-batch; a link only as the step ends.
      takes_infeed: Whether it takes the next element of the infeed.
      gives_outfeed: Whether its outputs go to the outfeed.
    """

    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    takes_infeed: bool = False
    gives_outfeed: bool = False
