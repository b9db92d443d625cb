"""The plan: which IPU does what in which slot, and where it keeps what it needs later."""

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
class _OfStage:
    """An instruction of a stage, or of one numbered part of a stage whose parts run concurrently."""

    letter: ClassVar[str]

    stage: int
    part: int | None = None

    @property
    def place(self) -> str:
        """The stage and the part as text, for instance `2` or `2.1`."""
        return str(self.stage) if self.part is None else f"{self.stage}.{self.part}"


@dataclass(frozen=True)
class _OfMicroBatch(_OfStage):
    """An instruction of a stage for one micro-batch, which a section of a plan counts from the iteration's first."""

    micro_batch: int = 0

    def __str__(self) -> str:
        return f"{self.place}{self.letter}{self.micro_batch}"


@dataclass(frozen=True)
class Forward(_OfMicroBatch):
    """`2F0`: run stage 2 forward on micro-batch 0, and in training stash what `2R0` or else `2B0` needs."""

    letter: ClassVar[str] = "F"


@dataclass(frozen=True)
class Recompute(_OfMicroBatch):
    """`2R0`: run stage 2 forward on micro-batch 0 again, from the stashed inputs, for `2B0`."""

    letter: ClassVar[str] = "R"


@dataclass(frozen=True)
class Backward(_OfMicroBatch):
    """`2B0`: run stage 2 backward on micro-batch 0, and add to the stage's gradient accumulators."""

    letter: ClassVar[str] = "B"


@dataclass(frozen=True)
class Update(_OfStage):
    """`2U`: update the weights of stage 2 with its accumulated gradients once a pass, and clear those."""

    letter: ClassVar[str] = "U"

    def __str__(self) -> str:
        return f"{self.place}{self.letter}"


Computation: TypeAlias = "Forward | Recompute | Backward | Update"


@dataclass(frozen=True)
class _Transfer:
    """A transfer, between an IPU and the memory off the chip, of what `computation` needs or left."""

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
        micro_batch = computation.micro_batch if isinstance(computation, _OfMicroBatch) else ""
        return f"{computation.place}{self.letter}{computation.letter}{micro_batch}"


@dataclass(frozen=True)
class Load(_Transfer):
    """`2LB0`: bring onto the chip what `2B0` needs there, in the place of what was saved.

    Passes need weights, backward ones activations and sums too; updates weights, sums and the optimizer's state.
    """

    letter: ClassVar[str] = "L"


@dataclass(frozen=True)
class Save(_Transfer):
    """`2SF0`: bring off the chip what `2F0` left there: activations, accumulators, or weights and the optimizer's state."""

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
    """Reads the text form of an instruction, such as `2F0`, `2.1B3`, `0U`, `1LB0` or `.`.

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
    """Returns the micro-batch of an instruction, or None for updates and their transfers."""
    inner = instruction.computation if isinstance(instruction, _Transfer) else instruction
    return None if isinstance(inner, Update) else inner.micro_batch


def shifted(instruction: Instruction, by: int) -> Instruction:
    """Returns the instruction for the micro-batch that is `by` further on."""
    if isinstance(instruction, _Transfer):
        return replace(instruction, computation=shifted(instruction.computation, by))
    if isinstance(instruction, Update):
        return instruction
    return replace(instruction, micro_batch=instruction.micro_batch + by)


def stage_letters(stage: int, part: int | None = None) -> str:
    """Returns the name of a stage in pictures: `A` to `Z`, then `AA`; parts are numbered from 1, as in `B2`."""
    letters = ""
    number = stage + 1
    while number:
        number, digit = divmod(number - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters if part is None else f"{letters}{part + 1}"


class BufferKind(Enum):
    """What a buffer holds: activations or stage inputs from `F`, `RECOMPUTED` ones from `R`, links, accumulators.

    A stage's `FORWARD_LINK` has its inputs, its `BACKWARD_LINK` the gradients of its outputs, from the stages beside it.
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
    """A circular buffer of `depth` micro-batches in the memory of one IPU, for the stage that reads it.

    Links are written as a step ends, others in the slot; `off_chip` ones rest there between instructions of their stage.
    """

    kind: BufferKind
    stage: int
    part: int | None
    ipu: int
    depth: int
    off_chip: bool = False

    def position(self, micro_batch: int) -> int:
        """The position of a micro-batch in the buffer."""
        return 0 if self.kind is BufferKind.ACCUMULATOR else micro_batch % self.depth


@dataclass(frozen=True)
class Effects:
    """What an instruction does to buffers (all but links are free once read) and to the queues."""

    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    takes_infeed: bool = False
    gives_outfeed: bool = False


@dataclass(frozen=True)
class Task:
    """An instruction on an IPU, in a slot that is counted from the begin of the step."""

    slot: int
    ipu: int
    instruction: Instruction


