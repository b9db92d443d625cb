"""What one operation of a program takes on the machine, in cycles and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorflow_ipu import _poplar_options
from tensorflow_ipu.machine._grids import Grid, best_grid
from tensorflow_ipu.machine._hlo import HloInstruction
from tensorflow_ipu.machine._machine import Machine
from tensorflow_ipu.machine._opcodes import (
    ELEMENTWISE,
    FREE,
    FUNCTIONS,
    LOCAL,
    MOVING,
    PRODUCTS,
    REDUCING,
    UPDATING,
    WINDOWED,
)


@dataclass(frozen=True)
class Cost:
    """What one run of an operation takes, all in cycles but where it says otherwise.

    Attributes:
      compute: Cycles of arithmetic and of moves within a tile.
      exchange: Cycles of moves between tiles.
      sync: Cycles of synchronisation.
      flops: Operations of arithmetic (no cycles), a multiply-add being two.
      plan: How it is divided among the tiles, where that was searched for.
      known: Whether this operation is known; one that is not is taken for a move of its result.
    """

    compute: float = 0.0
    exchange: float = 0.0
    sync: float = 0.0
    flops: float = 0.0
    plan: str = ""
    known: bool = True

    @property
    def cycles(self) -> float:
        """All of them: nothing of the three overlaps on a tile."""
        return self.compute + self.exchange + self.sync


_NOTHING = Cost()


def cost_of(operation: HloInstruction, machine: Machine, proportion: float, fused: bool = False) -> Cost:
    """Costs one operation, with its data spread evenly over the tiles.

    Args:
      operation: The operation, which holds no computation and is no call of the host.
      machine: The IPU.
      proportion: `availableMemoryProportion` of products.
      fused: Whether it runs as a part of the operations that use its result, as one vertex.
    """
    opcode = operation.opcode
    if opcode in FREE or _is_view(operation):
        return _NOTHING
    if opcode in PRODUCTS:
        return _product(operation, machine, proportion)
    if opcode in ELEMENTWISE:
        return _elementwise(operation, machine, fused)
    if opcode in REDUCING:
        return _reduction(operation, machine)
    if opcode == "sort":
        return _sort(operation, machine)
    return _move(operation, machine)


def grid_of(operation: HloInstruction, machine: Machine, proportion: float) -> Grid:
    """How a product is divided among the tiles, by its own options where it has any (`scopes.poplar_options`)."""
    own = operation.attribute(_poplar_options.attribute_of(_poplar_options.PROPORTION))
    partials = operation.attribute(_poplar_options.attribute_of(_poplar_options.PARTIALS))
    product = operation.product
    halved = partials == "half" and product.item_bytes <= 2  # Products of float32 have no smaller sums.
    return best_grid(product, machine, proportion if own is None else float(own), 2 if halved else 4)


def _is_view(operation: HloInstruction) -> bool:
    """Whether an operation leaves all elements as they are: a transpose in their order, a conversion in their type."""
    if operation.opcode == "convert":
        return operation.shape.dtype == operation.operands[0].shape.dtype
    if operation.opcode != "transpose":
        return False
    sizes = operation.operands[0].shape.dimensions
    moved = [at for at in operation.permutation if sizes[at] != 1]
    return moved == sorted(moved)


def _product(operation: HloInstruction, machine: Machine, proportion: float) -> Cost:
    product = operation.product
    grid = grid_of(operation, machine, proportion)
    return Cost(
        compute=grid.compute,
        exchange=grid.exchange,
        sync=grid.phases * machine.sync_cycles,
        flops=2.0 * product.macs,
        plan=str(grid),
    )


def _elementwise(operation: HloInstruction, machine: Machine, fused: bool) -> Cost:
    shape = operation.shape
    item = max([shape.item_bytes, *(each.shape.item_bytes for each in operation.operands)], default=4)
    rate = machine.functions(item) if operation.opcode in FUNCTIONS else machine.elements(item)
    elements = _share(shape.elements, machine)
    return Cost(elements / rate, sync=0.0 if fused else machine.sync_cycles, flops=shape.elements)


def _reduction(operation: HloInstruction, machine: Machine) -> Cost:
    source, result = operation.operands[0].shape, operation.shape
    elements = source.elements
    if operation.opcode in WINDOWED:
        elements = max(source.elements, operation.window_elements * min(result.elements, source.elements))
    received = min(source.bytes, 8 * result.bytes) / machine.compute_tiles
    return Cost(
        _share(elements, machine) / machine.elements(source.item_bytes or 4),
        received / machine.exchange_bytes,
        2 * machine.sync_cycles,
        flops=elements,
    )


def _sort(operation: HloInstruction, machine: Machine) -> Cost:
    """A bitonic network: log2(n) * (log2(n) + 1) / 2 rounds, each of which exchanges all and compares it."""
    source = operation.operands[0].shape
    longest = max(source.dimensions, default=1)
    levels = max(1, math.ceil(math.log2(max(2, longest))))
    rounds = levels * (levels + 1) // 2
    moved = sum(each.shape.bytes for each in operation.operands) / machine.compute_tiles
    return Cost(
        rounds * _share(source.elements, machine) / machine.elements(source.item_bytes or 4),
        rounds * moved / machine.exchange_bytes,
        rounds * machine.sync_cycles,
        flops=rounds * source.elements,
    )


def _move(operation: HloInstruction, machine: Machine) -> Cost:
    opcode = operation.opcode
    moved = sum(each.shape.bytes for each in operation.operands[1:]) if opcode in UPDATING else operation.shape.bytes
    bytes_of_tile = moved / machine.compute_tiles
    local = opcode in LOCAL
    return Cost(
        bytes_of_tile / machine.copy_bytes,
        0.0 if local else bytes_of_tile / machine.exchange_bytes,
        0.0 if local else machine.sync_cycles,
        known=local or opcode in MOVING,
    )


def _share(elements: int, machine: Machine) -> int:
    """The elements of the tile that has most."""
    return math.ceil(elements / machine.compute_tiles)
