"""What of a program's data is in memory at a time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tensorflow_ipu.analysis.machine.costs import FREE, IN_PLACE, NAMING, PRODUCTS, fused_operations, grid_of
from tensorflow_ipu.analysis.machine.hlo import Computation, HloInstruction, Shape
from tensorflow_ipu.analysis.machine.machine import Machine
from tensorflow_ipu.analysis.machine.sharding import Placement

# A constant is there anyway; what a tuple names is elsewhere; a loop works in place, and so do most branches.
_PLACELESS = FREE | {"while", "conditional"}
# Data that more operations than this are still to read are not looked at: they stay for long in any order.
_FEW_READERS = 16


def frugal_order(computation: Computation) -> tuple[HloInstruction, ...]:
    """Orders operations so that each result is computed late and freed early."""
    return _Scheduler(computation).order()


class _Scheduler:
    """A list scheduler: among the operations that can run, it takes them by priority."""

    def __init__(self, computation: Computation) -> None:
        self._operations = computation.operations
        self._needed = {operation: at for at, operation in enumerate(_by_need(computation))}
        bases = _bases(computation)
        self._reads = {
            operation: tuple(dict.fromkeys(base for operand in operation.operands for base in bases[operand]))
            for operation in self._operations
        }
        # For each piece of data the operations that are still to read it, and how many of these cannot run yet.
        self._readers: dict[HloInstruction, dict[HloInstruction, None]] = {}
        for operation, read in self._reads.items():
            for base in read:
                self._readers.setdefault(base, {})[operation] = None
        self._waiting = {base: len(readers) for base, readers in self._readers.items()}
        # What holds data or hands it on: not what names other data, or is a part of what reads it.
        self._works = {each for each in self._operations if bases[each] in ((each,), ())}
        self._own = {each: self._own_bytes(each) if bases[each] == (each,) else 0 for each in self._operations}
        self._left = self._left_bytes()
        self._ready: list[tuple[bool, int, HloInstruction]] = []
        self._urgent: set[HloInstruction] = set()

    def order(self) -> tuple[HloInstruction, ...]:
        missing = {operation: len(set(operation.operands)) for operation in self._operations}
        users: dict[HloInstruction, list[HloInstruction]] = {}
        for operation in self._operations:
            for operand in set(operation.operands):
                users.setdefault(operand, []).append(operation)
        for operation, count in missing.items():
            if not count:
                self._can_run(operation)
        order: dict[HloInstruction, None] = {}
        while self._ready:
            _, _, operation = heapq.heappop(self._ready)
            if operation in order:
                continue  # It was pushed again, when it became urgent.
            order[operation] = None
            for user in users.get(operation, ()):
                missing[user] -= 1
                if not missing[user]:
                    if operation in self._urgent and self._left[operation] < self._own[operation]:
                        self._urgent.add(user)  # It takes away what was to be taken away.
                    self._can_run(user)
            for base in self._reads[operation]:
                del self._readers[base][operation]
                self._look_at(base)
        return tuple(order)

    def _can_run(self, operation: HloInstruction) -> None:
        self._push(operation)
        for base in self._reads[operation]:
            self._waiting[base] -= 1
            self._look_at(base)

    def _push(self, operation: HloInstruction) -> None:
        later = self._own[operation] > 0 and operation not in self._urgent
        heapq.heappush(self._ready, (later, self._needed[operation], operation))

    def _look_at(self, base: HloInstruction) -> None:
        """Makes the remaining readers of some data run next, if all of them can and free at least as much as they leave."""
        readers = self._readers[base]
        if self._waiting[base] or not self._own[base] or not 0 < len(readers) <= _FEW_READERS:
            return
        if readers.keys() <= self._urgent:
            return
        read = dict.fromkeys(each for reader in readers for each in self._reads[reader])
        freed = sum(self._own[each] for each in read if self._readers[each].keys() <= readers.keys())
        if sum(self._left[reader] for reader in readers) <= freed:
            for reader in readers.keys() - self._urgent:
                self._urgent.add(reader)
                self._push(reader)

    def _own_bytes(self, operation: HloInstruction) -> int:
        """Returns the memory of a result; 0 if the caller holds it, or if it replaces an operand without other readers."""
        size = operation.shape.bytes
        if _is_given(operation):
            return 0
        given = [base for base in self._reads[operation] if _is_given(base) and base.shape.bytes == size]
        lone = any(sum(each in self._works for each in self._readers[base]) == 1 for base in given)
        return 0 if operation.opcode in IN_PLACE and lone else size

    def _left_bytes(self) -> dict[HloInstruction, int]:
        """Returns the memory that each operation leaves after the only reader of its result has run."""
        left: dict[HloInstruction, int] = {}
        for operation in reversed(self._operations):
            left[operation] = self._own[operation]
            readers = [each for each in self._readers.get(operation, ()) if each in self._works]
            if left[operation] and len(readers) == 1:
                (reader,) = readers
                if all(base is operation or not self._own[base] for base in self._reads[reader]):
                    left[operation] = min(left[operation], left[reader])
        return left


def _is_given(operation: HloInstruction) -> bool:
    """Returns True if the caller holds a result: a parameter, or an element of one."""
    while operation.opcode == "get-tuple-element":
        operation = operation.operands[0]
    return operation.opcode == "parameter"


def _by_need(computation: Computation) -> list[HloInstruction]:
    """Returns the operations in the order in which results need them, those at the end of the longest chains first."""
    depths: dict[HloInstruction, int] = {}
    for operation in computation.operations:
        depths[operation] = 1 + max((depths[operand] for operand in operation.operands), default=0)
    order: dict[HloInstruction, None] = {}
    for root in (computation.root, *computation.operations):  # What nothing needs comes last.
        stack = [(root, False)]
        while stack:
            operation, complete = stack.pop()
            if operation in order:
                continue
            if complete:
                order[operation] = None
                continue
            stack.append((operation, True))
            stack += [(each, False) for each in sorted(operation.operands, key=depths.__getitem__)]
    return list(order)


def _bases(computation: Computation) -> dict[HloInstruction, tuple[HloInstruction, ...]]:
    """Returns for each operation those whose memory holds its result; itself if it has memory of its own."""
    fused = fused_operations(computation.operations, computation.root)
    bases: dict[HloInstruction, tuple[HloInstruction, ...]] = {}
    for operation in computation.operations:
        if operation in fused:
            bases[operation] = tuple(dict.fromkeys(base for each in operation.operands for base in bases[each]))
        elif _is_given(operation):
            bases[operation] = (operation,)
        elif operation.opcode in NAMING or operation.opcode == "get-tuple-element":
            bases[operation] = bases[operation.operands[0]]
        else:
            bases[operation] = () if operation.opcode in _PLACELESS else (operation,)
    return bases


@dataclass(eq=False)
class LiveBuffer:
    """A buffer: its content, its bytes, and whether the caller holds and counts it."""

    name: str
    bytes: int
    given: bool = False


@dataclass(frozen=True)
class Peak:
    """The moment at which a computation has the most in memory, without its arguments."""

    bytes: int
    buffers: tuple[LiveBuffer, ...]
    temporary: int
    profile: tuple[int, ...] = ()


_NOTHING = Peak(0, (), 0)

# Of an array its buffers (none for a constant), of a tuple what its elements are.
_Value: TypeAlias = "tuple[LiveBuffer, ...] | list[_Value]"


def peak_of(
    computation: Computation, machine: Machine, proportion: float, placement: Placement | None = None, ipu: int = 0
) -> Peak:
    """Returns the peak of a computation in the better of two orders: its own, and a frugal one."""
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
            orders = (computation.operations, frugal_order(computation))
            peaks = (self._walk_in(order, computation.root) for order in orders)
            self._peaks[computation] = min(peaks, key=lambda peak: peak.bytes)
        return self._peaks[computation]

    def _walk_in(self, operations: Sequence[HloInstruction], root: HloInstruction) -> Peak:
        last, last_of_element = _last_uses(operations, root)
        fused = fused_operations(operations, root)
        values: dict[HloInstruction, _Value] = {}
        # A buffer stays for as long as the last operation that uses a value in it.
        ends: dict[LiveBuffer, int] = {}
        begins: dict[int, list[LiveBuffer]] = {}
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
        finished: dict[int, list[LiveBuffer]] = {}
        for buffer, end in ends.items():
            finished.setdefault(end, []).append(buffer)
        alive: dict[LiveBuffer, None] = {}  # In the order of their begin.
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
        """Returns the memory of an operation while it runs, without operands and result."""
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
        self, operation: HloInstruction, values: dict[HloInstruction, _Value], ends: dict[LiveBuffer, int], at: int
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
        """Returns the buffers of a loop's values: those of its operand, without constants and mere names."""
        if not isinstance(value, list):
            return _written(loop, value, loop.shape)
        placement = self._placement
        return [
            _written(loop, part, shape)
            if placement is None or self._ipu in placement.of_element(loop, number)
            else _new(loop, shape, elsewhere=True)
            for number, (part, shape) in enumerate(zip(value, loop.shape.parts, strict=True))
        ]


