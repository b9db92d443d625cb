"""Which elementwise operations run as a part of others, and keep no result in memory."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow_ipu.machine._hlo import HloInstruction
from tensorflow_ipu.machine._opcodes import ELEMENTWISE

_VIEWS = frozenset({"reshape", "bitcast", "transpose"})


def fused_operations(operations: Sequence[HloInstruction], root: HloInstruction) -> frozenset[HloInstruction]:
    """The elementwise operations whose results only operations use of which they are a part.

    These are elementwise operations of as many elements: the machine's compiler makes one expression of such a tree,
    and one vertex of the expression. Of a change of type it is also the reductions, which read one type and add in
    another.

    Args:
      operations: Those of a computation.
      root: The one whose result is the computation's.
    """
    kept = {root}
    for operation in operations:
        if operation.opcode not in ELEMENTWISE:
            kept.update(operation.operands)
            continue
        elements = operation.shape.elements
        kept.update(operand for operand in operation.operands if operand.shape.elements != elements)
    used = {operand for operation in operations for operand in operation.operands} - kept
    fused = {operation for operation in used if operation.opcode in ELEMENTWISE}
    return frozenset(fused | _reduced_conversions(operations, root))


def _reduced_conversions(operations: Sequence[HloInstruction], root: HloInstruction) -> set[HloInstruction]:
    """The conversions that only reductions read, be it through views."""
    found: dict[HloInstruction, bool] = {}  # Whether only reductions were seen to read it.
    for operation in reversed(operations):
        for operand in operation.operands:
            reduced = operation.opcode == "reduce" or (operation.opcode in _VIEWS and found.get(operation, False))
            found[operand] = found.get(operand, True) and reduced
    found[root] = False
    return {operation for operation, reduced in found.items() if reduced and operation.opcode == "convert"}
