"""Liveness analysis: the buffers of a program that are in memory while each operation runs, and their peak."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tensorflow_ipu.analysis.machine.costs import FREE, IN_PLACE, NAMING, PRODUCTS, fused_operations, grid_of
from tensorflow_ipu.analysis.machine.hlo import Computation, HloInstruction, Shape
from tensorflow_ipu.analysis.machine.machine import Machine
from tensorflow_ipu.analysis.machine.sharding import Placement

# Results without a buffer. Constants are counted separately, tuples only name other results, and loops and
# most branches work in place.
_PLACELESS = FREE | {"while", "conditional"}
# A buffer with more remaining readers than this stays in memory for long in any order, so none of them is made urgent.
_FEW_READERS = 16


def frugal_order(computation: Computation) -> tuple[HloInstruction, ...]:
    """Returns the operations in an order that computes each result late and frees it early."""
    return _Scheduler(computation).order()


class _Scheduler:
    """A list scheduler that reduces the peak of memory.

    An operation is ready when all its operands have run. Among the ready operations, the order of priority is:

    1. operations that allocate nothing, and urgent operations;
    2. all others, in the order of `_by_need`.

    The last readers of a buffer become urgent together, as soon as all of them are ready and running them frees at
    least as many bytes as their own results occupy. For example, when the gradient of a layer arrives, the operations
    that read its stored activation run at once, and the activation is freed. The order takes O(n log n) time, except
    that `_look_at` examines up to `_FEW_READERS` readers each time that a buffer changes.
    """

    def __init__(self, computation: Computation) -> None:
        self._operations = computation.operations
        self._needed = {operation: index for index, operation in enumerate(_by_need(computation))}
        bases = _bases(computation)
        self._reads = {
            operation: tuple(dict.fromkeys(base for operand in operation.operands for base in bases[operand]))
            for operation in self._operations
        }
        # The operations that have not yet read each buffer, and how many of them cannot run yet.
        self._readers: dict[HloInstruction, dict[HloInstruction, None]] = {}
        for operation, read in self._reads.items():
            for base in read:
                self._readers.setdefault(base, {})[operation] = None
        self._waiting = {base: len(readers) for base, readers in self._readers.items()}
        # The operations that compute: neither views nor operations that are fused into their readers.
        self._working = {operation for operation in self._operations if bases[operation] in ((operation,), ())}
        self._own_sizes = {
            operation: self._own_bytes(operation) if bases[operation] == (operation,) else 0
            for operation in self._operations
        }
        self._remaining_sizes = self._remaining_bytes()
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
                continue  # It was pushed again when it became urgent.
            order[operation] = None
            for user in users.get(operation, ()):
                missing[user] -= 1
                if not missing[user]:
                    if operation in self._urgent and self._remaining_sizes[operation] < self._own_sizes[operation]:
                        self._urgent.add(user)  # `operation` saves memory only when `user` has reduced its result.
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
        can_wait = self._own_sizes[operation] > 0 and operation not in self._urgent
        heapq.heappush(self._ready, (can_wait, self._needed[operation], operation))

    def _look_at(self, base: HloInstruction) -> None:
        """Makes the remaining readers of a buffer urgent if all can run and free at least what they allocate."""
        readers = self._readers[base]
        if self._waiting[base] or not self._own_sizes[base] or not 0 < len(readers) <= _FEW_READERS:
            return
        if readers.keys() <= self._urgent:
            return
        read = dict.fromkeys(buffer for reader in readers for buffer in self._reads[reader])
        freed = sum(self._own_sizes[buffer] for buffer in read if self._readers[buffer].keys() <= readers.keys())
        if sum(self._remaining_sizes[reader] for reader in readers) <= freed:
            for reader in readers.keys() - self._urgent:
                self._urgent.add(reader)
                self._push(reader)

    def _own_bytes(self, operation: HloInstruction) -> int:
        """Returns the memory of a result.

        It is 0 if the result is an argument, or if it overwrites an argument that no other operation reads.
        """
        size = operation.shape.bytes
        if _is_argument(operation):
            return 0
        arguments = [base for base in self._reads[operation] if _is_argument(base) and base.shape.bytes == size]
        has_one_reader = any(sum(reader in self._working for reader in self._readers[base]) == 1 for base in arguments)
        return 0 if operation.opcode in IN_PLACE and has_one_reader else size

    def _remaining_bytes(self) -> dict[HloInstruction, int]:
        """Returns the bytes to which each result shrinks, as long as it has a single reader.

        For example, a product whose only reader is a sum shrinks to the bytes of the sum. A result with several readers
        keeps its own bytes.
        """
        remaining: dict[HloInstruction, int] = {}
        for operation in reversed(self._operations):
            remaining[operation] = self._own_sizes[operation]
            readers = [reader for reader in self._readers.get(operation, ()) if reader in self._working]
            if remaining[operation] and len(readers) == 1:
                (reader,) = readers
                if all(base is operation or not self._own_sizes[base] for base in self._reads[reader]):
                    remaining[operation] = min(remaining[operation], remaining[reader])
        return remaining


def _is_argument(operation: HloInstruction) -> bool:
    """Returns True if the caller holds the memory of a result: a parameter, or an element of one."""
    while operation.opcode == "get-tuple-element":
        operation = operation.operands[0]
    return operation.opcode == "parameter"


def _by_need(computation: Computation) -> list[HloInstruction]:
    """Returns the operations in depth-first order from the results. The operand with the longest chain comes first."""
    depths: dict[HloInstruction, int] = {}
    for operation in computation.operations:
        depths[operation] = 1 + max((depths[operand] for operand in operation.operands), default=0)
    order: dict[HloInstruction, None] = {}
    for root in (computation.root, *computation.operations):  # Operations that the result does not need follow.
        stack = [(root, False)]
        while stack:
            operation, complete = stack.pop()
            if operation in order:
                continue
            if complete:
                order[operation] = None
                continue
            stack.append((operation, True))
            stack += [(operand, False) for operand in sorted(operation.operands, key=depths.__getitem__)]
    return list(order)


def _bases(computation: Computation) -> dict[HloInstruction, tuple[HloInstruction, ...]]:
    """Returns for each operation the operations whose buffers hold its result.

    An operation that allocates a buffer has itself as the base. A view has the base of its operand.
    """
    fused = fused_operations(computation.operations, computation.root)
    bases: dict[HloInstruction, tuple[HloInstruction, ...]] = {}
    for operation in computation.operations:
        if operation in fused:
            bases[operation] = tuple(dict.fromkeys(base for operand in operation.operands for base in bases[operand]))
        elif _is_argument(operation):
            bases[operation] = (operation,)
        elif operation.opcode in NAMING or operation.opcode == "get-tuple-element":
            bases[operation] = bases[operation.operands[0]]
        else:
            bases[operation] = () if operation.opcode in _PLACELESS else (operation,)
    return bases


@dataclass(eq=False)
class LiveBuffer:
    """A buffer: the name of its content, its bytes, and whether the caller owns and counts it."""

    name: str
    bytes: int
    is_argument: bool = False


@dataclass(frozen=True)
class Peak:
    """The moment at which a computation occupies the most memory, without its arguments."""

    bytes: int
    buffers: tuple[LiveBuffer, ...]
    temporary: int
    profile: tuple[int, ...] = ()


_NOTHING = Peak(0, (), 0)

# The buffers of an array (none for a constant), or the values of a tuple's elements.
_Value: TypeAlias = "tuple[LiveBuffer, ...] | list[_Value]"


def peak_of(
    computation: Computation, machine: Machine, proportion: float, placement: Placement | None = None, ipu: int = 0
) -> Peak:
    """Returns the peak of a computation in the better of two orders: the program's, and `frugal_order`."""
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
        """Returns the peak of a computation whose operations run in this order.

        The first loop assigns buffers to results and finds the first and last operation of each buffer's life. An
        operation may reuse the buffer of an operand that is read for the last time. The second loop sweeps over the
        operations, adds buffers at their start, and removes them after their end. Both loops take linear time.
        """
        last, last_of_element = _last_uses(operations, root)
        fused = fused_operations(operations, root)
        values: dict[HloInstruction, _Value] = {}
        # A buffer is live until the last operation that uses any of its values.
        ends: dict[LiveBuffer, int] = {}
        begins: dict[int, list[LiveBuffer]] = {}
        for index, operation in enumerate(operations):
            if operation in fused:  # The reader computes this value itself.
                value = tuple(
                    dict.fromkeys(buffer for operand in operation.operands for buffer in _flat(values[operand]))
                )
            else:
                value = self._value(operation, values, ends, index)
            values[operation] = value
            end = last.get(operation, index)
            for number, part in enumerate(value) if isinstance(value, list) else ((0, value),):
                for buffer in _flat(part):
                    if buffer not in ends and not buffer.is_argument:
                        begins.setdefault(index, []).append(buffer)
                    ends[buffer] = max(ends.get(buffer, index), end, last_of_element.get((operation, number), index))
        finished: dict[int, list[LiveBuffer]] = {}
        for buffer, end in ends.items():
            finished.setdefault(end, []).append(buffer)
        alive: dict[LiveBuffer, None] = {}  # Ordered by start.
        total, peak = 0, Peak(0, (), 0)
        profile: list[int] = []
        for index, operation in enumerate(operations):
            alive.update(dict.fromkeys(begins.get(index, ())))
            total += sum(buffer.bytes for buffer in begins.get(index, ()))
            inner = self._inside(operation)
            if total + inner.bytes > peak.bytes:
                largest_first = sorted((*alive, *inner.buffers), key=lambda buffer: -buffer.bytes)
                peak = Peak(total + inner.bytes, tuple(largest_first), inner.bytes)
            if inner.profile:
                profile += [total + size for size in inner.profile]
            elif operation.opcode not in FREE:
                profile.append(total + inner.bytes)
            for buffer in finished.get(index, ()):
                if not buffer.is_argument:
                    del alive[buffer]
                    total -= buffer.bytes
        return replace(peak, profile=tuple(profile))

    def _inside(self, operation: HloInstruction) -> Peak:
        """Returns the memory that an operation needs while it runs, besides its operands and result."""
        if operation.called and operation.opcode in ("while", "call", "conditional"):
            return max((self.peak(called) for called in operation.called), key=lambda peak: peak.bytes)
        if not self._is_here(operation):
            return _NOTHING
        temporary = 0
        if self._placement is not None:
            temporary += sum(operand.shape.bytes for operand in self._placement.received(operation))
        if operation.opcode in PRODUCTS:
            temporary += grid_of(operation, self._machine, self._proportion).temporary_bytes
        return Peak(temporary, (), temporary) if temporary else _NOTHING

    def _is_here(self, operation: HloInstruction) -> bool:
        return self._placement is None or self._ipu in self._placement.of(operation)

    def _value(
        self, operation: HloInstruction, values: dict[HloInstruction, _Value], ends: dict[LiveBuffer, int], index: int
    ) -> _Value:
        opcode, operands = operation.opcode, operation.operands
        if opcode in ("constant", "iota"):
            return ()
        if opcode == "parameter":
            return _new(operation, operation.shape, is_argument=True)
        if opcode == "tuple":
            return [values[operand] for operand in operands]
        if opcode == "get-tuple-element":
            source = values[operands[0]]
            return source[operation.number] if isinstance(source, list) else source
        if opcode == "while":
            return self._written(operation, values[operands[0]])
        if opcode == "conditional" and operation.shape.parts and self._is_here(operation):
            return _chosen(operation, values, ends, index)
        if opcode in NAMING:
            return values[operands[0]]
        if not self._is_here(operation):
            return _new(operation, operation.shape, elsewhere=True)
        if opcode == "custom-call":
            return _new(operation, operation.shape)
        if opcode in IN_PLACE:
            size = operation.shape.bytes
            for buffer in (buffer for operand in operands for buffer in _flat(values[operand])):
                if ends[buffer] <= index and buffer.bytes == size:
                    return (buffer,)
        return _new(operation, operation.shape)

    def _written(self, loop: HloInstruction, value: _Value) -> _Value:
        """Returns the buffers of a loop's values: its operand's buffers, and new ones for constants and views."""
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
    """Returns the index of the last use of each result, and of each element of a result that is a tuple."""
    last: dict[HloInstruction, int] = {}
    for index, operation in enumerate(operations):
        if operation.opcode != "get-tuple-element":
            last.update(dict.fromkeys(operation.operands, index))
    last[root] = len(operations)
    elements: dict[tuple[HloInstruction, int], int] = {}
    for operation in operations:
        if operation.opcode == "get-tuple-element":
            key = operation.operands[0], operation.number
            elements[key] = max(elements.get(key, 0), last.get(operation, 0))
    return last, elements


