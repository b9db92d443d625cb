"""The cost of one operation on the machine, in cycles and bytes."""

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

# The matrix unit computes blocks of 16 outputs.
_OUTPUTS = 16
# Cycles of the matrix unit besides its arithmetic: for each block of 16 x 16 weights, and for each call.
_BLOCK_CYCLES = 20
_CALL_CYCLES = 300
# A tile adds this number of elements of other tiles' partial sums in a cycle.
_REDUCED_ELEMENTS = 2
# The serial splits to evaluate: of the rows, or of the columns.
_ROW_SPLITS = (1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64)
_COLUMN_SPLITS = (1, 2, 4, 8, 16, 32, 64, 1, 1, 1, 1, 1, 1)


@dataclass(frozen=True)
class Grid:
    """A partition of a matrix product among tiles, with its cost in cycles and bytes."""

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
    """Returns the grid of tiles on which a product takes the fewest cycles and fits `proportion` of a tile's memory.

    A grid cuts the product into rows x columns x depth parts, one part a tile, and runs it in `splits` serial steps.
    Tiles that share a part of the output each compute a partial sum over their part of the depth, and then exchange and
    add these sums. For example, `8 x 4 x 2` takes 64 tiles, and each pair of tiles adds two partial sums.

    All combinations of the candidate splits, depths and columns are evaluated at once, as numpy arrays of three axes;
    rows take the remaining tiles. If no grid fits the memory, the result is the one that needs the least.
    """
    item = product.item_bytes
    inputs = _OUTPUTS if item <= 2 else _OUTPUTS // 2  # A block has half as many inputs in float32.
    tiles = machine.compute_tiles
    rows = product.groups * product.rows
    row_splits, column_splits = (np.array(splits)[:, None, None] for splits in (_ROW_SPLITS, _COLUMN_SPLITS))
    splits = row_splits * column_splits
    depths = _part_counts(min(tiles, _divided(product.depth, inputs)))[None, :, None]
    columns = _part_counts(_divided(product.columns, _OUTPUTS))[None, None, :]
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
    objective = np.where(fits, cycles, np.inf) if fits.any() else np.where(used <= tiles, memory, np.inf)
    best = np.unravel_index(int(np.argmin(objective)), objective.shape)

    def value_of(values: ArrayLike) -> float:
        return float(np.broadcast_to(values, objective.shape)[best])

    count = int(value_of(splits))
    return Grid(
        rows=int(value_of(parts)),
        columns=int(value_of(columns)),
        depth=int(value_of(depths)),
        splits=count,
        compute=count * value_of(compute),
        exchange=count * value_of(exchange),
        phases=count * int(value_of(phases)),
        tile_bytes=int(value_of(memory)),
        fits=bool(value_of(fits)),
        temporary_bytes=int(value_of(memory)) * min(tiles, int(value_of(parts) * value_of(used))),
    )


def _part_counts(limit: int) -> NDArray[np.int64]:
    """Returns counts of parts to evaluate, up to a limit: powers of two, three times these, and the limit itself."""
    limit = max(1, limit)
    counts = {factor << power for power in range(16) for factor in (1, 3) if factor << power <= limit}
    return np.array(sorted(counts | {limit}), np.int64)


