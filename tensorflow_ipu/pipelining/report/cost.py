"""What a plan costs in time and memory, given what its stages cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from tensorflow_ipu._checks import is_number
from tensorflow_ipu._faults import Faults
from tensorflow_ipu.pipelining.schedule.buffers import LINKS, STASHES, BufferKind
from tensorflow_ipu.pipelining.schedule.enums import RecomputationMode
from tensorflow_ipu.pipelining.schedule.instructions import (
    Backward,
    Forward,
    Instruction,
    Load,
    Recompute,
    Save,
    stage_letters,
)
from tensorflow_ipu.pipelining.schedule.plan import Plan, Section, Step


@dataclass(frozen=True)
class StageCost:
    """What a stage, or one part of a concurrent stage, costs.

    Attributes:
      forward: The time of a forward pass, in any unit.
      backward: The time of a backward pass; twice `forward` if None.
      recompute_factor: The time of a recomputation, as a multiple of `forward`.
      update: The time of the weight update.
      load: The time of a load onto the chip, where there is one.
      save: The time of a save off the chip, where there is one.
      activation_bytes: What a backward pass needs of one micro-batch's forward pass.
      input_bytes: The stage's inputs for one micro-batch: what is stashed where it recomputes, and what is exchanged.
      weight_bytes: Its weights. Accumulated gradients take as much again in training.
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

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          TypeError: A value is no number.
          ValueError: A value is negative or not finite.
        """
        faults = Faults()
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "backward":
                continue
            if not is_number(value):
                faults.add(TypeError, f"`{field.name}` must be a number, but is {value!r}")
            elif not (math.isfinite(value) and value >= 0):
                faults.add(ValueError, f"`{field.name}` must be 0 or more and finite, but is {value}")
        faults.raise_any()

    def time(self, instruction: Instruction) -> float:
        """The time that an instruction of this stage takes."""
        if isinstance(instruction, Forward):
            return self.forward
        if isinstance(instruction, Backward):
            return 2 * self.forward if self.backward is None else self.backward
        if isinstance(instruction, Recompute):
            return self.recompute_factor * self.forward
        if isinstance(instruction, Load):
            return self.load
        return self.save if isinstance(instruction, Save) else self.update


StageCosts = StageCost | Sequence[StageCost | Sequence[StageCost]] | None


@dataclass(frozen=True)
class IpuCost:
    """What a plan costs one IPU.

    Attributes:
      ipu: Its number.
      busy: For how much of a pass's time it does anything.
      depths: For each stage of it, by letter, how many micro-batches its stash holds.
      stash_bytes: The most that stashed and recomputed activations take on the chip.
      weight_bytes: The most that weights and accumulated gradients take on the chip.
      link_bytes: What is kept for exchanges with other IPUs.
      off_chip_bytes: What rests off the chip.
    """

    ipu: int
    busy: float
    depths: tuple[tuple[str, int], ...]
    stash_bytes: float
    weight_bytes: float
    link_bytes: float
    off_chip_bytes: float

    @property
    def on_chip_bytes(self) -> float:
        """All that it keeps on the chip."""
        return self.stash_bytes + self.weight_bytes + self.link_bytes


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
    """

    plan: Plan
    time: float
    section_times: dict[str, float]
    utilisation: float
    recompute_share: float
    transfer_share: float
    bubble_share: float
    ipus: tuple[IpuCost, ...]

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


