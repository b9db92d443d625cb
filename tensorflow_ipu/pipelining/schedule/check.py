"""Whether a plan can be executed, and what is wrong with it if not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tensorflow_ipu.pipelining.schedule.enums import Liveness
from tensorflow_ipu.pipelining.schedule.plan import LINKS, Buffer, BufferKind, Plan, micro_batch_of
from tensorflow_ipu.pipelining.schedule.text import KINDS, Table

_SHOWN = 4  # of the faults of one kind; one wrong step is wrong in each iteration.
_NEVER = -1
_MOST = 4_000_000  # Tasks that are looked at one by one: some 400 MB.


class PlanError(ValueError):
    """A plan that cannot be executed: `faults` has a sentence for each fault, with the step, the slot and the IPU."""

    def __init__(self, plan: Plan, faults: list[str]) -> None:
        self.faults = tuple(faults)
        super().__init__(
            f"the {plan.name} plan of {plan.stages} stages and {plan.micro_batches} micro-batches cannot be executed:\n"
            + "\n".join(f"  - {fault}" for fault in faults)
        )


def check_plan(plan: Plan) -> None:
    """Checks a plan by its sections and buffers alone; of millions of tasks, fewer iterations of the steady loop.

    * Each IPU does at most one thing in a slot, and only what belongs to a stage that is mapped to it.
    * Each micro-batch has each pass of each part of each stage once, in order; then all weights are updated once.
    * What an instruction needs was made before: on the same IPU in an earlier slot, on another in an earlier step.
    * A place in a buffer is not written while it is needed, and no buffer is deeper than it needs to be.
    * What an instruction needs is on the chip, and what it left is saved before it is replaced.

    Raises:
      PlanError: One of these does not hold. All faults are named.
    """
    plan = _shortened(plan)
    faults = [*_slots(plan)]
    table = plan.table()
    times, more = _times(plan, table)
    faults += more
    if not faults:  # What follows needs one time for each task.
        faults += [*_ascending(plan, times), *_dependencies(plan, times), *_lifetimes(plan, times)]
        faults += [*_updates(plan, times), *_residence(plan, table)]
    if faults:
        raise PlanError(plan, faults)


@dataclass(frozen=True)
class _Times:
    """The times of all runs: arrays of shape `[places, micro-batches]`, for updates `[places]`; `_NEVER` if there is no run."""

    table: Table
    time: dict[str, NDArray[np.int64]]
    place: dict[tuple[int, int], int]

    def step(self, kind: str, place: int) -> NDArray[np.int64]:
        """Returns the steps in which one part of a stage runs a kind of pass, by micro-batch."""
        return self.time[kind][place] // self.table.slots

    def name(self, plan: Plan, kind: str, place: int, micro_batch: int) -> str:
        """Names a task and its slot, for messages."""
        stage, part = next(at for at, row in self.place.items() if row == place)
        text = f"{stage}.{part}" if plan.concurrent[stage] else str(stage)
        time = int(self.time[kind][place] if kind == "U" else self.time[kind][place, micro_batch])
        ipu = plan.mapping[stage][part]
        return _slot(*divmod(time, self.table.slots), ipu, f"{text}{kind}{'' if kind == 'U' else micro_batch}")


def _shortened(plan: Plan) -> Plan:
    steady = plan.section("steady")
    if sum(len(step.tasks) for step in steady.steps) * steady.repeat <= _MOST:
        return plan
    # What lasts longest is written at one end of a ramp and read at the other, or a buffer's depth later.
    longest = abs(plan.unlooped_micro_batches) + max((buffer.depth for buffer in plan.buffers), default=0)
    enough = 2 * (longest // steady.advance) + 8
    return plan.with_micro_batches(plan.micro_batches - max(0, steady.repeat - enough) * steady.advance)


def _slot(step: int, slot: int, ipu: int, instruction: str) -> str:
    return f"step {step}, slot {slot}, IPU {ipu}: `{instruction}`"


def _some(count: int, said: list[str]) -> list[str]:
    """Returns the first of so many faults, and a line for the others."""
    return [*said, f"and {count - len(said)} more like the last one"] if count > len(said) else said


def _slots(plan: Plan) -> Iterator[str]:
    """Checks that an IPU has one task a slot, of one of its stages. As steps do not overlap, one iteration is enough."""
    begin = 0
    for section in plan.sections:
        for number, step in enumerate(section.steps, begin if section.repeat else 0):
            taken: dict[tuple[int, int], str] = {}
            for task in step.tasks:
                text = str(task.instruction)
                at = _slot(number, task.slot, task.ipu, text) + f" in the section `{section.name}`"
                first = taken.setdefault((task.slot, task.ipu), text)
                if first is not text:
                    yield f"{at}: `{first}` is in the same slot; an IPU does one thing at a time"
                stage, part = task.instruction.stage, task.instruction.part
                if not 0 <= stage < plan.stages:
                    yield f"{at}: there is no stage {stage}"
                elif (part is not None) != plan.concurrent[stage] or not 0 <= (part or 0) < len(plan.mapping[stage]):
                    yield f"{at}: stage {stage} has {len(plan.mapping[stage])} parts, and not this one"
                elif plan.mapping[stage][part or 0] != task.ipu:
                    yield f"{at}: it belongs on IPU {plan.mapping[stage][part or 0]}"
                elif task.slot < 0:
                    yield f"{at}: slots are numbered from 0"
                if micro_batch_of(task.instruction) is None and section.name != "update":
                    yield f"{at}: weights are updated when all sections but `update` are over"
        begin += len(section.steps) * section.repeat


def _times(plan: Plan, table: Table) -> tuple[_Times, list[str]]:
    """Checks that each task that there must be is there once."""
    place = {(stage, part or 0): row for row, (stage, part, _) in enumerate(plan.places())}
    first = np.cumsum([0, *(len(parts) for parts in plan.mapping)])
    known = (table.stage >= 0) & (table.stage < plan.stages)
    rows = first[np.where(known, table.stage, 0)] + table.part
    known &= rows < first[np.where(known, table.stage, 0) + 1]
    time = table.time
    found: dict[str, NDArray[np.int64]] = {}
    faults: list[str] = []
    for kind in "FRBU":
        of_kind = known & (table.kind == KINDS.index(kind))
        columns = np.zeros_like(table.micro_batch) if kind == "U" else table.micro_batch
        width = 1 if kind == "U" else plan.micro_batches
        inside = (columns >= 0) & (columns < width)
        outside = np.flatnonzero(of_kind & ~inside)
        texts = [f"{_row(plan, table, row)}: there are {plan.micro_batches} micro-batches" for row in outside[:_SHOWN]]
        faults += _some(outside.size, texts)
        of_kind &= inside
        cells = rows[of_kind].astype(np.int64) * width + columns[of_kind]
        counts = np.bincount(cells, minlength=len(place) * width).reshape(len(place), width)
        wanted = np.array([_is_run(plan, kind, stage) for stage, _ in place])[:, None]
        wrong = np.argwhere(counts != wanted)
        texts = []
        for row, column in wrong[:_SHOWN]:
            tasks = np.flatnonzero(of_kind)[cells == row * width + column]
            texts.append(_miscounted(plan, table, kind, list(place)[row], int(column), tasks=tasks))
        faults += _some(len(wrong), texts)
        when = np.full(counts.size, _NEVER, np.int64)
        when[cells] = time[of_kind]
        found[kind] = when if kind == "U" else when.reshape(counts.shape)
    return _Times(table, found, place), faults


def _miscounted(
    plan: Plan, table: Table, kind: str, at: tuple[int, int], micro_batch: int, *, tasks: NDArray[np.intp]
) -> str:
    """Describes the wrong number of runs of a pass of a part, which are these rows of the table."""
    stage, part = at
    if not tasks.size:
        name = f"{stage}.{part}" if plan.concurrent[stage] else str(stage)
        return f"`{name}{kind}{'' if kind == 'U' else micro_batch}` on IPU {plan.mapping[stage][part]} is in no slot"
    why = f"it is run {tasks.size} times" if _is_run(plan, kind, stage) else "this plan has no such pass"
    return f"{_row(plan, table, tasks[-1])}: {why}"


def _row(plan: Plan, table: Table, row: SupportsIndex) -> str:
    stage, part = int(table.stage[row]), int(table.part[row])
    known = 0 <= stage < plan.stages and plan.concurrent[stage]
    micro_batch = int(table.micro_batch[row])
    text = f"{stage}{f'.{part}' if known else ''}{KINDS[table.kind[row]]}{micro_batch if micro_batch >= 0 else ''}"
    return _slot(int(table.step[row]), int(table.slot[row]), int(table.ipu[row]), text)


def _is_run(plan: Plan, kind: str, stage: int) -> bool:
    if kind == "R":
        return plan.recomputes(stage)
    return kind == "F" or plan.training


def _ascending(plan: Plan, times: _Times) -> Iterator[str]:
    """Checks that each part of a stage takes the micro-batches in their order."""
    for kind in "FRB":
        when = times.time[kind]
        found = np.argwhere((when[:, 1:] <= when[:, :-1]) & (when[:, 1:] != _NEVER))
        said = [
            f"{times.name(plan, kind, place, at + 1)}: runs before micro-batch {at}, out of order"
            for place, at in found[:_SHOWN]
        ]
        yield from _some(len(found), said)


def _dependencies(plan: Plan, times: _Times) -> Iterator[str]:
    """Checks that what a pass needs of another was made before."""
    for (stage, part), place in times.place.items():
        if stage:
            before = [times.place[stage - 1, other] for other in range(len(plan.mapping[stage - 1]))]
            yield from _needs(plan, times, ("F", place), "F", before, exchanged=True)
        if not plan.training:
            continue
        if stage < plan.stages - 1:
            after = [times.place[stage + 1, other] for other in range(len(plan.mapping[stage + 1]))]
            yield from _needs(plan, times, ("B", place), "B", after, exchanged=True)
        else:
            # The loss is of the outputs of all parts.
            others = [times.place[stage, other] for other in range(len(plan.mapping[stage])) if other != part]
            yield from _needs(plan, times, ("B", place), "F", others, exchanged=True)
        pairs = (("R", "F"), ("B", "R")) if _is_run(plan, "R", stage) else (("B", "F"),)
        for user, maker in pairs:
            yield from _needs(plan, times, (user, place), maker, [place], exchanged=False)


def _needs(
    plan: Plan, times: _Times, user: tuple[str, int], kind: str, makers: list[int], *, exchanged: bool
) -> Iterator[str]:
    """Checks that passes `user` follow those of the makers, a step later if data are exchanged."""
    for maker in makers:
        if exchanged:
            late = times.step(*user) <= times.step(kind, maker)
        else:
            late = times.time[user[0]][user[1]] <= times.time[kind][maker]
        why = "which is exchanged as that step ends" if exchanged else "which is not before it"
        said = [
            f"{times.name(plan, *user, at)}: needs what is made in {times.name(plan, kind, maker, at)}, {why}"
            for at in np.flatnonzero(late)[:_SHOWN]
        ]
        yield from _some(int(np.count_nonzero(late)), said)


_WRITER_AND_READER = {
    BufferKind.ACTIVATIONS: ("F", "B"),
    BufferKind.INPUTS: ("F", "R"),
    BufferKind.RECOMPUTED: ("R", "B"),
    BufferKind.FORWARD_LINK: ("F", "F"),
    BufferKind.BACKWARD_LINK: ("B", "B"),
}


def _lifetimes(plan: Plan, times: _Times) -> Iterator[str]:
    """Checks that no place in a buffer is written before it was read, and that all places are used."""
    for stage, part, _ in plan.places():
        for kind in BufferKind:
            wanted = _has_buffer(plan, kind, stage)
            if wanted != (plan.buffer(kind, stage, part) is not None):
                name = str(stage) if part is None else f"{stage}.{part}"
                yield f"stage {name} has {'no' if wanted else 'a'} buffer for `{kind.value}`"
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
    writer, reader = _WRITER_AND_READER[buffer.kind]
    place = times.place[buffer.stage, buffer.part or 0]
    what = f"`{buffer.kind.value}` of stage {buffer.stage}"
    if buffer.kind in LINKS:
        source = buffer.stage + (-1 if buffer.kind is BufferKind.FORWARD_LINK else 1)
        writers = [times.place[source, part] for part in range(len(plan.mapping[source]))]
        # Of what several parts write, the first one counts.
        written = np.min([times.step(writer, row) for row in writers], axis=0)
        read = times.step(reader, place) - 1  # A link is written as a step ends: it may be in the step of the read.
    else:
        writers = [place]
        written = times.time[writer][place]
        read = times.time[reader][place]
    depth = buffer.depth
    if depth < 1:
        yield f"{what} has depth {depth}; it holds something"
        return
    early = np.flatnonzero(written[depth:] <= read[:-depth])
    said = [
        f"{times.name(plan, writer, writers[0], at + depth)}: overwrites {what} for micro-batch {at} at position"
        f" {at % depth} of {depth}, which is read later, in {times.name(plan, reader, place, at)}"
        for at in early[:_SHOWN]
    ]
    yield from _some(early.size, said)
    if depth > 1 and not early.size and not np.any(written[depth - 1 :] <= read[: 1 - depth]):
        yield f"{what} has depth {depth}, but never holds more than {depth - 1} micro-batches at once"


def _updates(plan: Plan, times: _Times) -> Iterator[str]:
    """Checks that weights are updated when all gradients are there."""
    if not plan.training:
        return
    for (stage, part), place in times.place.items():
        last = int(np.argmax(times.time["B"][place]))
        if times.time["U"][place] // times.table.slots <= times.step("B", place)[last]:
            yield (
                f"{times.name(plan, 'U', place, 0)}: comes before the last gradients of stage {stage}"
                f"{f', part {part}' if plan.concurrent[stage] else ''}, of {times.name(plan, 'B', place, last)}"
            )


def _residence(plan: Plan, table: Table) -> Iterator[str]:
    """Checks that stages which are loaded and saved are on the chip when they run."""
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
        at = np.arange(rows.size)
        load, save = letters[rows] == "L", letters[rows] == "S"
        loaded = np.maximum.accumulate(np.where(load, at, -1))
        resident = np.where(loaded >= 0, table.stage[rows][loaded], -1)
        away = np.flatnonzero(resident != table.stage[rows])
        said = [
            f"{_row(plan, table, rows[row])}: its stage is not on the chip; load it before" for row in away[:_SHOWN]
        ]
        yield from _some(away.size, said)
        changed = np.maximum.accumulate(np.where(changes[rows], at, -1))
        saved = np.maximum.accumulate(np.where(save, at, -1))
        lost = np.flatnonzero(load & (changed > saved))
        said = [
            f"{_row(plan, table, rows[row])}: replaces what {_row(plan, table, rows[changed[row]])} left unsaved"
            for row in lost[:_SHOWN]
        ]
        yield from _some(lost.size, said)
        if changed[-1] > saved[-1]:
            yield f"{_row(plan, table, rows[changed[-1]])}: what it left is never saved"


def _returns(plan: Plan, table: Table, letters: NDArray[np.str_]) -> Iterator[str]:
    """Checks that no stage runs between its save and its load; it is on the chip at all other times."""
    for stage, _, ipu in plan.places():
        rows = np.flatnonzero((table.ipu == ipu) & (table.stage == stage))
        rows = rows[np.argsort(table.time[rows], kind="stable")]
        load, save = letters[rows] == "L", letters[rows] == "S"
        wrong = np.flatnonzero(np.cumsum(save) - save > np.cumsum(load))
        said = [
            f"{_row(plan, table, rows[row])}: its stage is not on the chip; load it before" for row in wrong[:_SHOWN]
        ]
        yield from _some(wrong.size, said)
