"""The time and memory of a plan, computed from the costs of its stages."""

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
    """The cost of a stage, or of one part of a concurrent stage: times in any unit, sizes in bytes.

    Attributes:
      forward: The time of a forward pass.
      backward: The time of a backward pass; twice `forward` if None.
      recompute_factor: The time of a recomputation, as a multiple of `forward`.
      update: The time of the weight update.
      load: The time of a load onto the chip, if the plan has loads and no machine is given.
      save: The time of a save off the chip, if the plan has saves and no machine is given.
      activation_bytes: The activations of one micro-batch's forward pass that its backward pass needs.
      input_bytes: The stage's inputs for one micro-batch. They are exchanged, and stashed by a stage that recomputes.
      weight_bytes: The stage's weights.
      accumulator_bytes: The sums of gradients, in training; as large as the weights if None.
      state_bytes: The optimizer's slots on the chip.
      off_chip_bytes: The optimizer's slots off the chip. Each update moves them to the chip and back.
      temporary_bytes: The peak of all other data while a pass of the stage runs.
      code_bytes: The code of the stage.
      weight_shards: The number of replicas that share the weights. Each pass first gathers the weights over the links.
      weights_off_chip: Whether each replica stores its shard of the weights off the chip.
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
        """The sums of gradients, in bytes, in training."""
        return self.weight_bytes if self.accumulator_bytes is None else self.accumulator_bytes

    @property
    def shard_bytes(self) -> float:
        """The weights of the stage in bytes, or a replica's shard of them."""
        return math.ceil(self.weight_bytes / self.weight_shards) if self.weight_shards > 1 else self.weight_bytes

    @property
    def weights_come_and_go(self) -> bool:
        """True if all weights of the stage are on the chip only while one of its passes runs."""
        return self.weight_shards > 1 or self.weights_off_chip

    def time(self, instruction: Instruction) -> float:
        """Returns the time of an instruction of this stage."""
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
    """Returns the time of a backward pass, by default twice the time of a forward pass."""
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
    costs: Costs = {}
    for stage, item in enumerate(stage_costs):
        parts = plan.parts(stage)
        of_parts = list(item) if isinstance(item, list | tuple) else [item] * len(parts)
        if len(of_parts) != len(parts):
            raise ValueError(f"`stage_costs[{stage}]` has {len(of_parts)} items, but the stage has {len(parts)} parts")
        for (part, _), cost in zip(parts, of_parts, strict=True):
            if not isinstance(cost, StageCost):
                raise TypeError(
                    f"`stage_costs[{stage}]` must be a `StageCost`, or a list with one for each part, but is {item!r}"
                )
            costs[stage, part] = cost
    return costs


class Price(NamedTuple):
    """The time of an instruction: computation, transfers off and onto the chip, gathers of weights, and their sum.

    `use` is the kind of computation in `PlanCost`: `use` or `recompute`.
    """

    time: float
    computed: float
    streamed: float
    gathered: float
    use: str


