"""An order of a computation's operations that keeps little in memory."""

from __future__ import annotations

import heapq

from tensorflow_ipu.machine._fusion import fused_operations
from tensorflow_ipu.machine._hlo import Computation, Operation
from tensorflow_ipu.machine._opcodes import FREE, NAMING

# A parameter or a constant is there anyway; what a tuple names is elsewhere; a loop works in place.
_PLACELESS = FREE | {"while"}


def frugal_order(computation: Computation) -> tuple[Operation, ...]:
    """Orders operations so that each result is made late and dropped early.

    Of the operations whose operands are there, those that free at least what they take run first; else the one that
    comes first in the order in which the results are needed, longest chains first. So what is computed again for a
    backward pass is computed when the pass comes to it.

    Args:
      computation: The computation.

    Returns:
      All its operations, each after its operands.
    """
    operations = computation.operations
    bases = _bases(computation)
    needed = {operation: at for at, operation in enumerate(_by_need(computation))}
    readers: dict[Operation, dict[Operation, None]] = {}
    for operation in operations:
        for operand in operation.operands:
            for base in bases[operand]:
                readers.setdefault(base, {})[operation] = None
    missing = {operation: len(set(operation.operands)) for operation in operations}
    users: dict[Operation, list[Operation]] = {}
    for operation in operations:
        for operand in set(operation.operands):
            users.setdefault(operand, []).append(operation)

    def read(operation: Operation) -> dict[Operation, None]:
        return dict.fromkeys(base for operand in operation.operands for base in bases[operand])

    def key(operation: Operation) -> tuple[int, int]:
        taken = operation.shape.bytes if bases[operation] == (operation,) else 0
        freed = sum(base.shape.bytes for base in read(operation) if len(readers[base]) == 1)
        return int(taken > freed), needed[operation]

    ready = [(key(operation), operation.name, operation) for operation in operations if missing[operation] == 0]
    heapq.heapify(ready)
    order: dict[Operation, None] = {}
    while ready:
        _, _, operation = heapq.heappop(ready)
        if operation in order:
            continue  # It was pushed again, when it came to free more.
        order[operation] = None
        for base in read(operation):
            left = readers[base]
            left.pop(operation, None)
            if len(left) == 1:
                (last,) = left
                if missing[last] == 0:
                    heapq.heappush(ready, (key(last), last.name, last))
        for user in users.get(operation, ()):
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (key(user), user.name, user))
    return tuple(order)


def _by_need(computation: Computation) -> list[Operation]:
    """The order in which a result asks for its operands, those at the end of the longest chains first."""
    depths: dict[Operation, int] = {}
    for operation in computation.operations:
        depths[operation] = 1 + max((depths[operand] for operand in operation.operands), default=0)
    order: dict[Operation, None] = {}
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


def _bases(computation: Computation) -> dict[Operation, tuple[Operation, ...]]:
    """For each operation those in whose memory its result is: itself, if it has memory of its own."""
    fused = fused_operations(computation.operations, computation.root)
    bases: dict[Operation, tuple[Operation, ...]] = {}
    for operation in computation.operations:
        if operation in fused:
            bases[operation] = tuple(dict.fromkeys(base for each in operation.operands for base in bases[each]))
        elif operation.opcode in NAMING or operation.opcode == "get-tuple-element":
            bases[operation] = bases[operation.operands[0]]
        else:
            bases[operation] = () if operation.opcode in _PLACELESS else (operation,)
    return bases