def _last_uses(
    operations: Sequence[HloInstruction], root: HloInstruction
) -> tuple[dict[HloInstruction, int], dict[tuple[HloInstruction, int], int]]:
    """Returns the last use of each result, whole, and of each element of the tuples among them."""
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
    return (LiveBuffer(operation.title, 0 if elsewhere else shape.bytes, given),)


def _written(operation: HloInstruction, value: _Value, shape: Shape) -> _Value:
    if isinstance(value, list):
        return [_written(operation, *each) for each in zip(value, shape.parts, strict=True)]
    return value if len(value) == 1 and value[0].bytes == shape.bytes else _new(operation, shape)


def _chosen(
    operation: HloInstruction, values: dict[HloInstruction, _Value], ends: dict[LiveBuffer, int], at: int
) -> _Value:
    """Returns the buffers in which a conditional leaves its results."""
    found: list[_Value] = []
    taken: set[LiveBuffer] = set()
    for number, part in enumerate(operation.shape.parts):
        place: LiveBuffer | None = None
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
    """Returns which element of its argument a branch returns as an element of its result; None if it computes the element."""
    if branch.root.opcode != "tuple":
        return None
    result = branch.root.operands[number]
    while result.opcode in NAMING:
        result = result.operands[0]
    of_parameter = result.opcode == "get-tuple-element" and result.operands[0].opcode == "parameter"
    return result.number if of_parameter else None


def _flat(value: _Value) -> Sequence[LiveBuffer]:
    if isinstance(value, tuple):
        return value
    return [buffer for part in value for buffer in _flat(part)]
