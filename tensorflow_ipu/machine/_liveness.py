"""What of a program's data is in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tensorflow_ipu.machine._costs import grid_of
from tensorflow_ipu.machine._fusion import fused_operations
from tensorflow_ipu.machine._hlo import Computation, HloInstruction, Shape
from tensorflow_ipu.machine._machine import Machine
from tensorflow_ipu.machine._opcodes import FREE, IN_PLACE, NAMING, PRODUCTS
from tensorflow_ipu.machine._schedule import frugal_order
from tensorflow_ipu.machine._sharding import Placement


@dataclass(eq=False)
class HeldBuffer:
    """A place in memory: what it holds, how many bytes, and whether the caller gave it, who then counts it."""

    name: str
    bytes: int
    given: bool = False


@dataclass(frozen=True)
class Peak:
    """The moment at which a computation has the most in memory, beside what it was given.

    Attributes:
      bytes: How much that is.
      buffers: What is in memory then, largest first.
      temporary: Bytes that the operation of that moment takes besides.
      profile: How much is in memory at each operation that does anything, in the order in which they run; those that a
        loop repeats once.
    """

    bytes: int
    buffers: tuple[HeldBuffer, ...]
    temporary: int
    profile: tuple[int, ...] = ()


_NOTHING = Peak(0, (), 0)

# Of an array its buffers (none for a constant), of a tuple what its elements are.
_Value: TypeAlias = "tuple[HeldBuffer, ...] | list[_Value]"


def peak_of(
    computation: Computation, machine: Machine, proportion: float, placement: Placement | None = None, ipu: int = 0
) -> Peak:
    """Finds the most that a computation has in memory, in the better of two orders: its own, and one that is frugal.

    Parameters are not counted: who calls holds them. A loop works on its operands in place, elementwise operations on
    an operand that nobody uses later, a branch on what another branch hands on.

    Args:
      computation: The computation.
      machine: The IPU.
      proportion: `availableMemoryProportion` of products.
      placement: Where operations run, if not all on one IPU.
      ipu: Of whose memory it is then.
    """
    return _Liveness(machine, proportion, placement, ipu).peak(computation)


class _Liveness:
    def __init__(self, machine: Machine, proportion: float, placement: Placement | None, ipu: int) -> None:
        self._machine = machine
        self._proportion = proportion
        self._placement = placement
        self._ipu = ipu
        self._peaks: dict[Computation, Peak] = {}

    def peak(self, computation: Computation) -> Peak:
        if computation not in self._peaks:
            self._peaks[computation] = self._walk(computation)
        return self._peaks[computation]

    def _walk(self, computation: Computation) -> Peak:
        return min(
            (self._walk_in(order, computation.root) for order in (computation.operations, frugal_order(computation))),
            key=lambda peak: peak.bytes,
        )

    def _walk_in(self, operations: Sequence[HloInstruction], root: HloInstruction) -> Peak:
        last, last_of_element = _last_uses(operations, root)
        fused = fused_operations(operations, root)
        values: dict[HloInstruction, _Value] = {}
        # A buffer stays for as long as the last operation that uses a value in it.
        ends: dict[HeldBuffer, int] = {}
        begins: dict[int, list[HeldBuffer]] = {}
        for at, operation in enumerate(operations):
            if operation in fused:  # What uses it reads what it reads.
                value = tuple(dict.fromkeys(buffer for each in operation.operands for buffer in _flat(values[each])))
            else:
                value = self._value(operation, values, ends, at)
            values[operation] = value
            end = last.get(operation, at)
            for number, part in enumerate(value) if isinstance(value, list) else ((0, value),):
                for buffer in _flat(part):
                    if buffer not in ends and not buffer.given:
                        begins.setdefault(at, []).append(buffer)
                    ends[buffer] = max(ends.get(buffer, at), end, last_of_element.get((operation, number), at))
        finished: dict[int, list[HeldBuffer]] = {}
        for buffer, end in ends.items():
            finished.setdefault(end, []).append(buffer)
        alive: dict[HeldBuffer, None] = {}  # In the order of their begin.
        total, best = 0, Peak(0, (), 0)
        profile: list[int] = []
        for at, operation in enumerate(operations):
            alive.update(dict.fromkeys(begins.get(at, ())))
            total += sum(buffer.bytes for buffer in begins.get(at, ()))
            inner = self._inside(operation)
            if total + inner.bytes > best.bytes:
                held = sorted((*alive, *inner.buffers), key=lambda buffer: -buffer.bytes)
                best = Peak(total + inner.bytes, tuple(held), inner.bytes)
            if inner.profile:
                profile += [total + each for each in inner.profile]
            elif operation.opcode not in FREE:
                profile.append(total + inner.bytes)
            for buffer in finished.get(at, ()):
                if not buffer.given:
                    del alive[buffer]
                    total -= buffer.bytes
        return replace(best, profile=tuple(profile))

    def _inside(self, operation: HloInstruction) -> Peak:
        """What an operation has in memory while it runs, beside operands and result."""
        if operation.called and operation.opcode in ("while", "call", "conditional"):
            return max((self.peak(called) for called in operation.called), key=lambda peak: peak.bytes)
        if not self._is_here(operation):
            return _NOTHING
        temporary = 0
        if self._placement is not None:
            temporary += sum(each.shape.bytes for each in self._placement.received(operation))
        if operation.opcode in PRODUCTS:
            temporary += grid_of(operation, self._machine, self._proportion).temporary_bytes
        return Peak(temporary, (), temporary) if temporary else _NOTHING

    def _is_here(self, operation: HloInstruction) -> bool:
        return self._placement is None or self._ipu in self._placement.of(operation)

    def _value(
        self, operation: HloInstruction, values: dict[HloInstruction, _Value], ends: dict[HeldBuffer, int], at: int
    ) -> _Value:
        opcode, operands = operation.opcode, operation.operands
        if opcode in ("constant", "iota"):
            return ()
        if opcode == "parameter":
            return _new(operation, operation.shape, given=True)
        if opcode == "tuple":
            return [values[operand] for operand in operands]
        if opcode == "get-tuple-element":
            whole = values[operands[0]]
            return whole[operation.number] if isinstance(whole, list) else whole
        if opcode == "while":
            return self._written(operation, values[operands[0]])
        if opcode == "conditional" and operation.shape.parts and self._is_here(operation):
            return _chosen(operation, values, ends, at)
        if opcode in NAMING:
            return values[operands[0]]
        if not self._is_here(operation):
            return _new(operation, operation.shape, elsewhere=True)
        if opcode == "custom-call":
            return _new(operation, operation.shape)
        if opcode in IN_PLACE:
            size = operation.shape.bytes
            for buffer in (each for operand in operands for each in _flat(values[operand])):
                if ends[buffer] <= at and buffer.bytes == size:
                    return (buffer,)
        return _new(operation, operation.shape)

    def _written(self, loop: HloInstruction, value: _Value) -> _Value:
        """The places in which a loop has its values: those that it is given, but for constants and what only names others."""
        if not isinstance(value, list):
            return _written(loop, value, loop.shape)
        written: list[_Value] = []
        for number, (part, shape) in enumerate(zip(value, loop.shape.parts, strict=True)):
            is_here = self._placement is None or self._ipu in self._placement.of_element(loop, number)
            written.append(_written(loop, part, shape) if is_here else _new(loop, shape, elsewhere=True))
        return written


def _last_uses(
    operations: Sequence[HloInstruction], root: HloInstruction
) -> tuple[dict[HloInstruction, int], dict[tuple[HloInstruction, int], int]]:
    """At which operation each result is used last, whole, and each element of the tuples among them."""
    last: dict[HloInstruction, int] = {}
    for at, operation in enumerate(operations):
        if operation.opcode != "get-tuple-element":
            last.update(dict.fromkeys(operation.operands, at))
    last[root] = len(operations)
    elements: dict[tuple[HloInstruction, int], int] = {}
    for operation in operations:
        if operation.opcode == "get-tuple-element":
            key = operation.operands[0], operation.number
            elements[key] = max(elements.get(key, 0), last.get(operation, 0))
    return last, elements


def _new(operation: HloInstruction, shape: Shape, given: bool = False, elsewhere: bool = False) -> _Value:
    if shape.dtype == "tuple":
        return [_new(operation, part, given, elsewhere) for part in shape.parts]
    return (HeldBuffer(operation.title, 0 if elsewhere else shape.bytes, given),)


def _written(operation: HloInstruction, value: _Value, shape: Shape) -> _Value:
    if isinstance(value, list):
        return [_written(operation, *each) for each in zip(value, shape.parts, strict=True)]
    return value if len(value) == 1 and value[0].bytes == shape.bytes else _new(operation, shape)


def _chosen(
    operation: HloInstruction, values: dict[HloInstruction, _Value], ends: dict[HeldBuffer, int], at: int
) -> _Value:
    """The places in which a choice between branches leaves its results.

    What a branch hands on as it was given, as that of an update that is left out hands on all variables, stays where it
    is: the other branches write their results there.
    """
    found: list[_Value] = []
    taken: set[HeldBuffer] = set()
    for number, part in enumerate(operation.shape.parts):
        place: HeldBuffer | None = None
        for branch, operand in zip(operation.called, operation.operands[1:], strict=True):
            given, element = values[operand], _handed_on(branch, number)
            if element is None or not isinstance(given, list):
                continue
            for buffer in _flat(given[element]):
                if ends[buffer] <= at and buffer.bytes == part.bytes and buffer not in taken:
                    place = buffer
        found.append(_new(operation, part) if place is None else (place,))
        taken.update(() if place is None else (place,))
    return found


def _handed_on(branch: Computation, number: int) -> int | None:
    """Which element of its argument a branch returns as an element of its result; None where it computes that."""
    if branch.root.opcode != "tuple":
        return None
    result = branch.root.operands[number]
    while result.opcode in NAMING:
        result = result.operands[0]
    of_parameter = result.opcode == "get-tuple-element" and result.operands[0].opcode == "parameter"
    return result.number if of_parameter else None


def _flat(value: _Value) -> Sequence[HeldBuffer]:
    if isinstance(value, tuple):
        return value
    return [buffer for part in value for buffer in _flat(part)]
