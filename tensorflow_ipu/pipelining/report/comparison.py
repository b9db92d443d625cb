"""Which schedule and which mapping of a pipeline is the best, and why."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.pipelining.report.cost import PlanCost, plan_cost
from tensorflow_ipu.pipelining.report.prices import StageCost, StageCosts
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.order import overlap_length
from tensorflow_ipu.pipelining.schedule.pipelined import pipeline_plan
from tensorflow_ipu.pipelining.schedule.plan_arguments import SUPPORTED_MODES

if TYPE_CHECKING:
    from tensorflow_ipu.machine import Machine, System

_ALL_MAPPINGS = 64  # Of more contiguous mappings than that, only the most even ones are tried.


@dataclass(frozen=True)
class Candidate:
    """One way to run a pipeline.

    Attributes:
      schedule: Its schedule.
      device_mapping: The IPU of each stage.
      recomputation_mode: Its recomputation; None where all activations are kept.
      cost: What it costs; None where it cannot be.
      refused: Why it cannot be, or why it is too large; empty for one that can be run.
    """

    schedule: PipelineSchedule
    device_mapping: tuple[int, ...]
    recomputation_mode: RecomputationMode | None
    cost: PlanCost | None
    refused: str = ""

    @property
    def label(self) -> str:
        """For instance `Grouped on [0, 1, 1, 0], RecomputeThenBackpropagate`."""
        mode = f", {self.recomputation_mode.name}" if self.recomputation_mode else ""
        return f"{self.schedule.name} on {list(self.device_mapping)}{mode}"


@dataclass(frozen=True)
class Comparison:
    """What `compare_plans` found.

    Attributes:
      candidates: All that were tried: those that can be run first, the best of all first.
      reason: Why the first one is the best, or why none can be run.
    """

    candidates: tuple[Candidate, ...]
    reason: str

    @property
    def best(self) -> Candidate | None:
        """The best one; None if none can be run."""
        first = self.candidates[0]
        return None if first.refused else first

    def best_of(self, schedule: PipelineSchedule) -> Candidate | None:
        """The best one of a schedule; None if none of it can be run."""
        return next((one for one in self.candidates if one.schedule is schedule and not one.refused), None)


def compare_plans(
    stages: int,
    micro_batches: int,
    stage_costs: StageCosts = None,
    *,
    ipus: int | None = None,
    training: bool = True,
    recompute: bool | None = None,
    bytes_per_ipu: float | None = None,
    machine: System | Machine | str | None = None,
) -> Comparison:
    """Tries all schedules with contiguous mappings, and names the best.

    A contiguous mapping gives each IPU consecutive stages. All of them are tried for up to 7 stages; for more, those
    that share the work out most evenly over 1, 2, 4, 8, ... IPUs and over all of them.

    The best is the fastest that fits; of equally fast ones the one that needs the least memory, then the fewest IPUs.

    Args:
      stages: How many stages there are; at least 2.
      micro_batches: How many micro-batches one pass has.
      stage_costs: As for `plan_cost`.
      ipus: How many IPUs there are; one a stage if omitted.
      training: Whether there are backward passes and a weight update.
      recompute: Whether activations are recomputed; both are tried if omitted.
      bytes_per_ipu: How much fits on an IPU; if omitted as much as one of `machine` has, or any number.
      machine: As for `plan_cost`.

    Raises:
      ValueError: `ipus` is less than 1, or what `pipeline_plan` and `plan_cost` raise.
      TypeError: What `pipeline_plan` and `plan_cost` raise.
    """
    # All that is wrong with the numbers is wrong with this one too, which needs no multiple.
    one = pipeline_plan(stages, micro_batches, PipelineSchedule.Sequential, training=training)
    plan_cost(one, stage_costs, machine=machine)
    system: System | None = None
    if machine is not None:
        from tensorflow_ipu.machine import system_of  # Few plans are for a machine.

        system = system_of(machine)
        bytes_per_ipu = system.machine.bytes if bytes_per_ipu is None else bytes_per_ipu
    available = stages if ipus is None else ipus
    if not is_int(available) or available < 1:
        raise ValueError(f"`ipus` must be 1 or more, but is {ipus!r}")
    weights = _weights(stages, stage_costs, training)
    candidates = [
        _candidate(
            micro_batches,
            schedule,
            mapping,
            mode,
            training=training,
            stage_costs=stage_costs,
            bytes_per_ipu=bytes_per_ipu,
            machine=system,
        )
        for mapping in contiguous_mappings(weights, min(available, stages))
        for schedule in PipelineSchedule
        for mode in _modes(schedule, training, recompute)
    ]
    candidates.sort(key=_rank)
    return Comparison(tuple(candidates), _reason(candidates, bytes_per_ipu, system is not None))


def contiguous_mappings(weights: Sequence[float], ipus: int) -> list[tuple[int, ...]]:
    """The mappings of stages to IPUs that are tried.

    Args:
      weights: For each stage, its time.
      ipus: The most IPUs to use; at most one a stage.

    Returns:
      For each mapping the IPU of each stage. All contiguous mappings where there are few; else the most even ones.
    """
    stages = len(weights)
    if 2 ** (stages - 1) <= _ALL_MAPPINGS:
        cuts = (cut for used in range(1, ipus + 1) for cut in itertools.combinations(range(1, stages), used - 1))
        return [tuple(sum(stage >= at for at in cut) for stage in range(stages)) for cut in cuts]
    counts = sorted({min(2**power, ipus) for power in range(ipus.bit_length() + 1)})
    return [_most_even(weights, used) for used in counts]


def _most_even(weights: Sequence[float], used: int) -> tuple[int, ...]:
    """The contiguous mapping to so many IPUs whose busiest IPU has the least to do."""
    stages = len(weights)
    total = [0.0, *itertools.accumulate(weights)]
    # least[end]: the busiest IPU's work for the first `end` stages; `begins[n][end]`: where the last of them begins.
    least = [total[end] for end in range(stages + 1)]
    begins: list[list[int]] = [[0] * (stages + 1)]
    for number in range(2, used + 1):
        better, begin = [float("inf")] * (stages + 1), [0] * (stages + 1)
        for end in range(number, stages + 1):
            options = ((max(least[at], total[end] - total[at]), at) for at in range(number - 1, end))
            better[end], begin[end] = min(options)
        least = better
        begins.append(begin)
    mapping: list[int] = []
    end = stages
    for number in range(used, 0, -1):
        begin_at = begins[number - 1][end]
        mapping = [number - 1] * (end - begin_at) + mapping
        end = begin_at
    return tuple(mapping)


def _weights(stages: int, stage_costs: StageCosts, training: bool) -> list[float]:
    """The time of each stage for one micro-batch."""
    costs = stage_costs if isinstance(stage_costs, list | tuple) else [stage_costs or StageCost()] * stages
    found = []
    for stage, cost in enumerate(costs):
        if not isinstance(cost, StageCost):
            raise TypeError(f"`stage_costs[{stage}]` must be a `StageCost`, but is {cost!r}; stages here have no parts")
        backward = 2 * cost.forward if cost.backward is None else cost.backward
        found.append(cost.forward + training * backward)
    return found


def _modes(schedule: PipelineSchedule, training: bool, recompute: bool | None) -> Iterator[RecomputationMode | None]:
    if not training or recompute is not True:
        yield None
    if training and recompute is not False:
        yield from SUPPORTED_MODES[schedule]


def _candidate(
    micro_batches: int,
    schedule: PipelineSchedule,
    mapping: tuple[int, ...],
    mode: RecomputationMode | None,
    *,
    training: bool,
    stage_costs: StageCosts,
    bytes_per_ipu: float | None,
    machine: System | None,
) -> Candidate:
    stages = len(mapping)
    multiple = overlap_length(schedule, mapping, training)
    refused = ""
    if schedule is PipelineSchedule.Interleaved and training and len(set(mapping)) < stages:
        refused = "Interleaved trains with one stage an IPU only"
    elif micro_batches % multiple:
        refused = f"its number of micro-batches must be a multiple of {multiple}"
    if refused:
        return Candidate(schedule, mapping, mode, None, refused)
    plan = pipeline_plan(
        stages, micro_batches, schedule, device_mapping=mapping, training=training, recomputation_mode=mode
    )
    cost = plan_cost(plan, stage_costs, machine=machine)
    if bytes_per_ipu is not None and cost.peak_bytes > bytes_per_ipu:
        refused = f"it needs {format_bytes(cost.peak_bytes)} on an IPU, which has {format_bytes(bytes_per_ipu)}"
    return Candidate(schedule, mapping, mode, cost, refused)


def _rank(candidate: Candidate) -> tuple[bool, bool, float, float, int]:
    cost = candidate.cost
    if cost is None:
        return True, True, 0.0, 0.0, 0
    # Rounded, so that sums in another order do not decide.
    return bool(candidate.refused), False, float(f"{cost.time:.9g}"), cost.peak_bytes, len(cost.plan.ipus)


def _reason(candidates: Sequence[Candidate], bytes_per_ipu: float | None, seconds: bool) -> str:
    best = candidates[0]
    if best.refused or best.cost is None:
        costed = [one for one in candidates if one.cost]
        nearest = min(costed, key=lambda one: one.cost.peak_bytes if one.cost else 0.0, default=best)
        return f"none can be run; the nearest is {nearest.label}, but {nearest.refused}"
    cost = best.cost
    times = f"{cost.time:.6g} a pass, {cost.time_per_micro_batch:.4g} a micro-batch"
    if seconds:
        times = f"{format_seconds(cost.time)} a pass, {format_seconds(cost.time_per_micro_batch)} a micro-batch"
    first = f"{best.label} takes {times}, with {cost.bubble_share:.0%} bubble"
    words = [first]
    for schedule in PipelineSchedule:
        other = next((one for one in candidates if one.schedule is schedule and not one.refused), None)
        if schedule is not best.schedule and other and other.cost:
            words.append(_against(cost, other))
        elif schedule is not best.schedule:
            first = next((one for one in candidates if one.schedule is schedule), None)
            if first:
                words.append(f"{schedule.name} cannot be run: {first.refused}")
    # What can be run in no way was named above.
    run = {one.schedule for one in candidates if not one.refused}
    costed = [one for one in candidates if one.refused and one.cost and one.schedule in run]
    quickest = min(costed, key=lambda one: one.cost.time if one.cost else 0.0, default=None)
    if quickest and quickest.cost and quickest.cost.time < cost.time:
        words.append(f"{quickest.label} would be faster, but {quickest.refused}")
    elif cost.peak_bytes:
        limit = f" of {format_bytes(bytes_per_ipu)}" if bytes_per_ipu is not None else ""
        words.append(f"it needs {format_bytes(cost.peak_bytes)}{limit} on an IPU")
    return "; ".join(words)


def _against(cost: PlanCost, candidate: Candidate) -> str:
    other = candidate.cost
    assert other is not None
    mode = candidate.recomputation_mode
    name = f"{candidate.schedule.name}{f' with {mode.name}' if mode else ''}"
    if other.time <= cost.time * (1 + 1e-9):
        return f"{name} takes as long, but needs more memory or more IPUs"
    times = f"{name} takes {other.time / cost.time:.2f} times as long, with {other.bubble_share:.0%} bubble"
    if cost.peak_stash_bytes:
        times += f" and {other.peak_stash_bytes / cost.peak_stash_bytes:.0%} of the stash"
    return times
