"""From the numbers of a phased execution to its plan: stages that are on the chip one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tensorflow_ipu._base.checks import Faults
from tensorflow_ipu.pipelining.schedule.enums import Liveness, PhasedExecution, PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.plan import (
    Backward,
    Buffer,
    BufferKind,
    Computation,
    Forward,
    Load,
    Plan,
    Save,
    Section,
    Step,
    Task,
    Update,
)
from tensorflow_ipu.pipelining.schedule.plan_arguments import FullMapping, Mapping, Schedule


def serial_phases_plan(
    device_mapping: Sequence[int | Sequence[int]],
    *,
    micro_batches: int = 1,
    training: bool = True,
    repeat_count: int = 1,
    liveness: Liveness = Liveness.OffChipAfterEachPhase,
) -> Plan:
    """Plans phases that come one after the other on one group of IPUs; its stages are the phases.

        IPU 0   LF0 | F0 SF0 | LF1 F1 | B1 SB1 | LB0 B0 | U0 SU0 | ...

    Args:
      device_mapping: For each phase its IPU, or the list of IPUs of its concurrent stages; the same in each phase.
      micro_batches: The number of micro-batches of a pass.
      training: Whether a pass has backward phases, and ends with a weight update.
      repeat_count: The number of passes.
      liveness: When phases leave the chip.

    Raises:
      ValueError: A number is out of range, or a phase has other IPUs than the first.
      TypeError: An argument is of the wrong type.
    """
    return _checked_plan(PhasedExecution.Serial, device_mapping, micro_batches, training, repeat_count, liveness)


def parallel_phases_plan(
    device_mapping: Sequence[int | Sequence[int]],
    *,
    micro_batches: int = 1,
    training: bool = True,
    repeat_count: int = 1,
    liveness: Liveness = Liveness.OffChipAfterEachPhase,
) -> Plan:
    """Plans phases that alternate between two groups of IPUs: one saves and loads while the other runs.

        IPU 0   LF0 | F0      | SF0 LF2 | F2      | ...
        IPU 1   .   | LF1     | F1      | SF1 LF3 | ...

    Arguments are those of `serial_phases_plan`, but phases 0, 2, 4, ... are on one group of IPUs, all others on another.

    Raises:
      ValueError: A number is out of range, or the phases do not alternate between two groups.
      TypeError: An argument is of the wrong type.
    """
    return _checked_plan(PhasedExecution.Parallel, device_mapping, micro_batches, training, repeat_count, liveness)


def _checked_plan(
    execution: PhasedExecution,
    device_mapping: Sequence[int | Sequence[int]],
    micro_batches: int,
    training: bool,
    repeat_count: int,
    liveness: Liveness,
) -> Plan:
    faults = Faults()
    if not isinstance(liveness, Liveness):
        faults.add(TypeError, f"`liveness` must be a `Liveness`, but is {liveness!r}")
    return Phased(execution, liveness).checked_plan(
        device_mapping, micro_batches, training=training, repeat_count=repeat_count, faults=faults
    )


def _serial_faults(mapping: Mapping) -> Iterator[str]:
    for phase, ipus in enumerate(mapping):
        if set(ipus) != set(mapping[0]):
            yield (
                f"`device_mapping[{phase}]` is {list(ipus)}, but phase 0 has {list(mapping[0])}; serial phases share one"
                " group of IPUs"
            )


def _parallel_faults(mapping: Mapping) -> Iterator[str]:
    for phase, ipus in enumerate(mapping[:-1]):
        both = sorted(set(ipus) & set(mapping[phase + 1]))
        if both:
            yield (
                f"`device_mapping` gives IPU {both[0]} to the phases {phase} and {phase + 1}; phases that follow each other"
                " need IPUs of their own"
            )
    for phase, ipus in enumerate(mapping[2:], 2):
        if set(ipus) != set(mapping[phase - 2]):
            yield (
                f"`device_mapping[{phase}]` is {list(ipus)}, but phase {phase - 2} has {list(mapping[phase - 2])}; every"
                " second phase shares a group of IPUs"
            )


@dataclass(frozen=True)
class _Point:
    """A phase that is run, forward, backward or for its update."""

    kind: type[Forward | Backward | Update]
    stage: int
    micro_batch: int = 0


# Where in a step a transfer or a computation comes.
_SAVE_BEFORE, _LOAD, _COMPUTE, _SAVE = range(4)


@dataclass(frozen=True)
class Phased(Schedule):
    """Schedules stages as phases, each of which has its IPUs for itself."""

    enough: ClassVar[int] = 2

    value: PhasedExecution
    liveness: Liveness = Liveness.OffChipAfterEachPhase

    def default_mapping(self, parts: Sequence[int], batch_serialization_iterations: int) -> Mapping:
        """Returns the IPUs of phases of so many parts: one group of IPUs, or two in turns."""
        del batch_serialization_iterations
        return self.value.default_mapping(parts)

    def multiple(self, mapping: Mapping, training: bool) -> int:
        """Returns 1: phases run any number of micro-batches."""
        del mapping, training
        return 1

    def check(self, mapping: Mapping | None, training: bool, batch: int, faults: Faults, name: str) -> None:
        find_faults = _serial_faults if self.value is PhasedExecution.Serial else _parallel_faults
        for fault in find_faults(mapping or ()):
            faults.add(ValueError, fault)
        super().check(mapping, training, batch, faults, name)

    def _supported(self, mode: RecomputationMode, faults: Faults) -> RecomputationMode:
        faults.add(
            NotImplementedError,
            f"`recomputation_mode` is {mode} and `pipeline_schedule` is {self.value}: a phase keeps its activations off"
            " the chip, and recomputes nothing; leave `recomputation_mode` out, or use a `PipelineSchedule`",
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
        del mode, batch
        mapping, concurrent = full
        phases = range(len(mapping))
        way = [_Point(Forward, stage) for stage in phases]
        if training:
            way += [_Point(Backward, stage) for stage in reversed(phases)]
        updates = [_Point(Update, stage) for stage in phases] if training else []
        laid = _PhaseSteps(mapping, concurrent, training, self.liveness)
        following = _Point(way[0].kind, way[0].stage, 1)
        opening = laid.opening(way[0], way[-1])
        # The last micro-batch loads nothing for a next one. Where no pass would notice, the loop makes it too.
        body = laid.steps(way, way[-1], following)
        end = laid.steps(way, way[-1], updates[0] if updates else None)
        same = body == end
        sections = (
            Section("ramp up", opening),
            Section("steady", body, micro_batches - (not same), 0, 1),
            Section("ramp down", () if same else end, 1, micro_batches - (not same)),
        )
        if training:
            sections += (Section("update", laid.steps(updates, way[-1], None)),)
        return Plan(
            name=self.value.value,
            mapping=mapping,
            concurrent=concurrent,
            micro_batches=micro_batches,
            training=training,
            schedule=PipelineSchedule.Sequential,
            recomputation=None,
            repeat_count=repeat_count,
            batch_serialization_iterations=1,
            sections=sections,
            buffers=tuple(_buffers(mapping, concurrent, training, self.liveness)),
            liveness=self.liveness,
        )


@dataclass(frozen=True)
class _PhaseSteps:
    """Lays phases into steps, with their transfers beside phases of other IPUs where they can be."""

    mapping: Mapping
    concurrent: tuple[bool, ...]
    training: bool
    liveness: Liveness

    def opening(self, first: _Point, last: _Point) -> tuple[Step, ...]:
        """Returns the step that loads the first phase ahead if later micro-batches find it loaded."""
        if self._waits(last, first) or not self._loads(first):
            return ()
        return (self._step([(_LOAD, first)]),)

    def steps(self, points: Sequence[_Point], before: _Point | None, last: _Point | None) -> tuple[Step, ...]:
        """Returns the steps of phases, one each, between two other phases or None."""
        found = []
        for index, point in enumerate(points):
            previous = points[index - 1] if index else before
            after = points[index + 1] if index + 1 < len(points) else last
            work: list[tuple[int, _Point]] = [(_COMPUTE, point)]
            if previous and self._waits(previous, point) and self._loads(point):
                work.append((_LOAD, point))
            if previous and self._saves(previous) and self._overlaps(previous, point):
                work.append((_SAVE_BEFORE, previous))
            if after and self._overlaps(point, after) and self._loads(after):
                work.append((_LOAD, after))
            if self._saves(point) and (after is None or self._waits(point, after)):
                work.append((_SAVE, point))
            found.append(self._step(work))
        return tuple(found)

    def _loads(self, point: _Point) -> bool:
        """Returns True if what a phase needs has left the chip before it."""
        if self.liveness is Liveness.OffChipAfterFwd and self.training:
            return point.kind is Backward
        return self.liveness is not Liveness.AlwaysLive

    def _saves(self, point: _Point) -> bool:
        """Returns True if what a phase leaves is taken off the chip."""
        if self.liveness is Liveness.OffChipAfterFwd:
            return self.training and point.kind is Forward
        return self.liveness is not Liveness.AlwaysLive and (self.training or point.kind is not Forward)

    def _overlaps(self, point: _Point, after: _Point) -> bool:
        apart = set(self.mapping[point.stage]).isdisjoint(self.mapping[after.stage])
        return apart and point.stage != after.stage

    def _waits(self, point: _Point, after: _Point) -> bool:
        return point.stage != after.stage and not self._overlaps(point, after)

    def _step(self, work: list[tuple[int, _Point]]) -> Step:
        tasks = []
        used: dict[int, int] = defaultdict(int)
        for order, point in sorted(work, key=lambda item: item[0]):
            transfer = {_SAVE_BEFORE: Save, _LOAD: Load, _SAVE: Save}.get(order)
            for part, ipu in enumerate(self.mapping[point.stage]):
                at = (point.stage, part if self.concurrent[point.stage] else None)
                kind = point.kind
                computation: Computation = Update(*at) if issubclass(kind, Update) else kind(*at, point.micro_batch)
                tasks.append(Task(used[ipu], ipu, transfer(computation) if transfer else computation))
                used[ipu] += 1
        return Step(tuple(sorted(tasks, key=lambda task: (task.slot, task.ipu))))


def _buffers(mapping: Mapping, concurrent: tuple[bool, ...], training: bool, liveness: Liveness) -> Iterator[Buffer]:
    """Yields the buffers: each for one micro-batch, and off the chip if its stage leaves it."""
    last = len(mapping) - 1
    for stage, parts in enumerate(mapping):
        leaves = stage < last and liveness is not Liveness.AlwaysLive
        sums_leave = last > 0 if liveness is Liveness.OffChipAfterEachPhase else leaves
        for part, ipu in enumerate(parts):
            at = (stage, part if concurrent[stage] else None, ipu)
            if stage:
                yield Buffer(BufferKind.FORWARD_LINK, *at, 1)
            if training:
                yield Buffer(BufferKind.ACTIVATIONS, *at, 1, off_chip=leaves)
                if stage < last:
                    yield Buffer(BufferKind.BACKWARD_LINK, *at, 1)
                yield Buffer(BufferKind.ACCUMULATOR, *at, 1, off_chip=sums_leave)