@dataclass(frozen=True)
class Step:
    """What all IPUs do between two exchanges: `tasks` by slot, then by IPU."""

    tasks: tuple[Task, ...]

    @functools.cached_property
    def slots(self) -> int:
        """How many slots the step has."""
        return 1 + max((task.slot for task in self.tasks), default=0)

    def of(self, ipu: int) -> tuple[Task, ...]:
        """The tasks of one IPU, in their order."""
        return tuple(task for task in self.tasks if task.ipu == ipu)


@dataclass(frozen=True)
class Section:
    """A stretch of a plan, `ramp up`, `steady`, `ramp down` or `update`: some steps, repeated 0 or more times.

    In iteration `i`, an instruction for micro-batch `m` is for micro-batch `first + i * advance + m` of the plan.
    """

    name: str
    steps: tuple[Step, ...]
    repeat: int = 1
    first: int = 0
    advance: int = 0

    def base(self, iteration: int) -> int:
        """The micro-batch of the plan that is 0 in an iteration of this section."""
        return self.first + iteration * self.advance


def _contents(steps: Sequence[Step]) -> list[frozenset[Instruction]]:
    """Returns what each step computes, without steps that only transfer."""
    found = (
        frozenset(task.instruction for task in step.tasks if not isinstance(task.instruction, Load | Save))
        for step in steps
    )
    return [computed for computed, step in zip(found, steps, strict=True) if computed or not step.tasks]


