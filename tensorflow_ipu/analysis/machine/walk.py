"""The walk over a program: computes the time of each operation, over all iterations of the loops around it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensorflow_ipu.analysis.machine import costs
from tensorflow_ipu.analysis.machine.costs import FREE, HOLDERS, cost_of, fused_operations
from tensorflow_ipu.analysis.machine.hlo import Computation, HloInstruction
from tensorflow_ipu.analysis.machine.layers import plain_name
from tensorflow_ipu.analysis.machine.machine import System
from tensorflow_ipu.analysis.machine.sharding import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

# Opcodes that return a scalar operand unchanged.
_PASSING = frozenset({"copy", "reshape", "bitcast", "convert", "broadcast", "opt-barrier"})
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}


@dataclass(frozen=True, eq=False)
class Frame:
    """A call of a computation, with the operations that compute its arguments."""

    computation: Computation
    arguments: tuple[HloInstruction, ...] | None = None
    caller: Frame | None = None
    loop: HloInstruction | None = None

    def enter(self, operation: HloInstruction, computation: Computation) -> Frame:
        """Returns the frame of a computation that an operation of this frame calls."""
        loop = operation if operation.opcode == "while" else None
        return Frame(computation, operation.operands, self, loop)


# The origin of a value: an operation, its frame, and the index of the element if the operation's result is a tuple.
_Origin = tuple[HloInstruction, Frame, int | None]


def _origin(operation: HloInstruction, frame: Frame) -> _Origin:
    """Returns the operation that computes a value, found through tuples, calls, and opcodes in `_PASSING`."""
    while True:
        if operation.opcode == "get-tuple-element":
            source, inner, element = _origin(operation.operands[0], frame)
            if element is not None or source.opcode != "tuple":
                return source, inner, operation.number if element is None else None
            operation, frame = source.operands[operation.number], inner
        elif operation.opcode in _PASSING:
            operation = operation.operands[0]
        elif operation.opcode == "call":
            frame = frame.enter(operation, operation.called[0])
            operation = frame.computation.root
        elif operation.opcode == "parameter" and frame.loop is None and frame.arguments is not None:
            assert frame.caller is not None
            operation, frame = frame.arguments[operation.number], frame.caller
        else:
            return operation, frame, None


def _constant(operation: HloInstruction, frame: Frame) -> int | None:
    """Returns the value of an integer if it is constant in the program."""
    source, frame, element = _origin(operation, frame)
    if source.opcode == "constant":
        return source.constant
    if element is not None:
        return _constant_of_loop(source, frame, element)
    if source.opcode in _FOLDED and len(source.operands) == 2:
        left = _constant(source.operands[0], frame)
        right = _constant(source.operands[1], frame)
        return None if left is None or right is None else _FOLDED[source.opcode](left, right)
    return None


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
}


def _constant_of_loop(source: HloInstruction, frame: Frame, element: int) -> int | None:
    """Returns the value of a loop's element: one that the loop never changes, or the final value of its counter."""
    if source.opcode == "while":  # The value after the loop.
        body = frame.enter(source, source.called[0])
        if _is_invariant(body, element):
            return _begin(body, element)
        # A loop of gradients counts down from the final value of the forward loop's counter.
        begin, step, trips = _begin(body, element), _step(body, element), trip_count(source, frame)
        return None if begin is None or step is None or trips is None else begin + step * trips
    if source.opcode == "parameter" and frame.loop is not None:
        body = Frame(frame.loop.called[0], frame.arguments, frame.caller, frame.loop)
        return _begin(body, element) if _is_invariant(body, element) else None
    return None


def _begin(body: Frame, element: int) -> int | None:
    """Returns the value of a loop's element before the first iteration."""
    assert body.arguments is not None
    assert body.caller is not None
    source, frame, nested = _origin(body.arguments[0], body.caller)
    if nested is not None:
        return None
    if source.opcode == "tuple":
        return _constant(source.operands[element], frame)
    return _constant_of_loop(source, frame, element)


def _root_element(body: Frame, element: int) -> tuple[HloInstruction, Frame] | None:
    """Returns the operation, and its frame, that computes the next value of a loop's element."""
    source, frame, nested = _origin(body.computation.root, body)
    if source.opcode != "tuple" or nested is not None:
        return None
    return source.operands[element], frame


def _is_invariant(body: Frame, element: int) -> bool:
    root = _root_element(body, element)
    if root is None:
        return False
    source, frame, index = _origin(*root)
    return source.opcode == "parameter" and frame.loop is body.loop and index == element


def _step(body: Frame, element: int) -> int | None:
    """Returns the constant that each iteration adds to a loop's element; None if there is none."""
    root = _root_element(body, element)
    if root is None:
        return None
    source, frame, index = _origin(*root)
    if source.opcode not in ("add", "subtract") or index is not None:
        return None
    for counter, increment in (source.operands, source.operands[::-1]):
        carried, inner, index = _origin(counter, frame)
        if carried.opcode == "parameter" and inner.loop is body.loop and index == element:
            step = _constant(increment, frame)
            if source.opcode == "add":
                return step
            return -step if step is not None and counter is source.operands[0] else None
    return None