def _new(operation: HloInstruction, shape: Shape, is_argument: bool = False, elsewhere: bool = False) -> _Value:
    if shape.dtype == "tuple":
        return [_new(operation, part, is_argument, elsewhere) for part in shape.parts]
    return (LiveBuffer(operation.title, 0 if elsewhere else shape.bytes, is_argument),)


def _written(operation: HloInstruction, value: _Value, shape: Shape) -> _Value:
    if isinstance(value, list):
        return [_written(operation, *element) for element in zip(value, shape.parts, strict=True)]
    return value if len(value) == 1 and value[0].bytes == shape.bytes else _new(operation, shape)


def _chosen(
    operation: HloInstruction, values: dict[HloInstruction, _Value], ends: dict[LiveBuffer, int], index: int
) -> _Value:
    """Returns the buffers of a conditional's results.

    A result reuses the buffer of an argument that a branch returns.
    """
    results: list[_Value] = []
    reused: set[LiveBuffer] = set()
    for number, part in enumerate(operation.shape.parts):
        place: LiveBuffer | None = None
        for branch, operand in zip(operation.called, operation.operands[1:], strict=True):
            argument, element = values[operand], _returned_argument(branch, number)
            if element is None or not isinstance(argument, list):
                continue
            for buffer in _flat(argument[element]):
                if ends[buffer] <= index and buffer.bytes == part.bytes and buffer not in reused:
                    place = buffer
        results.append(_new(operation, part) if place is None else (place,))
        reused.update(() if place is None else (place,))
    return results


def _returned_argument(branch: Computation, number: int) -> int | None:
    """Returns the index of the argument that a branch returns as result `number`; None if it computes this result."""
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
