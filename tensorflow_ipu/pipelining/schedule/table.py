"""A plan's tasks as arrays, one row a task, for work over all micro-batches at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tensorflow_ipu.pipelining.schedule.instructions import Load, Save, micro_batch_of

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.schedule.instructions import Instruction
    from tensorflow_ipu.pipelining.schedule.plan import Plan, Section

# The kinds of instructions by number: the letters of their text form.
KINDS = ("F", "R", "B", "U", "LF", "LB", "LU", "SF", "SB", "SU")
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class Table:
    """The tasks of one pass of a plan, in the order of the steps; every array has shape `[tasks]` and dtype int32.

    Attributes:
      step: The number of the step.
      slot: The slot within the step.
      ipu: The IPU's number.
      stage: The stage.
      part: The part of the stage; 0 for a plain stage.
      kind: The index of the instruction's kind in `KINDS`.
      micro_batch: The micro-batch; -1 for updates and their transfers.
      slots: The most slots of a step, no array.
    """

    step: NDArray[np.int32]
    slot: NDArray[np.int32]
    ipu: NDArray[np.int32]
    stage: NDArray[np.int32]
    part: NDArray[np.int32]
    kind: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    slots: int

    @property
    def time(self) -> NDArray[np.int64]:
        """The order of the tasks: of two on one IPU, the one with the lower number runs first."""
        return self.step.astype(np.int64) * self.slots + self.slot


def kind_of(instruction: Instruction) -> str:
    """The letters of an instruction's text form, for instance `F` or `LB`."""
    inner = instruction.computation.letter if isinstance(instruction, Load | Save) else ""
    return instruction.letter + inner


def make_table(plan: Plan) -> Table:
    """The tasks of one pass of a plan."""
    blocks = []
    begin = 0
    for section in plan.sections:
        blocks.append(_rows(section, begin))
        begin += len(section.steps) * section.repeat
    columns = np.concatenate(blocks, axis=1)
    slots = max((step.slots for section in plan.sections for step in section.steps), default=1)
    return Table(*columns, slots=slots)


def _rows(section: Section, begin: int) -> NDArray[np.int32]:
    """The columns of a section, which begins with the step `begin`: shape `[7, tasks]`."""
    one = [
        (
            number,
            task.slot,
            task.ipu,
            task.instruction.stage,
            task.instruction.part or 0,
            _NUMBERS[kind_of(task.instruction)],
            -1 if (micro_batch := micro_batch_of(task.instruction)) is None else micro_batch,
        )
        for number, step in enumerate(section.steps)
        for task in step.tasks
    ]
    once = np.array(one, np.int32).reshape(-1, 7).T
    rows = np.tile(once[:, None, :], (1, section.repeat, 1))
    iteration = np.arange(section.repeat, dtype=np.int32)[:, None]
    rows[0] += begin + iteration * len(section.steps)
    rows[6] += np.where(once[6] >= 0, section.first + iteration * section.advance, 0)
    return rows.reshape(7, -1)
