"""The plan: which IPU does what in which slot, and where it keeps what it needs later."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensorflow_ipu.pipelining.schedule.enums import Liveness, PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.instructions import (
    STASHES,
    Backward,
    Buffer,
    BufferKind,
    Effects,
    Forward,
    Instruction,
    Load,
    Recompute,
    Save,
    shifted,
)

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.schedule.text import Table


@dataclass(frozen=True)
class Task:
    """One instruction at its place in a step.

    Attributes:
      slot: Its slot, counted from the begin of the step.
      ipu: The IPU that runs it.
      instruction: What is run.
    """

    slot: int
    ipu: int
    instruction: Instruction


@dataclass(frozen=True)
class Step:
    """What all IPUs do between two exchanges.

    An IPU works through its slots without waiting for others; at the end of the step all wait for the slowest, and
    exchange what goes from one to another.

    Attributes:
      tasks: By slot, then by IPU. A slot of an IPU without a task is idle.
    """

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
    """A stretch of a plan: some steps, repeated.

    In iteration `i`, an instruction for micro-batch `m` of the section is for micro-batch `first + i * advance + m` of
    the plan. So the section is the same for any number of micro-batches; only `repeat` and `first` differ.

    Attributes:
      name: `ramp up`, `steady`, `ramp down` or `update`.
      steps: The steps of one iteration.
      repeat: How many iterations there are; 0 or more.
      first: The micro-batch that is 0 in the first iteration.
      advance: By how many micro-batches an iteration is ahead of the one before.
    """

    name: str
    steps: tuple[Step, ...]
    repeat: int = 1
    first: int = 0
    advance: int = 0

    def base(self, iteration: int) -> int:
        """The micro-batch of the plan that is 0 in an iteration of this section."""
        return self.first + iteration * self.advance


@dataclass(frozen=True)
class Plan:
    """One pass of a pipeline, from the first micro-batch to the update: what is checked, drawn, costed and executed.

    Attributes:
      name: How the plan came about, for titles: `Grouped`, `Sharded`, `Serial phases`, ...
      mapping: For each stage the IPUs of its parts; a plain stage has one part.
      concurrent: For each stage whether its parts are numbered, that is whether it was given as a list.
      micro_batches: How many micro-batches one pass has.
      training: Whether there are backward passes and an update.
      schedule: The pipeline's schedule.
      recomputation: The mode in use, never `Auto`; None where nothing is recomputed.
      repeat_count: How often the pass is run.
      batch_serialization_iterations: How many micro-batches in a row each stage runs before the next stage does.
      sections: `ramp up`, `steady`, `ramp down`, and in training `update`; those that would be empty have no steps.
      buffers: Where the instructions keep what others need.
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

    def section(self, name: str) -> Section:
        """A section by its name.

        Raises:
          KeyError: The plan has no such section.
        """
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    @property
    def step_count(self) -> int:
        """How many steps one pass has."""
        return sum(len(section.steps) * section.repeat for section in self.sections)

    @property
    def slot_count(self) -> int:
        """How many slots one pass has, over all its steps."""
        return sum(sum(step.slots for step in section.steps) * section.repeat for section in self.sections)

    def walk(self) -> Iterator[tuple[int, Section, Step]]:
        """Goes through one pass step by step, without ever holding all of it.

        Yields:
          The number of the step, its section, and the step with the micro-batches of the plan.
        """
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
        """How many micro-batches there are without any iteration of the steady loop.

        Each iteration adds `advance` of them. So where their number is known at run time only, it gives the number of
        iterations, and with that the first micro-batch of the ramp down: all of the program but two numbers is known.
        """
        steady = self.section("steady")
        return self.micro_batches - steady.repeat * steady.advance

    def with_micro_batches(self, micro_batches: int) -> Plan:
        """The same plan for another number of micro-batches: the very same steps, the steady ones repeated otherwise.

        Args:
          micro_batches: How many; what `pipeline_plan` accepts for this schedule.

        Raises:
          ValueError: The steady loop cannot come to that number.
        """
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

    def offloaded(self, *, activations: bool = False, accumulators: bool = False) -> Plan:
        """The same plan with what waits in the memory beside the chip; phases have it there as they come and go.

        Args:
          activations: Whether stashes rest there. Not that of the last stage, whose backward pass follows at once.
          accumulators: Whether sums of gradients do.
        """
        if self.phased or not self.training:
            return self
        kinds = (STASHES if activations else ()) + ((BufferKind.ACCUMULATOR,) if accumulators else ())
        moved = (
            replace(each, off_chip=True) if each.kind in kinds and self._waits(each) else each for each in self.buffers
        )
        return replace(self, buffers=tuple(moved))

    @property
    def offloads(self) -> dict[str, bool]:
        """What of a pipeline rests beside the chip, as `offloaded` takes it."""
        kinds = set() if self.phased else {buffer.kind for buffer in self.buffers if buffer.off_chip}
        return {"activations": bool(kinds & set(STASHES)), "accumulators": BufferKind.ACCUMULATOR in kinds}

    def _waits(self, buffer: Buffer) -> bool:
        return buffer.kind is BufferKind.ACCUMULATOR or buffer.stage < self.stages - 1

    def buffer(self, kind: BufferKind, stage: int, part: int | None = None) -> Buffer | None:
        """The buffer of that kind that belongs to a stage or a part of it; None if there is none."""
        return self._buffers.get((kind, stage, part))

    def stash_depth(self, stage: int, part: int | None = None) -> int:
        """For how many micro-batches the IPU of a stage holds activations, or inputs where it recomputes.

        0 in inference, where nothing is held.
        """
        found = [self.buffer(kind, stage, part) for kind in STASHES]
        return max((buffer.depth for buffer in found if buffer), default=0)

    def effects(self, instruction: Instruction) -> Effects:
        """What an instruction of this plan reads and writes; its micro-batch does not matter.

        Transfers read and write no buffers: they say where those of their stage are.
        """
        if isinstance(instruction, Load | Save):
            return Effects()
        kind = BufferKind
        stage, part = instruction.stage, instruction.part
        last = stage == self.stages - 1
        if isinstance(instruction, Forward):
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
        forward = isinstance(instruction, Forward)
        return Effects(
            tuple(buffer for buffer in reads if buffer),
            tuple(buffer for buffer in writes if buffer),
            takes_infeed=forward and stage == 0,
            gives_outfeed=forward and last,
        )

    @property
    def phased(self) -> bool:
        """Whether its stages are phases, of which each has its IPUs for itself."""
        return self.liveness is not None

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
