"""Which schedule and which mapping of a pipeline is the best, and why."""

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

_ALL_MAPPINGS = 64  # Of more contiguous mappings than that, only the most even ones are tried.


@dataclass(frozen=True)
class Candidate:
    """One way to run a pipeline; `refused` says why it cannot be run or is too large, and is empty for one that can be."""

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
class Comparison(NotebookView):
    """What `compare_plans` found: the candidates, the best first, and why it is the best, or why none can be run."""

    candidates: tuple[Candidate, ...]
    reason: str
    _stage_costs: StageCosts = field(default=None, repr=False, compare=False)
    _machine: System | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Candidate | None:
        """The best one; None if none can be run."""
        first = self.candidates[0]
        return None if first.refused else first

    def best_of(self, schedule: PipelineSchedule) -> Candidate | None:
        """The best one of a schedule; None if none of it can be run."""
        return next((one for one in self.candidates if one.schedule is schedule and not one.refused), None)

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
    """Tries all schedules, with mappings that give each IPU consecutive stages, and names the fastest that fits.

    All such mappings are tried for up to 7 stages; for more, the most even ones over 1, 2, 4, 8, ... and all IPUs. Of
    equally fast candidates the best needs the least memory, then the fewest IPUs. Errors are those of `pipeline_plan` and
    `plan_cost` too.

    Args:
      stages: The number of stages.
      micro_batches: The number of micro-batches of a pass, as for `pipeline_plan`.
      stage_costs: What each stage takes, as for `plan_cost`.
      ipus: How many IPUs there are; one a stage if omitted.
      training: Whether there are backward passes and updates.
      recompute: Whether activations are computed again; both are tried if omitted.
      bytes_per_ipu: The memory of an IPU; if omitted that of `machine`, or any.
      machine: The machine, as for `plan_cost`.

    Raises:
      ValueError: `ipus` is less than 1.
    """
    # All that is wrong with the numbers is wrong with this one too, which needs no multiple.
    one = pipeline_plan(stages, micro_batches, PipelineSchedule.Sequential, training=training)
    plan_cost(one, stage_costs, machine=machine)
    system: System | None = None
    if machine is not None:
        from tensorflow_ipu.analysis.machine import system_of  # Few plans are for a machine.

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
    """The mappings of consecutive stages to at most `ipus` IPUs; where there are many, the most even by `weights`."""
    stages = len(weights)
    if 2 ** (stages - 1) <= _ALL_MAPPINGS:
        cuts = (cut for used in range(1, ipus + 1) for cut in itertools.combinations(range(1, stages), used - 1))
        return [tuple(sum(stage >= at for at in cut) for stage in range(stages)) for cut in cuts]
    counts = sorted({min(2**power, ipus) for power in range(ipus.bit_length() + 1)})
    return [_most_even(weights, used) for used in counts]


def _most_even(weights: Sequence[float], used: int) -> tuple[int, ...]:
    """Returns the contiguous mapping to `used` IPUs whose busiest IPU has the least work."""
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
    costs = stage_costs if isinstance(stage_costs, list | tuple) else [stage_costs or StageCost()] * stages
    found = []
    for stage, cost in enumerate(costs):
        if not isinstance(cost, StageCost):
            raise TypeError(f"`stage_costs[{stage}]` must be a `StageCost`, but is {cost!r}; stages here have no parts")
        found.append(cost.forward + training * backward_time(cost))
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
    words = [f"{best.label} takes {times}, with {cost.bubble_share:.0%} bubble"]
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


# So many times the least number of micro-batches that the schedule takes, where nobody says how many there are.
_ROUNDS = 8


@dataclass(frozen=True)
class Pieces:
    """The parts of a model between which it can be cut, in the order in which they run."""

    names: tuple[str, ...]
    costs: tuple[StageCost, ...]
    micro_batches: int | None = None
    assigned: Callable[[Sequence[int]], list[Any]] | None = None
    # Their costs in float16 or not, with another `availableMemoryProportion`.
    read: Callable[[bool, float | None], Sequence[StageCost]] | None = None


@runtime_checkable
class Divisible(Protocol):
    """A model that can be cut into pieces, such as a Keras model of a strategy's scope."""

    def ipu_pieces(self, machine: System | Machine | str | None, batch_size: int | None) -> Pieces:
        """Returns its pieces, for micro-batches of `batch_size` samples if their size is not known."""
        ...


@dataclass(frozen=True)
class Balance(NotebookView):
    """A proposal for the stages of a pipeline, with costs, and the `assignment` for `set_pipeline_stage_assignment`."""

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
        """Whether each IPU has the memory for its stage."""
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
        """Yields each stage: its number, time, memory, the share of it, and its pieces."""
        for stage, (cost, ipu) in enumerate(zip(self.costs, self.cost.ipus, strict=True)):
            names = [name for name, of in zip(self.names, self.stages, strict=True) if of == stage]
            what = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}, {len(names)} pieces"
            again = self.recompute and stage < self.cost.plan.stages - 1  # The last one has its activations at hand.
            time = f"{_time(cost, again) * 1e6:.4g} us"
            yield stage, time, format_bytes(ipu.on_chip_bytes), f"{ipu.on_chip_bytes / self.capacity:.0%}", what

    def __repr__(self) -> str:
        return f"<Balance: {self._summary}{'' if self.fits else '; it does not fit'}>"

    def __str__(self) -> str:
        lines = [self._summary]
        lines += [
            f"  stage {at}: {time}, {size}, {share} of the memory: {what}"
            for at, time, size, share, what in self._rows()
        ]
        return "\n".join(lines if self.fits else [*lines, "  it does not fit: no split that was tried does"])