class Prices:
    """The prices of a plan's instructions and exchanges, and the sizes of its buffers."""

    def __init__(self, plan: Plan, stage_costs: StageCosts, machine: System | Machine | str | None) -> None:
        self._plan = plan
        self.costs = by_place(plan, stage_costs)
        self.system: System | None = None
        if machine is not None:
            from tensorflow_ipu.analysis.machine import system_of  # Most plans have no machine.

            self.system = system_of(machine)
        self._cache: dict[tuple[object, ...], Price] = {}

    def of(self, instruction: Instruction) -> Price:
        """Returns the price of an instruction. It does not depend on the micro-batch, so a plan has few prices."""
        transferred = type(instruction.computation) if isinstance(instruction, Load | Save) else None
        key = (type(instruction), transferred, instruction.stage, instruction.part)
        price = self._cache.get(key)
        if price is None:
            cost = self.costs[instruction.stage, instruction.part]
            streamed, gathered = self._streamed(instruction, cost), self._gathered(instruction, cost)
            computed = 0.0 if transferred else cost.time(instruction)
            use = "recompute" if isinstance(instruction, Recompute) else "use"
            price = Price(streamed + gathered + computed, computed, streamed, gathered, use)
            self._cache[key] = price
        return price

    def _streamed(self, instruction: Instruction, cost: StageCost) -> float:
        is_transfer = isinstance(instruction, Load | Save)
        if self.system is None:
            return cost.time(instruction) if is_transfer else 0.0
        size = self._bytes_of_transfer(instruction, cost) if is_transfer else self._bytes_streamed(instruction, cost)
        return size / self.system.streaming_bytes_per_second

    def _gathered(self, instruction: Instruction, cost: StageCost) -> float:
        if self.system is None or cost.weight_shards < 2 or not isinstance(instruction, Forward | Recompute | Backward):
            return 0.0
        from tensorflow_ipu.analysis.machine import gather_seconds

        return gather_seconds(cost.weight_bytes, cost.weight_shards, self.system)

    def exchange(self, step: Step) -> float:
        """Returns the time of the exchange at the end of a step. The IPU that sends or receives most determines it."""
        if self.system is None:
            return 0.0
        sizes: dict[tuple[str, int], float] = defaultdict(float)
        for task in step.tasks:
            for ipu, size in self._sent(task.instruction):
                if ipu != task.ipu:
                    sizes["sent", task.ipu] += size
                    sizes["received", ipu] += size
        if not sizes:
            return 0.0
        return max(sizes.values()) / self.system.link_bytes_per_second + self.system.link_latency_seconds

    def bytes_in(self, kind: BufferKind, stage: int, part: int | None) -> float:
        """Returns the bytes of one entry of a buffer."""
        cost = self.costs[stage, part]
        if kind in (BufferKind.ACTIVATIONS, BufferKind.RECOMPUTED):
            return cost.activation_bytes
        if kind is BufferKind.BACKWARD_LINK:
            return self._between(stage)
        return cost.sum_bytes if kind is BufferKind.ACCUMULATOR else cost.input_bytes

    def _between(self, stage: int) -> float:
        """Returns the bytes of a stage's output, which are the inputs of each part of the next stage."""
        return max(self.costs[stage + 1, part].input_bytes for part, _ in self._plan.parts(stage + 1))

    def _sent(self, instruction: Instruction) -> Sequence[tuple[int, float]]:
        """Returns the IPUs that receive outputs or gradients of an instruction, with the bytes for each."""
        plan, stage = self._plan, instruction.stage
        if isinstance(instruction, Forward) and stage + 1 < plan.stages:
            size = self._between(stage) / len(plan.parts(stage))
            return [(ipu, size) for _, ipu in plan.parts(stage + 1)]
        if isinstance(instruction, Backward) and stage:
            size = self._between(stage - 1) / len(plan.parts(stage - 1))
            return [(ipu, size) for _, ipu in plan.parts(stage - 1)]
        return ()

    def _bytes_streamed(self, instruction: Instruction, cost: StageCost) -> float:
        """Returns the bytes that a computation moves from and to the memory off the chip.

        They are 0 in phases, whose `Load` and `Save` instructions move the data.
        """
        if self._plan.phased:
            return 0.0
        weights = cost.shard_bytes if cost.weights_off_chip else 0.0
        if isinstance(instruction, Update):
            sums = self._plan.buffer(BufferKind.ACCUMULATOR, instruction.stage, instruction.part)
            loaded = cost.sum_bytes if sums and sums.off_chip else 0.0
            return 2 * (cost.off_chip_bytes + weights) + loaded
        moved = weights
        effects = self._plan.effects(instruction)
        for buffer in (*effects.reads, *effects.writes):
            is_own = (buffer.stage, buffer.part) == (instruction.stage, instruction.part)
            if buffer.off_chip and is_own:
                moves = 2 if buffer.kind is BufferKind.ACCUMULATOR else 1  # A sum is read and written.
                moved += moves * self.bytes_in(buffer.kind, buffer.stage, buffer.part)
        return moved

    def _bytes_of_transfer(self, instruction: Load | Save, cost: StageCost) -> float:
        computation, loads = instruction.computation, isinstance(instruction, Load)
        if isinstance(computation, Update):
            state = cost.state_bytes + cost.off_chip_bytes
            return cost.shard_bytes + state + (cost.sum_bytes if loads else 0.0)
        if isinstance(computation, Forward):
            # With another liveness, the sums of gradients are off the chip.
            sums = cost.sum_bytes if self._plan.liveness is Liveness.OffChipAfterFwd else 0.0
            return cost.shard_bytes if loads else cost.activation_bytes + sums
        return cost.sum_bytes + (cost.shard_bytes + cost.activation_bytes if loads else 0.0)


@dataclass(frozen=True)
class Holdings:
    """The peaks of the memory of an IPU's stages, in bytes, and the size of their data off the chip."""

    weights: float
    accumulators: float
    state: float
    stash: float
    links: float
    off_chip: float


class _Amount:
    """The peak of one kind of data of an IPU's stages.

    Some data stay in memory. Other data are in memory only while their stage runs. An IPU runs one stage at a time, so
    of these only the largest counts.
    """

    def __init__(self) -> None:
        self._permanent = 0.0
        self._temporary = 0.0

    def add(self, size: float, *, stays: bool) -> None:
        if stays:
            self._permanent += size
        else:
            self._temporary = max(self._temporary, size)

    @property
    def peak(self) -> float:
        return self._permanent + self._temporary


