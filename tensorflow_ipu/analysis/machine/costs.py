"""What one operation of a program takes on the machine, in cycles and bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorflow_ipu._base import poplar_options
from tensorflow_ipu.analysis.machine.hlo import HloInstruction, Product, Shape
from tensorflow_ipu.analysis.machine.machine import Machine, System

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# The grain of the matrix unit: outputs, and inputs by the bytes of an element.
_OUTPUTS = 16
# Cycles that a call of the matrix unit costs beside its arithmetic: by block of 16 x 16 weights, and once.
_BLOCK_CYCLES = 20
_CALL_CYCLES = 300
# Partial sums of other tiles are added so many elements a cycle.
_REDUCED_ELEMENTS = 2
# Serial splits worth trying: of the rows, and of the columns.
_ROW_SPLITS = (1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64)
_COLUMN_SPLITS = (1, 2, 4, 8, 16, 32, 64, 1, 1, 1, 1, 1, 1)


@dataclass(frozen=True)
class Grid:
    """A division of a product among tiles, with its cost."""

    rows: int
    columns: int
    depth: int
    splits: int
    compute: float
    exchange: float
    phases: int
    tile_bytes: int
    fits: bool
    temporary_bytes: int

    def __str__(self) -> str:
        serial = f", {self.splits} serial" if self.splits > 1 else ""
        return f"{self.rows} x {self.columns} x {self.depth}{serial}"


@functools.lru_cache(maxsize=65536)
def best_grid(product: Product, machine: Machine, proportion: float, partial_bytes: int = 4) -> Grid:
    """Finds the grid of tiles on which a product takes the fewest cycles."""
    item = product.item_bytes
    inputs = _OUTPUTS if item <= 2 else _OUTPUTS // 2  # Bytes of a float16.
    tiles = machine.compute_tiles
    rows = product.groups * product.rows
    row_splits, column_splits = (np.array(each)[:, None, None] for each in (_ROW_SPLITS, _COLUMN_SPLITS))
    splits = row_splits * column_splits
    depths = _divisors_like(min(tiles, _divided(product.depth, inputs)))[None, :, None]
    columns = _divisors_like(_divided(product.columns, _OUTPUTS))[None, None, :]
    used = depths * columns
    split_rows = _divided(rows, row_splits)
    parts = np.clip(tiles // np.maximum(used, 1), 1, split_rows)
    part_rows = _divided(split_rows, parts)
    part_columns = _divided(_divided(_divided(product.columns, column_splits), columns), _OUTPUTS) * _OUTPUTS
    part_depth = _divided(_divided(product.depth, depths), inputs) * inputs
    weights = part_columns * part_depth
    compute = part_rows * weights / machine.macs(item) + weights * item / machine.weight_bytes
    compute = compute + (part_columns / _OUTPUTS) * (part_depth / _OUTPUTS) * _BLOCK_CYCLES + _CALL_CYCLES
    exchange = (part_rows * part_depth + weights) * item / machine.exchange_bytes
    results = part_rows * part_columns
    several = depths > 1
    share = _divided(results, depths)
    compute = compute + np.where(several, results / _REDUCED_ELEMENTS, 0)
    exchange = exchange + np.where(several, (depths - 1) * share * partial_bytes / machine.exchange_bytes, 0)
    memory = (part_rows * part_depth + weights) * item + results * partial_bytes
    phases = 2 + several
    cycles = splits * (compute + exchange + phases * machine.sync_cycles)
    fits = (memory <= proportion * machine.tile_bytes) & (used <= tiles)
    chosen = np.where(fits, cycles, np.inf) if fits.any() else np.where(used <= tiles, memory, np.inf)
    at = np.unravel_index(int(np.argmin(chosen)), chosen.shape)

    def of(values: ArrayLike) -> float:
        return float(np.broadcast_to(values, chosen.shape)[at])

    count = int(of(splits))
    return Grid(
        rows=int(of(parts)),
        columns=int(of(columns)),
        depth=int(of(depths)),
        splits=count,
        compute=count * of(compute),
        exchange=count * of(exchange),
        phases=count * int(of(phases)),
        tile_bytes=int(of(memory)),
        fits=bool(of(fits)),
        temporary_bytes=int(of(memory)) * min(tiles, int(of(parts) * of(used))),
    )


def _divisors_like(limit: int) -> NDArray[np.int64]:
    """Returns numbers of parts worth trying up to a limit: powers of two, three times these, and the limit."""
    limit = max(1, limit)
    found = {each << power for power in range(16) for each in (1, 3) if each << power <= limit}
    return np.array(sorted(found | {limit}), np.int64)


def _divided(value: Any, parts: Any) -> Any:
    return -(-value // parts)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They only name what is there already.
FREE = _words("""
    parameter constant tuple get-tuple-element bitcast reshape iota after-all opt-barrier broadcast add-dependency
    get-dimension-size set-dimension-size partition-id replica-id domain
