"""What a plan costs in time and memory, given what its stages cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorflow_ipu.pipelining.report.prices import Costs, Prices, StageCost, StageCosts
from tensorflow_ipu.pipelining.schedule.enums import Liveness, RecomputationMode
from tensorflow_ipu.pipelining.schedule.instructions import (
    LINKS,
    STASHES,
    Buffer,
    BufferKind,
    Instruction,
    stage_letters,
)
from tensorflow_ipu.pipelining.schedule.plan import Plan, Section

if TYPE_CHECKING:
    from tensorflow_ipu.machine import Machine, System

_AFTER_FORWARD = Liveness.OffChipAfterFwd


@dataclass(frozen=True)
class Holdings:
    """Bytes, the most that there is at a time."""

    weights: float
    accumulators: float
    state: float
    stash: float
    links: float
    off_chip: float


class _Amount:
    """One kind of data of the stages of an IPU: what stays, and what is there while its stage runs alone."""

    def __init__(self) -> None:
        self._staying = 0.0
        self._coming = 0.0

    def add(self, size: float, *, stays: bool) -> None:
        """Adds what a stage has. As one stage runs at a time, of what comes and goes the largest counts."""
        if stays:
            self._staying += size
        else:
            self._coming = max(self._coming, size)

    @property
    def most(self) -> float:
        """The most on the chip."""
        return self._staying + self._coming


def holdings_of(plan: Plan, ipu: int, costs: Costs, size_of: Callable[[Buffer], float]) -> Holdings:
    """What an IPU has of a plan."""
    weights, accumulators, state, stash = (_Amount() for _ in range(4))
    links = resting = 0.0
    within = plan.recomputation is RecomputationMode.RecomputeAndBackpropagateInterleaved
    # Of phases that leave the chip after their backward pass too, one is on it at a time, with all that it has.
    alone = plan.liveness is Liveness.OffChipAfterEachPhase or (plan.liveness is _AFTER_FORWARD and not plan.training)
    leaving = plan.liveness is _AFTER_FORWARD or alone
    for stage, part, at in plan.places():
        if at != ipu:
            continue
        cost = costs[stage, part]
        for kind in BufferKind:
            buffer = plan.buffer(kind, stage, part)
            if buffer is None:
                continue
            size = size_of(buffer)
            resting += size if buffer.off_chip else 0.0
            if kind in LINKS:
                links += size
            elif kind is BufferKind.ACCUMULATOR:
                accumulators.add(size, stays=not (alone or (buffer.off_chip and not plan.phased)))
            elif kind in STASHES and (buffer.off_chip or leaving):
                stash.add(size / buffer.depth, stays=False)  # That of the micro-batch in work.
            else:
                stash.add(size, stays=kind in STASHES or not within)
        own_state = cost.state_bytes if plan.training else 0.0
        state.add(own_state, stays=not alone)
        resting += cost.off_chip_bytes + (own_state if alone else 0.0)
        resting += cost.shard_bytes if alone or (leaving and stage < plan.stages - 1) else 0.0
        resting += _hold_weights(cost, weights, alone=alone, phased=plan.phased)
    return Holdings(weights.most, accumulators.most, state.most, stash.most, links, resting)


def _hold_weights(cost: StageCost, weights: _Amount, *, alone: bool, phased: bool) -> float:
    """Adds the weights of a stage; returns what of them rests beside the chip for no phase."""
    weights.add(cost.weight_bytes, stays=not (alone or cost.weights_come_and_go))
    if alone or not cost.weights_come_and_go:
        return 0.0
    if not cost.weights_off_chip:
        weights.add(cost.shard_bytes, stays=True)
        return 0.0
    return 0.0 if phased else cost.shard_bytes


@dataclass(frozen=True)
class IpuCost:
    """What a plan costs one IPU.

    Attributes:
      ipu: Its number.
      busy: For how much of a pass's time it does anything.
      depths: For each stage of it, by letter, how many micro-batches its stash holds.
      stash_bytes: The most that stashed and recomputed activations take on the chip.
      weight_bytes: The most that weights, accumulated gradients and what optimizers keep take on the chip.
      link_bytes: What is kept for exchanges with other IPUs.
      off_chip_bytes: What rests off the chip.
      temporary_bytes: The most that a pass takes besides.
      code_bytes: What code takes.
    """

    ipu: int
    busy: float
    depths: tuple[tuple[str, int], ...]
    stash_bytes: float
    weight_bytes: float
    link_bytes: float
    off_chip_bytes: float
    temporary_bytes: float = 0
    code_bytes: float = 0

    @property
    def on_chip_bytes(self) -> float:
        """All that it has on the chip."""
        kept = self.stash_bytes + self.weight_bytes + self.link_bytes
        return kept + self.temporary_bytes + self.code_bytes


@dataclass(frozen=True)
class PlanCost:
    """What a plan costs.

    The shares are of the time of all IPUs together, and sum to 1.

    Attributes:
      plan: The plan.
      time: The time of one pass, in the unit of the stages' times.
      section_times: The time of each section of the pass, by its name.
      utilisation: The share in forward and backward passes and updates.
      recompute_share: The share in recomputation.
      transfer_share: The share in transfers between the chip and the memory off it.
      bubble_share: The share in which IPUs wait.
      ipus: What it costs each IPU.
      exchange_share: The share in exchanges between IPUs; 0 where no machine was given.
    """

    plan: Plan
    time: float
    section_times: dict[str, float]
    utilisation: float
    recompute_share: float
    transfer_share: float
    bubble_share: float
    ipus: tuple[IpuCost, ...]
    exchange_share: float = 0.0

    @property
    def time_per_micro_batch(self) -> float:
        """The time of a pass over its micro-batches."""
        return self.time / self.plan.micro_batches

    @property
    def total_time(self) -> float:
        """The time of all passes."""
        return self.time * self.plan.repeat_count

    @property
    def peak_bytes(self) -> float:
        """The most that any IPU keeps on the chip."""
        return max(ipu.on_chip_bytes for ipu in self.ipus)

    @property
    def peak_stash_bytes(self) -> float:
        """The most that stashed and recomputed activations take on any IPU."""
        return max(ipu.stash_bytes for ipu in self.ipus)


@dataclass(frozen=True)
class Span:
    """A task in time.

    Attributes:
      ipu: The IPU that runs it.
      begin: When it begins, counted from the begin of the pass.
      end: When it ends.
      instruction: What is run.
    """

    ipu: int
    begin: float
    end: float
    instruction: Instruction


def plan_cost(plan: Plan, stage_costs: StageCosts = None, *, machine: System | Machine | str | None = None) -> PlanCost:
    """Costs a plan.

    The model is that of the machine: in a step, each IPU works through its tasks without a pause; then all wait for
    the slowest, and exchange. So a step takes as long as the IPU with the most work in it, and the exchange as long as the
    IPU that passes most takes for it. Without a machine, an exchange takes no time.

    Buffers take their depth times the bytes of what they hold, all the time, as memory on an IPU is laid out before the
    program runs. What `RecomputeAndBackpropagateInterleaved` recomputes is an exception: it is there for one stage at a
    time. In phased execution one stage at a time is on the chip, with what the `Liveness` of its phases keeps there.

    Args:
      plan: The plan.
      stage_costs: What the stages cost: one for all, or one a stage (for a concurrent stage a list, one a part, or one
        for all its parts).
      machine: The machine whose links carry what stages exchange, and whose memory beside the chips holds what phases load
        and save (in the place of the stages' `load` and `save`): a name such as `"GC200"` or `"Bow Pod16"`, a
        `machine.Machine`, a `machine.System`. The times of `stage_costs` are then seconds.

    Raises:
      TypeError: `stage_costs` or `machine` is nothing of the above.
      ValueError: `stage_costs` is of the wrong length; or no machine of this name is known.
    """
    prices = Prices(plan, stage_costs, machine)
    section_times: dict[str, float] = {}
    busy: dict[int, float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    for section in plan.sections:
        once = 0.0
        for step in section.steps:
            times: dict[int, float] = defaultdict(float)
            for task in step.tasks:
                price = prices.of(task.instruction)
                times[task.ipu] += price.time
                kinds[price.use] += price.computed * section.repeat
                if price.time != price.computed:
                    kinds["transfer"] += price.streamed * section.repeat
                    kinds["exchange"] += price.gathered * section.repeat
            for ipu, time in times.items():
                busy[ipu] += time * section.repeat
            exchange = prices.exchange(step)
            once += max(times.values(), default=0.0) + exchange
            kinds["exchange"] += exchange * section.repeat * len(plan.ipus)
        section_times[section.name] = once * section.repeat
    time = sum(section_times.values())
    whole = time * len(plan.ipus)
    shares = {use: kinds[use] / whole if whole else 0.0 for use in ("use", "recompute", "transfer", "exchange")}
    return PlanCost(
        plan=plan,
        time=time,
        section_times=section_times,
        utilisation=shares["use"],
        recompute_share=shares["recompute"],
        transfer_share=shares["transfer"],
        bubble_share=max(0.0, 1.0 - sum(shares.values())) if whole else 0.0,
        ipus=tuple(_ipu_cost(plan, ipu, busy[ipu], prices) for ipu in plan.ipus),
        exchange_share=shares["exchange"],
    )


def timeline(
    plan: Plan, stage_costs: StageCosts = None, *, machine: System | Machine | str | None = None
) -> Iterator[tuple[Section, float, float, list[Span]]]:
    """Goes through one pass of a plan in time.

    Args:
      plan: The plan.
      stage_costs: As for `plan_cost`.
      machine: As for `plan_cost`.

    Yields:
      For each step its section, its begin, its end, and its tasks. Behind the end of the last of them, IPUs exchange.
    """
    prices = Prices(plan, stage_costs, machine)
    begin = 0.0
    for _, section, step in plan.walk():
        now = dict.fromkeys(plan.ipus, begin)
        spans = []
        for task in step.tasks:
            end = now[task.ipu] + prices.of(task.instruction).time
            spans.append(Span(task.ipu, now[task.ipu], end, task.instruction))
            now[task.ipu] = end
        end = max(now.values()) + prices.exchange(step)
        yield section, begin, end, spans
        begin = end


def _ipu_cost(plan: Plan, ipu: int, busy: float, prices: Prices) -> IpuCost:
    places = [(stage, part) for stage, part, at in plan.places() if at == ipu]
    held = holdings_of(
        plan, ipu, prices.costs, lambda each: each.depth * prices.bytes_in(each.kind, each.stage, each.part)
    )
    return IpuCost(
        ipu=ipu,
        busy=busy,
        depths=tuple((stage_letters(*place), plan.stash_depth(*place)) for place in places),
        stash_bytes=held.stash,
        weight_bytes=held.weights + held.accumulators + held.state,
        link_bytes=held.links,
        off_chip_bytes=held.off_chip,
        temporary_bytes=max(prices.costs[place].temporary_bytes for place in places),
        code_bytes=sum(prices.costs[place].code_bytes for place in places),
    )