def plan_cost(plan: Plan, stage_costs: StageCosts = None) -> PlanCost:
    """Costs a plan.

    The model is that of the machine: in a step, each IPU works through its tasks without a pause; then all wait for
    the slowest, and exchange. So a step takes as long as the IPU with the most work in it. The exchange itself takes no
    time.

    Buffers take their depth times the bytes of what they hold, all the time, as memory on an IPU is laid out before the
    program runs. What `RecomputeAndBackpropagateInterleaved` recomputes is an exception: it is there for one stage at a
    time. In phased execution one stage at a time is on the chip.

    Args:
      plan: The plan.
      stage_costs: What the stages cost: one for all, or one a stage (for a concurrent stage a list, one a part, or one
        for all its parts).

    Raises:
      TypeError: `stage_costs` is nothing of the above.
      ValueError: It is of the wrong length.
    """
    costs = _by_place(plan, stage_costs)
    section_times: dict[str, float] = {}
    busy: dict[int, float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    for section in plan.sections:
        once = 0.0
        for step in section.steps:
            times = _step_times(step, costs)
            once += max(times.values(), default=0.0)
            for task in step.tasks:
                time = _time(costs, task.instruction) * section.repeat
                busy[task.ipu] += time
                kinds[_use(task.instruction)] += time
        section_times[section.name] = once * section.repeat
    time = sum(section_times.values())
    whole = time * len(plan.ipus)
    shares = {use: kinds[use] / whole if whole else 0.0 for use in ("use", "recompute", "transfer")}
    return PlanCost(
        plan=plan,
        time=time,
        section_times=section_times,
        utilisation=shares["use"],
        recompute_share=shares["recompute"],
        transfer_share=shares["transfer"],
        bubble_share=max(0.0, 1.0 - sum(shares.values())) if whole else 0.0,
        ipus=tuple(_ipu_cost(plan, ipu, busy[ipu], costs) for ipu in plan.ipus),
    )


def timeline(plan: Plan, stage_costs: StageCosts = None) -> Iterator[tuple[Section, float, float, list[Span]]]:
    """Goes through one pass of a plan in time.

    Args:
      plan: The plan.
      stage_costs: As for `plan_cost`.

    Yields:
      For each step its section, its begin, its end, and its tasks.
    """
    costs = _by_place(plan, stage_costs)
    begin = 0.0
    for _, section, step in plan.walk():
        now = dict.fromkeys(plan.ipus, begin)
        spans = []
        for task in step.tasks:
            end = now[task.ipu] + _time(costs, task.instruction)
            spans.append(Span(task.ipu, now[task.ipu], end, task.instruction))
            now[task.ipu] = end
        end = max(now.values())
        yield section, begin, end, spans
        begin = end


_Costs = dict[tuple[int, int | None], StageCost]


def _by_place(plan: Plan, stage_costs: StageCosts) -> _Costs:
    if stage_costs is None:
        stage_costs = StageCost()
    if isinstance(stage_costs, StageCost):
        stage_costs = [stage_costs] * plan.stages
    if not isinstance(stage_costs, list | tuple):
        raise TypeError(f"`stage_costs` must be a `StageCost` or a list of them, but is {stage_costs!r}")
    if len(stage_costs) != plan.stages:
        raise ValueError(f"`stage_costs` has {len(stage_costs)} items, but the plan has {plan.stages} stages")
    found: _Costs = {}
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


def _time(costs: _Costs, instruction: Instruction) -> float:
    return costs[instruction.stage, instruction.part].time(instruction)


def _step_times(step: Step, costs: _Costs) -> dict[int, float]:
    times: dict[int, float] = defaultdict(float)
    for task in step.tasks:
        times[task.ipu] += _time(costs, task.instruction)
    return times


def _use(instruction: Instruction) -> str:
    if isinstance(instruction, Load | Save):
        return "transfer"
    return "recompute" if isinstance(instruction, Recompute) else "use"


def _ipu_cost(plan: Plan, ipu: int, busy: float, costs: _Costs) -> IpuCost:
    stash, transient, weights, links, away, depths = [], [], [], [], [], []
    for stage, part, at in plan.places():
        if at != ipu:
            continue
        cost = costs[stage, part]
        behind = [costs[stage + 1, other] for other, _ in plan.parts(stage + 1)] if stage + 1 < plan.stages else []
        kept = recomputed = moved = resting = 0.0
        for kind in BufferKind:
            buffer = plan.buffer(kind, stage, part)
            if buffer is None:
                continue
            size = buffer.depth * _bytes(kind, cost, behind)
            resting += size if buffer.off_chip else 0.0
            if kind is BufferKind.RECOMPUTED:
                recomputed += size
            elif kind in STASHES:
                kept += size
            elif kind in LINKS:
                moved += size
        stash.append(kept)
        transient.append(recomputed)
        weights.append(cost.weight_bytes * (2 if plan.training else 1))
        links.append(moved)
        away.append(resting + cost.weight_bytes if plan.phased else 0.0)
        depths.append((stage_letters(stage, part), plan.stash_depth(stage, part)))
    # What is there for one stage at a time takes as much as the largest.
    together = max if plan.phased else sum
    freed = plan.recomputation is RecomputationMode.RecomputeAndBackpropagateInterleaved
    return IpuCost(
        ipu=ipu,
        busy=busy,
        depths=tuple(depths),
        stash_bytes=together(stash) + (max if freed else sum)(transient),
        weight_bytes=together(weights),
        link_bytes=sum(links),
        off_chip_bytes=sum(away),
    )


def _bytes(kind: BufferKind, cost: StageCost, behind: Sequence[StageCost]) -> float:
    """The bytes of one micro-batch in a buffer of a stage, given the stages behind it."""
    if kind in (BufferKind.ACTIVATIONS, BufferKind.RECOMPUTED):
        return cost.activation_bytes
    if kind is BufferKind.BACKWARD_LINK:
        # Gradients of the outputs: as large as the inputs of the stage behind, of which all parts have the same.
        return max(other.input_bytes for other in behind)
    return cost.weight_bytes if kind is BufferKind.ACCUMULATOR else cost.input_bytes
