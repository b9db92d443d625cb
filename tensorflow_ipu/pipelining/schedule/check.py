"""The check that a plan can be executed, with a message for each error in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tensorflow_ipu.pipelining.schedule.enums import Liveness
from tensorflow_ipu.pipelining.schedule.plan import LINKS, Buffer, BufferKind, Plan, micro_batch_of
from tensorflow_ipu.pipelining.schedule.text import KINDS, Table

_SHOWN = 4  # The number of errors of one kind that are listed: a wrong step of a loop is wrong in each iteration.
_NEVER = -1
_MAX_TASKS = 4_000_000  # Plans with more tasks are shortened before the check. At this size, arrays take about 400 MB.


class PlanError(ValueError):
    """The error of a plan that cannot be executed.

    Attributes:
      faults: A sentence for each error in the plan, with the step, the slot and the IPU.
    """

    def __init__(self, plan: Plan, faults: list[str]) -> None:
        self.faults = tuple(faults)
        super().__init__(
            f"the {plan.name} plan of {plan.stages} stages and {plan.micro_batches} micro-batches cannot be executed:\n"
            + "\n".join(f"  - {fault}" for fault in faults)
        )


def check_plan(plan: Plan) -> None:
    """Checks that a plan can be executed.

    * Each IPU runs at most one instruction in a slot, and only instructions of stages that are mapped to it.
    * Each part of each stage runs each pass once for each micro-batch, in order. Then all weights are updated once.
    * The tensors that an instruction reads were written before: on the same IPU in an earlier slot, on another IPU in
      an earlier step.
    * A place of a buffer is not overwritten before it is read, and no buffer is deeper than necessary.
    * The stage of an instruction is on the chip, and tensors that it has written are saved before others replace them.

    The check uses sections and buffers only. A plan of millions of tasks is checked with fewer steady iterations.

    Raises:
      PlanError: One of these conditions does not hold. The message lists all errors.
    """
    plan = _shortened(plan)
    faults = [*_slots(plan)]
    table = plan.table()
    times, miscounts = _times(plan, table)
    faults += miscounts
    if not faults:  # The other checks need exactly one time for each task.
        faults += [*_ascending(plan, times), *_dependencies(plan, times), *_lifetimes(plan, times)]
        faults += [*_updates(plan, times), *_residence(plan, table)]
    if faults:
        raise PlanError(plan, faults)


@dataclass(frozen=True)
class _Times:
    """The times of all tasks, by kind of task, as arrays with `_NEVER` for a missing task.

    Arrays have the shape `[places, micro-batches]`, or `[places]` for updates. `place` has the row of each stage and
    part.
    """

    table: Table
    time: dict[str, NDArray[np.int64]]
    place: dict[tuple[int, int], int]

    def step(self, kind: str, place: int) -> NDArray[np.int64]:
        """Returns the step of each micro-batch for one kind of pass of one place."""
        return self.time[kind][place] // self.table.slots

    def name(self, plan: Plan, kind: str, place: int, micro_batch: int) -> str:
        """Returns the name of a task with its step, slot and IPU, as used in error messages."""
        stage, part = next(key for key, row in self.place.items() if row == place)
        text = f"{stage}.{part}" if plan.concurrent[stage] else str(stage)
        time = int(self.time[kind][place] if kind == "U" else self.time[kind][place, micro_batch])
        ipu = plan.mapping[stage][part]
        return _slot(*divmod(time, self.table.slots), ipu, f"{text}{kind}{'' if kind == 'U' else micro_batch}")


def _shortened(plan: Plan) -> Plan:
    steady = plan.section("steady")
    if sum(len(step.tasks) for step in steady.steps) * steady.repeat <= _MAX_TASKS:
        return plan
    # A value lives longest if it is written at one end of a ramp and read at the other, or if its place in a buffer is
    # overwritten `depth` micro-batches later. A plan of twice as many micro-batches already shows each error.
    longest = abs(plan.unlooped_micro_batches) + max((buffer.depth for buffer in plan.buffers), default=0)
    iterations = 2 * (longest // steady.advance) + 8
    return plan.with_micro_batches(plan.micro_batches - max(0, steady.repeat - iterations) * steady.advance)


def _slot(step: int, slot: int, ipu: int, instruction: str) -> str:
    return f"step {step}, slot {slot}, IPU {ipu}: `{instruction}`"


def _first_of(count: int, messages: list[str]) -> list[str]:
    """Returns the messages, with a line for the further errors if there are `count` errors in all."""
    missing = count - len(messages)
    return [*messages, f"and {missing} more like the last one"] if missing > 0 else messages


def _slots(plan: Plan) -> Iterator[str]:
    """Yields errors of IPUs with several tasks in a slot, or with tasks of other stages.

    Steps do not overlap, so one iteration of each section is enough.
    """
    begin = 0
    for section in plan.sections:
        for number, step in enumerate(section.steps, begin if section.repeat else 0):
            taken: dict[tuple[int, int], str] = {}
            for task in step.tasks:
                text = str(task.instruction)
                task_name = _slot(number, task.slot, task.ipu, text) + f" in the section `{section.name}`"
                first_text = taken.setdefault((task.slot, task.ipu), text)
                if first_text is not text:
                    yield f"{task_name}: `{first_text}` is in the same slot; an IPU does one thing at a time"
                stage, part = task.instruction.stage, task.instruction.part
                if not 0 <= stage < plan.stages:
                    yield f"{task_name}: there is no stage {stage}"
                elif (part is not None) != plan.concurrent[stage] or not 0 <= (part or 0) < len(plan.mapping[stage]):
                    yield f"{task_name}: stage {stage} has {len(plan.mapping[stage])} parts, and not this one"
                elif plan.mapping[stage][part or 0] != task.ipu:
                    yield f"{task_name}: it belongs on IPU {plan.mapping[stage][part or 0]}"
                elif task.slot < 0:
                    yield f"{task_name}: slots are numbered from 0"
                if micro_batch_of(task.instruction) is None and section.name != "update":
                    yield f"{task_name}: weights are updated when all sections but `update` are over"
        begin += len(section.steps) * section.repeat


def _times(plan: Plan, table: Table) -> tuple[_Times, list[str]]:
    """Returns the times of all tasks, and errors of tasks that are missing, repeated or unexpected.

    All tasks are checked at once: for each kind, `np.bincount` counts the tasks of each cell of a grid of places and
    micro-batches. A count that differs from the expected one (0 or 1) is an error.
    """
    place = {(stage, part or 0): row for row, (stage, part, _) in enumerate(plan.places())}
    first_row = np.cumsum([0, *(len(parts) for parts in plan.mapping)])
    is_valid = (table.stage >= 0) & (table.stage < plan.stages)
    rows = first_row[np.where(is_valid, table.stage, 0)] + table.part
    is_valid &= rows < first_row[np.where(is_valid, table.stage, 0) + 1]
    time = table.time
    times: dict[str, NDArray[np.int64]] = {}
    faults: list[str] = []
    for kind in "FRBU":
        of_kind = is_valid & (table.kind == KINDS.index(kind))
        columns = np.zeros_like(table.micro_batch) if kind == "U" else table.micro_batch
        width = 1 if kind == "U" else plan.micro_batches
        is_micro_batch = (columns >= 0) & (columns < width)
        outside = np.flatnonzero(of_kind & ~is_micro_batch)
        texts = [f"{_row(plan, table, row)}: there are {plan.micro_batches} micro-batches" for row in outside[:_SHOWN]]
        faults += _first_of(outside.size, texts)
        of_kind &= is_micro_batch
        cells = rows[of_kind].astype(np.int64) * width + columns[of_kind]
        counts = np.bincount(cells, minlength=len(place) * width).reshape(len(place), width)
        expected = np.array([_is_run(plan, kind, stage) for stage, _ in place])[:, None]
        wrong = np.argwhere(counts != expected)
        texts = []
        for row, column in wrong[:_SHOWN]:
            tasks = np.flatnonzero(of_kind)[cells == row * width + column]
            texts.append(_miscounted(plan, table, kind, list(place)[row], int(column), tasks=tasks))
        faults += _first_of(len(wrong), texts)
        when = np.full(counts.size, _NEVER, np.int64)
        when[cells] = time[of_kind]
        times[kind] = when if kind == "U" else when.reshape(counts.shape)
    return _Times(table, times, place), faults


def _miscounted(
    plan: Plan, table: Table, kind: str, place: tuple[int, int], micro_batch: int, *, tasks: NDArray[np.intp]
) -> str:
    """Returns the error of a task that is missing, repeated or unexpected; `tasks` are its rows in the table."""
    stage, part = place
    if not tasks.size:
        name = f"{stage}.{part}" if plan.concurrent[stage] else str(stage)
        return f"`{name}{kind}{'' if kind == 'U' else micro_batch}` on IPU {plan.mapping[stage][part]} is in no slot"
    reason = f"it is run {tasks.size} times" if _is_run(plan, kind, stage) else "this plan has no such pass"
    return f"{_row(plan, table, tasks[-1])}: {reason}"


def _row(plan: Plan, table: Table, row: SupportsIndex) -> str:
    stage, part = int(table.stage[row]), int(table.part[row])
    is_concurrent = 0 <= stage < plan.stages and plan.concurrent[stage]
    micro_batch = int(table.micro_batch[row])
    text = (
        f"{stage}{f'.{part}' if is_concurrent else ''}{KINDS[table.kind[row]]}{micro_batch if micro_batch >= 0 else ''}"
    )
    return _slot(int(table.step[row]), int(table.slot[row]), int(table.ipu[row]), text)


def _is_run(plan: Plan, kind: str, stage: int) -> bool:
    if kind == "R":
        return plan.recomputes(stage)
    return kind == "F" or plan.training


def _ascending(plan: Plan, times: _Times) -> Iterator[str]:
    """Yields errors of micro-batches that a part of a stage runs out of order."""
    for kind in "FRB":
        when = times.time[kind]
        disordered = np.argwhere((when[:, 1:] <= when[:, :-1]) & (when[:, 1:] != _NEVER))
        messages = [
            f"{times.name(plan, kind, place, micro_batch + 1)}: runs before micro-batch {micro_batch}, out of order"
            for place, micro_batch in disordered[:_SHOWN]
        ]
        yield from _first_of(len(disordered), messages)


def _dependencies(plan: Plan, times: _Times) -> Iterator[str]:
    """Yields errors of passes that run before a pass whose results they need."""
    for (stage, part), place in times.place.items():
        if stage:
            makers = [times.place[stage - 1, maker] for maker in range(len(plan.mapping[stage - 1]))]
            yield from _premature(plan, times, ("F", place), "F", makers, exchanged=True)
        if not plan.training:
            continue
        if stage < plan.stages - 1:
            makers = [times.place[stage + 1, maker] for maker in range(len(plan.mapping[stage + 1]))]
            yield from _premature(plan, times, ("B", place), "B", makers, exchanged=True)
        else:
            # The loss depends on the outputs of all parts.
            makers = [times.place[stage, maker] for maker in range(len(plan.mapping[stage])) if maker != part]
            yield from _premature(plan, times, ("B", place), "F", makers, exchanged=True)
        pairs = (("R", "F"), ("B", "R")) if _is_run(plan, "R", stage) else (("B", "F"),)
        for user, maker in pairs:
            yield from _premature(plan, times, (user, place), maker, [place], exchanged=False)


def _premature(
    plan: Plan, times: _Times, user: tuple[str, int], kind: str, makers: list[int], *, exchanged: bool
) -> Iterator[str]:
    """Yields errors of passes `user` (kind and place) that run before the passes `kind` of the places `makers`.

    With `exchanged`, the user must run at least one step later: tensors are exchanged when a step ends.
    """
    for maker in makers:
        if exchanged:
            late = times.step(*user) <= times.step(kind, maker)
        else:
            late = times.time[user[0]][user[1]] <= times.time[kind][maker]
        reason = "which is exchanged as that step ends" if exchanged else "which is not before it"
        messages = [
            f"{times.name(plan, *user, micro_batch)}: needs what is made in"
            f" {times.name(plan, kind, maker, micro_batch)}, {reason}"
            for micro_batch in np.flatnonzero(late)[:_SHOWN]
        ]
        yield from _first_of(int(np.count_nonzero(late)), messages)


_WRITER_AND_READER = {
    BufferKind.ACTIVATIONS: ("F", "B"),
    BufferKind.INPUTS: ("F", "R"),
    BufferKind.RECOMPUTED: ("R", "B"),
    BufferKind.FORWARD_LINK: ("F", "F"),
    BufferKind.BACKWARD_LINK: ("B", "B"),
}


def _lifetimes(plan: Plan, times: _Times) -> Iterator[str]:
    """Yields errors of buffers that are missing or not needed, overwritten before they are read, or too deep."""
    for stage, part, _ in plan.places():
        for kind in BufferKind:
            is_needed = _has_buffer(plan, kind, stage)
            if is_needed != (plan.buffer(kind, stage, part) is not None):
                name = str(stage) if part is None else f"{stage}.{part}"
                yield f"stage {name} has {'no' if is_needed else 'a'} buffer for `{kind.value}`"
    for buffer in plan.buffers:
        if buffer.kind is not BufferKind.ACCUMULATOR and _has_buffer(plan, buffer.kind, buffer.stage):
            yield from _lifetime(plan, times, buffer)


def _has_buffer(plan: Plan, kind: BufferKind, stage: int) -> bool:
    if kind is BufferKind.FORWARD_LINK:
        return stage > 0
    if not plan.training or kind is BufferKind.ACCUMULATOR:
        return plan.training
    if kind is BufferKind.BACKWARD_LINK:
        return stage < plan.stages - 1
    return _is_run(plan, "R", stage) == (kind is not BufferKind.ACTIVATIONS)


def _lifetime(plan: Plan, times: _Times, buffer: Buffer) -> Iterator[str]:
    """Yields errors of one buffer.

    Micro-batches `m` and `m + depth` share a place of a circular buffer, so the write of `m + depth` must follow the
    read of `m`. With a depth of 2: `F2` must follow `B0`, `F3` must follow `B1`. The buffer is too deep if this
    also holds with `depth - 1`. Each condition is one comparison of shifted arrays.
    """
    writer, reader = _WRITER_AND_READER[buffer.kind]
    place = times.place[buffer.stage, buffer.part or 0]
    name = f"`{buffer.kind.value}` of stage {buffer.stage}"
    if buffer.kind in LINKS:
        source = buffer.stage + (-1 if buffer.kind is BufferKind.FORWARD_LINK else 1)
        writers = [times.place[source, part] for part in range(len(plan.mapping[source]))]
        # Several parts may write the link: the first write counts.
        written = np.min([times.step(writer, row) for row in writers], axis=0)
        read = times.step(reader, place) - 1  # A link is written when its step ends, after the reads of that step.
    else:
        writers = [place]
        written = times.time[writer][place]
        read = times.time[reader][place]
    depth = buffer.depth
    if depth < 1:
        yield f"{name} has depth {depth}; it must be at least 1"
        return
    early = np.flatnonzero(written[depth:] <= read[:-depth])
    messages = [
        f"{times.name(plan, writer, writers[0], micro_batch + depth)}: overwrites {name} for micro-batch {micro_batch}"
        f" at position {micro_batch % depth} of {depth}, which is read later, in"
        f" {times.name(plan, reader, place, micro_batch)}"
        for micro_batch in early[:_SHOWN]
    ]
    yield from _first_of(early.size, messages)
    if depth > 1 and not early.size and not np.any(written[depth - 1 :] <= read[: 1 - depth]):
        yield f"{name} has depth {depth}, but never holds more than {depth - 1} micro-batches at once"


def _updates(plan: Plan, times: _Times) -> Iterator[str]:
    """Yields errors of weights that are updated before the last gradients were computed."""
    if not plan.training:
        return
    for (stage, part), place in times.place.items():
        last = int(np.argmax(times.time["B"][place]))
        if times.time["U"][place] // times.table.slots <= times.step("B", place)[last]:
            yield (
                f"{times.name(plan, 'U', place, 0)}: runs before the last gradients of stage {stage}"
                f"{f', part {part}' if plan.concurrent[stage] else ''}, of {times.name(plan, 'B', place, last)}"
            )


def _residence(plan: Plan, table: Table) -> Iterator[str]:
    """Yields errors of stages that run while they are off the chip, or whose results are replaced unsaved.

    The tasks of each IPU are sorted by time. Running maxima of positions then give, for each task, the position of the
    latest load, of the latest save and of the latest task that changed a stage. For the tasks `0LF0 0F0 1F0` the latest
    loads are at positions 0, 0, 0: stage 0 is on the chip, so `1F0` is an error.
    """
    letters = np.array([kind[0] for kind in KINDS])[table.kind]
    if not np.isin(letters, ("L", "S")).any():
        return
    if plan.training and plan.liveness is Liveness.OffChipAfterFwd:
        yield from _returns(plan, table, letters)
        return
    changes = np.isin(letters, ("B", "U")) | ((letters == "F") & plan.training)
    for ipu in plan.ipus:
        rows = np.flatnonzero(table.ipu == ipu)
        rows = rows[np.argsort(table.time[rows], kind="stable")]
        positions = np.arange(rows.size)
        load, save = letters[rows] == "L", letters[rows] == "S"
        loaded = np.maximum.accumulate(np.where(load, positions, -1))
        resident = np.where(loaded >= 0, table.stage[rows][loaded], -1)
        away = np.flatnonzero(resident != table.stage[rows])
        messages = [
            f"{_row(plan, table, rows[row])}: its stage is not on the chip; load it first" for row in away[:_SHOWN]
        ]
        yield from _first_of(away.size, messages)
        changed = np.maximum.accumulate(np.where(changes[rows], positions, -1))
        saved = np.maximum.accumulate(np.where(save, positions, -1))
        lost = np.flatnonzero(load & (changed > saved))
        messages = [
            f"{_row(plan, table, rows[row])}: replaces what {_row(plan, table, rows[changed[row]])} has written, unsaved"
            for row in lost[:_SHOWN]
        ]
        yield from _first_of(lost.size, messages)
        if changed[-1] > saved[-1]:
            yield f"{_row(plan, table, rows[changed[-1]])}: what it has written is never saved"


def _returns(plan: Plan, table: Table, letters: NDArray[np.str_]) -> Iterator[str]:
    """Yields errors of stages that run between their save and their load; they are on the chip at all other times."""
    for stage, _, ipu in plan.places():
        rows = np.flatnonzero((table.ipu == ipu) & (table.stage == stage))
        rows = rows[np.argsort(table.time[rows], kind="stable")]
        load, save = letters[rows] == "L", letters[rows] == "S"
        wrong = np.flatnonzero(np.cumsum(save) - save > np.cumsum(load))
        messages = [
            f"{_row(plan, table, rows[row])}: its stage is not on the chip; load it first" for row in wrong[:_SHOWN]
        ]
        yield from _first_of(wrong.size, messages)
