"""What a plan costs in time and memory, given what its stages cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from tensorflow_ipu._base.checks import Faults, is_int, is_number, note_bool
from tensorflow_ipu._base.notebook import NotebookView
from tensorflow_ipu._base.units import format_bytes
from tensorflow_ipu.pipelining.schedule.enums import Liveness, RecomputationMode
from tensorflow_ipu.pipelining.schedule.plan import (
    LINKS,
    STASHES,
    Backward,
    Buffer,
    BufferKind,
    Forward,
    Instruction,
    Load,
    Plan,
    Recompute,
    Save,
    Section,
    Step,
    Update,
    stage_letters,
)

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine import Machine, System


@dataclass(frozen=True)
class StageCost:
    """What a stage, or one part of a concurrent stage, costs: times in any unit, sizes in bytes.

    Attributes:
      backward: The time of a backward pass; twice `forward` if None.
      recompute_factor: The time of a recomputation, as a multiple of `forward`.
      activation_bytes: What a backward pass needs of one micro-batch's forward pass.
      input_bytes: The stage's inputs for one micro-batch: what is stashed where it recomputes, and what is exchanged.
      accumulator_bytes: Where its gradients are summed, in training; as much as the weights if None.
      state_bytes: What its optimizer keeps, on the chip.
      off_chip_bytes: What its optimizer keeps off the chip; each update brings it and takes it back.
      temporary_bytes: The most that one of its passes takes besides, while it runs.
      weight_shards: Among how many replicas its weights are divided: each pass gathers them over the links first.
      weights_off_chip: Whether each replica has its part of them off the chip.
    """

    forward: float = 1.0
    backward: float | None = None
    recompute_factor: float = 1.0
    update: float = 0.5
    load: float = 0.5
    save: float = 0.5
    activation_bytes: float = 0
    input_bytes: float = 0
    weight_bytes: float = 0
    accumulator_bytes: float | None = None
    state_bytes: float = 0
    off_chip_bytes: float = 0
    temporary_bytes: float = 0
    code_bytes: float = 0
    weight_shards: int = 1
    weights_off_chip: bool = False

    def __post_init__(self) -> None:
        faults = Faults()
        note_bool("weights_off_chip", self.weights_off_chip, faults)
        if not is_int(self.weight_shards) or self.weight_shards < 1:
            faults.add(ValueError, f"`weight_shards` must be 1 or more, but is {self.weight_shards!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("weight_shards", "weights_off_chip"):
                continue
            if value is None and field.name in ("backward", "accumulator_bytes"):
                continue
            if not is_number(value):
                faults.add(TypeError, f"`{field.name}` must be a number, but is {value!r}")
            elif not (math.isfinite(value) and value >= 0):
                faults.add(ValueError, f"`{field.name}` must be 0 or more and finite, but is {value}")
        faults.raise_any()

    @property
    def sum_bytes(self) -> float:
        """What sums of its gradients take in training."""
        return self.weight_bytes if self.accumulator_bytes is None else self.accumulator_bytes

    @property
    def shard_bytes(self) -> float:
        """Its weights, or the part of them that a replica has."""
        return math.ceil(self.weight_bytes / self.weight_shards) if self.weight_shards > 1 else self.weight_bytes

    @property
    def weights_come_and_go(self) -> bool:
        """Whether all of its weights are on the chip only while one of its passes runs."""
        return self.weight_shards > 1 or self.weights_off_chip

    def time(self, instruction: Instruction) -> float:
        """The time that an instruction of this stage takes."""
        if isinstance(instruction, Forward):
            return self.forward
        if isinstance(instruction, Backward):
            return backward_time(self)
        if isinstance(instruction, Recompute):
            return self.recompute_factor * self.forward
        if isinstance(instruction, Load):
            return self.load
        return self.save if isinstance(instruction, Save) else self.update


def backward_time(cost: StageCost) -> float:
    """Returns the time of a backward pass, by default twice that of a forward pass."""
    return 2 * cost.forward if cost.backward is None else cost.backward


StageCosts = StageCost | Sequence[StageCost | Sequence[StageCost]] | None
Costs = dict[tuple[int, int | None], StageCost]


def by_place(plan: Plan, stage_costs: StageCosts) -> Costs:
    if stage_costs is None or isinstance(stage_costs, StageCost):
        stage_costs = [stage_costs or StageCost()] * plan.stages
    if not isinstance(stage_costs, list | tuple):
        raise TypeError(f"`stage_costs` must be a `StageCost` or a list of them, but is {stage_costs!r}")
    if len(stage_costs) != plan.stages:
        raise ValueError(f"`stage_costs` has {len(stage_costs)} items, but the plan has {plan.stages} stages")
    found: Costs = {}
    for stage, item in enumerate(stage_costs):
        parts = plan.parts(stage)
        given = list(item) if isinstance(item, list | tuple) else [item] * len(parts)
        if len(given) != len(parts):
            raise ValueError(f"`stage_costs[{stage}]` has {len(given)} items, but the stage has {len(parts)} parts")
        for (part, _), cost in zip(parts, given, strict=True):
            if not isinstance(cost, StageCost):
                raise TypeError(
                    f"`stage_costs[{stage}]` must be a `StageCost`, or a list of one a part, but is {item!r}"
                )
            found[stage, part] = cost
    return found


class Price(NamedTuple):
    time: float
    computed: float
    streamed: float
    gathered: float
    use: str


class Prices:
    def __init__(self, plan: Plan, stage_costs: StageCosts, machine: System | Machine | str | None) -> None:
        self._plan = plan
        self.costs = by_place(plan, stage_costs)
        self.system: System | None = None
        if machine is not None:
            from tensorflow_ipu.analysis.machine import system_of  # Few plans are for a machine.

            self.system = system_of(machine)
        self._known: dict[tuple[object, ...], Price] = {}

    def of(self, instruction: Instruction) -> Price:
        """Returns the price of an instruction. Its micro-batch does not matter, so few of a plan's are computed."""
        of_transfer = type(instruction.computation) if isinstance(instruction, Load | Save) else None
        key = (type(instruction), of_transfer, instruction.stage, instruction.part)
        known = self._known.get(key)
        if known is None:
            cost = self.costs[instruction.stage, instruction.part]
            streamed, gathered = self._streamed(instruction, cost), self._gathered(instruction, cost)
            computed = 0.0 if of_transfer else cost.time(instruction)
            use = "recompute" if isinstance(instruction, Recompute) else "use"
            known = Price(streamed + gathered + computed, computed, streamed, gathered, use)
            self._known[key] = known
        return known

    def _streamed(self, instruction: Instruction, cost: StageCost) -> float:
        transfers = isinstance(instruction, Load | Save)
        if self.system is None:
            return cost.time(instruction) if transfers else 0.0
        moved = self._moved(instruction, cost) if transfers else self._brought(instruction, cost)
        return moved / self.system.streaming_bytes_per_second

    def _gathered(self, instruction: Instruction, cost: StageCost) -> float:
        if self.system is None or cost.weight_shards < 2 or not isinstance(instruction, Forward | Recompute | Backward):
            return 0.0
        from tensorflow_ipu.analysis.machine import gather_seconds

        return gather_seconds(cost.weight_bytes, cost.weight_shards, self.system)

    def exchange(self, step: Step) -> float:
        """Returns the time of the exchange at the end of a step: that of the IPU that sends or receives most."""
        if self.system is None:
            return 0.0
        passed: dict[tuple[str, int], float] = defaultdict(float)
        for task in step.tasks:
            for ipu, size in self._handed(task.instruction):
                if ipu != task.ipu:
                    passed["sent", task.ipu] += size
                    passed["received", ipu] += size
        if not passed:
            return 0.0
        return max(passed.values()) / self.system.link_bytes_per_second + self.system.link_latency_seconds

    def bytes_in(self, kind: BufferKind, stage: int, part: int | None) -> float:
        cost = self.costs[stage, part]
        if kind in (BufferKind.ACTIVATIONS, BufferKind.RECOMPUTED):
            return cost.activation_bytes
        if kind is BufferKind.BACKWARD_LINK:
            return self._between(stage)
        return cost.sum_bytes if kind is BufferKind.ACCUMULATOR else cost.input_bytes

    def _between(self, stage: int) -> float:
        """Returns the size of a stage's output, which is that of the next one's inputs; all its parts have the same."""
        return max(self.costs[stage + 1, part].input_bytes for part, _ in self._plan.parts(stage + 1))

    def _handed(self, instruction: Instruction) -> Sequence[tuple[int, float]]:
        """Returns the IPUs to which an instruction sends outputs or gradients, with bytes."""
        plan, stage = self._plan, instruction.stage
        if isinstance(instruction, Forward) and stage + 1 < plan.stages:
            size = self._between(stage) / len(plan.parts(stage))
            return [(ipu, size) for _, ipu in plan.parts(stage + 1)]
        if isinstance(instruction, Backward) and stage:
            size = self._between(stage - 1) / len(plan.parts(stage - 1))
            return [(ipu, size) for _, ipu in plan.parts(stage - 1)]
        return ()

    def _brought(self, instruction: Instruction, cost: StageCost) -> float:
        """Returns the bytes that a computation moves from and to the memory off the chip; 0 in phases, which load and save."""
        if self._plan.phased:
            return 0.0
        weights = cost.shard_bytes if cost.weights_off_chip else 0.0
        if isinstance(instruction, Update):
            sums = self._plan.buffer(BufferKind.ACCUMULATOR, instruction.stage, instruction.part)
            brought = cost.sum_bytes if sums and sums.off_chip else 0.0
            return 2 * (cost.off_chip_bytes + weights) + brought
        moved = weights
        effects = self._plan.effects(instruction)
        for buffer in (*effects.reads, *effects.writes):
            own = (buffer.stage, buffer.part) == (instruction.stage, instruction.part)
            if buffer.off_chip and own:
                both = 2 if buffer.kind is BufferKind.ACCUMULATOR else 1  # A sum is brought, and taken back.
                moved += both * self.bytes_in(buffer.kind, buffer.stage, buffer.part)
        return moved

    def _moved(self, instruction: Load | Save, cost: StageCost) -> float:
        """Returns the bytes that a `Load` or `Save` moves."""
        computation, loads = instruction.computation, isinstance(instruction, Load)
        if isinstance(computation, Update):
            state = cost.state_bytes + cost.off_chip_bytes
            return cost.shard_bytes + state + (cost.sum_bytes if loads else 0.0)
        if isinstance(computation, Forward):
            sums = cost.sum_bytes if self._plan.liveness is Liveness.OffChipAfterFwd else 0.0  # Else they are there.
            return cost.shard_bytes if loads else cost.activation_bytes + sums
        return cost.sum_bytes + (cost.shard_bytes + cost.activation_bytes if loads else 0.0)