def balance(
    model_or_stages: Divisible | Sequence[StageCost],
    ipus: int,
    machine: System | Machine | str | None = None,
    *,
    batch_size: int | None = None,
    micro_batches: int | None = None,
    recompute: bool | None = None,
) -> Balance:
    """Proposes which layers of a model are in which stage of a training pipeline, one stage an IPU; nothing is run.

    Of all splits in which each stage fits its IPU, it takes one whose longest stage is the shortest. Where none fits, it
    takes the one whose fullest stage is the smallest, and `fits` is False.

    Args:
      model_or_stages: A built and compiled Keras model of a strategy's scope; or the costs of pieces, times in seconds.
      ipus: How many stages there are to be, at least 2.
      machine: As for `predicted_stage_costs`; costs that are given need one.
      batch_size: Of a Keras model, the samples of a micro-batch; it may be omitted where `keras.Input` tells.
      micro_batches: How many micro-batches a pass has; what the model's options say, or some if omitted.
      recompute: Whether activations are recomputed; None for where nothing fits without.

    Raises:
      TypeError: `model_or_stages` is neither, or an argument is of a wrong type.
      ValueError: There are fewer pieces than stages, or an argument is out of range.
    """
    from tensorflow_ipu.analysis.machine import system_of  # Few plans are for a machine.

    faults = Faults()
    if not is_int(ipus) or ipus < 2:
        faults.add(ValueError, f"`ipus` must be 2 or more, but is {ipus!r}")
    note_bool("recompute", recompute, faults, optional=True)
    faults.raise_any()
    with progress.of("predicting what each piece of the model takes"):
        pieces = _pieces(model_or_stages, machine, batch_size)
    if len(pieces.costs) < ipus:
        raise ValueError(f"`ipus` is {ipus}, but the model has only {len(pieces.costs)} pieces to make stages of")
    system = system_of("GC200" if machine is None else machine)
    # A Grouped pipeline takes whole rounds of micro-batches.
    round_of = overlap_length(PipelineSchedule.Grouped, [(ipu,) for ipu in range(ipus)], True)
    count = micro_batches or pieces.micro_batches or _ROUNDS * round_of

    def made(again: bool) -> Balance:
        mode = RecomputationMode.RecomputeThenBackpropagate if again else None
        plan = pipeline_plan(ipus, count, recomputation_mode=mode)
        depths = [plan.stash_depth(stage) for stage in range(ipus)]
        stages = _split(pieces.costs, depths, again, system.machine.bytes)
        costs = tuple(
            joined([cost for cost, of in zip(pieces.costs, stages, strict=True) if of == stage])
            for stage in range(ipus)
        )
        return Balance(
            names=pieces.names,
            stages=stages,
            costs=costs,
            cost=plan_cost(plan, costs, machine=system),
            capacity=system.machine.bytes,
            recompute=again,
            assignment=list(stages) if pieces.assigned is None else pieces.assigned(stages),
            _machine=system,
        )

    with progress.of(f"dividing {len(pieces.costs)} pieces among {ipus} stages"):
        first = made(recompute is True)
        return first if first.fits or recompute is not None else made(True)


def _pieces(given: object, machine: System | Machine | str | None, batch_size: int | None) -> Pieces:
    if isinstance(given, Divisible):
        return given.ipu_pieces(machine, batch_size)
    if not isinstance(given, list | tuple) or not all(isinstance(each, StageCost) for each in given):
        raise TypeError(
            "`model_or_stages` must be a Keras model that was made in a strategy's scope, or a list of `StageCost`, but is"
            f" {given!r}"
        )
    return Pieces(tuple(f"piece {number}" for number in range(len(given))), tuple(given))


def joined(costs: Sequence[StageCost]) -> StageCost:
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


def _time(cost: StageCost, again: bool) -> float:
    return cost.forward + backward_time(cost) + again * cost.forward * cost.recompute_factor


def _split(costs: Sequence[StageCost], depths: Sequence[int], again: bool, capacity: int) -> tuple[int, ...]:
    """Returns the stage of each piece: of splits that fit, one whose longest stage is the shortest."""
    pieces, stages = len(costs), len(depths)

    @functools.cache
    def stretch(begin: int, end: int) -> StageCost:
        return joined(costs[begin:end])

    def price(stage: int, begin: int, end: int) -> tuple[float, float]:
        """Returns by how much a stage of these pieces is too large, and its time."""
        cost = stretch(begin, end)
        recomputed = again and stage < stages - 1
        stash = depths[stage] * (cost.input_bytes if recomputed else cost.activation_bytes)
        stash += cost.activation_bytes if recomputed else 0
        weights = cost.weight_bytes + cost.sum_bytes + cost.state_bytes
        size = weights + stash + cost.temporary_bytes + cost.code_bytes
        return max(0.0, size - capacity), _time(cost, recomputed)

    # `best[end]` is of the stages so far, which have the first `end` pieces: what is worst of them, and where they end.
    best: dict[int, tuple[tuple[float, float], tuple[int, ...]]] = {0: ((0.0, 0.0), (0,))}
    for stage in range(stages):
        left = stages - stage - 1
        ends = range(stage + 1, pieces - left + 1) if left else [pieces]
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
    widths = [end - begin for begin, end in itertools.pairwise(cuts)]
    return tuple(stage for stage, width in enumerate(widths) for _ in range(width))
