"""Plans of pipelines and of sharded models, whose stages stay on their IPUs."""

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
    """The timetable of micro-batches.

    Each micro-batch visits `length` points, one in each step: the stages forward, and in training backward again. In
    each cycle of `length` steps, a micro-batch starts at each of the `offsets`. With `batch` above 1, this is the
    timetable of groups of `batch` micro-batches, and each step of a group takes `batch` steps.

    Example: `Order(4, (0, 2))` is Interleaved training of two stages. Micro-batches 0, 1 and 2 start in steps 0, 2 and
    4. Micro-batch 1 runs `0F1` in step 2, `1F1` in step 3, `1B1` in step 4 and `0B1` in step 5.
    """

    length: int
    offsets: tuple[int, ...]
    batch: int = 1

    def step(self, micro_batch: int, point: int) -> int:
        """Returns the step in which a micro-batch visits a point."""
        batch_number, within = divmod(micro_batch, self.batch)
        cycle, index = divmod(batch_number, len(self.offsets))
        return (self.length * cycle + self.offsets[index] + point) * self.batch + within

    @property
    def multiple(self) -> int:
        """The number of micro-batches of a cycle. A plan needs a multiple of it, so that the last cycle is complete."""
        return len(self.offsets) * self.batch

    @property
    def period(self) -> tuple[int, int]:
        """The lengths of one iteration of the shortest steady loop, in steps and in micro-batches.

        This is the smallest shift that maps the starts of all micro-batches to each other. It is `(2, 1)` for
        `Order(4, (0, 2))`, as a micro-batch starts in every second step, but `(4, 2)` for `Order(4, (0, 1))`.
        """
        times = set(self.offsets)
        for steps in range(1, self.length):
            if self.length % steps == 0 and all((offset + steps) % self.length in times for offset in times):
                break
        else:
            steps = self.length
        return steps * self.batch, len(times) * steps * self.batch // self.length

    @property
    def full_from(self) -> int:
        """The first step of the steady section: the step of the last start in the first cycle."""
        return self.offsets[-1] * self.batch


def order_of(
    schedule: PipelineSchedule,
    mapping: Sequence[Sequence[int]],
    training: bool,
    batch_serialization_iterations: int = 1,
) -> Order:
    route = [frozenset(ipus) for ipus in mapping]
    if training:
        route += reversed(route)
    if schedule is PipelineSchedule.Grouped:
        offsets = tuple(range(len(route)))
    elif schedule is PipelineSchedule.Interleaved:
        offsets = _rotations(route)
    else:
        offsets = (0,)
    return Order(len(route), offsets, batch_serialization_iterations)


def overlap_length(schedule: PipelineSchedule, mapping: Sequence[int | Sequence[int]], training: bool) -> int:
    """Returns the number of which a pipeline's number of micro-batches must be a multiple.

    For `Grouped`, this is the number of stages, and twice that in training. For `Interleaved`, it is the number of
    micro-batches that can be in the pipeline at the same time if an IPU runs one pass in each step. For `Sequential`,
    it is 1.

    Args:
      schedule: The order in which the IPUs work.
      mapping: For each stage, its IPU or the list of the IPUs of its parts.
      training: True if there are backward passes.
    """
    groups = [[item] if isinstance(item, int) else list(item) for item in mapping]
    return order_of(schedule, groups, training).multiple


