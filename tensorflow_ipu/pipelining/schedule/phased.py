"""Plans of phases: stages that are on the chip one after the other."""

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
    """Plans phases that run one after the other on one group of IPUs. Each phase is a stage of the plan.

        IPU 0   LF0 | F0 SF0 | LF1 F1 | B1 SB1 | LB0 B0 | U0 SU0 | ...

    Args:
      device_mapping: For each phase, its IPU, or the list of the IPUs of its concurrent parts; the same for each phase.
      micro_batches: The number of micro-batches of one pass of the pipeline.
      training: True for backward phases and a weight update.
      repeat_count: The number of times that the pass of the pipeline is repeated.
      liveness: The time at which phases leave the chip.

    Raises:
      ValueError: A number is out of range, or a phase and phase 0 have different IPUs.
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
    """Plans phases that alternate between two groups of IPUs. One group saves and loads while the other one runs.

        IPU 0   LF0 | F0      | SF0 LF2 | F2      | ...
        IPU 1   .   | LF1     | F1      | SF1 LF3 | ...

    Args:
      device_mapping: For each phase, its IPU, or the list of the IPUs of its concurrent parts. Phases 0, 2, 4, ...
        share one group of IPUs, and phases 1, 3, 5, ... another.
      micro_batches: The number of micro-batches of one pass of the pipeline.
      training: True for backward phases and a weight update.
      repeat_count: The number of times that the pass of the pipeline is repeated.
      liveness: The time at which phases leave the chip.

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
        shared = sorted(set(ipus) & set(mapping[phase + 1]))
        if shared:
            yield (
                f"`device_mapping` gives IPU {shared[0]} to the phases {phase} and {phase + 1}; phases that follow each other"
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
    """A run of a phase: forward, backward or for its update."""

    kind: type[Forward | Backward | Update]
    stage: int
    micro_batch: int = 0


# The order of transfers and computations within a step.
_SAVE_BEFORE, _LOAD, _COMPUTE, _SAVE = range(4)


@dataclass(frozen=True)
class Phased(Schedule):
    """A schedule of stages as phases, which are on the chip one after the other."""

    enough: ClassVar[int] = 2

    value: PhasedExecution
    liveness: Liveness = Liveness.OffChipAfterEachPhase

    def default_mapping(self, parts: Sequence[int], batch_serialization_iterations: int) -> Mapping:
        """Returns the IPUs of each phase: of one group of IPUs, or alternately of two groups."""
        del batch_serialization_iterations
        return self.value.default_mapping(parts)

    def multiple(self, mapping: Mapping, training: bool) -> int:
        """Returns 1, as phases support any number of micro-batches."""
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
            " the chip and never recomputes them; omit `recomputation_mode`, or use a `PipelineSchedule`",
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
        route = [_Point(Forward, stage) for stage in phases]
        if training:
            route += [_Point(Backward, stage) for stage in reversed(phases)]
        updates = [_Point(Update, stage) for stage in phases] if training else []
        phase_steps = _PhaseSteps(mapping, concurrent, training, self.liveness)
        following = _Point(route[0].kind, route[0].stage, 1)
        opening = phase_steps.opening(route[0], route[-1])
        # Each micro-batch loads the first phase for the next one, except the last micro-batch. If this makes no
        # difference, the loop runs the last micro-batch too.
        body = phase_steps.steps(route, route[-1], following)
        end = phase_steps.steps(route, route[-1], updates[0] if updates else None)
        is_same = body == end
        sections = (
            Section("ramp up", opening),
            Section("steady", body, micro_batches - (not is_same), 0, 1),
            Section("ramp down", () if is_same else end, 1, micro_batches - (not is_same)),
        )
        if training:
            sections += (Section("update", phase_steps.steps(updates, route[-1], None)),)
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
    """The steps of phases: each runs one phase, with the transfers of the phases before and after it.

    Phases on disjoint groups of IPUs overlap: while a phase runs, the phase before is saved and the next one is loaded.
    A phase on the same IPUs waits: it is loaded in its own step, after the phase before was saved at the end of its
    step.

        serial      0F 0S  | 1L 1F 1S | 2L 2F
        parallel    0F 1L  | 0S 2L 1F | 1S 2F
    """

    mapping: Mapping
    concurrent: tuple[bool, ...]
    training: bool
    liveness: Liveness

    def opening(self, first: _Point, last: _Point) -> tuple[Step, ...]:
        """Returns a step that loads the first phase; no step if the phase loads in its own step, or never."""
        if self._waits(last, first) or not self._loads(first):
            return ()
        return (self._step([(_LOAD, first)]),)

    def steps(self, points: Sequence[_Point], first: _Point | None, last: _Point | None) -> tuple[Step, ...]:
        """Returns a step for each phase of `points`; `first` and `last` are the phases before and after them."""
        steps = []
        for index, point in enumerate(points):
            previous = points[index - 1] if index else first
            following = points[index + 1] if index + 1 < len(points) else last
            work: list[tuple[int, _Point]] = [(_COMPUTE, point)]
            if previous and self._waits(previous, point) and self._loads(point):
                work.append((_LOAD, point))
            if previous and self._saves(previous) and self._overlaps(previous, point):
                work.append((_SAVE_BEFORE, previous))
            if following and self._overlaps(point, following) and self._loads(following):
                work.append((_LOAD, following))
            if self._saves(point) and (following is None or self._waits(point, following)):
                work.append((_SAVE, point))
            steps.append(self._step(work))
        return tuple(steps)

    def _loads(self, point: _Point) -> bool:
        """Returns True if a phase has to be loaded, because it left the chip earlier."""
        if self.liveness is Liveness.OffChipAfterFwd and self.training:
            return point.kind is Backward
        return self.liveness is not Liveness.AlwaysLive

    def _saves(self, point: _Point) -> bool:
        """Returns True if the tensors that a phase has written are saved off the chip."""
        if self.liveness is Liveness.OffChipAfterFwd:
            return self.training and point.kind is Forward
        return self.liveness is not Liveness.AlwaysLive and (self.training or point.kind is not Forward)

    def _overlaps(self, point: _Point, following: _Point) -> bool:
        is_disjoint = set(self.mapping[point.stage]).isdisjoint(self.mapping[following.stage])
        return is_disjoint and point.stage != following.stage

    def _waits(self, point: _Point, following: _Point) -> bool:
        return point.stage != following.stage and not self._overlaps(point, following)

    def _step(self, work: list[tuple[int, _Point]]) -> Step:
        tasks = []
        used: dict[int, int] = defaultdict(int)
        for order, point in sorted(work, key=lambda item: item[0]):
            transfer = {_SAVE_BEFORE: Save, _LOAD: Load, _SAVE: Save}.get(order)
            for part, ipu in enumerate(self.mapping[point.stage]):
                place = (point.stage, part if self.concurrent[point.stage] else None)
                kind = point.kind
                computation: Computation = (
                    Update(*place) if issubclass(kind, Update) else kind(*place, point.micro_batch)
                )
                tasks.append(Task(used[ipu], ipu, transfer(computation) if transfer else computation))
                used[ipu] += 1
        return Step(tuple(sorted(tasks, key=lambda task: (task.slot, task.ipu))))


def _buffers(mapping: Mapping, concurrent: tuple[bool, ...], training: bool, liveness: Liveness) -> Iterator[Buffer]:
    """Yields the buffers of all phases, each for one micro-batch, and off the chip if its stage leaves the chip."""
    last = len(mapping) - 1
    for stage, parts in enumerate(mapping):
        is_off_chip = stage < last and liveness is not Liveness.AlwaysLive
        are_sums_off_chip = last > 0 if liveness is Liveness.OffChipAfterEachPhase else is_off_chip
        for part, ipu in enumerate(parts):
            place = (stage, part if concurrent[stage] else None, ipu)
            if stage:
                yield Buffer(BufferKind.FORWARD_LINK, *place, 1)
            if training:
                yield Buffer(BufferKind.ACTIVATIONS, *place, 1, off_chip=is_off_chip)
                if stage < last:
                    yield Buffer(BufferKind.BACKWARD_LINK, *place, 1)
                yield Buffer(BufferKind.ACCUMULATOR, *place, 1, off_chip=are_sums_off_chip)