def trip_count(loop: HloInstruction, frame: Frame) -> int | None:
    """Returns the number of iterations of a `while`, or None if it is known only at run time.

    The condition must compare a counter with a constant, in the form that XLA gives to loops of TensorFlow. The counter
    is an element of the loop's tuple that begins with a constant, and that each iteration increases by a constant:

        i = 2; while i < 10 and not stop: i = i + 3      ->  3 iterations, for i = 2, 5, 8

    All three constants may be computed before the loop, or passed through calls and outer loops. `_origin` finds them.
    The other parts of an `and`, such as `not stop` above, are ignored: the result is then the largest number of
    iterations.
    """
    body, condition = (frame.enter(loop, called) for called in loop.called)
    return _bound(condition.computation.root, condition, body)


def _bound(operation: HloInstruction, condition: Frame, body: Frame) -> int | None:
    """Returns the number of iterations after which this part of a condition becomes false; None if it is unknown."""
    source, frame, element = _origin(operation, condition)
    if element is not None:
        return None
    if source.opcode == "and":
        bounds = [_bound(operand, frame, body) for operand in source.operands]
        return min((bound for bound in bounds if bound is not None), default=None)
    if source.opcode == "constant" and source.constant == 0:
        return 0
    if source.opcode != "compare":
        return None
    left, right = source.operands
    bound = _compared(left, source.direction, right, frame, body)
    return _compared(right, _MIRRORED[source.direction], left, frame, body) if bound is None else bound


def _compared(counter: HloInstruction, direction: str, limit: HloInstruction, frame: Frame, body: Frame) -> int | None:
    source, inner, element = _origin(counter, frame)
    if source.opcode != "parameter" or element is None or inner.loop is not body.loop:
        return None
    begin, step, end = _begin(body, element), _step(body, element), _constant(limit, frame)
    if begin is None or not step or end is None:
        return None
    if direction in ("GT", "GE"):  # A loop that counts down is the mirror image of one that counts up.
        begin, step, end, direction = -begin, -step, -end, _MIRRORED[direction]
    if direction == "NE":
        return (end - begin) // step if (end - begin) % step == 0 and (end - begin) // step >= 0 else None
    if direction not in ("LT", "LE") or step < 0:
        return None
    return max(0, math.ceil((end - begin + (direction == "LE")) / step))


@dataclass(frozen=True)
class OperationTime:
    """The time of an operation in one run of the program, summed over all its iterations.

    Attributes:
      name: The name of the TensorFlow operation, with its name scopes; or else the name in the program.
      kind: The kind of operation, such as `dot`, `infeed` or `all-reduce`.
      shape: The type and shape of the result, such as `f16[16,128]`.
      count: The number of executions.
      compute: Seconds of arithmetic.
      exchange: Seconds of exchange between tiles.
      sync: Seconds of synchronisation.
      links: Seconds on the links between IPUs, and on the links to Streaming Memory.
      host: Seconds on the link to the host.
      flops: Floating-point operations. A multiply-add counts as two.
      host_bytes: Bytes transferred between host and chip.
      plan: The grid of tiles of a matrix product or convolution (rows x columns x depth); else empty.
      source: The line of the user's code, such as `train.py:21`; empty if it is unknown.
      ipu: The IPU of the replica that runs the operation; -1 for all.
      part: The pass of a pipeline, such as `stage 1 backward`; else empty.
    """

    name: str
    kind: str
    shape: str
    count: int
    compute: float = 0.0
    exchange: float = 0.0
    sync: float = 0.0
    links: float = 0.0
    host: float = 0.0
    flops: float = 0.0
    host_bytes: float = 0.0
    plan: str = ""
    source: str = ""
    ipu: int = 0
    part: str = ""

    @property
    def seconds(self) -> float:
        """The sum of all parts, in seconds."""
        return self.compute + self.exchange + self.sync + self.links + self.host

    @property
    def bound(self) -> str:
        """The part that takes the most time: `compute`, `exchange`, `sync`, `links` or `host`."""
        return max(("compute", "exchange", "sync", "links", "host"), key=lambda part: getattr(self, part))


