"""Instructions: what an IPU can be told to do in a slot, as small values with a text form."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, TypeAlias


@dataclass(frozen=True)
class _OfStage:
    """An instruction of a stage, or of one part of a stage whose parts run concurrently.

    Attributes:
      stage: The stage's number.
      part: The part's number, or None where the stage has no parts.
    """

    letter: ClassVar[str]

    stage: int
    part: int | None = None

    @property
    def place(self) -> str:
        """The stage and the part as text, for instance `2` or `2.1`."""
        return str(self.stage) if self.part is None else f"{self.stage}.{self.part}"


@dataclass(frozen=True)
class _OfMicroBatch(_OfStage):
    """An instruction of a stage for one micro-batch.

    Attributes:
      micro_batch: The micro-batch's number; in a section of a plan, counted from the iteration's first.
    """

    micro_batch: int = 0

    def __str__(self) -> str:
        return f"{self.place}{self.letter}{self.micro_batch}"


@dataclass(frozen=True)
class Forward(_OfMicroBatch):
    """`2F0`: run stage 2 forward on micro-batch 0.

    It takes the outputs of the same micro-batch's forward pass through the stage before, which ran in an earlier step
    (stage 0 takes an element of the infeed). It hands its outputs to the stage behind (the last stage to the outfeed).
    In training it stashes what `2R0` needs, or `2B0` where nothing is recomputed.
    """

    letter: ClassVar[str] = "F"


@dataclass(frozen=True)
class Recompute(_OfMicroBatch):
    """`2R0`: run stage 2 forward on micro-batch 0 a second time.

    It takes the stashed inputs that `2F0` left, frees their place, and leaves the activations for `2B0`, which follows
    in the same or in the next step.
    """

    letter: ClassVar[str] = "R"


@dataclass(frozen=True)
class Backward(_OfMicroBatch):
    """`2B0`: run stage 2 backward on micro-batch 0.

    It takes the activations that `2R0` or else `2F0` left, frees their place, and takes the gradients that `3B0` handed
    over in an earlier step (the last stage begins with the loss). It adds to the stage's gradient accumulators, and
    hands the gradients of its inputs to `1B0`.
    """

    letter: ClassVar[str] = "B"


@dataclass(frozen=True)
class Update(_OfStage):
    """`2U`: update the weights of stage 2 with its accumulated gradients, and clear those.

    It comes once a pass of the plan, after the last `2B`. Weights that stages share belong to the first of them.
    """

    letter: ClassVar[str] = "U"

    def __str__(self) -> str:
        return f"{self.place}{self.letter}"


Computation: TypeAlias = "Forward | Recompute | Backward | Update"


@dataclass(frozen=True)
class _Transfer:
    """A transfer between an IPU and the memory off the chip.

    Attributes:
      computation: What is transferred is what this one needs, or what it left.
    """

    letter: ClassVar[str]

    computation: Computation

    @property
    def stage(self) -> int:
        """The stage whose data move."""
        return self.computation.stage

    @property
    def part(self) -> int | None:
        """The part of the stage, or None."""
        return self.computation.part

    def __str__(self) -> str:
        computation = self.computation
        behind = computation.micro_batch if isinstance(computation, _OfMicroBatch) else ""
        return f"{computation.place}{self.letter}{computation.letter}{behind}"


@dataclass(frozen=True)
class Load(_Transfer):
    """`2LB0`: bring onto the chip what `2B0` needs there.

    For a forward pass these are the weights; for a backward pass weights, activations and accumulators; for an update
    weights, accumulators and the optimizer's state. It replaces what was on the chip, which must have been saved. No
    `Load` is needed where the IPU's instruction before was of the same stage.
    """

    letter: ClassVar[str] = "L"


@dataclass(frozen=True)
class Save(_Transfer):
    """`2SF0`: bring off the chip what `2F0` left there.

    For a forward pass in training these are the activations; for a backward pass the accumulators; for an update
    weights and the optimizer's state. It comes before the `Load` of another stage on the same IPU.
    """

    letter: ClassVar[str] = "S"


@dataclass(frozen=True)
class Idle:
    """`.`: do nothing until the step ends, with all other IPUs."""

    def __str__(self) -> str:
        return "."


Instruction: TypeAlias = "Forward | Recompute | Backward | Update | Load | Save"

IDLE = Idle()

_TEXT = re.compile(r"(\d+)(?:\.(\d+))?([LS]?)(?:([FRB])(\d+)|(U))")
_PASSES: dict[str, type[Forward | Recompute | Backward]] = {"F": Forward, "R": Recompute, "B": Backward}
_TRANSFERS: dict[str, type[Load | Save]] = {"L": Load, "S": Save}


def parse_instruction(text: str) -> Instruction | Idle:
    """Reads the text form of an instruction: `parse_instruction(str(x)) == x`.

    Args:
      text: For instance `2F0`, `2.1B3`, `0U`, `1LB0` or `.`.

    Raises:
      ValueError: The text is that of no instruction.
    """
    if text == ".":
        return IDLE
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"`text` is {text!r}, which is no instruction; write a stage, a pass (F, R, B) and a micro-batch, as in"
            " `2F0`, or `2U`, `2LF0`, `2SF0`, `.`"
        )
    stage, part, transfer, letter, micro_batch, _ = match.groups()
    at = (int(stage), None if part is None else int(part))
    computation: Computation = Update(*at) if letter is None else _PASSES[letter](*at, int(micro_batch))
    return _TRANSFERS[transfer](computation) if transfer else computation


def micro_batch_of(instruction: Instruction) -> int | None:
    """The micro-batch that an instruction is about, or None for updates and their transfers."""
    inner = instruction.computation if isinstance(instruction, _Transfer) else instruction
    return None if isinstance(inner, Update) else inner.micro_batch


def shifted(instruction: Instruction, by: int) -> Instruction:
    """The same instruction for the micro-batch that is `by` further on."""
    if isinstance(instruction, _Transfer):
        inner = shifted(instruction.computation, by)
        return replace(instruction, computation=inner)
    if isinstance(instruction, Update):
        return instruction
    return replace(instruction, micro_batch=instruction.micro_batch + by)


def stage_letters(stage: int, part: int | None = None) -> str:
    """The name of a stage in pictures: `A` to `Z`, then `AA`; parts are numbered from 1, as in `B2`."""
    letters = ""
    number = stage + 1
    while number:
        number, digit = divmod(number - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters if part is None else f"{letters}{part + 1}"


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