""")
# Their results are (parts of) their first operand, as far as memory goes: a transpose is another view of it, which what
# reads it arranges anew.
NAMING = _words("bitcast reshape broadcast transpose opt-barrier copy set-dimension-size domain")
# They hold other computations, which are costed by themselves.
HOLDERS = _words("while call conditional fusion map")
# The matrix units run them.
PRODUCTS = _words("dot convolution")
# A function of each element.
FUNCTIONS = _words("""
    exponential exponential-minus-one log log-plus-one tanh tan sqrt rsqrt cbrt power sine cosine logistic divide
    remainder erf atan2 rng rng-bit-generator
""")
# Arithmetic on each element.
ELEMENTWISE = FUNCTIONS | _words("""
    add subtract multiply maximum minimum negate abs sign compare select and or xor not convert clamp ceil floor
    round-nearest-afz round-nearest-even shift-left shift-right-arithmetic shift-right-logical is-finite popcnt
    count-leading-zeros complex real imag reduce-precision bitcast-convert stochastic-convert
""")
WINDOWED = _words("reduce-window select-and-scatter")
REDUCING = WINDOWED | {"reduce"}
# They move data within a tile.
LOCAL = _words("copy slice")
# They move data between tiles.
MOVING = _words("""
    transpose pad concatenate reverse dynamic-slice dynamic-update-slice gather scatter dynamic-reshape