@dataclass(frozen=True)
class Holdings:
    """The largest sizes at a time, in bytes."""

    weights: float
    accumulators: float
    state: float
    stash: float
    links: float
    off_chip: float


class _Amount:
    """One kind of data of the stages of an IPU: the part that stays, and the part that is there while its stage runs."""

    def __init__(self) -> None:
        self._staying = 0.0
        self._coming = 0.0

    def add(self, size: float, *, stays: bool) -> None:
        """Adds data of a stage. One stage runs at a time, so only the largest of the data that come and go counts."""
        if stays:
            self._staying += size
        else:
            self._coming = max(self._coming, size)

    @property
    def most(self) -> float:
        return self._staying + self._coming


def holdings_of(plan: Plan, ipu: int, costs: Costs, size_of: Callable[[Buffer], float]) -> Holdings:
    weights, accumulators, state, stash = (_Amount() for _ in range(4))
    links = resting = 0.0
    within = plan.recomputation is RecomputationMode.RecomputeAndBackpropagateInterleaved
    # Of phases that leave the chip after their backward pass too, one is on it at a time, with all that it has.
    after_forward = plan.liveness is Liveness.OffChipAfterFwd
    alone = plan.liveness is Liveness.OffChipAfterEachPhase or (after_forward and not plan.training)
    leaving = after_forward or alone
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
        weights.add(cost.weight_bytes, stays=not (alone or cost.weights_come_and_go))
        if cost.weights_come_and_go and not alone:
            if not cost.weights_off_chip:
                weights.add(cost.shard_bytes, stays=True)
            elif not plan.phased:
                resting += cost.shard_bytes
    return Holdings(weights.most, accumulators.most, state.most, stash.most, links, resting)


