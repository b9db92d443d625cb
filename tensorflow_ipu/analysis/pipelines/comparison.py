"""Comparisons of schedules, mappings and splits of a pipeline, to find the fastest that fits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tensorflow_ipu._base import progress
from tensorflow_ipu._base.checks import Faults, is_int, note_bool
from tensorflow_ipu._base.notebook import NotebookView
from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.analysis.pipelines.cost import PlanCost, StageCost, StageCosts, backward_time, plan_cost
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.pipelined import overlap_length, pipeline_plan
from tensorflow_ipu.pipelining.schedule.plan_arguments import SUPPORTED_MODES

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine import Machine, System

_ALL_MAPPINGS = 64  # If there are more contiguous mappings than this, only the most even ones are tried.


@dataclass(frozen=True)
class Candidate:
    """A schedule, mapping and recomputation mode of a pipeline, with its cost.

    `refused` is the reason why the candidate cannot be run or does not fit; it is empty if the candidate can be run.
    """

    schedule: PipelineSchedule
    device_mapping: tuple[int, ...]
    recomputation_mode: RecomputationMode | None
    cost: PlanCost | None
    refused: str = ""

    @property
    def label(self) -> str:
        """The name of the candidate, such as `Grouped on [0, 1, 1, 0], RecomputeThenBackpropagate`."""
        mode = f", {self.recomputation_mode.name}" if self.recomputation_mode else ""
        return f"{self.schedule.name} on {list(self.device_mapping)}{mode}"


@dataclass(frozen=True)
class Comparison(NotebookView):
    """The result of `compare_plans`: the candidates, best first.

    `reason` explains why the first candidate is the best, or why none can be run.
    """

    candidates: tuple[Candidate, ...]
    reason: str
    _stage_costs: StageCosts = field(default=None, repr=False, compare=False)
    _machine: System | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Candidate | None:
        """The best candidate; None if none can be run."""
        first = self.candidates[0]
        return None if first.refused else first

    def best_of(self, schedule: PipelineSchedule) -> Candidate | None:
        """Returns the best candidate of a schedule; None if none of them can be run."""
        return next(
            (candidate for candidate in self.candidates if candidate.schedule is schedule and not candidate.refused),
            None,
        )

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.candidates)} candidates: {self.reason.partition(';')[0]}>"


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
    """Compares all schedules, with mappings that place consecutive stages on each IPU, and finds the fastest that fits.

    For up to 7 stages, all such mappings are compared. For more stages, only the most even mappings to 1, 2,
    4, 8, ... and all IPUs are compared. Of equally fast candidates, the best needs the least memory, then the fewest
    IPUs.

    Args:
      stages: The number of stages.
      micro_batches: The number of micro-batches of a pass, as for `pipeline_plan`.
      stage_costs: The costs of the stages, as for `plan_cost`.
      ipus: The number of IPUs; one for each stage if omitted.
      training: Whether there are backward passes and updates.
      recompute: Whether activations are recomputed; both are compared if omitted.
      bytes_per_ipu: The memory of an IPU in bytes; if omitted, that of `machine`, or unlimited without a machine.
      machine: The machine, as for `plan_cost`.

    Raises:
      TypeError: As `pipeline_plan` and `plan_cost`; or a stage has concurrent parts.
      ValueError: As `pipeline_plan` and `plan_cost`; or `ipus` is less than 1.
    """
    # A Sequential plan accepts any number of micro-batches, so it raises only errors that all candidates would raise.
    checked = pipeline_plan(stages, micro_batches, PipelineSchedule.Sequential, training=training)
    plan_cost(checked, stage_costs, machine=machine)
    system: System | None = None
    if machine is not None:
        from tensorflow_ipu.analysis.machine import system_of  # Most plans have no machine.

        system = system_of(machine)
        bytes_per_ipu = system.machine.bytes if bytes_per_ipu is None else bytes_per_ipu
    available = stages if ipus is None else ipus
    if not is_int(available) or available < 1:
        raise ValueError(f"`ipus` must be 1 or more, but is {ipus!r}")
    weights = _weights(stages, stage_costs, training)
    candidates = [
        _candidate(micro_batches, schedule, mapping, mode, training, stage_costs, bytes_per_ipu, system)
        for mapping in contiguous_mappings(weights, min(available, stages))
        for schedule in PipelineSchedule
        for mode in _modes(schedule, training, recompute)
    ]
    candidates.sort(key=_rank)
    reason = _reason(candidates, bytes_per_ipu, system is not None)
    return Comparison(tuple(candidates), reason, stage_costs, system)


def contiguous_mappings(weights: Sequence[float], ipus: int) -> list[tuple[int, ...]]:
    """Returns the mappings of consecutive stages to at most `ipus` IPUs.

    If there are more than 64, the result has only the most even mapping by `weights` (times of the stages) to each of
    1, 2, 4, 8, ... and all IPUs.
    """
    stages = len(weights)
    if 2 ** (stages - 1) <= _ALL_MAPPINGS:
        cuts = (cut for used in range(1, ipus + 1) for cut in itertools.combinations(range(1, stages), used - 1))
        return [tuple(sum(stage >= begin for begin in cut) for stage in range(stages)) for cut in cuts]
    counts = sorted({min(2**power, ipus) for power in range(ipus.bit_length() + 1)})
    return [_most_even(weights, used) for used in counts]


def _most_even(weights: Sequence[float], used: int) -> tuple[int, ...]:
    """Returns the contiguous mapping to `used` IPUs whose busiest IPU has the least work.

    Dynamic programming over the number of IPUs: `least[end]` is the work of the busiest IPU if the first `end` stages
    are on the IPUs so far. `begins[n][end]` is the first stage of the last of these IPUs, from which the mapping is
    read backwards. For example, weights 3, 1, 1, 1 on 2 IPUs give (0, 1, 1, 1). It takes O(used * stages ** 2) time.
    """
    stages = len(weights)
    total = [0.0, *itertools.accumulate(weights)]
    least = [total[end] for end in range(stages + 1)]
    begins: list[list[int]] = [[0] * (stages + 1)]
    for number in range(2, used + 1):
        better, begin = [float("inf")] * (stages + 1), [0] * (stages + 1)
        for end in range(number, stages + 1):
            options = ((max(least[cut], total[end] - total[cut]), cut) for cut in range(number - 1, end))
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
    costs = stage_costs if isinstance(stage_costs, list | tuple) else [stage_costs or StageCost()] * stages
    weights = []
    for stage, cost in enumerate(costs):
        if not isinstance(cost, StageCost):
            raise TypeError(f"`stage_costs[{stage}]` must be a `StageCost`, but is {cost!r}; stages here have no parts")
        weights.append(cost.forward + training * backward_time(cost))
    return weights


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
    # Times are rounded, so that the rounding errors of sums do not decide.
    return bool(candidate.refused), False, float(f"{cost.time:.9g}"), cost.peak_bytes, len(cost.plan.ipus)


def _reason(candidates: Sequence[Candidate], bytes_per_ipu: float | None, seconds: bool) -> str:
    best = candidates[0]
    if best.refused or best.cost is None:
        costed = [candidate for candidate in candidates if candidate.cost]
        nearest = min(costed, key=lambda costed: costed.cost.peak_bytes if costed.cost else 0.0, default=best)
        return f"none can be run; the nearest is {nearest.label}, but {nearest.refused}"
    cost = best.cost
    times = f"{cost.time:.6g} a pass, {cost.time_per_micro_batch:.4g} a micro-batch"
    if seconds:
        times = f"{format_seconds(cost.time)} a pass, {format_seconds(cost.time_per_micro_batch)} a micro-batch"
    reasons = [f"{best.label} takes {times}, with {cost.bubble_share:.0%} bubble"]
    for schedule in PipelineSchedule:
        if schedule is best.schedule:
            continue
        of_schedule = [candidate for candidate in candidates if candidate.schedule is schedule]
        runnable = next((candidate for candidate in of_schedule if not candidate.refused), None)
        if runnable and runnable.cost:
            reasons.append(_compared_with(cost, runnable))
        elif of_schedule:
            reasons.append(f"{schedule.name} cannot be run: {of_schedule[0].refused}")
    # The loop above has named the schedules of which no candidate can be run.
    schedules = {candidate.schedule for candidate in candidates if not candidate.refused}
    too_large = [
        candidate
        for candidate in candidates
        if candidate.refused and candidate.cost and candidate.schedule in schedules
    ]
    fastest = min(too_large, key=lambda candidate: candidate.cost.time if candidate.cost else 0.0, default=None)
    if fastest and fastest.cost and fastest.cost.time < cost.time:
        reasons.append(f"{fastest.label} would be faster, but {fastest.refused}")
    elif cost.peak_bytes:
        limit = f" of {format_bytes(bytes_per_ipu)}" if bytes_per_ipu is not None else ""
        reasons.append(f"it needs {format_bytes(cost.peak_bytes)}{limit} on an IPU")
    return "; ".join(reasons)


def _compared_with(best: PlanCost, candidate: Candidate) -> str:
    cost = candidate.cost
    assert cost is not None
    mode = candidate.recomputation_mode
    name = f"{candidate.schedule.name}{f' with {mode.name}' if mode else ''}"
    if cost.time <= best.time * (1 + 1e-9):
        return f"{name} takes as long, but needs more memory or more IPUs"
    text = f"{name} takes {cost.time / best.time:.2f} times as long, with {cost.bubble_share:.0%} bubble"
    if best.peak_stash_bytes:
        text += f" and {cost.peak_stash_bytes / best.peak_stash_bytes:.0%} of the stash"
    return text


# The default number of micro-batches, as a multiple of the smallest number that the schedule supports.
_ROUNDS = 8


@dataclass(frozen=True)
class Pieces:
    """The pieces of a model, in the order in which they run.

    The model can be cut into stages between any two of them.
    """

    names: tuple[str, ...]
    costs: tuple[StageCost, ...]
    micro_batches: int | None = None
    assigned: Callable[[Sequence[int]], list[Any]] | None = None
    # `read(halved, proportion)` returns the costs with float16 for float32, and with another `availableMemoryProportion`.
    read: Callable[[bool, float | None], Sequence[StageCost]] | None = None


@runtime_checkable
class Divisible(Protocol):
    """A model that can be cut into pieces, such as a Keras model that was created in a strategy's scope."""

    def ipu_pieces(self, machine: System | Machine | str | None, batch_size: int | None) -> Pieces:
        """Returns the pieces of the model, for micro-batches of `batch_size` samples if the model defines no size."""
        ...