""")
# They write a part of their first operand, which stays where it is.
UPDATING = _words("dynamic-update-slice scatter")
# Their results may lie where an operand lay that nobody reads later.
IN_PLACE = ELEMENTWISE | UPDATING


@dataclass(frozen=True)
class Cost:
    """The cost of one run of an operation, in cycles unless a name says otherwise."""

    compute: float = 0.0
    exchange: float = 0.0
    sync: float = 0.0
    flops: float = 0.0
    plan: str = ""
    known: bool = True

    @property
    def cycles(self) -> float:
        return self.compute + self.exchange + self.sync


_NOTHING = Cost()


def cost_of(operation: HloInstruction, machine: Machine, proportion: float, fused: bool = False) -> Cost:
    """Returns the cost of an operation whose data are spread evenly over the tiles."""
    opcode = operation.opcode
    if opcode in FREE or _is_view(operation):
        return _NOTHING
    if opcode in PRODUCTS:
        grid = grid_of(operation, machine, proportion)
        sync = grid.phases * machine.sync_cycles
        return Cost(grid.compute, grid.exchange, sync, flops=2.0 * operation.product.macs, plan=str(grid))
    if opcode in ELEMENTWISE:
        return _elementwise(operation, machine, fused)
    cost = _reduction if opcode in REDUCING else _sort if opcode == "sort" else _move
    return cost(operation, machine)


def grid_of(operation: HloInstruction, machine: Machine, proportion: float) -> Grid:
    """Returns the division of a product among tiles, by its own options if it has any (`scopes.poplar_options`)."""
    own = operation.attribute(poplar_options.attribute_of(poplar_options.PROPORTION))
    partials = operation.attribute(poplar_options.attribute_of(poplar_options.PARTIALS))
    product = operation.product
    halved = partials == "half" and product.item_bytes <= 2  # Products of float32 have no smaller sums.
    return best_grid(product, machine, proportion if own is None else float(own), 2 if halved else 4)


def _is_view(operation: HloInstruction) -> bool:
    """Returns True if elements keep their places and types: a transpose in order, a conversion to the same type."""
    if operation.opcode == "convert":
        return operation.shape.dtype == operation.operands[0].shape.dtype
    if operation.opcode != "transpose":
        return False
    sizes = operation.operands[0].shape.dimensions
    moved = [at for at in operation.permutation if sizes[at] != 1]
    return moved == sorted(moved)


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
    compute = _share(elements, machine) / machine.elements(source.item_bytes or 4)
    return Cost(compute, received / machine.exchange_bytes, 2 * machine.sync_cycles, flops=elements)


def _sort(operation: HloInstruction, machine: Machine) -> Cost:
    """Returns the cost of a bitonic network: log2(n) * (log2(n) + 1) / 2 rounds, each of which exchanges and compares all."""
    source = operation.operands[0].shape
    longest = max(source.dimensions, default=1)
    levels = max(1, math.ceil(math.log2(max(2, longest))))
    rounds = levels * (levels + 1) // 2
    moved = sum(each.shape.bytes for each in operation.operands) / machine.compute_tiles
    compute = rounds * _share(source.elements, machine) / machine.elements(source.item_bytes or 4)
    exchange, sync = rounds * moved / machine.exchange_bytes, rounds * machine.sync_cycles
    return Cost(compute, exchange, sync, flops=rounds * source.elements)


def _move(operation: HloInstruction, machine: Machine) -> Cost:
    opcode = operation.opcode
    moved = sum(each.shape.bytes for each in operation.operands[1:]) if opcode in UPDATING else operation.shape.bytes
    bytes_of_tile = moved / machine.compute_tiles
    compute = bytes_of_tile / machine.copy_bytes
    if opcode in LOCAL:
        return Cost(compute)
    return Cost(compute, bytes_of_tile / machine.exchange_bytes, machine.sync_cycles, known=opcode in MOVING)


def _share(elements: int, machine: Machine) -> int:
    """Returns the elements of the fullest tile."""
    return math.ceil(elements / machine.compute_tiles)


_VIEWS = frozenset({"reshape", "bitcast", "transpose"})


def fused_operations(operations: Sequence[HloInstruction], root: HloInstruction) -> frozenset[HloInstruction]:
    """Returns the elementwise operations that are computed as a part of the operations that read them."""
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
    """Returns the conversions that only reductions read, possibly through views."""
    found: dict[HloInstruction, bool] = {}  # Whether only reductions were seen to read it.
    for operation in reversed(operations):
        for operand in operation.operands:
            reduced = operation.opcode == "reduce" or (operation.opcode in _VIEWS and found.get(operation, False))
            found[operand] = found.get(operand, True) and reduced
    found[root] = False
    return {operation for operation, reduced in found.items() if reduced and operation.opcode == "convert"}


INFEED = "ipu_infeed_dequeue"
OUTFEED = "ipu_outfeed_enqueue"
COLLECTIVE = "ipu_collective"
HOST_CALLS = frozenset({INFEED, OUTFEED})
# What names a queue to a call, and the order of the program's calls. No element has this type.
_STATE = Shape("s64", (4,))
# They pass nothing but a few words: random numbers are drawn, and costed, by what is given the seed or the stream.
IDLE_CALLS = frozenset({"ipu_random_seed", "ipu_random_stream", "ipu_replica_index"})

# Kinds of collectives in the order of their numbers in a program: a name, and how many times its data a replica
# sends in a ring of so many.
_KINDS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("all-reduce", lambda ranks: 2 * (ranks - 1) / ranks),
    ("all-gather", lambda ranks: ranks - 1),
    ("reduce-scatter", lambda ranks: (ranks - 1) / ranks),
    ("all-to-all", lambda ranks: (ranks - 1) / ranks),
    ("broadcast", lambda _: 1.0),
)

_GATHER = next(number for number, (name, _) in enumerate(_KINDS) if name == "all-gather")


def collective_kind(operation: HloInstruction) -> str:
    """Returns the kind of a collective, such as `all-reduce`."""
    return _KINDS[operation.attributes.get("kind", 0)][0]


def collective_seconds(operation: HloInstruction, system: System, replicas: int) -> float:
    """Returns the time of a collective in a ring of the replicas of its groups."""
    attributes = operation.attributes
    ranks = min(attributes.get("group_size", 0) or replicas, replicas)
    size = _data_bytes(each.shape for each in operation.operands)
    return _ring_seconds(attributes.get("kind", 0), size, ranks, system)


def gather_seconds(size: float, replicas: int, system: System) -> float:
    """The time in which replicas gather data that are divided among them."""
    return _ring_seconds(_GATHER, size / replicas, replicas, system)


def _ring_seconds(kind: int, size: float, ranks: int, system: System) -> float:
    if ranks < 2:  # A replica that is alone.
        return 0.0
    share = _KINDS[kind][1]
    inside = min(ranks, system.ipus_of_pod)
    seconds = share(inside) * size / system.link_bytes_per_second + 2 * (inside - 1) * system.link_latency_seconds
    pods = math.ceil(ranks / system.ipus_of_pod)
    if pods > 1:
        seconds += share(pods) * size / inside / system.gateway_bytes_per_second
    return seconds


def host_bytes(operation: HloInstruction) -> int:
    """Returns the bytes that a feed's call passes between host and chip, without state variables and tokens."""
    given = operation.target == INFEED
    return _data_bytes(operation.shape.parts if given else (each.shape for each in operation.operands))


def _data_bytes(shapes: Iterable[Shape]) -> int:
    return sum(shape.bytes for shape in shapes if shape != _STATE)
