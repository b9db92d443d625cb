"""The plan of a pipeline: the instructions of each IPU, step by step, and the buffers that they read and write."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from tensorflow_ipu._base.notebook import NotebookView
from tensorflow_ipu.pipelining.schedule.enums import Liveness, PipelineSchedule, RecomputationMode

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.schedule.text import Table


@dataclass(frozen=True)
class _StageInstruction:
    """An instruction of a stage, or of one numbered part of a stage whose parts run concurrently."""

    letter: ClassVar[str]

    stage: int
    part: int | None = None

    @property
    def place(self) -> str:
        """The stage and its part as text: `2`, or `2.1` for part 1."""
        return str(self.stage) if self.part is None else f"{self.stage}.{self.part}"


@dataclass(frozen=True)
class _MicroBatchInstruction(_StageInstruction):
    """An instruction of a stage for one micro-batch. In a section, micro-batches are relative to `Section.base`."""

    micro_batch: int = 0

    def __str__(self) -> str:
        return f"{self.place}{self.letter}{self.micro_batch}"


@dataclass(frozen=True)
class Forward(_MicroBatchInstruction):
    """`2F0`: run stage 2 forward on micro-batch 0. In training, stash the tensors that `2R0` or else `2B0` needs."""

    letter: ClassVar[str] = "F"


@dataclass(frozen=True)
class Recompute(_MicroBatchInstruction):
    """`2R0`: run stage 2 forward on micro-batch 0 again, from the stashed inputs, for `2B0`."""

    letter: ClassVar[str] = "R"


@dataclass(frozen=True)
class Backward(_MicroBatchInstruction):
    """`2B0`: run stage 2 backward on micro-batch 0, and add the gradients to the accumulators of the stage."""

    letter: ClassVar[str] = "B"


@dataclass(frozen=True)
class Update(_StageInstruction):
    """`2U`: update the weights of stage 2 with its accumulated gradients, and clear the accumulators."""

    letter: ClassVar[str] = "U"

    def __str__(self) -> str:
        return f"{self.place}{self.letter}"


Computation: TypeAlias = "Forward | Recompute | Backward | Update"


@dataclass(frozen=True)
class _Transfer:
    """A transfer of the tensors that `computation` needs or has written, between an IPU and off-chip memory."""

    letter: ClassVar[str]

    computation: Computation

    @property
    def stage(self) -> int:
        """The stage whose tensors are transferred."""
        return self.computation.stage

    @property
    def part(self) -> int | None:
        """The part of the stage, or None."""
        return self.computation.part

    def __str__(self) -> str:
        computation = self.computation
        micro_batch = computation.micro_batch if isinstance(computation, _MicroBatchInstruction) else ""
        return f"{computation.place}{self.letter}{computation.letter}{micro_batch}"


@dataclass(frozen=True)
class Load(_Transfer):
    """`2LB0`: load the tensors that `2B0` needs onto the chip, in the place of tensors that were saved.

    A forward pass needs the weights. A backward pass needs activations and accumulators too. An update needs weights,
    accumulators and the optimizer's slots.
    """

    letter: ClassVar[str] = "L"


@dataclass(frozen=True)
class Save(_Transfer):
    """`2SF0`: move the tensors that `2F0` has written off the chip.

    These are activations after a forward pass, accumulators after a backward pass, and weights and slots after an
    update.
    """

    letter: ClassVar[str] = "S"


@dataclass(frozen=True)
class Idle:
    """`.`: do nothing until the step ends for all IPUs."""

    def __str__(self) -> str:
        return "."


Instruction: TypeAlias = "Forward | Recompute | Backward | Update | Load | Save"

IDLE = Idle()

_TEXT = re.compile(r"(\d+)(?:\.(\d+))?([LS]?)(?:([FRB])(\d+)|(U))")
_PASSES: dict[str, type[Forward | Recompute | Backward]] = {"F": Forward, "R": Recompute, "B": Backward}
_TRANSFERS: dict[str, type[Load | Save]] = {"L": Load, "S": Save}


def parse_instruction(text: str) -> Instruction | Idle:
    """Parses the text form of an instruction, such as `2F0`, `2.1B3`, `0U`, `1LB0` or `.`.

    Raises:
      ValueError: `text` is not the text form of an instruction.
    """
    if text == ".":
        return IDLE
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"`text` is {text!r}, which is not an instruction; write a stage, a pass (F, R, B) and a micro-batch, as in"
            " `2F0`, or `2U`, `2LF0`, `2SF0`, `.`"
        )
    stage, part, transfer, letter, micro_batch, _ = match.groups()
    place = (int(stage), None if part is None else int(part))
    computation: Computation = Update(*place) if letter is None else _PASSES[letter](*place, int(micro_batch))
    return _TRANSFERS[transfer](computation) if transfer else computation


def micro_batch_of(instruction: Instruction) -> int | None:
    """Returns the micro-batch of an instruction, or None for updates and their transfers."""
    computation = instruction.computation if isinstance(instruction, _Transfer) else instruction
    return None if isinstance(computation, Update) else computation.micro_batch


def shifted(instruction: Instruction, by: int) -> Instruction:
    """Returns the same instruction with `by` added to its micro-batch."""
    if isinstance(instruction, _Transfer):
        return replace(instruction, computation=shifted(instruction.computation, by))
    if isinstance(instruction, Update):
        return instruction
    return replace(instruction, micro_batch=instruction.micro_batch + by)


def counted(count: int, noun: str, plural_ending: str = "s") -> str:
    """Returns a count with its noun: `(1, "stage") -> "1 stage"`, `(2, "stage") -> "2 stages"`."""
    return f"{count} {noun}{plural_ending if count > 1 else ''}"


def stage_letters(stage: int, part: int | None = None) -> str:
    """Returns the name of a stage in pictures: `A` to `Z`, then `AA`. Parts are numbered from 1: `(1, 1) -> "B2"`."""
    letters = ""
    number = stage + 1
    while number:
        number, digit = divmod(number - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters if part is None else f"{letters}{part + 1}"


class BufferKind(Enum):
    """The content of a buffer.

    `ACTIVATIONS` and `INPUTS` are stashes, written by `F`. `RECOMPUTED` activations are written by `R`. A
    `FORWARD_LINK` has the inputs of its stage, from the stage before. A `BACKWARD_LINK` has the gradients of the
    outputs of its stage, from the stage after it. An `ACCUMULATOR` has sums of gradients.
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
    """A circular buffer of `depth` micro-batches in the memory of one IPU, which is the IPU of the stage that reads it.

    Links are written when a step ends, other buffers in the slot of their writer. Between instructions of its stage, an
    `off_chip` buffer is in off-chip memory.
    """

    kind: BufferKind
    stage: int
    part: int | None
    ipu: int
    depth: int
    off_chip: bool = False

    def position(self, micro_batch: int) -> int:
        """Returns the position of a micro-batch in the buffer."""
        return 0 if self.kind is BufferKind.ACCUMULATOR else micro_batch % self.depth