def holdings_of(plan: Plan, ipu: int, costs: Costs, size_of: Callable[[Buffer], float]) -> Holdings:
    """Returns the memory of an IPU by a plan.

    For each stage on the IPU, each kind of data stays in memory, or is in memory only while the stage runs, or is
    off the chip. This depends on the plan:

    * In a pipeline, data stay, except buffers and weights that options move off the chip. The activations of
      `RecomputeAndBackpropagateInterleaved` exist for one stage at a time.
    * Phases with `OffChipAfterFwd` leave the chip after their forward pass, and return for their backward pass. So at
      the end, the weights of all phases are on the chip, but stashed activations of one phase only. Without training,
      one phase at a time is on the chip.
    * Phases with `OffChipAfterEachPhase` are on the chip one at a time, with all their data.
    """
    weights, accumulators, state, stash = (_Amount() for _ in range(4))
    links = off_chip = 0.0
    interleaved = plan.recomputation is RecomputationMode.RecomputeAndBackpropagateInterleaved
    after_forward = plan.liveness is Liveness.OffChipAfterFwd
    one_phase = plan.liveness is Liveness.OffChipAfterEachPhase or (after_forward and not plan.training)
    leaving = after_forward or one_phase
    for stage, part, place in plan.places():
        if place != ipu:
            continue
        cost = costs[stage, part]
        for kind in BufferKind:
            buffer = plan.buffer(kind, stage, part)
            if buffer is None:
                continue
            size = size_of(buffer)
            off_chip += size if buffer.off_chip else 0.0
            if kind in LINKS:
                links += size
            elif kind is BufferKind.ACCUMULATOR:
                accumulators.add(size, stays=not (one_phase or (buffer.off_chip and not plan.phased)))
            elif kind in STASHES and (buffer.off_chip or leaving):
                stash.add(size / buffer.depth, stays=False)  # Only the current micro-batch is on the chip.
            else:
                stash.add(size, stays=kind in STASHES or not interleaved)
        state_bytes = cost.state_bytes if plan.training else 0.0
        state.add(state_bytes, stays=not one_phase)
        off_chip += cost.off_chip_bytes + (state_bytes if one_phase else 0.0)
        off_chip += cost.shard_bytes if one_phase or (leaving and stage < plan.stages - 1) else 0.0
        weights.add(cost.weight_bytes, stays=not (one_phase or cost.weights_come_and_go))
        if cost.weights_come_and_go and not one_phase:
            if not cost.weights_off_chip:
                weights.add(cost.shard_bytes, stays=True)
            elif not plan.phased:
                off_chip += cost.shard_bytes
    return Holdings(weights.peak, accumulators.peak, state.peak, stash.peak, links, off_chip)


@dataclass(frozen=True)
class IpuCost:
    """The cost of a plan for one IPU. Sizes on the chip are peaks, in bytes.

    Attributes:
      ipu: The number of the IPU within the replica.
      busy: The time of a pass that the IPU spends on instructions.
      depths: The letter of each stage on the IPU, with the number of micro-batches that its stash holds.
      stash_bytes: Stashed and recomputed activations.
      weight_bytes: Weights, accumulated gradients and optimizers' slots.
      link_bytes: Buffers for exchanges with other IPUs.
      off_chip_bytes: Data off the chip.
      temporary_bytes: Other data while a pass runs.
      code_bytes: Code.
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
        """The sum of all sizes on the chip, in bytes."""
        return self.stash_bytes + self.weight_bytes + self.link_bytes + self.temporary_bytes + self.code_bytes


@dataclass(frozen=True)
class PlanCost(NotebookView):
    """The cost of a plan. Shares are parts of the time of all IPUs together, and sum to 1.

    Attributes:
      plan: The plan.
      time: The time of one pass, in the unit of the stages' times.
      section_times: The time of each section of the pass, by the section's name.
      utilisation: The share of forward and backward passes and updates.
      recompute_share: The share of recomputations.
      transfer_share: The share of transfers between the chip and the memory off it.
      bubble_share: The share of waiting.
      ipus: The cost for each IPU.
      exchange_share: The share of exchanges between IPUs; 0 without a machine.
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
        """The time of a pass divided by the number of its micro-batches."""
        return self.time / self.plan.micro_batches

    @property
    def total_time(self) -> float:
        """The time of all passes."""
        return self.time * self.plan.repeat_count

    @property
    def peak_bytes(self) -> float:
        """The memory of the fullest IPU, in bytes."""
        return max(ipu.on_chip_bytes for ipu in self.ipus)

    @property
    def peak_stash_bytes(self) -> float:
        """The largest size of stashed and recomputed activations on an IPU, in bytes."""
        return max(ipu.stash_bytes for ipu in self.ipus)

    @property
    def _summary(self) -> str:
        memory = f", at most {format_bytes(self.peak_bytes)} on an IPU" if self.peak_bytes else ""
        return f"time {self.time:.4g}, {self.bubble_share:.0%} bubble{memory}"

    def __repr__(self) -> str:
        return f"<PlanCost of {self.plan.heading}: {self._summary}>"


