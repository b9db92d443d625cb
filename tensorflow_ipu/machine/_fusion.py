"""Which elementwise operations run as a part of others, and keep no result in memory."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow_ipu.machine._hlo import Operation
from tensorflow_ipu.machine._opcodes import ELEMENTWISE


def fused_operations(operations: Sequence[Operation], root: Operation) -> frozenset[Operation]:
    """The elementwise operations whose results only elementwise operations of as many elements use.

    The machine's compiler makes one expression of such a tree, and one vertex of the expression.

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
    return frozenset(operation for operation in used if operation.opcode in ELEMENTWISE)