@dataclass(frozen=True)
class Effects:
    """The buffers and queues that an instruction reads and writes. A read frees a place, except in links."""

    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    takes_infeed: bool = False
    gives_outfeed: bool = False


@dataclass(frozen=True)
class Task:
    """An instruction on an IPU, in a slot of its step; slots are numbered from 0."""

    slot: int
    ipu: int
    instruction: Instruction


@dataclass(frozen=True)
class Step:
    """The tasks of all IPUs between two exchanges, sorted by slot, then by IPU."""

    tasks: tuple[Task, ...]

    @functools.cached_property
    def slots(self) -> int:
        """The number of slots of the step."""
        return 1 + max((task.slot for task in self.tasks), default=0)

    def of(self, ipu: int) -> tuple[Task, ...]:
        """Returns the tasks of one IPU, in their order."""
        return tuple(task for task in self.tasks if task.ipu == ipu)


@dataclass(frozen=True)
class Section:
    """Consecutive steps of a plan, repeated 0 or more times: `ramp up`, `steady`, `ramp down` or `update`.

    Micro-batches of a section are relative. In iteration `i`, an instruction for micro-batch `m` is for micro-batch
    `first + i * advance + m` of the plan.
    """

    name: str
    steps: tuple[Step, ...]
    repeat: int = 1
    first: int = 0
    advance: int = 0

    def base(self, iteration: int) -> int:
        """Returns the micro-batch of the plan that is micro-batch 0 of an iteration."""
        return self.first + iteration * self.advance