@dataclass(frozen=True)
class Plan(NotebookView):
    """One pass of a pipeline, from the first micro-batch to the update: what is checked, drawn, costed and executed.

    Attributes:
      name: A title, such as `Grouped`, `Sharded` or `Serial phases`.
      mapping: For each stage the IPUs of its parts; a plain stage has one part.
      concurrent: For each stage whether its parts are numbered, that is whether it was given as a list.
      recomputation: The mode in use, never `Auto`; None where nothing is recomputed.
      repeat_count: How often the pass is run.
      batch_serialization_iterations: How many micro-batches in a row each stage runs before the next stage does.
      sections: `ramp up`, `steady`, `ramp down`, and in training `update`; those that would be empty have no steps.
      liveness: When phases leave the chip; None for stages of a pipeline.
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
        """How many stages there are."""
        return len(self.mapping)

    @functools.cached_property
    def ipus(self) -> tuple[int, ...]:
        """The IPUs in use, by number."""
        return tuple(sorted({ipu for parts in self.mapping for ipu in parts}))

    def parts(self, stage: int) -> tuple[tuple[int | None, int], ...]:
        """The parts of a stage: each one's number, or None for a plain stage, and its IPU."""
        return tuple((index if self.concurrent[stage] else None, ipu) for index, ipu in enumerate(self.mapping[stage]))

    def places(self) -> tuple[tuple[int, int | None, int], ...]:
        """All parts of all stages: stage, part, IPU."""
        return self._places

    @functools.cached_property
    def _places(self) -> tuple[tuple[int, int | None, int], ...]:
        return tuple((stage, *part) for stage in range(self.stages) for part in self.parts(stage))

    def recomputes(self, stage: int) -> bool:
        """Whether a stage recomputes; the last one keeps its activations."""
        return self.recomputation is not None and stage < self.stages - 1

    def section(self, name: str) -> Section:
        """A section by its name; `KeyError` if there is none."""
        return {section.name: section for section in reversed(self.sections)}[name]

    @property
    def step_count(self) -> int:
        """How many steps one pass has."""
        return sum(len(section.steps) * section.repeat for section in self.sections)

    @property
    def slot_count(self) -> int:
        """How many slots one pass has, over all its steps."""
        return sum(sum(step.slots for step in section.steps) * section.repeat for section in self.sections)

    def walk(self) -> Iterator[tuple[int, Section, Step]]:
        """Yields each step of one pass: its number, its section, and the step with the micro-batches of the plan."""
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
        """How many micro-batches there are without any iteration of the steady loop."""
        steady = self.section("steady")
        return self.micro_batches - steady.repeat * steady.advance

    def with_micro_batches(self, micro_batches: int) -> Plan:
        """The same plan for another number of micro-batches; `ValueError` if the steady loop cannot come to it."""
        steady = self.section("steady")
        more, rest = divmod(micro_batches - self.micro_batches, steady.advance)
        if rest or steady.repeat + more < 0:
            least = self.unlooped_micro_batches
            raise ValueError(
                f"`micro_batches` is {micro_batches}; this plan can have {least}, or any multiple of {steady.advance}"
                " more"
            )
        by = more * steady.advance
        sections = tuple(
            replace(section, repeat=section.repeat + more)
            if section is steady
            else replace(section, first=section.first + by)
            if section.name == "ramp down"
            else section
            for section in self.sections
        )
        return replace(self, micro_batches=micro_batches, sections=sections)

    def folded_ramps(self) -> tuple[int, int] | None:
        """Returns how many iterations of the steady loop the ramps are; None if they are no such."""
        steady = self.section("steady")
        up, down = _contents(self.section("ramp up").steps), _contents(self.section("ramp down").steps)
        length = len(_contents(steady.steps))
        if not length or len(up) % length:
            return None
        before, after = len(up) // length, -(-len(down) // length)

        def contents(iterations: range) -> list[frozenset[Instruction]]:
            """Returns what the steps of these iterations do for the micro-batches that there are."""
            total = self.unlooped_micro_batches
            moved = (
                [shifted(instruction, iteration * steady.advance) for instruction in content]
                for iteration in iterations
                for content in _contents(steady.steps)
            )
            return [frozenset(one for one in step if 0 <= (micro_batch_of(one) or 0) < total) for step in moved]

        missing = [frozenset[Instruction]()] * (after * length - len(down))
        if contents(range(-before, 0)) != up or contents(range(after)) != [*down, *missing]:
            return None
        return before, after

    def offloaded(self, *, activations: bool = False, accumulators: bool = False) -> Plan:
        """The same plan with stashes (but the last stage's) or accumulators off the chip; phases stay as they are."""
        if self.phased or not self.training:
            return self
        kinds = (STASHES if activations else ()) + ((BufferKind.ACCUMULATOR,) if accumulators else ())
        moved = [
            each.kind in kinds and (each.kind is BufferKind.ACCUMULATOR or each.stage < self.stages - 1)
            for each in self.buffers
        ]  # The backward pass of the last stage follows at once, so its stash stays.
        pairs = zip(self.buffers, moved, strict=True)
        return replace(self, buffers=tuple(replace(each, off_chip=True) if off else each for each, off in pairs))

    @property
    def offloads(self) -> dict[str, bool]:
        """What of a pipeline rests off the chip, as the arguments of `offloaded`."""
        kinds = set() if self.phased else {buffer.kind for buffer in self.buffers if buffer.off_chip}
        return {"activations": bool(kinds & set(STASHES)), "accumulators": BufferKind.ACCUMULATOR in kinds}

    def buffer(self, kind: BufferKind, stage: int, part: int | None = None) -> Buffer | None:
        """The buffer of that kind that belongs to a stage or a part of it; None if there is none."""
        return self._buffers.get((kind, stage, part))

    def stash_depth(self, stage: int, part: int | None = None) -> int:
        """For how many micro-batches a stage stashes activations, or inputs where it recomputes; 0 in inference."""
        found = [self.buffer(kind, stage, part) for kind in STASHES]
        return max((buffer.depth for buffer in found if buffer), default=0)

    def effects(self, instruction: Instruction) -> Effects:
        """What an instruction of this plan reads and writes, whatever its micro-batch; transfers do neither."""
        if isinstance(instruction, Load | Save):
            return Effects()
        kind = BufferKind
        stage, part = instruction.stage, instruction.part
        forward = isinstance(instruction, Forward)
        if forward:
            reads = (self.buffer(kind.FORWARD_LINK, stage, part),)
            here = (self.buffer(kind.ACTIVATIONS, stage, part), self.buffer(kind.INPUTS, stage, part))
            writes = (*here, *self._links(kind.FORWARD_LINK, stage + 1))
        elif isinstance(instruction, Recompute):
            reads = (self.buffer(kind.INPUTS, stage, part),)
            writes = (self.buffer(kind.RECOMPUTED, stage, part),)
        elif isinstance(instruction, Backward):
            kinds = (kind.ACTIVATIONS, kind.RECOMPUTED, kind.BACKWARD_LINK)
            reads = tuple(self.buffer(one, stage, part) for one in kinds)
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
        """Whether its stages are phases, of which each has its IPUs for itself."""
        return self.liveness is not None

    @property
    def heading(self) -> str:
        """What it is, in a line."""
        words = [
            f"{self.name}: {self.stages} {'phase' if self.phased else 'stage'}{'s' * (self.stages > 1)}",
            f"{self.micro_batches} micro-batch{'es' * (self.micro_batches > 1)}",
            "training" if self.training else "inference",
        ]
        return ", ".join([*words, self.recomputation.name] if self.recomputation else words)

    def __repr__(self) -> str:
        return f"<Plan {self.heading}>"

    def __str__(self) -> str:
        from tensorflow_ipu.pipelining.schedule.text import plan_text

        return plan_text(self)

    def table(self) -> Table:
        """All tasks of one pass as arrays, one row a task."""
        from tensorflow_ipu.pipelining.schedule.text import make_table

        return make_table(self)

    def _links(self, kind: BufferKind, stage: int) -> tuple[Buffer | None, ...]:
        if not 0 <= stage < self.stages:
            return ()
        return tuple(self.buffer(kind, stage, part) for part, _ in self.parts(stage))

    @functools.cached_property
    def _buffers(self) -> dict[tuple[BufferKind, int, int | None], Buffer]:
        return {(buffer.kind, buffer.stage, buffer.part): buffer for buffer in self.buffers}
