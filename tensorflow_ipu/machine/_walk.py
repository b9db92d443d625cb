"""Goes through a program as it would run, and sums up what its operations take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorflow_ipu.machine import _links
from tensorflow_ipu.machine._costs import cost_of
from tensorflow_ipu.machine._fusion import fused_operations
from tensorflow_ipu.machine._hlo import Computation, HloInstruction
from tensorflow_ipu.machine._opcodes import FREE, HOLDERS
from tensorflow_ipu.machine._sharding import Placement
from tensorflow_ipu.machine._system import System
from tensorflow_ipu.machine._trip_counts import Frame, trip_count


@dataclass(frozen=True)
class OperationTime:
    """What an operation takes in one run of the program, over all its iterations.

    Attributes:
      name: The TensorFlow operation that it comes from, with its name scopes; else its name in the program.
      kind: What it does, such as `dot`, `infeed` or `all-reduce`.
      shape: Of its result, such as `f16[16,128]`.
      count: How often it runs.
      compute: Seconds of arithmetic.
      exchange: Seconds of moves between tiles.
      sync: Seconds of synchronisation.
      links: Seconds on the links between IPUs, and on those to the memory beside them.
      host: Seconds on the link to the host.
      flops: Operations of arithmetic, a multiply-add being two.
      host_bytes: Bytes between host and chip.
      plan: How it is divided among the tiles (rows x columns x depth), where that was searched for.
      source: The user's line behind it, such as `train.py:21`, where that is known.
      ipu: The IPU of the replica that runs it.
      part: Of a pipeline, whose it is, such as `stage 1 backward`.
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
        """All of it."""
        return self.compute + self.exchange + self.sync + self.links + self.host

    @property
    def bound(self) -> str:
        """What takes the most of its time: `compute`, `exchange`, `sync`, `links` or `host`."""
        return max(("compute", "exchange", "sync", "links", "host"), key=lambda part: getattr(self, part))


class Walk:
    """The times of a program's operations; what is told of them besides is in `notes`."""

    def __init__(
        self,
        system: System,
        *,
        replicas: int = 1,
        proportion: float = 0.6,
        trip_counts: Mapping[str, int] | None = None,
        lines: Mapping[str, str] | None = None,
        placement: Placement | None = None,
    ) -> None:
        """Prepares a walk.

        Args:
          system: The machine.
          replicas: How many replicas run the program.
          proportion: `availableMemoryProportion` of products.
          trip_counts: For loops whose number of iterations only running them tells: the name scope of the loop, and
            the number; `*` stands for all.
          lines: For the name of a TensorFlow operation, the user's line behind it.
          placement: Where operations run, if not all on one IPU.
        """
        self._system = system
        self._replicas = replicas
        self._proportion = proportion
        self._trip_counts = dict(trip_counts or {})
        self._lines = dict(lines or {})
        self._placement = placement
        self.notes: dict[str, None] = {}  # In order, each once.
        self.unused_trip_counts = set(self._trip_counts)

    def times(self, program: Computation) -> list[OperationTime]:
        """The times of all operations that take any, in the program's order."""
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
                    if copy not in sent:  # One that several operations use is sent once.
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
        name = loop.title
        if trips is None:
            trips = self._given(name)
        body, condition = (frame.enter(loop, called) for called in loop.called)
        rows = self._computation(condition, count * (trips + 1)) + self._computation(body, count * trips)
        if self._placement is not None and trips:
            for at, carried in self._placement.carried_over(loop):
                rows.append(self._between_ipus(carried, at, count * trips))
        return rows

    def _given(self, name: str) -> int:
        for key, trips in self._trip_counts.items():
            if key in (name, "*"):
                self.unused_trip_counts.discard(key)
                return trips
        self.notes[
            f"loop `{name}`: only running it tells how often it iterates; all figures are for one iteration of it"
            f" (`trip_counts={{{name!r}: n}}` tells)"
        ] = None
        return 1

    def _branches(self, operation: HloInstruction, frame: Frame, count: int) -> list[OperationTime]:
        branches = [self._computation(frame.enter(operation, called), count) for called in operation.called]
        dearest = max(branches, key=lambda rows: sum(row.seconds for row in rows), default=[])
        self.notes[f"branch `{operation.title}`: taken to run the dearest of its {len(branches)} ways"] = None
        return dearest

    def _call(self, operation: HloInstruction, count: int) -> list[OperationTime]:
        target = operation.target
        if target in _links.IDLE_CALLS:
            return []
        if target in _links.HOST_CALLS:
            moved = _links.host_bytes(operation)
            kind = "infeed" if target == _links.INFEED else "outfeed"
            seconds = moved / self._system.host_bytes_per_second
            return [self._row(operation, kind, count, host=seconds, host_bytes=moved)]
        if target == _links.COLLECTIVE:
            seconds = _links.collective_seconds(operation, self._system, self._replicas)
            return [self._row(operation, _links.collective_kind(operation), count, links=seconds)] if seconds else []
        return self._operation(operation, count, False, f"`{target}`")

    def _between_ipus(self, sent: HloInstruction, to: tuple[int, ...], count: int) -> OperationTime:
        """The row of a result that another IPU uses."""
        seconds = sent.shape.bytes / self._system.link_bytes_per_second + self._system.link_latency_seconds
        return replace(self._row(sent, "inter-ipu-copy", count, links=seconds), ipu=to[0])

    def _operation(self, operation: HloInstruction, count: int, fused: bool, name: str = "") -> list[OperationTime]:
        machine = self._system.machine
        cost = cost_of(operation, machine, self._proportion, fused)
        if not cost.known:
            self.notes[f"operation {name or f'`{operation.opcode}`'}: not known, and costed as a copy"] = None
        if not cost.cycles:
            return []
        hertz = machine.clock_hz
        parts = {"compute": cost.compute / hertz, "exchange": cost.exchange / hertz, "sync": cost.sync / hertz}
        return [self._row(operation, operation.opcode, count, cost.plan, flops=cost.flops, **parts)]

    def _row(self, operation: HloInstruction, kind: str, count: int, plan: str = "", **each: float) -> OperationTime:
        """The row of an operation that runs so many times, given what it takes each time."""
        ipu = 0 if self._placement is None else self._placement.of(operation)[0]
        source = self._lines.get(operation.scope, "")
        row = OperationTime(operation.title, kind, str(operation.shape), count, plan=plan, source=source, ipu=ipu)
        return replace(row, **{part: count * value for part, value in each.items()})
