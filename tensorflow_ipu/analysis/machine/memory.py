"""The memory that a program needs on an IPU, compared with the memory that the IPU has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.analysis.machine.costs import FREE
from tensorflow_ipu.analysis.machine.hlo import Computation, HloInstruction
from tensorflow_ipu.analysis.machine.liveness import peak_of
from tensorflow_ipu.analysis.machine.machine import Machine, System
from tensorflow_ipu.analysis.machine.sharding import Placement
from tensorflow_ipu.analysis.machine.walk import OperationTime
from tensorflow_ipu.analysis.saved import SavedValue

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine.report import Report
    from tensorflow_ipu.analysis.machine.search import WhatIf

# Code of a tile, in bytes, at least and at most: for every program, and for each kind of operation. These are
# estimates, since no public source has them: a vertex takes some hundred bytes, and an exchange 4 to 8 bytes a
# fragment.
_RUNTIME_CODE = (8 * 1024, 24 * 1024)
_CODE_OF_OPERATION = (64, 400)
# A program fits below the first share of the memory, and does not fit above the second. In between, it depends on the
# order and mapping that the machine's compiler finds. Published programs that ran are predicted at 1.05 at most.
_SURE, _NEVER = 0.9, 1.25
_LISTED = 30
_POINTS = 400

FITS = "fits"
MAY_FIT = "may fit"
DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True)
class Memory(SavedValue):
    """The memory of one IPU, in bytes.

    Attributes:
      ipu: The number of the IPU within the replica.
      variables: Variables and other arguments of the program, which are in memory all the time.
      optimizer: Slots of optimizers (the optimizer state), if recognised as such; else they are among the variables.
      accumulators: Sums of gradients over micro-batches.
      stash: Activations of a pipeline's stages that wait for their backward pass, and buffers of links.
      feeds: Buffers of the queues between host and chip.
      constants: The program's constants.
      data: The peak of the program's other results and temporary values.
      code_low: The size of the code, at least.
      code_high: The size of the code, at most.
      capacity: The memory of the tiles that compute.
      off_chip: Data in the memory off the chip (Streaming Memory).
      largest: The parts of `data` at its peak, largest first: name and bytes.
      liveness: The course of `data` while the program runs, at a few hundred operations at most: the index of the
        operation in the order of execution (a loop's body counts once), and bytes.
    """

    variables: int
    constants: int
    data: int
    code_low: int
    code_high: int
    capacity: int
    ipu: int = 0
    optimizer: int = 0
    accumulators: int = 0
    stash: int = 0
    feeds: int = 0
    off_chip: int = 0
    largest: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    liveness: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    @property
    def always(self) -> int:
        """The bytes that are in memory all the time: all except `data` and code."""
        return self.variables + self.optimizer + self.accumulators + self.stash + self.feeds + self.constants

    @property
    def low(self) -> int:
        """The sum of all parts, with the smallest estimate of the code."""
        return self.always + self.data + self.code_low

    @property
    def high(self) -> int:
        """The sum of all parts, with the largest estimate of the code."""
        return self.always + self.data + self.code_high

    @property
    def verdict(self) -> str:
        """The prediction `fits`, `may fit` or `does not fit`.

        A program fits if `high` is at most 90 % of the capacity. It does not fit if all but the code exceed 125 %.
        """
        if self.high <= _SURE * self.capacity:
            return FITS
        return DOES_NOT_FIT if self.always + self.data > _NEVER * self.capacity else MAY_FIT


def memory_of(
    program: Computation, system: System, proportion: float, placement: Placement | None = None, ipu: int = 0
) -> Memory:
    """Returns the memory of one IPU for a program, or for its share of a sharded program."""

    def is_here(operation: HloInstruction) -> bool:
        return placement is None or ipu in placement.of(operation)

    machine = system.machine
    peak = peak_of(program, machine, proportion, placement, ipu)
    parameters = [operation for operation in program.operations if operation.opcode == "parameter"]
    largest = [(buffer.name, buffer.bytes) for buffer in peak.buffers if not buffer.is_argument and buffer.bytes]
    constants, kinds = _constants_and_kinds(program, is_here)
    low, high = (
        (runtime + kinds * code) * machine.compute_tiles
        for runtime, code in zip(_RUNTIME_CODE, _CODE_OF_OPERATION, strict=True)
    )
    return Memory(
        variables=sum(parameter.shape.bytes for parameter in parameters if is_here(parameter)),
        constants=constants,
        data=peak.bytes,
        code_low=low,
        code_high=high,
        capacity=machine.bytes,
        ipu=ipu,
        largest=tuple(largest[:_LISTED]),
        liveness=_thinned(peak.profile),
    )


def memory_of_parts(parts: Sequence[Memory], machine: Machine, kept: Memory | None = None) -> Memory:
    """Returns the memory of an IPU that runs several programs, one at a time, in addition to the memory `kept`."""
    kept = kept or Memory(variables=0, constants=0, data=0, code_low=0, code_high=0, capacity=machine.bytes)
    fullest = max(parts, key=lambda part: part.data)
    # All programs share the code of the runtime.
    runtime_low, runtime_high = (runtime * machine.compute_tiles for runtime in _RUNTIME_CODE)
    return replace(
        kept,
        constants=kept.constants + sum(part.constants for part in parts),
        data=fullest.data,
        code_low=runtime_low + sum(part.code_low - runtime_low for part in parts),
        code_high=runtime_high + sum(part.code_high - runtime_high for part in parts),
        largest=fullest.largest,
        liveness=fullest.liveness,
    )


def _thinned(profile: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Returns at most `_POINTS` points (index, value) of a profile: the largest value of each stretch."""
    stretch = -(-len(profile) // _POINTS) or 1
    starts = range(0, len(profile), stretch)
    indices = (max(range(start, min(start + stretch, len(profile))), key=profile.__getitem__) for start in starts)
    return tuple((index, profile[index]) for index in indices)


def _constants_and_kinds(program: Computation, is_here: Callable[[HloInstruction], bool]) -> tuple[int, int]:
    """Returns the bytes of an IPU's constants, and the number of distinct operations.

    Operations with the same opcode and shapes share code, so they count once.
    """
    constants, kinds = 0, set()
    todo, seen = [program], {program}
    while todo:
        for operation in todo.pop().operations:
            if not is_here(operation):
                pass
            elif operation.opcode == "constant":
                constants += operation.shape.bytes
            elif operation.opcode not in FREE:
                kinds.add((operation.opcode, operation.shape, *(operand.shape for operand in operation.operands)))
            new = [called for called in operation.called if called not in seen]
            seen.update(new)
            todo += new
    return constants, len(kinds)


@dataclass(frozen=True)
class Kept:
    """The sizes of the slots and accumulators of a replica's optimizers, in bytes.

    Attributes:
      state: The slots of optimizers that the program holds as variables.
      on_chip: The bytes of the slots on the chip.
      off_chip: The bytes of the slots in the memory off the chip; only this replica's part if replicas share them.
      accumulated: Variables that sum gradients.
      carried: Sums of gradients that are values of the program, not variables.
      steps_per_update: The number of steps of a weight update. Each update moves the data off the chip to the chip and
        back.
    """

    state: int = 0
    on_chip: int = 0
    off_chip: int = 0
    accumulated: int = 0
    carried: int = 0
    steps_per_update: int = 1

    def scaled(self, share: float) -> Kept:
        """Returns these sizes multiplied by `share`, as for variables of another type."""
        names = ("state", "on_chip", "off_chip", "accumulated", "carried")
        return replace(self, **{name: round(share * getattr(self, name)) for name in names})


def told_apart(report: Report, kept: Kept) -> Report:
    """Returns a report on one IPU that counts slots and accumulators separately from the other variables.

    For slots off the chip, the report gains a row with the time of moving them to the chip and back.
    """
    memory = report.memory
    carried = min(kept.carried, memory.data)
    memory = replace(
        memory,
        variables=max(0, memory.variables - kept.state - kept.accumulated),
        optimizer=kept.on_chip,
        accumulators=kept.accumulated + carried,
        data=memory.data - carried,
        liveness=tuple((index, max(0, size - carried)) for index, size in memory.liveness),
        off_chip=memory.off_chip + kept.off_chip,
    )
    operations = report.operations
    if kept.off_chip:
        updates = max(1, report.steps // kept.steps_per_update)
        seconds = updates * 2 * kept.off_chip / report.system.streaming_bytes_per_second
        row = OperationTime("state of the optimizer", "streaming", f"{kept.off_chip} bytes", updates, links=seconds)
        operations = (*operations, row)
    return replace(report, memories=(memory,), operations=operations, again=_again(report, kept))


def _again(original: Report, kept: Kept) -> WhatIf | None:
    """Returns `Report.again` for the report that `told_apart` makes.

    The function separates slots and accumulators in new reports too. It scales their sizes like the sum of all variables.
    """
    again = original.again
    if again is None:
        return None
    variables = original.memory.variables or 1

    def separated(**changes: Any) -> Report:
        changed = again(**changes)
        return told_apart(changed, kept.scaled(changed.memory.variables / variables))

    return separated