@dataclass(frozen=True)
class Balance(NotebookView):
    """A proposal of `balance` for the stages of a pipeline, with their costs.

    `assignment` is the argument for `set_pipeline_stage_assignment`.
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]
    costs: tuple[StageCost, ...]
    cost: PlanCost
    capacity: int
    recompute: bool
    assignment: list[Any]
    _machine: System | None = field(default=None, repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """True if each IPU has the memory for its stage."""
        return self.cost.peak_bytes <= self.capacity

    @property
    def _summary(self) -> str:
        plan = self.cost.plan
        return (
            f"{plan.stages} stages, one an IPU, {plan.micro_batches} micro-batches"
            + (", with recomputation" if self.recompute else "")
            + f": {self.cost.time_per_micro_batch * 1e6:.4g} us a micro-batch, bubble {self.cost.bubble_share:.0%}"
        )

    def _rows(self) -> Iterator[tuple[int, str, str, str, str]]:
        """Yields for each stage its number, its time, its memory (in bytes, and as a share), and its pieces."""
        for stage, (cost, ipu) in enumerate(zip(self.costs, self.cost.ipus, strict=True)):
            names = [name for name, number in zip(self.names, self.stages, strict=True) if number == stage]
            pieces = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}, {len(names)} pieces"
            recomputes = self.recompute and stage < self.cost.plan.stages - 1  # The last stage never recomputes.
            time = f"{_time(cost, recomputes) * 1e6:.4g} us"
            yield stage, time, format_bytes(ipu.on_chip_bytes), f"{ipu.on_chip_bytes / self.capacity:.0%}", pieces

    def __repr__(self) -> str:
        return f"<Balance: {self._summary}{'' if self.fits else '; it does not fit'}>"

    def __str__(self) -> str:
        lines = [self._summary]
        lines += [
            f"  stage {stage}: {time}, {size}, {share} of the memory: {pieces}"
            for stage, time, size, share, pieces in self._rows()
        ]
        return "\n".join(lines if self.fits else [*lines, "  it does not fit, and no split that was tried does"])


def balance(
    model_or_stages: Divisible | Sequence[StageCost],
    ipus: int,
    machine: System | Machine | str | None = None,
    *,
    batch_size: int | None = None,
    micro_batches: int | None = None,
    recompute: bool | None = None,
) -> Balance:
    """Proposes the stage of each layer of a model, for a training pipeline with one stage an IPU. Nothing is run.

    Among all splits whose stages fit their IPUs, the proposal minimises the time of the slowest stage. If no split
    fits, it minimises the memory of the fullest stage, and `fits` is False.

    Args:
      model_or_stages: A built and compiled Keras model of a strategy's scope; or the costs of pieces, with times in
        seconds.
      ipus: The number of stages, at least 2.
      machine: The machine, as for `predicted_stage_costs`. If it is None, memory and links are those of a GC200.
      batch_size: For a Keras model: the samples of a micro-batch. It may be omitted if `keras.Input` defines them.
      micro_batches: The number of micro-batches of a pass; if omitted, that of the model's options, or else a default.
      recompute: Whether activations are recomputed; if None, only if no split fits without.

    Raises:
      TypeError: `model_or_stages` is neither of these, or an argument has a wrong type.
      ValueError: There are fewer pieces than stages, or an argument is out of range.
    """
    from tensorflow_ipu.analysis.machine import system_of  # Most plans have no machine.

    faults = Faults()
    if not is_int(ipus) or ipus < 2:
        faults.add(ValueError, f"`ipus` must be 2 or more, but is {ipus!r}")
    note_bool("recompute", recompute, faults, optional=True)
    faults.raise_any()
    with progress.of("predicting the cost of each piece of the model"):
        pieces = _pieces(model_or_stages, machine, batch_size)
    if len(pieces.costs) < ipus:
        raise ValueError(f"`ipus` is {ipus}, but the model has only {len(pieces.costs)} pieces to make stages of")
    system = system_of("GC200" if machine is None else machine)
    # The number of micro-batches of a Grouped pipeline must be a multiple of this.
    round_of = overlap_length(PipelineSchedule.Grouped, [(ipu,) for ipu in range(ipus)], True)
    count = micro_batches or pieces.micro_batches or _ROUNDS * round_of

    def proposal(recomputes: bool) -> Balance:
        mode = RecomputationMode.RecomputeThenBackpropagate if recomputes else None
        plan = pipeline_plan(ipus, count, recomputation_mode=mode)
        depths = [plan.stash_depth(stage) for stage in range(ipus)]
        stages = _split(pieces.costs, depths, recomputes, system.machine.bytes)
        costs = tuple(
            joined([cost for cost, number in zip(pieces.costs, stages, strict=True) if number == stage])
            for stage in range(ipus)
        )
        return Balance(
            names=pieces.names,
            stages=stages,
            costs=costs,
            cost=plan_cost(plan, costs, machine=system),
            capacity=system.machine.bytes,
            recompute=recomputes,
            assignment=list(stages) if pieces.assigned is None else pieces.assigned(stages),
            _machine=system,
        )

    with progress.of(f"dividing {len(pieces.costs)} pieces among {ipus} stages"):
        first = proposal(recompute is True)
        return first if first.fits or recompute is not None else proposal(True)


def _pieces(model_or_stages: object, machine: System | Machine | str | None, batch_size: int | None) -> Pieces:
    if isinstance(model_or_stages, Divisible):
        return model_or_stages.ipu_pieces(machine, batch_size)
    costs = model_or_stages
    if not isinstance(costs, list | tuple) or not all(isinstance(cost, StageCost) for cost in costs):
        raise TypeError(
            "`model_or_stages` must be a Keras model that was created in a strategy's scope, or a list of `StageCost`,"
            f" but is {costs!r}"
        )
    return Pieces(tuple(f"piece {number}" for number in range(len(costs))), tuple(costs))


def joined(costs: Sequence[StageCost]) -> StageCost:
    """Returns the cost of a stage that consists of consecutive pieces."""
    first = costs[0]

    def total(name: str) -> float:
        return sum(getattr(cost, name) for cost in costs)

    return replace(
        first,
        forward=total("forward"),
        backward=sum(backward_time(cost) for cost in costs),
        recompute_factor=1.0,
        update=total("update"),
        activation_bytes=total("activation_bytes"),
        weight_bytes=total("weight_bytes"),
        accumulator_bytes=total("sum_bytes"),
        state_bytes=total("state_bytes"),
        off_chip_bytes=total("off_chip_bytes"),
        temporary_bytes=max(cost.temporary_bytes for cost in costs),
        code_bytes=total("code_bytes"),
    )


def _time(cost: StageCost, recomputes: bool) -> float:
    return cost.forward + backward_time(cost) + (cost.forward * cost.recompute_factor if recomputes else 0.0)


def _split(costs: Sequence[StageCost], depths: Sequence[int], recompute: bool, capacity: int) -> tuple[int, ...]:
    """Returns the stage of each piece, for the split that fits and whose slowest stage takes the least time.

    Dynamic programming over the stages. `best[end]` is the best split of the first `end` pieces into the stages so far:
    its price and its cuts. A price is a pair: the bytes by which the fullest stage exceeds `capacity`, then the time of
    the slowest stage. Pairs compare by memory first, so a split that fits always wins. `depths` are the stages' stash
    depths.

    For example, pieces of times 3, 1, 1, 1 in 2 stages give (0, 1, 1, 1). It takes O(stages * pieces ** 2) time.
    """
    pieces, stages = len(costs), len(depths)

    @functools.cache
    def stretch(begin: int, end: int) -> StageCost:
        return joined(costs[begin:end])

    def price(stage: int, begin: int, end: int) -> tuple[float, float]:
        cost = stretch(begin, end)
        recomputes = recompute and stage < stages - 1
        stash = depths[stage] * (cost.input_bytes if recomputes else cost.activation_bytes)
        stash += cost.activation_bytes if recomputes else 0
        weights = cost.weight_bytes + cost.sum_bytes + cost.state_bytes
        size = weights + stash + cost.temporary_bytes + cost.code_bytes
        return max(0.0, size - capacity), _time(cost, recomputes)

    best: dict[int, tuple[tuple[float, float], tuple[int, ...]]] = {0: ((0.0, 0.0), (0,))}
    for stage in range(stages):
        following = stages - stage - 1
        ends = range(stage + 1, pieces - following + 1) if following else [pieces]
        better: dict[int, tuple[tuple[float, float], tuple[int, ...]]] = {}
        for end in ends:
            options = []
            for begin, (worst, cuts) in best.items():
                if begin < end:
                    excess, time = price(stage, begin, end)
                    options.append(((max(worst[0], excess), max(worst[1], time)), (*cuts, end)))
            better[end] = min(options)
        best = better
    cuts = best[pieces][1]
    return tuple(stage for stage, (begin, end) in enumerate(itertools.pairwise(cuts)) for _ in range(begin, end))