def _contents(steps: Sequence[Step]) -> list[frozenset[Instruction]]:
    """Returns the computations of each step, without steps that only transfer."""
    computations = (
        frozenset(task.instruction for task in step.tasks if not isinstance(task.instruction, Load | Save))
        for step in steps
    )
    return [computed for computed, step in zip(computations, steps, strict=True) if computed or not step.tasks]


@dataclass(frozen=True)
class Plan(NotebookView):
    """The instructions of one pass of a pipeline, from the first micro-batch to the weight update.

    Attributes:
      name: A title, such as `Grouped`, `Sharded` or `Serial phases`.
      mapping: For each stage, the IPUs of its parts. A stage that is not a list of functions has one part.
      concurrent: For each stage, True if its parts are numbered, because it was passed as a list.
      micro_batches: The number of micro-batches of one pass.
      training: True if there are backward passes and a weight update.
      schedule: The order in which the IPUs work.
      recomputation: The recomputation mode, never `Auto`; None if nothing is recomputed.
      repeat_count: The number of times that the pass of the pipeline is repeated.
      batch_serialization_iterations: The number of micro-batches that each stage runs in a row before the next stage.
      sections: `ramp up`, `steady`, `ramp down`, and in training `update`. A section that is not needed has no steps.
      buffers: The buffers of all stages.
      liveness: The time at which phases leave the chip; None for stages of a pipeline.
    """

    name: str
    mapping: tuple[tuple[int, ...], ...]
    concurrent: tuple[bool, ...]
    micro_batches: int
    training: bool
    schedule: PipelineSchedule
    recomputation: RecomputationMode | None
    repeat_count: int
    batch_serialization_iterations: int
    sections: tuple[Section, ...]
    buffers: tuple[Buffer, ...]
    liveness: Liveness | None = None

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.mapping)

    @functools.cached_property
    def ipus(self) -> tuple[int, ...]:
        """The IPUs in use, in ascending order."""
        return tuple(sorted({ipu for parts in self.mapping for ipu in parts}))

    def parts(self, stage: int) -> tuple[tuple[int | None, int], ...]:
        """Returns the number and the IPU of each part of a stage; the number is None if parts are not numbered."""
        return tuple((index if self.concurrent[stage] else None, ipu) for index, ipu in enumerate(self.mapping[stage]))

    def places(self) -> tuple[tuple[int, int | None, int], ...]:
        """Returns the stage, the part and the IPU of all parts of all stages."""
        return self._places

    @functools.cached_property
    def _places(self) -> tuple[tuple[int, int | None, int], ...]:
        return tuple((stage, *part) for stage in range(self.stages) for part in self.parts(stage))

    def recomputes(self, stage: int) -> bool:
        """Returns True if a stage recomputes its activations; the last stage never does."""
        return self.recomputation is not None and stage < self.stages - 1

    def section(self, name: str) -> Section:
        """Returns the section of this name; raises `KeyError` if there is none."""
        return {section.name: section for section in reversed(self.sections)}[name]

    @property
    def step_count(self) -> int:
        """The number of steps of one pass of the pipeline."""
        return sum(len(section.steps) * section.repeat for section in self.sections)

    @property
    def slot_count(self) -> int:
        """The number of slots of one pass of the pipeline, over all its steps."""
        return sum(sum(step.slots for step in section.steps) * section.repeat for section in self.sections)

    def walk(self) -> Iterator[tuple[int, Section, Step]]:
        """Yields number, section and step of each step of one pass, with micro-batches of the plan."""
        number = 0
        for section in self.sections:
            for iteration in range(section.repeat):
                base = section.base(iteration)
                for step in section.steps:
                    tasks = (replace(task, instruction=shifted(task.instruction, base)) for task in step.tasks)
                    yield number, section, Step(tuple(tasks)) if base else step
                    number += 1

    @property
    def unlooped_micro_batches(self) -> int:
        """The number of micro-batches that the plan would have without iterations of the steady loop."""
        steady = self.section("steady")
        return self.micro_batches - steady.repeat * steady.advance

    def with_micro_batches(self, micro_batches: int) -> Plan:
        """Returns the same plan for another number of micro-batches, by changing the repetitions of the steady loop.

        Raises:
          ValueError: No number of repetitions has `micro_batches`.
        """
        steady = self.section("steady")
        added, remainder = divmod(micro_batches - self.micro_batches, steady.advance)
        if remainder or steady.repeat + added < 0:
            smallest = self.unlooped_micro_batches
            raise ValueError(
                f"`micro_batches` is {micro_batches}; this plan can have {smallest}, or any multiple of {steady.advance}"
                " more"
            )
        by = added * steady.advance
        sections = tuple(
            replace(section, repeat=section.repeat + added)
            if section is steady
            else replace(section, first=section.first + by)
            if section.name == "ramp down"
            else section
            for section in self.sections
        )
        return replace(self, micro_batches=micro_batches, sections=sections)

    def folded_ramps(self) -> tuple[int, int] | None:
        """Returns the numbers of steady iterations that are equal to the ramps, or None if there are no such numbers.

        Ramps often are iterations of the steady loop from which some instructions are missing: those whose micro-batch
        is before the first one or after the last one. Example: in Grouped inference with two stages and 4
        micro-batches, iteration `i` is `0F(i+1) 1F(i)` for `i` from 0 to 2. The ramp-up is iteration -1 without `1F-1`,
        and the ramp-down is iteration 3 without `0F4`, so the result is `(1, 1)`. Then one loop from -1 to 3 that skips
        the missing instructions runs the whole plan. The program has one copy of each stage in place of three.
        """
        steady = self.section("steady")
        up, down = _contents(self.section("ramp up").steps), _contents(self.section("ramp down").steps)
        length = len(_contents(steady.steps))
        if not length or len(up) % length:
            return None
        iterations_up, iterations_down = len(up) // length, -(-len(down) // length)

        def contents(iterations: range) -> list[frozenset[Instruction]]:
            """Returns the computations of these iterations for micro-batches that exist."""
            total = self.unlooped_micro_batches
            moved = (
                [shifted(instruction, iteration * steady.advance) for instruction in content]
                for iteration in iterations
                for content in _contents(steady.steps)
            )
            return [
                frozenset(instruction for instruction in step if 0 <= (micro_batch_of(instruction) or 0) < total)
                for step in moved
            ]

        missing = [frozenset[Instruction]()] * (iterations_down * length - len(down))
        if contents(range(-iterations_up, 0)) != up or contents(range(iterations_down)) != [*down, *missing]:
            return None
        return iterations_up, iterations_down

    def offloaded(self, *, activations: bool = False, accumulators: bool = False) -> Plan:
        """Returns the same plan with stashes or accumulators off the chip. Plans of phases are returned unchanged.

        Args:
          activations: True to move the stashes of all stages except the last one.
          accumulators: True to move the gradient accumulators of all stages.
        """
        if self.phased or not self.training:
            return self
        kinds = (STASHES if activations else ()) + ((BufferKind.ACCUMULATOR,) if accumulators else ())
        moved = [
            buffer.kind in kinds and (buffer.kind is BufferKind.ACCUMULATOR or buffer.stage < self.stages - 1)
            for buffer in self.buffers
        ]  # The backward pass of the last stage follows its forward pass at once, so its stash stays on the chip.
        pairs = zip(self.buffers, moved, strict=True)
        buffers = tuple(replace(buffer, off_chip=True) if is_moved else buffer for buffer, is_moved in pairs)
        return replace(self, buffers=buffers)

    @property
    def offloads(self) -> dict[str, bool]:
        """The kinds of buffers that are off the chip, as arguments of `offloaded`; all False for phases."""
        kinds = set() if self.phased else {buffer.kind for buffer in self.buffers if buffer.off_chip}
        return {"activations": bool(kinds & set(STASHES)), "accumulators": BufferKind.ACCUMULATOR in kinds}

    def buffer(self, kind: BufferKind, stage: int, part: int | None = None) -> Buffer | None:
        """Returns the buffer of this kind of a stage or of a part of it; None if there is none."""
        return self._buffers.get((kind, stage, part))

    def stash_depth(self, stage: int, part: int | None = None) -> int:
        """Returns the number of micro-batches for which a stage stashes activations, or inputs if it recomputes.

        The number is 0 in inference.
        """
        stashes = [self.buffer(kind, stage, part) for kind in STASHES]
        return max((buffer.depth for buffer in stashes if buffer), default=0)

    def effects(self, instruction: Instruction) -> Effects:
        """Returns the buffers and queues that an instruction reads and writes. They do not depend on its micro-batch.

        Transfers have no effects.
        """
        if isinstance(instruction, Load | Save):
            return Effects()
        kind = BufferKind
        stage, part = instruction.stage, instruction.part
        forward = isinstance(instruction, Forward)
        if forward:
            reads = (self.buffer(kind.FORWARD_LINK, stage, part),)
            stashes = tuple(self.buffer(stash, stage, part) for stash in STASHES)
            writes = (*stashes, *self._links(kind.FORWARD_LINK, stage + 1))
        elif isinstance(instruction, Recompute):
            reads = (self.buffer(kind.INPUTS, stage, part),)
            writes = (self.buffer(kind.RECOMPUTED, stage, part),)
        elif isinstance(instruction, Backward):
            kinds = (kind.ACTIVATIONS, kind.RECOMPUTED, kind.BACKWARD_LINK)
            reads = tuple(self.buffer(source, stage, part) for source in kinds)
            writes = (self.buffer(kind.ACCUMULATOR, stage, part), *self._links(kind.BACKWARD_LINK, stage - 1))
        else:
            reads = (self.buffer(kind.ACCUMULATOR, stage, part),)
            writes = ()
        return Effects(
            tuple(buffer for buffer in reads if buffer),
            tuple(buffer for buffer in writes if buffer),
            takes_infeed=forward and stage == 0,
            gives_outfeed=forward and stage == self.stages - 1,
        )

    @property
    def phased(self) -> bool:
        """True if the stages are phases, which are on the chip one after the other."""
        return self.liveness is not None

    @property
    def heading(self) -> str:
        """A description of the plan in one line."""
        parts = [
            f"{self.name}: {counted(self.stages, 'phase' if self.phased else 'stage')}",
            counted(self.micro_batches, "micro-batch", "es"),
            "training" if self.training else "inference",
        ]
        return ", ".join([*parts, self.recomputation.name] if self.recomputation else parts)

    def __repr__(self) -> str:
        return f"<Plan {self.heading}>"

    def __str__(self) -> str:
        from tensorflow_ipu.pipelining.schedule.text import plan_text

        return plan_text(self)

    def table(self) -> Table:
        """Returns all tasks of one pass of the pipeline as arrays with a row for each task."""
        from tensorflow_ipu.pipelining.schedule.text import make_table

        return make_table(self)

    def _links(self, kind: BufferKind, stage: int) -> tuple[Buffer | None, ...]:
        if not 0 <= stage < self.stages:
            return ()
        return tuple(self.buffer(kind, stage, part) for part, _ in self.parts(stage))

    @functools.cached_property
    def _buffers(self) -> dict[tuple[BufferKind, int, int | None], Buffer]:
        return {(buffer.kind, buffer.stage, buffer.part): buffer for buffer in self.buffers}
