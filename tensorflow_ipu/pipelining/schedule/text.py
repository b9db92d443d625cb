"""The text of a plan: a grid of IPUs and slots."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tensorflow_ipu.pipelining.schedule.enums import Liveness
from tensorflow_ipu.pipelining.schedule.plan import IDLE, Load, Plan, Save, Step, counted, micro_batch_of, stage_letters

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.schedule.plan import Instruction, Section

# The kinds of instructions, as the letters of their text form. Tables have their positions in this tuple.
KINDS = ("F", "R", "B", "U", "LF", "LB", "LU", "SF", "SB", "SU")
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class Table:
    """The tasks of one pass of a plan, in the order of the steps, as arrays of shape `[tasks]` and dtype int32.

    Attributes:
      step: The step, from the begin of the plan.
      slot: The slot within the step.
      ipu: The IPU.
      stage: The stage.
      part: The part; 0 for a stage without numbered parts.
      kind: The index of the kind of instruction in `F R B U LF LB LU SF SB SU`.
      micro_batch: The micro-batch; -1 for an instruction without one.
      slots: The largest number of slots of a step.
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
        """The times of the tasks, int64 of shape `[tasks]`: an IPU runs its tasks in ascending order."""
        return self.step.astype(np.int64) * self.slots + self.slot


def kind_of(instruction: Instruction) -> str:
    """Returns the letters of an instruction's text form, for instance `F` or `LB`."""
    computation_letter = instruction.computation.letter if isinstance(instruction, Load | Save) else ""
    return instruction.letter + computation_letter


def make_table(plan: Plan) -> Table:
    begins = itertools.accumulate((len(section.steps) * section.repeat for section in plan.sections), initial=0)
    columns = np.concatenate(list(map(_rows, plan.sections, begins)), axis=1)
    slots = max((step.slots for section in plan.sections for step in section.steps), default=1)
    return Table(*columns, slots=slots)


