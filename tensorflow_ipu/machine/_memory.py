"""What a program needs of an IPU's memory, beside what there is."""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow_ipu.machine._hlo import Computation
from tensorflow_ipu.machine._liveness import peak_of
from tensorflow_ipu.machine._opcodes import FREE
from tensorflow_ipu.machine._system import System

# Code of a tile, in bytes: what every program has, and what each kind of operation adds, at least and at most. Nothing
# public tells; a vertex is some hundred bytes, and an exchange 4 to 8 bytes a fragment.
_RUNTIME_CODE = (8 * 1024, 24 * 1024)
_CODE_OF_OPERATION = (64, 400)
# Below this share of the memory, a program fits; above that one, it does not. Between, it depends on the order and the
# mapping that the machine's compiler finds: published programs that ran are at most at 1.1.
_SURE, _NEVER = 0.9, 1.25
_LISTED = 10

FITS = "fits"
MAY_FIT = "may fit"
DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True)
class Memory:
    """The memory of one IPU, in bytes.

    Attributes:
      variables: What the program is given and holds all the time: variables, and its other arguments.
      constants: Its constants.
      data: The most that its results and temporary values take at a time.
      code_low: What its code takes, at least.
      code_high: And at most.
      capacity: What the tiles have.
      largest: What is in memory at that moment, largest first: name and bytes.
    """

    variables: int
    constants: int
    data: int
    code_low: int
    code_high: int
    capacity: int
    largest: tuple[tuple[str, int], ...] = ()

    @property
    def low(self) -> int:
        """All of it, at least."""
        return self.variables + self.constants + self.data + self.code_low

    @property
    def high(self) -> int:
        """All of it, at most."""
        return self.variables + self.constants + self.data + self.code_high

    @property
    def verdict(self) -> str:
        """`fits` if all is below 90 % of the capacity, `does not fit` if data alone are above 125 %, else `may fit`."""
        if self.high <= _SURE * self.capacity:
            return FITS
        return DOES_NOT_FIT if self.variables + self.constants + self.data > _NEVER * self.capacity else MAY_FIT


def memory_of(program: Computation, system: System, proportion: float) -> Memory:
    """The memory that one IPU needs for a program of its own.

    Args:
      program: The program.
      system: The machine.
      proportion: `availableMemoryProportion` of products.
    """
    machine = system.machine
    peak = peak_of(program, machine, proportion)
    given = sum(operation.shape.bytes for operation in program.operations if operation.opcode == "parameter")
    held = [(buffer.name, buffer.bytes) for buffer in peak.buffers[:_LISTED] if not buffer.given]
    constants, kinds = _constants_and_kinds(program)
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
        largest=tuple(held),
    )


def _constants_and_kinds(program: Computation) -> tuple[int, int]:
    """Bytes of all constants, and how many operations differ in what they do or in their shapes: others share code."""
    constants, kinds = 0, set()
    todo, seen = [program], {program}
    while todo:
        for operation in todo.pop().operations:
            if operation.opcode == "constant":
                constants += operation.shape.bytes
            elif operation.opcode not in FREE:
                kinds.add((operation.opcode, operation.shape, *(each.shape for each in operation.operands)))
            new = [called for called in operation.called if called not in seen]
            seen.update(new)
            todo += new
    return constants, len(kinds)