def _rotations(route: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """Returns the steps of a cycle in which micro-batches can start so that no two ever need an IPU in the same step.

    A micro-batch that starts `by` steps later follows the same circular route, rotated by `by`. Two micro-batches never
    need an IPU at the same time if the route and its rotation by the difference of their starts differ everywhere.
    Starts are chosen greedily from 0 on. Example, training of two stages on IPUs 0 and 1:

        start 0   0 1 1 0
        start 1   0 0 1 1   uses IPU 0 twice in the first step: rejected
        start 2   1 0 0 1   differs everywhere: chosen

    With length n, this takes O(n^2) comparisons of sets.
    """
    length = len(route)
    # Only the difference of two starts matters, so each difference is compared once.
    is_disjoint = [
        all(route[point].isdisjoint(route[(point + by) % length]) for point in range(length)) for by in range(length)
    ]
    chosen = [0]
    for start in range(1, length):
        if all(is_disjoint[start - earlier] for earlier in chosen):
            chosen.append(start)
    return tuple(chosen)


_Pass = type[Forward | Recompute | Backward]
# An instruction in a step: its group of slots, its IPU, and the instruction.
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
    """Plans a pipeline. The size of the plan does not depend on `micro_batches`.

    Args:
      stages: The number of stages, at least 2.
      micro_batches: The number of micro-batches of one pass of the pipeline; a multiple of `overlap_length(...)`.
      schedule: The order in which the IPUs work.
      device_mapping: For each stage, its IPU, or the list of the IPUs of its concurrent parts, or -1 for all IPUs,
        which is planned on IPU 0. If omitted, stage `i` is on IPU `i`; with `batch_serialization_iterations`, all are
        on IPU 0.
      training: True for backward passes and a weight update.
      recomputation_mode: The method of recomputing activations; None if all are kept.
      repeat_count: The number of times that the pass of the pipeline is repeated.
      batch_serialization_iterations: The number of micro-batches into which each micro-batch is cut. A stage runs all
        of them, one after the other, before the next stage does.

    Raises:
      ValueError: A number is out of range, or the length of `device_mapping` is not the number of stages.
      TypeError: An argument is of the wrong type.
      NotImplementedError: The schedule does not support another argument.
      tf.errors.FailedPreconditionError: `micro_batches` is not a multiple of `overlap_length(...)`.
    """
    faults = Faults()
    plan_arguments.checked_count("stages", stages, faults, plan_arguments.MOST_STAGES)
    if stages == 1:
        faults.add(ValueError, "`stages` is 1; a pipeline has at least two, `sharded_plan` plans a single one")
    is_countable = is_int(stages) and stages <= plan_arguments.MOST_STAGES
    if device_mapping is None and is_countable:
        serialized = plan_arguments.is_serialized(batch_serialization_iterations)
        device_mapping = [0] * stages if serialized else list(range(stages))
    elif is_countable and isinstance(device_mapping, list | tuple) and len(device_mapping) != stages:
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
    """Plans a sharded model, with its shards as stages. One IPU works at a time, as in a Sequential pipeline.

    Args:
      device_mapping: For each shard, its IPU, or a list or -1 as in `pipeline_plan`.
      micro_batches: The number of micro-batches before a weight update.
      training: True for backward passes and a weight update.
      recomputation_mode: The method of recomputing activations; None if all are kept.
      repeat_count: The number of times that the pass is repeated.

    Raises:
      ValueError: A number is out of range, or there is no shard.
      TypeError: An argument is of the wrong type.
      NotImplementedError: `PipelineSchedule.Sequential` does not support the recomputation mode.
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
    """A schedule of stages that stay on their IPUs."""

    enough: ClassVar[int] = 4

    value: PipelineSchedule

    def default_mapping(self, parts: Sequence[int], batch_serialization_iterations: int) -> Mapping:
        """Returns consecutive IPUs for the parts of all stages, or IPU 0 for all if batches are serialized."""
        if plan_arguments.is_serialized(batch_serialization_iterations):
            return tuple((0,) * width for width in parts)
        ends = itertools.accumulate(parts)
        return tuple(tuple(range(end - width, end)) for end, width in zip(ends, parts, strict=True))

    def multiple(self, mapping: Mapping, training: bool) -> int:
        return order_of(self.value, mapping, training).multiple

    def check(self, mapping: Mapping | None, training: bool, batch: int, faults: Faults, name: str) -> None:
        super().check(mapping, training, batch, faults, name)
        ipus = [ipu for parts in mapping or () for ipu in parts]
        mapping_text = [parts[0] if len(parts) == 1 else list(parts) for parts in mapping or ()]
        if plan_arguments.is_serialized(batch) and len(set(ipus)) > 1:
            faults.add(
                NotImplementedError,
                f"`batch_serialization_iterations` is {batch}, so all stages must be on one IPU;"
                f" `device_mapping` is {mapping_text}",
            )
        shared = sorted({ipu for ipu in ipus if ipus.count(ipu) > 1})
        if self.value is PipelineSchedule.Interleaved and training and shared:
            faults.add(
                NotImplementedError,
                f"`{name}` is Interleaved and `device_mapping` is {mapping_text}: in training an IPU has one stage"
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
    """The passes of a pipeline, laid out in steps and slots.

    All micro-batches have the same passes. A pass runs a fixed number of steps after the start of its micro-batch:
    `_delay` has this number, and `_order` the starts. If an IPU has several passes in a step, `_slot` orders them.
    """

    _schedule: PipelineSchedule
    _order: Order
    _mapping: Mapping
    _concurrent: tuple[bool, ...]
    _training: bool
    _mode: RecomputationMode | None

    def sections(self, micro_batches: int) -> tuple[Section, ...]:
        """Returns the ramp-up, the loop of the steady section, the ramp-down, and in training the update.

        The steady section begins when the pipeline is full and repeats every `_order.period`. The ramps have all other
        steps. Example, Grouped training of two stages: the period is one step and one micro-batch.

            ramp up             0F0 | 0F1 1F0 | 1B0 0F2 1F1
            steady              0B0 1B1 0F3 1F2                       iteration i adds i to all micro-batches
            ramp down           0B0 1B1 1F2 | 0B1 1B2 | 0B2           relative to the end of the loop
        """
        order = self._order
        period, advance = order.period
        full_from = order.full_from
        full_steps = order.step(micro_batches, 0) - full_from
        repeat = full_steps // period
        done = repeat * advance
        sections = (
            Section("ramp up", self._steps(0, full_from, micro_batches)),
            # No limit on micro-batches: the loop has the same body for any number of them.
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
        """Returns the steps from `begin` up to `end`, or up to the last step with a pass if `end` is None."""
        starts = list(self._starts(end, micro_batches))
        last = starts[-1] + self._order.length * self._order.batch if end is None and starts else end or begin
        steps: list[list[_Placed]] = [[] for _ in range(begin, last)]
        for group, _, ipu, kind, stage, part, delay in self._templates():
            for micro_batch, start in enumerate(starts):
                if begin <= start + delay < last:
                    steps[start + delay - begin].append((group, ipu, kind(stage, part, micro_batch)))
        while end is None and steps and not steps[-1]:
            steps.pop()
        return tuple(_step(placed) for placed in steps)

    def _starts(self, end: int | None, micro_batches: int | None) -> Iterator[int]:
        """Yields the start of each micro-batch, up to the step `end`."""
        for micro_batch in itertools.count() if micro_batches is None else range(micro_batches):
            start = self._order.step(micro_batch, 0)
            if end is not None and start >= end:
                return
            yield start

    def _templates(self) -> list[tuple[int, int, int, _Pass, int, int | None, int]]:
        """Returns all passes of a micro-batch: group, rank, IPU, kind, stage, part, and delay after its start."""
        return sorted(
            (
                (*self._slot(kind, stage), ipu, kind, stage, part if self._concurrent[stage] else None, delay)
                for stage, ipus in enumerate(self._mapping)
                for kind in self._kinds(stage)
                for delay in (self._delay(kind, stage),)
                for part, ipu in enumerate(ipus)
            ),
            key=lambda template: template[:3],
        )

    def _kinds(self, stage: int) -> tuple[_Pass, ...]:
        backward = (Recompute, Backward) if self._recomputes(stage) else (Backward,)
        return (Forward, *backward) if self._training else (Forward,)

    def _delay(self, kind: _Pass, stage: int) -> int:
        """Returns the number of steps from the start of a micro-batch to a pass."""
        if kind is Forward:
            return stage * self._order.batch
        backward = (2 * len(self._mapping) - 1 - stage) * self._order.batch
        is_step_before = kind is Recompute and self._mode is RecomputationMode.RecomputeThenBackpropagate
        return backward - is_step_before

    def _recomputes(self, stage: int) -> bool:
        return self._mode is not None and stage < len(self._mapping) - 1

    def _slot(self, kind: _Pass, stage: int) -> tuple[int, int]:
        """Returns the group of slots of a pass within its step, and the rank of the pass in the group."""
        if kind is Backward:
            return 0, 2 * stage + 1
        if kind is Forward:  # In a Grouped step, all IPUs run backward first, which frees a place in the stash.
            return int(self._schedule is PipelineSchedule.Grouped), -stage
        return (0, 2 * stage) if self._mode is RecomputationMode.RecomputeAndBackpropagateInterleaved else (2, -stage)

    def buffers(self) -> Iterator[Buffer]:
        """Yields the buffers of all stages, each as deep as the order of the passes requires."""
        last = len(self._mapping) - 1
        for stage, parts in enumerate(self._mapping):
            for part, ipu in enumerate(parts):
                place = (stage, part if self._concurrent[stage] else None, ipu)
                if stage:
                    yield Buffer(BufferKind.FORWARD_LINK, *place, self._order.batch)
                if not self._training:
                    continue
                depth = self._stash_depth(stage)
                if self._recomputes(stage):
                    yield Buffer(BufferKind.INPUTS, *place, depth)
                    yield Buffer(BufferKind.RECOMPUTED, *place, 1)
                else:
                    yield Buffer(BufferKind.ACTIVATIONS, *place, depth)
                if stage < last:
                    yield Buffer(BufferKind.BACKWARD_LINK, *place, self._order.batch)
                yield Buffer(BufferKind.ACCUMULATOR, *place, 1)

    def _stash_depth(self, stage: int) -> int:
        """Returns the largest number of micro-batches that wait in the stash at the same time.

        For each micro-batch of one period, this counts the forward passes, including its own, that begin before its
        stash is read. The result is the largest count.
        """
        reader = Recompute if self._recomputes(stage) else Backward

        def time(kind: _Pass, micro_batch: int) -> tuple[int, int, int]:
            return self._order.step(micro_batch, 0) + self._delay(kind, stage), *self._slot(kind, stage)

        depth = 0
        for oldest in range(self._order.period[1]):
            read = time(reader, oldest)
            newest = oldest
            while time(Forward, newest) < read:
                newest += 1
            depth = max(depth, newest - oldest)
        return depth


def _step(placed: Iterable[_Placed]) -> Step:
    """Returns the step of these instructions: groups follow each other, and in a group, each IPU fills slots in order.

    `A B` of one group and `C` of the next, all on IPU 0, with `D` of the first group on IPU 1:

        IPU 0   A B C
        IPU 1   D . .
    """
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