def _rows(section: Section, begin: int) -> NDArray[np.int32]:
    """Returns the columns of a section, which begins with the step `begin`: shape `[7, tasks]`."""
    tasks = [
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
    once = np.array(tasks, np.int32).reshape(-1, 7).T
    rows = np.tile(once[:, None, :], (1, section.repeat, 1))
    iteration = np.arange(section.repeat, dtype=np.int32)[:, None]
    rows[0] += begin + iteration * len(section.steps)
    rows[6] += np.where(once[6] >= 0, section.first + iteration * section.advance, 0)
    return rows.reshape(7, -1)


_LONGEST_WHOLE = 80  # Plans of more steps are written by section, with each loop once.
_PASSES = {"R": "recomputation", "B": "backward", "U": "weight update", "L": "load before a pass", "S": "save after it"}


def plan_text(plan: Plan, width: int = 120) -> str:
    """Returns a plan as a grid with a legend: a row for each IPU, a column for each slot.

    A plan of more than 80 steps is written by section, with micro-batches relative to the iteration, as in `0F+7`.

    Args:
      plan: The plan.
      width: The largest number of characters of a line.
    """
    return "\n".join([*plan_headline(plan), *_grids(plan, width), "", *_legend(plan, width)])


def plan_headline(plan: Plan) -> list[str]:
    """Returns a description of a plan in two or three lines."""
    stages = counted(plan.stages, "phase" if plan.phased else "stage")
    parts = [
        f"{stages} on {counted(len(plan.ipus), 'IPU')}",
        counted(plan.micro_batches, "micro-batch", "es"),
        "training" if plan.training else "inference",
    ]
    if plan.liveness not in (None, Liveness.OffChipAfterEachPhase):
        parts.append(plan.liveness.value)
    if plan.recomputation:
        parts.append(plan.recomputation.name)
    offloads = [name for name, rests in plan.offloads.items() if rests]
    if offloads:
        parts.append(f"{' and '.join(offloads)} off the chip")
    if plan.repeat_count > 1:
        parts.append(f"{plan.repeat_count} times")
    lines = [f"{plan.name}: {', '.join(parts)}", f"{plan.step_count} steps, {plan.slot_count} slots"]
    if plan.training:
        depths = (f"{stage_letters(stage, part)} {plan.stash_depth(stage, part)}" for stage, part, _ in plan.places())
        lines.append(f"stash depth {', '.join(depths)}")
    return lines


def _legend(plan: Plan, width: int) -> list[str]:
    """Returns the explanation of the letters and signs in the grid of this plan."""
    instructions = [task.instruction for section in plan.sections for step in section.steps for task in step.tasks]
    kinds = {kind_of(instruction)[0] for instruction in instructions}
    entries = ["0F1 is stage 0, forward, micro-batch 1"]
    entries += [f"{letter} {meaning}" for letter, meaning in _PASSES.items() if letter in kinds]
    if any(plan.concurrent):
        entries.append("1.0 is part 0 of stage 1")
    if plan.step_count > _LONGEST_WHOLE:
        entries.append("F+1 is for micro-batch 1 of those of the iteration")
    entries += [". is idle", "| ends a step"]
    if plan.training:
        entries.append("A is stage 0")
    return textwrap.wrap("; ".join(entries), width)


def _grids(plan: Plan, width: int) -> Iterator[str]:
    if plan.step_count <= _LONGEST_WHOLE:
        walked = [(number, section.name, step) for number, section, step in plan.walk()]
        names = [
            name if index == 0 or walked[index - 1][1] != name else "" for index, (_, name, _) in enumerate(walked)
        ]
        columns = [_column(plan, step, str(number)) for number, _, step in walked]
        yield ""
        yield from _lines(plan, names, columns, width)
        return
    for section in plan.sections:
        if not section.steps or not section.repeat:
            continue
        times = f", {section.repeat} times, each {section.advance} on" if section.repeat > 1 else ""
        first = f", micro-batches from {section.first}" if section.name != "update" else ""
        yield f"\n{section.name}{first}{times}"
        columns = [_column(plan, step, str(number), "+") for number, step in enumerate(section.steps)]
        yield from _lines(plan, [""] * len(columns), columns, width)


def _column(plan: Plan, step: Step, head: str, sign: str = "") -> list[str]:
    """Returns the text of a step's head and of each IPU, all of one width."""
    cells = {(task.ipu, task.slot): str(task.instruction) for task in step.tasks}
    if sign:
        cells = {cell: _relative(text, sign) for cell, text in cells.items()}
    slots = range(step.slots)
    widths = [max(len(cells.get((ipu, slot), str(IDLE))) for ipu in plan.ipus) for slot in slots]
    rows = [" ".join(cells.get((ipu, slot), str(IDLE)).ljust(widths[slot]) for slot in slots) for ipu in plan.ipus]
    width = max(len(head), len(rows[0]))
    return [text.ljust(width) for text in (head, *rows)]


def _relative(text: str, sign: str) -> str:
    """Returns the text of an instruction with a sign before its micro-batch: `0F7 -> 0F+7`."""
    digits = len(text) - len(text.rstrip("0123456789"))
    return text[:-digits] + sign + text[-digits:] if digits else text


def _lines(plan: Plan, names: Sequence[str], columns: Sequence[list[str]], width: int) -> Iterator[str]:
    """Yields the lines of the grid, in blocks of columns that fit the width.

    The name of a section is above its first column.
    """
    heads = ["step", *(f"IPU {ipu}" for ipu in plan.ipus)]
    head_width = max(len(head) for head in heads)
    begin = 0
    while begin < len(columns):
        end = begin
        used = head_width
        while end < len(columns) and (end == begin or used + 3 + len(columns[end][0]) <= width):
            used += 3 + len(columns[end][0])
            end += 1
        if begin:
            yield ""
        title = _title(names[begin:end], [len(column[0]) for column in columns[begin:end]], head_width)
        if title:
            yield title
        for row, head in enumerate(heads):
            yield " | ".join([head.ljust(head_width), *(column[row] for column in columns[begin:end])]).rstrip()
        begin = end


def _title(names: Sequence[str], widths: Sequence[int], head_width: int) -> str:
    line = ""
    position = head_width + 3
    for name, width in zip(names, widths, strict=True):
        if name:
            line = f"{line} " if len(line) >= position else line.ljust(position)
            line += name
        position += width + 3
    return line
