"""From the numbers of a pipeline, or of a sharded model, to its plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tensorflow_ipu._base.checks import Faults, is_int
from tensorflow_ipu.pipelining.schedule import plan_arguments
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.plan import (
    Backward,
    Buffer,
    BufferKind,
    Forward,
    Plan,
    Recompute,
    Section,
    Step,
    Task,
    Update,
)
from tensorflow_ipu.pipelining.schedule.plan_arguments import FullMapping, Mapping, Schedule


@dataclass(frozen=True)
class Order:
    """When micro-batches set out, at `offsets` of each cycle of `length` steps, to visit `length` points, one a step."""

    length: int
    offsets: tuple[int, ...]
    batch: int = 1

    def step(self, micro_batch: int, point: int) -> int:
        """Returns the step in which a micro-batch is at a point."""
        together, within = divmod(micro_batch, self.batch)
        cycle, index = divmod(together, len(self.offsets))
        return (self.length * cycle + self.offsets[index] + point) * self.batch + within

    @property
    def multiple(self) -> int:
        """What the number of micro-batches must be a multiple of, so that the last cycle is whole."""
        return len(self.offsets) * self.batch

    @property
    def period(self) -> tuple[int, int]:
        """The shortest steady loop: after so many steps, everything happens again so many micro-batches on."""
        times = set(self.offsets)
        for steps in range(1, self.length):
            if self.length % steps == 0 and all((offset + steps) % self.length in times for offset in times):
                break
        else:
            steps = self.length
        return steps * self.batch, len(times) * steps * self.batch // self.length

    @property
    def full_from(self) -> int:
        """The step from which on each point is visited as often as it ever is."""
        return self.offsets[-1] * self.batch


def order_of(
    schedule: PipelineSchedule,
    mapping: Sequence[Sequence[int]],
    training: bool,
    batch_serialization_iterations: int = 1,
) -> Order:
    way = [frozenset(ipus) for ipus in mapping]
    if training:
        way += reversed(way)
    if schedule is PipelineSchedule.Grouped:
        offsets = tuple(range(len(way)))
    elif schedule is PipelineSchedule.Interleaved:
        offsets = _rotations(way)
    else:
        offsets = (0,)
    return Order(len(way), offsets, batch_serialization_iterations)


def overlap_length(schedule: PipelineSchedule, mapping: Sequence[int | Sequence[int]], training: bool) -> int:
    """What the number of micro-batches of a pipeline must be a multiple of, by the IPU or IPUs of each stage.

    For `Grouped` it is the number of stages, twice in training; for `Interleaved` how many rotations of the list of IPUs
    overlap without using an IPU twice at a time; for `Sequential` 1.
    """
    groups = [[item] if isinstance(item, int) else list(item) for item in mapping]
    return order_of(schedule, groups, training).multiple


def _rotations(way: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """Returns rotations of a circular way that share no IPU in any step, chosen greedily from 0 on."""
    length = len(way)
    # Two of them share none if their difference does, so each difference is looked at once.
    apart = [all(way[at].isdisjoint(way[(at + by) % length]) for at in range(length)) for by in range(length)]
    chosen = [0]
    for rotation in range(1, length):
        if all(apart[rotation - other] for other in chosen):
            chosen.append(rotation)
    return tuple(chosen)


_Pass = type[Forward | Recompute | Backward]
# A pass in a step: its group of slots, its IPU, itself.
_Placed = tuple[int, int, Forward | Recompute | Backward | Update]


def pipeline_plan(
    stages: int,
    micro_batches: int,
    schedule: PipelineSchedule = PipelineSchedule.Grouped,
    *,
    device_mapping: Sequence[int | Sequence[int]] | None = None,
    training: bool = True,
    recomputation_mode: RecomputationMode | None = None,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
) -> Plan:
    """Plans a pipeline; the size of the plan does not depend on `micro_batches`.

    Args:
      stages: How many stages there are; at least 2.
      micro_batches: How many micro-batches one pass has; a multiple of `overlap_length(...)`.
      schedule: In which order the IPUs work.
      device_mapping: For each stage its IPU, or a list of IPUs for concurrent parts, or -1 for all, planned on IPU 0. IPU
        `i` for stage `i` if omitted; IPU 0 for all with `batch_serialization_iterations`.
      training: Whether there are backward passes and a weight update.
      recomputation_mode: How activations are recomputed; None where all are kept.
      repeat_count: How often the pass is run.
      batch_serialization_iterations: Into how many micro-batches, one after the other a stage, each of them is cut.

    Raises:
      ValueError: A number is out of range, or `device_mapping` has not one item a stage.
      TypeError: An argument is of the wrong type.
      NotImplementedError: The schedule cannot do what is asked for.
      FailedPreconditionError: Of `tf.errors`; `micro_batches` is not such a multiple.
    """
    faults = Faults()
    plan_arguments.checked_count("stages", stages, faults, plan_arguments.MOST_STAGES)
    if stages == 1:
        faults.add(ValueError, "`stages` is 1; a pipeline has at least two, `sharded_plan` plans a single one")
    counted = is_int(stages) and stages <= plan_arguments.MOST_STAGES
    if device_mapping is None and counted:
        serialized = plan_arguments.is_serialized(batch_serialization_iterations)
        device_mapping = [0] * stages if serialized else list(range(stages))
    elif counted and isinstance(device_mapping, list | tuple) and len(device_mapping) != stages:
        faults.add(
            ValueError,
            f"`device_mapping` has {len(device_mapping)} items and `stages` is {stages}; each stage needs its IPU",
        )
    if not isinstance(schedule, PipelineSchedule):
        faults.add(TypeError, f"`schedule` must be a `PipelineSchedule`, but is {schedule!r}")
        schedule = PipelineSchedule.Sequential
    return Pipelined(schedule).checked_plan(
        device_mapping,
        micro_batches,
        training=training,
        mode=recomputation_mode,
        repeat_count=repeat_count,
        batch=batch_serialization_iterations,
        faults=faults,
    )


def sharded_plan(
    device_mapping: Sequence[int | Sequence[int]],
    *,
    micro_batches: int = 1,
    training: bool = True,
    recomputation_mode: RecomputationMode | None = None,
    repeat_count: int = 1,
) -> Plan:
    """Plans a sharded model, whose shards are the stages: one IPU works at a time, as in a Sequential pipeline.

    Arguments are those of `pipeline_plan`; weights are updated after `micro_batches`.

    Raises:
      ValueError: A number is out of range, or there is no shard.
      TypeError: An argument is of the wrong type.
      NotImplementedError: The recomputation mode is not one of `PipelineSchedule.Sequential`.
    """
    plan = Pipelined(PipelineSchedule.Sequential).checked_plan(
        device_mapping,
        micro_batches,
        training=training,
        mode=recomputation_mode,
        repeat_count=repeat_count,
        faults=Faults(),
    )
    return replace(plan, name="Sharded")


@dataclass(frozen=True)
class Pipelined(Schedule):
    """Schedules stages that stay on their IPUs."""

    enough: ClassVar[int] = 4

    value: PipelineSchedule

    def default_mapping(self, parts: Sequence[int], batch_serialization_iterations: int) -> Mapping:
        """Returns the IPUs of stages of so many parts: one after the other, or IPU 0 if batches are serialized."""
        if plan_arguments.is_serialized(batch_serialization_iterations):
            return tuple((0,) * width for width in parts)
        ends = itertools.accumulate(parts)
        return tuple(tuple(range(end - width, end)) for end, width in zip(ends, parts, strict=True))

    def multiple(self, mapping: Mapping, training: bool) -> int:
        return order_of(self.value, mapping, training).multiple

    def check(self, mapping: Mapping | None, training: bool, batch: int, faults: Faults, name: str) -> None:
        super().check(mapping, training, batch, faults, name)
        ipus = [ipu for parts in mapping or () for ipu in parts]
        plain = [parts[0] if len(parts) == 1 else list(parts) for parts in mapping or ()]
        if plan_arguments.is_serialized(batch) and len(set(ipus)) > 1:
            faults.add(
                NotImplementedError,
                f"`batch_serialization_iterations` is {batch}, so all stages must be on one IPU;"
                f" `device_mapping` is {plain}",
            )
        shared = sorted({ipu for ipu in ipus if ipus.count(ipu) > 1})
        if self.value is PipelineSchedule.Interleaved and training and shared:
            faults.add(
                NotImplementedError,
                f"`{name}` is Interleaved and `device_mapping` is {plain}: in training an IPU has one stage"
                f" only, but IPU {shared[0]} has several; use `PipelineSchedule.Grouped`, or an IPU a stage",
            )

    def _supported(self, mode: RecomputationMode, faults: Faults) -> RecomputationMode:
        supported = plan_arguments.SUPPORTED_MODES[self.value]
        if mode is RecomputationMode.Auto:
            return supported[0]
        if mode not in supported:
            faults.add(
                NotImplementedError,
                f"`recomputation_mode` is {mode.name}, which {self.name} does not support; use"
                f" {' or '.join(f'`{choice.name}`' for choice in (RecomputationMode.Auto, *supported))}",
            )
        return mode

    def plan(
        self,
        full: FullMapping,
        micro_batches: int,
        *,
        training: bool,
        mode: RecomputationMode | None,
        repeat_count: int,
        batch: int = 1,
    ) -> Plan:
        mapping, concurrent = full
        order = order_of(self.value, mapping, training, batch)
        work = _Work(self.value, order, mapping, concurrent, training, mode)
        return Plan(
            name=self.name,
            mapping=mapping,
            concurrent=concurrent,
            micro_batches=micro_batches,
            training=training,
            schedule=self.value,
            recomputation=mode,
            repeat_count=repeat_count,
            batch_serialization_iterations=batch,
            sections=work.sections(micro_batches),
            buffers=tuple(work.buffers()),
        )


@dataclass(frozen=True)
class _Work:
    """The passes of a pipeline in steps and slots."""

    _schedule: PipelineSchedule
    _order: Order
    _mapping: Mapping
    _concurrent: tuple[bool, ...]
    _training: bool
    _mode: RecomputationMode | None

    def sections(self, micro_batches: int) -> tuple[Section, ...]:
        """Returns the steps until the pipeline is full, a loop while it is, those until it is empty, and the update."""
        order = self._order
        period, advance = order.period
        full_from = order.full_from
        full_steps = order.step(micro_batches, 0) - full_from
        repeat = full_steps // period
        done = repeat * advance
        sections = (
            Section("ramp up", self._steps(0, full_from, micro_batches)),
            # The loop's body sees as many micro-batches as it needs: it is the same for each number of them.
            Section("steady", self._steps(full_from, full_from + period, None), repeat, 0, advance),
            Section("ramp down", self._steps(full_from, None, micro_batches - done), 1, done),
        )
        if not self._training:
            return sections
        updates = (
            (0, ipu, Update(stage, part if self._concurrent[stage] else None))
            for stage, parts in enumerate(self._mapping)
            for part, ipu in enumerate(parts)
        )
        return (*sections, Section("update", (_step(updates),)))

    def _steps(self, begin: int, end: int | None, micro_batches: int | None) -> tuple[Step, ...]:
        """Returns the steps from `begin` up to `end`, or up to the last one that so many micro-batches need."""
        starts = list(self._starts(end, micro_batches))
        last = starts[-1] + self._order.length * self._order.batch if end is None and starts else end or begin
        found: list[list[_Placed]] = [[] for _ in range(begin, last)]
        for group, _, ipu, kind, stage, part, after in self._templates():
            for micro_batch, start in enumerate(starts):
                if begin <= start + after < last:
                    found[start + after - begin].append((group, ipu, kind(stage, part, micro_batch)))
        while end is None and found and not found[-1]:
            found.pop()
        return tuple(_step(placed) for placed in found)

    def _starts(self, end: int | None, micro_batches: int | None) -> Iterator[int]:
        """Yields the steps in which micro-batches set out, up to `end`."""
        for micro_batch in itertools.count() if micro_batches is None else range(micro_batches):
            start = self._order.step(micro_batch, 0)
            if end is not None and start >= end:
                return
            yield start

    def _templates(self) -> list[tuple[int, int, int, _Pass, int, int | None, int]]:
        """Returns all passes of a micro-batch: group, rank, IPU, kind, stage, part, and the number of steps after its start."""
        return sorted(
            (
                (*self._slot(kind, stage), ipu, kind, stage, part if self._concurrent[stage] else None, after)
                for stage, ipus in enumerate(self._mapping)
                for kind in self._kinds(stage)
                for after in (self._after(kind, stage),)
                for part, ipu in enumerate(ipus)
            ),
            key=lambda template: template[:3],
        )

    def _kinds(self, stage: int) -> tuple[_Pass, ...]:
        backward = (Recompute, Backward) if self._recomputes(stage) else (Backward,)
        return (Forward, *backward) if self._training else (Forward,)

    def _after(self, kind: _Pass, stage: int) -> int:
        """Returns how many steps after its start a micro-batch has a pass."""
        if kind is Forward:
            return stage * self._order.batch
        backward = (2 * len(self._mapping) - 1 - stage) * self._order.batch
        ahead = kind is Recompute and self._mode is RecomputationMode.RecomputeThenBackpropagate
        return backward - ahead

    def _recomputes(self, stage: int) -> bool:
        return self._mode is not None and stage < len(self._mapping) - 1

    def _slot(self, kind: _Pass, stage: int) -> tuple[int, int]:
        """Returns the group of slots of a pass in its step, and the rank in it."""
        if kind is Backward:
            return 0, 2 * stage + 1
        if kind is Forward:  # All IPUs run backward first in a Grouped step: that frees a place in the stash.
            return int(self._schedule is PipelineSchedule.Grouped), -stage
        return (0, 2 * stage) if self._mode is RecomputationMode.RecomputeAndBackpropagateInterleaved else (2, -stage)

    def buffers(self) -> Iterator[Buffer]:
        """Yields the buffers, as deep as the order of the passes makes them."""
        last = len(self._mapping) - 1
        for stage, parts in enumerate(self._mapping):
            for part, ipu in enumerate(parts):
                at = (stage, part if self._concurrent[stage] else None, ipu)
                if stage:
                    yield Buffer(BufferKind.FORWARD_LINK, *at, self._order.batch)
                if not self._training:
                    continue
                depth = self._stash_depth(stage)
                if self._recomputes(stage):
                    yield Buffer(BufferKind.INPUTS, *at, depth)
                    yield Buffer(BufferKind.RECOMPUTED, *at, 1)
                else:
                    yield Buffer(BufferKind.ACTIVATIONS, *at, depth)
                if stage < last:
                    yield Buffer(BufferKind.BACKWARD_LINK, *at, self._order.batch)
                yield Buffer(BufferKind.ACCUMULATOR, *at, 1)

    def _stash_depth(self, stage: int) -> int:
        """Returns the most micro-batches that ran forward, and whose stash was not read yet."""
        reader = Recompute if self._recomputes(stage) else Backward

        def time(kind: _Pass, micro_batch: int) -> tuple[int, int, int]:
            return self._order.step(micro_batch, 0) + self._after(kind, stage), *self._slot(kind, stage)

        depth = 0
        for oldest in range(self._order.period[1]):
            read = time(reader, oldest)
            newest = oldest
            while time(Forward, newest) < read:
                newest += 1
            depth = max(depth, newest - oldest)
        return depth


def _step(placed: Iterable[_Placed]) -> Step:
    """Lays the passes of a step into slots: one group after the other, in each an IPU's passes in their order."""
    tasks: list[Task] = []
    used: dict[int, int] = {}
    current = begin = width = 0
    for group, ipu, instruction in placed:
        if group != current:
            current, begin, width = group, begin + width, 0
            used.clear()
        slot = used.get(ipu, 0)
        used[ipu] = slot + 1
        width = max(width, slot + 1)
        tasks.append(Task(begin + slot, ipu, instruction))
    return Step(tuple(sorted(tasks, key=lambda task: (task.slot, task.ipu))))
