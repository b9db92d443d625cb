"""An order of a computation's operations that keeps little in memory."""

from __future__ import annotations

import heapq

from tensorflow_ipu.machine._fusion import fused_operations
from tensorflow_ipu.machine._hlo import Computation, HloInstruction
from tensorflow_ipu.machine._opcodes import FREE, IN_PLACE, NAMING

# A constant is there anyway; what a tuple names is elsewhere; a loop works in place, and so do most branches.
_PLACELESS = FREE | {"while", "conditional"}
# Data that more operations than this are still to read are not looked at: they stay for long in any order.
_FEW_READERS = 16


def frugal_order(computation: Computation) -> tuple[HloInstruction, ...]:
    """Orders operations so that each result is made late and dropped early.

    Where all that still read some data can run, and leave less behind than the data take, they run next; else the one
    that comes first in the order in which the results are needed, longest chains first. So what is computed again for
    a backward pass is computed when the pass comes to it, and the gradients of a layer's weights are added to their
    sums before the pass goes on to the layer before.

    Args:
      computation: The computation.

    Returns:
      All its operations, each after its operands.
    """
    return _Scheduler(computation).order()


class _Scheduler:
    """A list scheduler: of the operations that can run, it takes one after the other by priority."""

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
        """The order."""
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
        """Has those that still read some data run next, if all of them can and that frees as much as they leave."""
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
        """What a result takes of memory that nobody else has: none where the caller holds it, or an operand it alone uses."""
        size = operation.shape.bytes
        if _is_given(operation):
            return 0
        given = [base for base in self._reads[operation] if _is_given(base) and base.shape.bytes == size]
        lone = any(sum(each in self._works for each in self._readers[base]) == 1 for base in given)
        return 0 if operation.opcode in IN_PLACE and lone else size

    def _left_bytes(self) -> dict[HloInstruction, int]:
        """What each operation leaves in memory, when that has run which alone reads its result, and needs nothing else."""
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
    """Whether the caller holds a result: a parameter, or an element of one."""
    while operation.opcode == "get-tuple-element":
        operation = operation.operands[0]
    return operation.opcode == "parameter"


def _by_need(computation: Computation) -> list[HloInstruction]:
    """The order in which a result asks for its operands, those at the end of the longest chains first."""
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
    """For each operation those in whose memory its result is: itself, if it has memory of its own or is given."""
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
