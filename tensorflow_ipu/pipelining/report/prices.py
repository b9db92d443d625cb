"""What the instructions of a plan take, and where a machine is known, what it takes to move data between them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from tensorflow_ipu._base.checks import Faults, is_int, is_number, note_bool
from tensorflow_ipu.pipelining.schedule.enums import Liveness
from tensorflow_ipu.pipelining.schedule.instructions import (
    Backward,
    BufferKind,
    Forward,
    Instruction,
    Load,
    Recompute,
    Save,
    Update,
)
from tensorflow_ipu.pipelining.schedule.plan import Plan, Step

if TYPE_CHECKING:
    from tensorflow_ipu.machine import Machine, System


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
      weight_bytes: Its weights.
      accumulator_bytes: Where its gradients are summed, in training; as much as the weights if None.
      state_bytes: What its optimizer keeps, on the chip.
      off_chip_bytes: What its optimizer keeps in the memory beside the chip: it is brought and taken back by each update.
      temporary_bytes: The most that one of its passes takes besides, while it runs.
      code_bytes: Its code.
      weight_shards: Among how many replicas its weights are divided: each pass gathers them over the links first.
      weights_off_chip: Whether each replica has its part of them in the memory beside the chip.
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
        """Checks the values."""
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
            return 2 * self.forward if self.backward is None else self.backward
        if isinstance(instruction, Recompute):
            return self.recompute_factor * self.forward
        if isinstance(instruction, Load):
            return self.load
        return self.save if isinstance(instruction, Save) else self.update


StageCosts = StageCost | Sequence[StageCost | Sequence[StageCost]] | None


Costs = dict[tuple[int, int | None], StageCost]


def by_place(plan: Plan, stage_costs: StageCosts) -> Costs:
    """The cost of each part of each stage."""
    if stage_costs is None:
        stage_costs = StageCost()
    if isinstance(stage_costs, StageCost):
        stage_costs = [stage_costs] * plan.stages
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
    """The time of an instruction."""

    time: float
    computed: float
    streamed: float
    gathered: float
    use: str


class Prices:
    """The times of a plan."""

    def __init__(self, plan: Plan, stage_costs: StageCosts, machine: System | Machine | str | None) -> None:
        """Checks what stages cost."""
        self._plan = plan
        self.costs = by_place(plan, stage_costs)
        self.system: System | None = None
        if machine is not None:
            from tensorflow_ipu.machine import system_of  # Few plans are for a machine.

            self.system = system_of(machine)
        self._known: dict[tuple[object, ...], Price] = {}

    def of(self, instruction: Instruction) -> Price:
        """What an instruction takes; its micro-batch does not matter, so few of a plan's are worked out."""
        of_transfer = type(instruction.computation) if isinstance(instruction, Load | Save) else None
        key = (type(instruction), of_transfer, instruction.stage, instruction.part)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._worked_out(instruction)
        return known

    def _worked_out(self, instruction: Instruction) -> Price:
        streamed, gathered = self._streamed(instruction), self._gathered(instruction)
        transfers = isinstance(instruction, Load | Save)
        computed = 0.0 if transfers else self._cost(instruction).time(instruction)
        use = "recompute" if isinstance(instruction, Recompute) else "use"
        return Price(streamed + gathered + computed, computed, streamed, gathered, use)

    def _streamed(self, instruction: Instruction) -> float:
        cost = self._cost(instruction)
        transfers = isinstance(instruction, Load | Save)
        if self.system is None:
            return cost.time(instruction) if transfers else 0.0
        moved = self._moved(instruction, cost) if transfers else self._brought(instruction, cost)
        return moved / self.system.streaming_bytes_per_second

    def _gathered(self, instruction: Instruction) -> float:
        cost = self._cost(instruction)
        if self.system is None or cost.weight_shards < 2 or not isinstance(instruction, Forward | Recompute | Backward):
            return 0.0
        from tensorflow_ipu.machine import gather_seconds

        return gather_seconds(cost.weight_bytes, cost.weight_shards, self.system)

    def _cost(self, instruction: Instruction) -> StageCost:
        return self.costs[instruction.stage, instruction.part]

    def exchange(self, step: Step) -> float:
        """The time of the exchange between IPUs at the end of a step: that of the IPU that sends or receives most."""
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
        """The bytes of one micro-batch in a buffer of a stage."""
        cost = self.costs[stage, part]
        if kind in (BufferKind.ACTIVATIONS, BufferKind.RECOMPUTED):
            return cost.activation_bytes
        if kind is BufferKind.BACKWARD_LINK:
            return self._between(stage)
        return cost.sum_bytes if kind is BufferKind.ACCUMULATOR else cost.input_bytes

    def _between(self, stage: int) -> float:
        """What a stage hands to the one behind: as large as that one's inputs, of which all parts have the same."""
        return max(self.costs[stage + 1, part].input_bytes for part, _ in self._plan.parts(stage + 1))

    def _handed(self, instruction: Instruction) -> Sequence[tuple[int, float]]:
        """To which IPUs an instruction hands how many bytes: outputs to all parts behind, gradients to whose they are."""
        plan, stage = self._plan, instruction.stage
        if isinstance(instruction, Forward) and stage + 1 < plan.stages:
            size = self._between(stage) / len(plan.parts(stage))
            return [(ipu, size) for _, ipu in plan.parts(stage + 1)]
        if isinstance(instruction, Backward) and stage:
            size = self._between(stage - 1) / len(plan.parts(stage - 1))
            return [(ipu, size) for _, ipu in plan.parts(stage - 1)]
        return ()

    def _brought(self, instruction: Instruction, cost: StageCost) -> float:
        """The bytes that a computation brings from the memory beside the chip, and takes there.

        In phases, loads and saves do that.
        """
        if self._plan.phased:
            return 0.0
        weights = cost.shard_bytes if cost.weights_off_chip else 0.0
        if isinstance(instruction, Update):
            return 2 * (cost.off_chip_bytes + weights) + self._resting(BufferKind.ACCUMULATOR, instruction)
        moved = weights
        for buffer in (*self._plan.effects(instruction).reads, *self._plan.effects(instruction).writes):
            own = (buffer.stage, buffer.part) == (instruction.stage, instruction.part)
            if buffer.off_chip and own:
                both = 2 if buffer.kind is BufferKind.ACCUMULATOR else 1  # A sum is brought, and taken back.
                moved += both * self.bytes_in(buffer.kind, buffer.stage, buffer.part)
        return moved

    def _resting(self, kind: BufferKind, instruction: Instruction) -> float:
        buffer = self._plan.buffer(kind, instruction.stage, instruction.part)
        return self.bytes_in(kind, instruction.stage, instruction.part) if buffer and buffer.off_chip else 0.0

    def _moved(self, instruction: Load | Save, cost: StageCost) -> float:
        """The bytes of a transfer between the chip and the memory beside it: what `Load` and `Save` say they move."""
        behind, loads = instruction.computation, isinstance(instruction, Load)
        if isinstance(behind, Update):
            state = cost.state_bytes + cost.off_chip_bytes
            return cost.shard_bytes + state + (cost.sum_bytes if loads else 0.0)
        if isinstance(behind, Forward):
            sums = cost.sum_bytes if self._plan.liveness is Liveness.OffChipAfterFwd else 0.0  # Else they are there.
            return cost.shard_bytes if loads else cost.activation_bytes + sums
        return cost.sum_bytes + (cost.shard_bytes + cost.activation_bytes if loads else 0.0)
