"""What a program needs of an IPU's memory, beside what there is."""

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

# Code of a tile, in bytes: what every program has, and what each kind of operation adds, at least and at most. Nothing
# public tells; a vertex is some hundred bytes, and an exchange 4 to 8 bytes a fragment.
_RUNTIME_CODE = (8 * 1024, 24 * 1024)
_CODE_OF_OPERATION = (64, 400)
# Below this share of the memory, a program fits; above that one, it does not. Between, it depends on the order and the
# mapping that the machine's compiler finds: published programs that ran are at most at 1.05.
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
      ipu: Its number within the replica.
      variables: What the program is given and holds all the time: variables, and its other arguments.
      optimizer: The state of optimizers, as far as it is known as such; else it is among the variables.
      accumulators: Gradients that are summed over micro-batches.
      stash: What the stages of a pipeline keep of micro-batches that are under way, and what links hold.
      feeds: Buffers of the queues that pass data between host and chip.
      constants: The program's constants.
      data: The most that its results and temporary values take at a time.
      code_low: What its code takes, at least.
      code_high: And at most.
      capacity: What the tiles have.
      off_chip: What rests in the memory beside the chip (Streaming Memory).
      largest: What of `data` is in memory at that moment, largest first: name and bytes.
      liveness: How much of `data` is in memory while the program runs, at up to some hundred operations: the number of
        the operation, counted in the order in which they run and once where they repeat, and bytes.
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
        """What is there all the time: all but `data` and code."""
        return self.variables + self.optimizer + self.accumulators + self.stash + self.feeds + self.constants

    @property
    def low(self) -> int:
        """All of it, at least."""
        return self.always + self.data + self.code_low

    @property
    def high(self) -> int:
        """All of it, at most."""
        return self.always + self.data + self.code_high

    @property
    def verdict(self) -> str:
        """`fits` if all is below 90 % of the capacity, `does not fit` if data alone are above 125 %, else `may fit`."""
        if self.high <= _SURE * self.capacity:
            return FITS
        return DOES_NOT_FIT if self.always + self.data > _NEVER * self.capacity else MAY_FIT


def memory_of(
    program: Computation, system: System, proportion: float, placement: Placement | None = None, ipu: int = 0
) -> Memory:
    """Returns the memory of one IPU for a program, or for its part of one."""

    def is_here(operation: HloInstruction) -> bool:
        return placement is None or ipu in placement.of(operation)

    machine = system.machine
    peak = peak_of(program, machine, proportion, placement, ipu)
    given = sum(each.shape.bytes for each in program.operations if each.opcode == "parameter" and is_here(each))
    held = [(buffer.name, buffer.bytes) for buffer in peak.buffers if not buffer.given and buffer.bytes]
    constants, kinds = _constants_and_kinds(program, is_here)
    low, high = (
        (runtime + kinds * each) * machine.compute_tiles
        for runtime, each in zip(_RUNTIME_CODE, _CODE_OF_OPERATION, strict=True)
    )
    return Memory(
        variables=given,
        constants=constants,
        data=peak.bytes,
        code_low=low,
        code_high=high,
        capacity=machine.bytes,
        ipu=ipu,
        largest=tuple(held[:_LISTED]),
        liveness=_thinned(peak.profile),
    )


def memory_of_parts(parts: Sequence[Memory], machine: Machine, kept: Memory | None = None) -> Memory:
    """The memory of an IPU that runs several programs, one at a time, beside what it keeps."""
    kept = kept or Memory(variables=0, constants=0, data=0, code_low=0, code_high=0, capacity=machine.bytes)
    fullest = max(parts, key=lambda part: part.data)
    runtime_low, runtime_high = (runtime * machine.compute_tiles for runtime in _RUNTIME_CODE)  # It is there once.
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
    """Returns the largest value of each stretch of a profile, with its place: at most `_POINTS`, with the peak."""
    stretch = -(-len(profile) // _POINTS) or 1
    starts = range(0, len(profile), stretch)
    places = (max(range(at, min(at + stretch, len(profile))), key=profile.__getitem__) for at in starts)
    return tuple((at, profile[at]) for at in places)


def _constants_and_kinds(program: Computation, is_here: Callable[[HloInstruction], bool]) -> tuple[int, int]:
    """Returns the bytes of an IPU's constants, and how many operations differ in kind or shapes: others share code."""
    constants, kinds = 0, set()
    todo, seen = [program], {program}
    while todo:
        for operation in todo.pop().operations:
            if not is_here(operation):
                pass
            elif operation.opcode == "constant":
                constants += operation.shape.bytes
            elif operation.opcode not in FREE:
                kinds.add((operation.opcode, operation.shape, *(each.shape for each in operation.operands)))
            new = [called for called in operation.called if called not in seen]
            seen.update(new)
            todo += new
    return constants, len(kinds)


@dataclass(frozen=True)
class Kept:
    """What optimizers keep of a replica, in bytes, but where it says otherwise.

    Attributes:
      state: The variables of optimizers in the program.
      on_chip: What of it rests on the chip.
      off_chip: What of it rests in the memory beside the chip: with replicas that share it, a part.
      accumulated: Variables in which gradients are summed.
      carried: The same where they are no variables, but values of the program.
      steps_per_update: After how many steps weights are updated, and what is off the chip comes and goes.
    """

    state: int = 0
    on_chip: int = 0
    off_chip: int = 0
    accumulated: int = 0
    carried: int = 0
    steps_per_update: int = 1

    def scaled(self, share: float) -> Kept:
        """The same, of so many times the bytes: as it is where variables have another type."""
        names = ("state", "on_chip", "off_chip", "accumulated", "carried")
        return replace(self, **{name: round(share * getattr(self, name)) for name in names})


def told_apart(report: Report, kept: Kept) -> Report:
    """A report of one IPU with its variables told apart, and what it takes to bring and take back those off the chip."""
    memory = report.memory
    carried = min(kept.carried, memory.data)
    memory = replace(
        memory,
        variables=max(0, memory.variables - kept.state - kept.accumulated),
        optimizer=kept.on_chip,
        accumulators=kept.accumulated + carried,
        data=memory.data - carried,
        liveness=tuple((at, max(0, size - carried)) for at, size in memory.liveness),
        off_chip=memory.off_chip + kept.off_chip,
    )
    operations = report.operations
    if kept.off_chip:
        updates = max(1, report.steps // kept.steps_per_update)
        seconds = updates * 2 * kept.off_chip / report.system.streaming_bytes_per_second
        row = OperationTime("state of the optimizer", "streaming", f"{kept.off_chip} bytes", updates, links=seconds)
        operations = (*operations, row)
    return replace(report, memories=(memory,), operations=operations, again=_again(report, kept))


def _again(plain: Report, kept: Kept) -> WhatIf | None:
    """Returns a function that reads a program again and separates the same variables, scaled as all of them are."""
    again = plain.again
    if again is None:
        return None
    whole = plain.memory.variables or 1

    def placed(**changes: Any) -> Report:
        other = again(**changes)
        return told_apart(other, kept.scaled(other.memory.variables / whole))

    return placed
