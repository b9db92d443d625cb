"""A plan as text: a grid of IPUs and slots."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tensorflow_ipu.pipelining.schedule.enums import Liveness
from tensorflow_ipu.pipelining.schedule.plan import IDLE, Load, Plan, Save, Step, micro_batch_of, stage_letters

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.schedule.plan import Instruction, Section

# The kinds of instructions by number: the letters of their text form.
KINDS = ("F", "R", "B", "U", "LF", "LB", "LU", "SF", "SB", "SU")
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class Table:
    """The tasks of one pass of a plan, in the order of the steps, as arrays of shape `[tasks]` and dtype int32.

    `slot` is within the step, `part` 0 for a plain stage, `kind` an index of `KINDS`, `micro_batch` -1 without one;
    `slots`, a number, is the most slots of a step.
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
    """Returns the letters of an instruction's text form, for instance `F` or `LB`."""
    inner = instruction.computation.letter if isinstance(instruction, Load | Save) else ""
    return instruction.letter + inner


def make_table(plan: Plan) -> Table:
    begins = itertools.accumulate((len(section.steps) * section.repeat for section in plan.sections), initial=0)
    columns = np.concatenate(list(map(_rows, plan.sections, begins)), axis=1)
    slots = max((step.slots for section in plan.sections for step in section.steps), default=1)
    return Table(*columns, slots=slots)


def _rows(section: Section, begin: int) -> NDArray[np.int32]:
    """Returns the columns of a section, which begins with the step `begin`: shape `[7, tasks]`."""
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


_WHOLE = 80  # Up to so many steps are all written out.
_PASSES = {"R": "recomputation", "B": "backward", "U": "weight update", "L": "load before a pass", "S": "save after it"}


def plan_text(plan: Plan, width: int = 120) -> str:
    """Writes a plan as a grid with a legend: a row an IPU, a column a slot, lines of at most `width` characters.

    A long plan is written by section, with micro-batches relative to those of the iteration, as in `0F+7`.
    """
    return "\n".join([*plan_headline(plan), *_grids(plan, width), "", *_legend(plan, width)])


def plan_headline(plan: Plan) -> list[str]:
    """Describes a plan in two or three lines."""
    ipus = len(plan.ipus)
    words = [
        f"{plan.stages} {'phase' if plan.phased else 'stage'}{'s' * (plan.stages > 1)} on {ipus} IPU{'s' * (ipus > 1)}",
        f"{plan.micro_batches} micro-batch{'es' * (plan.micro_batches > 1)}",
        "training" if plan.training else "inference",
    ]
    if plan.liveness not in (None, Liveness.OffChipAfterEachPhase):
        words.append(plan.liveness.value)
    if plan.recomputation:
        words.append(plan.recomputation.name)
    offloads = [name for name, rests in plan.offloads.items() if rests]
    if offloads:
        words.append(f"{' and '.join(offloads)} off the chip")
    if plan.repeat_count > 1:
        words.append(f"{plan.repeat_count} times")
    lines = [f"{plan.name}: {', '.join(words)}", f"{plan.step_count} steps, {plan.slot_count} slots"]
    if plan.training:
        depths = (f"{stage_letters(stage, part)} {plan.stash_depth(stage, part)}" for stage, part, _ in plan.places())
        lines.append(f"stash depth {', '.join(depths)}")
    return lines


def _legend(plan: Plan, width: int) -> list[str]:
    """Explains the letters and signs of this plan's grid."""
    instructions = [task.instruction for section in plan.sections for step in section.steps for task in step.tasks]
    kinds = {kind_of(instruction)[0] for instruction in instructions}
    words = ["0F1 is stage 0, forward, micro-batch 1"]
    words += [f"{letter} {meaning}" for letter, meaning in _PASSES.items() if letter in kinds]
    if any(plan.concurrent):
        words.append("1.0 is part 0 of stage 1")
    if plan.step_count > _WHOLE:
        words.append("F+1 is for micro-batch 1 of those of the iteration")
    words += [". is idle", "| ends a step"]
    if plan.training:
        words.append("A is stage 0")
    return textwrap.wrap("; ".join(words), width)


def _grids(plan: Plan, width: int) -> Iterator[str]:
    if plan.step_count <= _WHOLE:
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
        cells = {at: _relative(text, sign) for at, text in cells.items()}
    slots = range(step.slots)
    widths = [max(len(cells.get((ipu, slot), str(IDLE))) for ipu in plan.ipus) for slot in slots]
    rows = [" ".join(cells.get((ipu, slot), str(IDLE)).ljust(widths[slot]) for slot in slots) for ipu in plan.ipus]
    width = max(len(head), len(rows[0]))
    return [text.ljust(width) for text in (head, *rows)]


def _relative(text: str, sign: str) -> str:
    """Makes `0F+7` of `0F7`."""
    digits = len(text) - len(text.rstrip("0123456789"))
    return text[:-digits] + sign + text[-digits:] if digits else text


def _lines(plan: Plan, names: Sequence[str], columns: Sequence[list[str]], width: int) -> Iterator[str]:
    """Yields rows of columns, in blocks that fit the width; a name stands above the column of its section's begin."""
    heads = ["step", *(f"IPU {ipu}" for ipu in plan.ipus)]
    left = max(len(head) for head in heads)
    begin = 0
    while begin < len(columns):
        end = begin
        used = left
        while end < len(columns) and (end == begin or used + 3 + len(columns[end][0]) <= width):
            used += 3 + len(columns[end][0])
            end += 1
        if begin:
            yield ""
        title = _title(names[begin:end], [len(column[0]) for column in columns[begin:end]], left)
        if title:
            yield title
        for row, head in enumerate(heads):
            yield " | ".join([head.ljust(left), *(column[row] for column in columns[begin:end])]).rstrip()
        begin = end


def _title(names: Sequence[str], widths: Sequence[int], left: int) -> str:
    line = ""
    at = left + 3
    for name, width in zip(names, widths, strict=True):
        if name:
            line = f"{line} " if len(line) >= at else line.ljust(at)
            line += name
        at += width + 3
    return line
