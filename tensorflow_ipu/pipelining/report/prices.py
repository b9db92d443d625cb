"""What the instructions of a plan take, and where a machine is known, what it takes to move data between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorflow_ipu.pipelining.report.stage_cost import StageCost, StageCosts, by_place
from tensorflow_ipu.pipelining.schedule.buffers import BufferKind
from tensorflow_ipu.pipelining.schedule.enums import Liveness
from tensorflow_ipu.pipelining.schedule.instructions import (
    Backward,
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


class Price(NamedTuple):
    """The time of an instruction.

    Attributes:
      time: All that it takes; the next three add up to it.
      computed: The time in which it computes.
      streamed: The time in which data go between the chip and the memory beside it.
      gathered: The time in which replicas gather the weights that are divided among them.
      use: What it computes for: `use`, or `recompute`.
    """

    time: float
    computed: float
    streamed: float
    gathered: float
    use: str


class Prices:
    """The times of a plan.

    Attributes:
      costs: The cost of each part of each stage.
      system: The machine, or None where none is known.
    """

    def __init__(self, plan: Plan, stage_costs: StageCosts, machine: System | Machine | str | None) -> None:
        """Checks what stages cost.

        Args:
          plan: The plan.
          stage_costs: As for `plan_cost`.
          machine: As for `plan_cost`.

        Raises:
          TypeError: One of them is nothing of what that takes.
          ValueError: The costs are of the wrong length, or the machine is not known.
        """
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
