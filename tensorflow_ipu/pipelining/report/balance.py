"""Where to cut a model into stages, so that they take equally long and fit."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tensorflow_ipu._base.checks import Faults, is_int, note_bool
from tensorflow_ipu._base.units import format_bytes
from tensorflow_ipu.pipelining.report.cost import PlanCost, plan_cost
from tensorflow_ipu.pipelining.report.prices import StageCost
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.order import overlap_length
from tensorflow_ipu.pipelining.schedule.pipelined import pipeline_plan

if TYPE_CHECKING:
    from tensorflow_ipu.machine import Machine, System

# So many times the least number of micro-batches that the schedule takes, where nobody says how many there are.
_ROUNDS = 8


@dataclass(frozen=True)
class Pieces:
    """What a model can be cut between, in the order in which it runs."""

    names: tuple[str, ...]
    costs: tuple[StageCost, ...]
    micro_batches: int | None = None
    assigned: Callable[[Sequence[int]], list[Any]] | None = None


@runtime_checkable
class Divisible(Protocol):
    """A model that tells its pieces, such as a Keras model of a strategy's scope."""

    def ipu_pieces(self, machine: System | Machine | str | None, batch_size: int | None) -> Pieces:
        """Its pieces, for micro-batches of `batch_size` samples where that is not known."""
        ...


@dataclass(frozen=True)
class Balance:
    """A proposal for the stages of a pipeline, and what is expected of it.

    Attributes:
      names: What the pieces of the model are called.
      stages: The stage of each piece.
      costs: The cost of each stage.
      cost: The cost of a pass, one stage an IPU.
      capacity: The memory of an IPU, in bytes.
      recompute: Whether activations are recomputed; else they do not fit.
      assignment: What `set_pipeline_stage_assignment` takes for a Keras model; else `stages` as a list.
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]
    costs: tuple[StageCost, ...]
    cost: PlanCost
    capacity: int
    recompute: bool
    assignment: list[Any]

    @property
    def fits(self) -> bool:
        """Whether each IPU has the memory for its stage."""
        return self.cost.peak_bytes <= self.capacity

    def __str__(self) -> str:
        plan = self.cost.plan
        lines = [
            f"{plan.stages} stages, one an IPU, {plan.micro_batches} micro-batches"
            + (", with recomputation" if self.recompute else "")
            + f": {self.cost.time_per_micro_batch * 1e6:.4g} us a micro-batch, bubble {self.cost.bubble_share:.0%}"
        ]
        for stage, (cost, ipu) in enumerate(zip(self.costs, self.cost.ipus, strict=True)):
            names = [name for name, of in zip(self.names, self.stages, strict=True) if of == stage]
            what = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}, {len(names)} pieces"
            room = f"{format_bytes(ipu.on_chip_bytes)}, {ipu.on_chip_bytes / self.capacity:.0%} of the memory"
            again = self.recompute and stage < plan.stages - 1  # The last one has its activations at hand.
            lines.append(f"  stage {stage}: {_time(cost, again) * 1e6:.4g} us, {room}: {what}")
        if not self.fits:
            lines.append("  it does not fit: no split that was tried does")
        return "\n".join(lines)


def balance(
    model_or_stages: Divisible | Sequence[StageCost],
    ipus: int,
    machine: System | Machine | str | None = None,
    *,
    batch_size: int | None = None,
    micro_batches: int | None = None,
    recompute: bool | None = None,
) -> Balance:
    """Proposes which layers of a model are in which stage of a training pipeline, one stage an IPU.

    Stages are stretches of the model. Of all splits in which each stage fits its IPU, it takes one whose longest stage is the
    shortest; times and bytes are predictions, and nothing is run. Print the result, and hand its `assignment` on:

        proposal = pipelining.balance(model, 4, "Bow Pod16", batch_size=16)
        model.set_pipeline_stage_assignment(proposal.assignment)

    Args:
      model_or_stages: A built and compiled Keras model of a strategy's scope; or the costs of what can be a stage of its
        own, in order, with times in seconds.
      ipus: How many stages there are to be, at least 2.
      machine: As for `predicted_stage_costs`; costs that are given need one.
      batch_size: Of a Keras model, the samples of a micro-batch; it may be omitted where `keras.Input` tells.
      micro_batches: How many micro-batches a pass has; what the model's options say, or some if omitted.
      recompute: Whether activations are recomputed; None for where nothing fits without.

    Returns:
      The proposal. Where no split fits, it is the one whose fullest stage is the smallest, and `fits` is False.

    Raises:
      TypeError: `model_or_stages` is neither, or an argument is of a wrong type.
      ValueError: There are fewer pieces than stages, or an argument is out of range.
    """
    from tensorflow_ipu.machine import system_of  # Few plans are for a machine.

    faults = Faults()
    if not is_int(ipus) or ipus < 2:
        faults.add(ValueError, f"`ipus` must be 2 or more, but is {ipus!r}")
    note_bool("recompute", recompute, faults, optional=True)
    faults.raise_any()
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
        )

    first = made(recompute is True)
    if first.fits or recompute is not None:
        return first
    return made(True)


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
    """The cost of a stage that runs these one after the other."""
    first = costs[0]

    def total(name: str) -> float:
        return sum(getattr(cost, name) for cost in costs)

    return replace(
        first,
        forward=total("forward"),
        backward=sum(_backward(cost) for cost in costs),
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


def _backward(cost: StageCost) -> float:
    return 2 * cost.forward if cost.backward is None else cost.backward


def _time(cost: StageCost, again: bool) -> float:
    """The time of a stage for one micro-batch."""
    return cost.forward + _backward(cost) + again * cost.forward * cost.recompute_factor


def _split(costs: Sequence[StageCost], depths: Sequence[int], again: bool, capacity: int) -> tuple[int, ...]:
    """The stage of each piece: of splits that fit, one whose longest stage is the shortest."""
    pieces, stages = len(costs), len(depths)

    @functools.cache
    def stretch(begin: int, end: int) -> StageCost:
        return joined(costs[begin:end])

    def price(stage: int, begin: int, end: int) -> tuple[float, float]:
        """By how much a stage of these pieces is too large, and its time."""
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