@dataclass(frozen=True)
class Span:
    """A task of an IPU, with its start and end relative to the start of the pass."""

    ipu: int
    begin: float
    end: float
    instruction: Instruction


def plan_cost(plan: Plan, stage_costs: StageCosts = None, *, machine: System | Machine | str | None = None) -> PlanCost:
    """Computes the time and memory of a plan.

    In each step, all IPUs wait for the slowest, and then exchange data. Without a machine, the exchange takes no time.

    A buffer takes its depth times the bytes of an entry during the whole pass. Activations that are recomputed within a
    backward pass take memory for one stage at a time. For phases, `Liveness` defines the data on the chip.

    Args:
      plan: The plan.
      stage_costs: One cost for all stages, or a list with one for each stage. The entry of a concurrent stage is one
        cost for all its parts, or a list with one for each part.
      machine: The machine, which defines the time of exchanges, loads and saves (instead of the stages' `load` and
        `save`). All times are then in seconds. It is a name such as `"GC200"` or `"Bow Pod16"`, a `machine.Machine` or
        a `machine.System`.

    Raises:
      TypeError: `stage_costs` or `machine` has another type.
      ValueError: `stage_costs` has the wrong length, or no machine has this name.
    """
    prices = Prices(plan, stage_costs, machine)
    section_times: dict[str, float] = {}
    busy: dict[int, float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    for section in plan.sections:
        section_time = 0.0
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
            section_time += max(times.values(), default=0.0) + exchange
            kinds["exchange"] += exchange * section.repeat * len(plan.ipus)
        section_times[section.name] = section_time * section.repeat
    time = sum(section_times.values())
    total = time * len(plan.ipus)
    shares = {kind: kinds[kind] / total if total else 0.0 for kind in ("use", "recompute", "transfer", "exchange")}
    return PlanCost(
        plan=plan,
        time=time,
        section_times=section_times,
        utilisation=shares["use"],
        recompute_share=shares["recompute"],
        transfer_share=shares["transfer"],
        bubble_share=max(0.0, 1.0 - sum(shares.values())) if total else 0.0,
        ipus=tuple(_ipu_cost(plan, ipu, busy[ipu], prices) for ipu in plan.ipus),
        exchange_share=shares["exchange"],
    )


def timeline(
    plan: Plan, stage_costs: StageCosts = None, *, machine: System | Machine | str | None = None
) -> Iterator[tuple[Section, float, float, list[Span]]]:
    """Yields the section, begin, end and tasks of each step of one pass.

    Between the end of the last task and the end of the step, IPUs exchange data. Arguments are those of `plan_cost`.
    """
    prices = Prices(plan, stage_costs, machine)
    begin = 0.0
    for _, section, step in plan.walk():
        clocks = dict.fromkeys(plan.ipus, begin)
        spans = []
        for task in step.tasks:
            end = clocks[task.ipu] + prices.of(task.instruction).time
            spans.append(Span(task.ipu, clocks[task.ipu], end, task.instruction))
            clocks[task.ipu] = end
        end = max(clocks.values()) + prices.exchange(step)
        yield section, begin, end, spans
        begin = end


def _ipu_cost(plan: Plan, ipu: int, busy: float, prices: Prices) -> IpuCost:
    places = [(stage, part) for stage, part, place in plan.places() if place == ipu]
    holdings = holdings_of(
        plan, ipu, prices.costs, lambda buffer: buffer.depth * prices.bytes_in(buffer.kind, buffer.stage, buffer.part)
    )
    return IpuCost(
        ipu=ipu,
        busy=busy,
        depths=tuple((stage_letters(*place), plan.stash_depth(*place)) for place in places),
        stash_bytes=holdings.stash,
        weight_bytes=holdings.weights + holdings.accumulators + holdings.state,
        link_bytes=holdings.links,
        off_chip_bytes=holdings.off_chip,
        temporary_bytes=max(prices.costs[place].temporary_bytes for place in places),
        code_bytes=sum(prices.costs[place].code_bytes for place in places),
    )