class Walk:
    """Computes the times of a program's operations. `notes` collects the assumptions that it makes."""

    def __init__(
        self,
        system: System,
        replicas: int = 1,
        proportion: float = 0.6,
        trip_counts: Mapping[str, int] | None = None,
        lines: Mapping[str, str] | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._system = system
        self._replicas = replicas
        self._proportion = proportion
        self._trip_counts = dict(trip_counts or {})
        self._lines = dict(lines or {})
        self._placement = placement
        self.notes: dict[str, None] = {}  # An ordered set.
        self.unused_trip_counts = set(self._trip_counts)

    def times(self, program: Computation) -> list[OperationTime]:
        """Returns the times of all operations that take any, in the program's order."""
        return self._computation(Frame(program), 1)

    def _computation(self, frame: Frame, count: int) -> list[OperationTime]:
        if count == 0:
            return []
        fused = fused_operations(frame.computation.operations, frame.computation.root)
        rows: list[OperationTime] = []
        sent: set[tuple[HloInstruction, tuple[int, ...]]] = set()
        for operation in frame.computation.operations:
            opcode = operation.opcode
            if self._placement is not None:
                for received in self._placement.received(operation):
                    copy = received, self._placement.of(operation)
                    if copy not in sent:  # A value that several operations use is sent once.
                        sent.add(copy)
                        rows.append(self._between_ipus(*copy, count))
            if opcode in FREE:
                continue
            if opcode == "while":
                rows += self._loop(operation, frame, count)
            elif opcode == "conditional":
                rows += self._branches(operation, frame, count)
            elif opcode in HOLDERS:
                for called in operation.called:
                    rows += self._computation(frame.enter(operation, called), count)
            elif opcode == "custom-call":
                rows += self._call(operation, count)
            else:
                rows += self._operation(operation, count, operation in fused)
        return rows

    def _loop(self, loop: HloInstruction, frame: Frame, count: int) -> list[OperationTime]:
        trips = trip_count(loop, frame)
        if trips is None:
            trips = self._specified_trips(loop.title)
        body, condition = (frame.enter(loop, called) for called in loop.called)
        rows = self._computation(condition, count * (trips + 1)) + self._computation(body, count * trips)
        if self._placement is not None and trips:
            carried = self._placement.carried_over(loop)
            rows += [self._between_ipus(value, ipus, count * trips) for ipus, value in carried]
        return rows

    def _specified_trips(self, name: str) -> int:
        for key, trips in self._trip_counts.items():
            if key in (name, "*"):
                self.unused_trip_counts.discard(key)
                return trips
        self.notes[
            f"loop `{name}`: the number of iterations is known only at run time; all figures are for one iteration"
            f" (set the number with `trip_counts={{{name!r}: n}}`)"
        ] = None
        return 1

    def _branches(self, operation: HloInstruction, frame: Frame, count: int) -> list[OperationTime]:
        branches = [self._computation(frame.enter(operation, called), count) for called in operation.called]
        name = plain_name(operation.title)
        self.notes[f"conditional `{name}`: the slowest of its {len(branches)} branches is assumed to run"] = None
        return max(branches, key=lambda rows: sum(row.seconds for row in rows), default=[])

    def _call(self, operation: HloInstruction, count: int) -> list[OperationTime]:
        target = operation.target
        if target in costs.IDLE_CALLS:
            return []
        if target in costs.HOST_CALLS:
            moved = costs.host_bytes(operation)
            kind = "infeed" if target == costs.INFEED else "outfeed"
            seconds = moved / self._system.host_bytes_per_second
            return [self._row(operation, kind, count, host=seconds, host_bytes=moved)]
        if target == costs.COLLECTIVE:
            seconds = costs.collective_seconds(operation, self._system, self._replicas)
            return [self._row(operation, costs.collective_kind(operation), count, links=seconds)] if seconds else []
        return self._operation(operation, count, False)

    def _between_ipus(self, sent: HloInstruction, to: tuple[int, ...], count: int) -> OperationTime:
        seconds = sent.shape.bytes / self._system.link_bytes_per_second + self._system.link_latency_seconds
        return replace(self._row(sent, "inter-ipu-copy", count, links=seconds), ipu=to[0])

    def _operation(self, operation: HloInstruction, count: int, fused: bool) -> list[OperationTime]:
        machine = self._system.machine
        cost = cost_of(operation, machine, self._proportion, fused)
        if not cost.known:
            name = plain_name(operation.scope) if operation.opcode == "custom-call" else operation.opcode
            self.notes[f"operation `{name or 'custom call'}`: unsupported, and costed as a copy"] = None
        if not cost.cycles:
            return []
        hertz = machine.clock_hz
        parts = {"compute": cost.compute / hertz, "exchange": cost.exchange / hertz, "sync": cost.sync / hertz}
        return [self._row(operation, operation.opcode, count, cost.plan, flops=cost.flops, **parts)]

    def _row(self, operation: HloInstruction, kind: str, count: int, plan: str = "", **parts: float) -> OperationTime:
        """Returns the row of an operation that runs `count` times, from the cost of one run."""
        ipu = 0 if self._placement is None else self._placement.of(operation)[0]
        source = self._lines.get(operation.scope, "")
        row = OperationTime(operation.title, kind, str(operation.shape), count, plan=plan, source=source, ipu=ipu)
        return replace(row, **{part: count * value for part, value in parts.items()})