def _divided(value: Any, parts: Any) -> Any:
    return -(-value // parts)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Opcodes that take no time: they only name existing data.
FREE = _words("""
    parameter constant tuple get-tuple-element bitcast reshape iota after-all opt-barrier broadcast add-dependency
    get-dimension-size set-dimension-size partition-id replica-id domain
""")
# Opcodes whose result shares the memory of the first operand. A transpose is a view, which its readers rearrange.
NAMING = _words("bitcast reshape broadcast transpose opt-barrier copy set-dimension-size domain")
# Opcodes that call computations. The operations of these are costed separately.
HOLDERS = _words("while call conditional fusion map")
# Opcodes that the matrix units run.
PRODUCTS = _words("dot convolution")
# Opcodes that compute a transcendental or other slow function of each element.
FUNCTIONS = _words("""
    exponential exponential-minus-one log log-plus-one tanh tan sqrt rsqrt cbrt power sine cosine logistic divide
    remainder erf atan2 rng rng-bit-generator
""")
# Opcodes that compute each element of the result separately.
ELEMENTWISE = FUNCTIONS | _words("""
    add subtract multiply maximum minimum negate abs sign compare select and or xor not convert clamp ceil floor
    round-nearest-afz round-nearest-even shift-left shift-right-arithmetic shift-right-logical is-finite popcnt
    count-leading-zeros complex real imag reduce-precision bitcast-convert stochastic-convert
""")
WINDOWED = _words("reduce-window select-and-scatter")
REDUCING = WINDOWED | {"reduce"}
# Opcodes that move data within a tile.
LOCAL = _words("copy slice")
# Opcodes that move data between tiles.
MOVING = _words("""
    transpose pad concatenate reverse dynamic-slice dynamic-update-slice gather scatter dynamic-reshape
""")
# Opcodes that overwrite a part of their first operand.
UPDATING = _words("dynamic-update-slice scatter")
# Opcodes whose result may reuse the memory of an operand without later readers.
IN_PLACE = ELEMENTWISE | UPDATING


@dataclass(frozen=True)
class Cost:
    """The cost of one execution of an operation, in cycles, except for `flops`."""

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
    """Returns the cost of one execution of an operation whose data are spread evenly over the tiles."""
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
    """Returns the grid of a product. The operation's own `scopes.poplar_options` take precedence over `proportion`."""
    option = operation.attribute(poplar_options.attribute_of(poplar_options.PROPORTION))
    partials = operation.attribute(poplar_options.attribute_of(poplar_options.PARTIALS))
    product = operation.product
    halved = partials == "half" and product.item_bytes <= 2  # Partial sums of float32 products are always float32.
    return best_grid(product, machine, proportion if option is None else float(option), 2 if halved else 4)


def _is_view(operation: HloInstruction) -> bool:
    """Returns True if an operation moves and converts nothing.

    Examples are a conversion to the same type, and a transpose that only moves dimensions of size 1.
    """
    if operation.opcode == "convert":
        return operation.shape.dtype == operation.operands[0].shape.dtype
    if operation.opcode != "transpose":
        return False
    sizes = operation.operands[0].shape.dimensions
    dimensions = [dimension for dimension in operation.permutation if sizes[dimension] != 1]
    return dimensions == sorted(dimensions)


def _elementwise(operation: HloInstruction, machine: Machine, fused: bool) -> Cost:
    shape = operation.shape
    item = max([shape.item_bytes, *(operand.shape.item_bytes for operand in operation.operands)], default=4)
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
    """Returns the cost of a bitonic network.

    It has log2(n) * (log2(n) + 1) / 2 rounds, and each round exchanges and compares all elements.
    """
    source = operation.operands[0].shape
    longest = max(source.dimensions, default=1)
    levels = max(1, math.ceil(math.log2(max(2, longest))))
    rounds = levels * (levels + 1) // 2
    moved = sum(operand.shape.bytes for operand in operation.operands) / machine.compute_tiles
    compute = rounds * _share(source.elements, machine) / machine.elements(source.item_bytes or 4)
    exchange, sync = rounds * moved / machine.exchange_bytes, rounds * machine.sync_cycles
    return Cost(compute, exchange, sync, flops=rounds * source.elements)


def _move(operation: HloInstruction, machine: Machine) -> Cost:
    opcode = operation.opcode
    moved = (
        sum(operand.shape.bytes for operand in operation.operands[1:]) if opcode in UPDATING else operation.shape.bytes
    )
    bytes_of_tile = moved / machine.compute_tiles
    compute = bytes_of_tile / machine.copy_bytes
    if opcode in LOCAL:
        return Cost(compute)
    return Cost(compute, bytes_of_tile / machine.exchange_bytes, machine.sync_cycles, known=opcode in MOVING)


def _share(elements: int, machine: Machine) -> int:
    """Returns the number of elements on the fullest tile."""
    return math.ceil(elements / machine.compute_tiles)


_VIEWS = frozenset({"reshape", "bitcast", "transpose"})


def fused_operations(operations: Sequence[HloInstruction], root: HloInstruction) -> frozenset[HloInstruction]:
    """Returns the elementwise operations that are computed inside the operations that read them.

    An elementwise operation is fused if all its readers are elementwise operations of the same number of elements. A
    conversion is also fused if only reductions read it.
    """
    unfused = {root}
    for operation in operations:
        if operation.opcode not in ELEMENTWISE:
            unfused.update(operation.operands)
            continue
        elements = operation.shape.elements
        unfused.update(operand for operand in operation.operands if operand.shape.elements != elements)
    used = {operand for operation in operations for operand in operation.operands} - unfused
    fused = {operation for operation in used if operation.opcode in ELEMENTWISE}
    return frozenset(fused | _reduced_conversions(operations, root))


def _reduced_conversions(operations: Sequence[HloInstruction], root: HloInstruction) -> set[HloInstruction]:
    """Returns the conversions whose only readers are reductions, possibly through views."""
    only_reduced: dict[HloInstruction, bool] = {}  # True as long as all readers so far are reductions.
    for operation in reversed(operations):
        for operand in operation.operands:
            is_view = operation.opcode in _VIEWS
            is_reduced = operation.opcode == "reduce" or (is_view and only_reduced.get(operation, False))
            only_reduced[operand] = only_reduced.get(operand, True) and is_reduced
    only_reduced[root] = False
    return {operation for operation, is_reduced in only_reduced.items() if is_reduced and operation.opcode == "convert"}


INFEED = "ipu_infeed_dequeue"
OUTFEED = "ipu_outfeed_enqueue"
COLLECTIVE = "ipu_collective"
HOST_CALLS = frozenset({INFEED, OUTFEED})
# The type of state variables and tokens, which no element of a queue has.
_STATE = Shape("s64", (4,))
# Custom calls that only pass a few bytes. The cost of random values is that of the operations that draw them.
IDLE_CALLS = frozenset({"ipu_random_seed", "ipu_random_stream", "ipu_replica_index"})

# The kinds of collectives, in the order of their numbers in a program. Each has a name, and a function from the number
# of replicas in a ring to the data that a replica sends, as a multiple of its operand.
_KINDS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("all-reduce", lambda ranks: 2 * (ranks - 1) / ranks),
    ("all-gather", lambda ranks: ranks - 1),
    ("reduce-scatter", lambda ranks: (ranks - 1) / ranks),
    ("all-to-all", lambda ranks: (ranks - 1) / ranks),
    ("broadcast", lambda _: 1.0),
)