@dataclass(frozen=True)
class IpuCost:
    """What a plan costs one IPU: the most bytes on the chip, and what rests off it.

    Attributes:
      busy: For how much of a pass's time it does anything.
      depths: For each stage of it, by letter, how many micro-batches its stash holds.
      stash_bytes: Stashed and recomputed activations.
      weight_bytes: Weights, accumulated gradients and what optimizers keep.
      link_bytes: What is kept for exchanges with other IPUs.
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
class PlanCost(NotebookView):
    """What a plan costs; shares are of the time of all IPUs together, and sum to 1.

    Attributes:
      time: The time of one pass, in the unit of the stages' times.
      section_times: The time of each section of the pass, by its name.
      utilisation: The share in forward and backward passes and updates.
      transfer_share: The share in transfers between the chip and the memory off it.
      bubble_share: The share in which IPUs wait.
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

    @property
    def _summary(self) -> str:
        memory = f", at most {format_bytes(self.peak_bytes)} on an IPU" if self.peak_bytes else ""
        return f"time {self.time:.4g}, {self.bubble_share:.0%} bubble{memory}"

    def __repr__(self) -> str:
        return f"<PlanCost of {self.plan.heading}: {self._summary}>"


@dataclass(frozen=True)
class Span:
    """A task of an IPU in time, counted from the begin of the pass."""

    ipu: int
    begin: float
    end: float
    instruction: Instruction


def plan_cost(plan: Plan, stage_costs: StageCosts = None, *, machine: System | Machine | str | None = None) -> PlanCost:
    """Costs a plan: in each step all IPUs wait for the slowest, then exchange, which takes time on a machine only.

    Buffers take their depth times the bytes of what they hold, all the time; what is recomputed within a backward pass,
    for one stage at a time; phases, as their `Liveness` says.

    Args:
      plan: The plan.
      stage_costs: One for all stages, or one a stage (for a concurrent stage a list, one a part, or one for all parts).
      machine: What exchanges, loads and saves (in the place of the stages' `load` and `save`), with times in seconds: a
        name such as `"GC200"` or `"Bow Pod16"`, a `machine.Machine`, a `machine.System`.

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
    """Yields each step of one pass: its section, begin, end, and tasks; IPUs exchange after the last of them.

    Arguments are those of `plan_cost`.
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