_GATHER = [name for name, factor in _KINDS].index("all-gather")


def collective_kind(operation: HloInstruction) -> str:
    """Returns the kind of a collective, such as `all-reduce`."""
    return _KINDS[operation.attributes.get("kind", 0)][0]


def collective_seconds(operation: HloInstruction, system: System, replicas: int) -> float:
    """Returns the time of a collective: each group of replicas forms a ring."""
    attributes = operation.attributes
    ranks = min(attributes.get("group_size", 0) or replicas, replicas)
    size = _data_bytes(operand.shape for operand in operation.operands)
    return _ring_seconds(attributes.get("kind", 0), size, ranks, system)


def gather_seconds(size: float, replicas: int, system: System) -> float:
    """Returns the time of gathering `size` bytes that are divided among the replicas."""
    return _ring_seconds(_GATHER, size / replicas, replicas, system)


def _ring_seconds(kind: int, size: float, ranks: int, system: System) -> float:
    if ranks < 2:
        return 0.0
    share = _KINDS[kind][1]
    inside = min(ranks, system.ipus_of_pod)
    seconds = share(inside) * size / system.link_bytes_per_second + 2 * (inside - 1) * system.link_latency_seconds
    pods = math.ceil(ranks / system.ipus_of_pod)
    if pods > 1:
        seconds += share(pods) * size / inside / system.gateway_bytes_per_second
    return seconds


def host_bytes(operation: HloInstruction) -> int:
    """Returns the bytes that a feed's call transfers between host and chip, without state variables and tokens."""
    is_infeed = operation.target == INFEED
    return _data_bytes(operation.shape.parts if is_infeed else (operand.shape for operand in operation.operands))


def _data_bytes(shapes: Iterable[Shape]) -> int:
    return sum(shape.bytes for shape in shapes if shape != _STATE)
