"""From a program to its report: the program is read, its operations are timed, its memory is walked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tensorflow_ipu.machine import _hlo, _memory
from tensorflow_ipu.machine._advice import NotAsked, Suggestion, advice_of_reading
from tensorflow_ipu.machine._machine import System
from tensorflow_ipu.machine._report import Report
from tensorflow_ipu.machine._sharding import Placement
from tensorflow_ipu.machine._walk import OperationTime, Walk

_CANNOT_KNOW = (
    "tensors are taken to lie evenly on the tiles: an overflow of one tile alone, from a mapping, is not seen",
    "code size is a guess within a range; exchange and code of control flow are not known",
)
_SHARDED = (
    "the IPUs of a replica work one after the other, in the order of the program's operations",
    "the state of optimizers counts among the variables",
)


def report_of(
    serialized: bytes,
    system: System,
    *,
    program: str = "program",
    replicas: int = 1,
    proportion: float = 0.6,
    trip_counts: Mapping[str, int] | None = None,
    lines: Mapping[str, str] | None = None,
    assumptions: Sequence[str] = (),
    prefetch: int | None = None,
    ipus: int = 1,
    shards: Mapping[str, Sequence[int]] | None = None,
) -> Report:
    """Predicts what a machine makes of a program.

    Args:
      serialized: The program, a serialized `HloModuleProto` before optimisation.
      system: The machine.
      program: The program's name.
      replicas: How many replicas run it.
      proportion: `availableMemoryProportion` of products.
      trip_counts: For loops whose number of iterations only running them tells: the name of the loop, as the report
        without it tells, and the number; `*` stands for all.
      lines: For the name of a TensorFlow operation, the user's line behind it.
      assumptions: What else the prediction takes for granted.
      prefetch: The least `prefetch_depth` of its infeeds, where that is known: data pass beside the computation from 2 on.
      ipus: How many IPUs each replica has, on which `scopes.ipu_shard` has placed the operations.
      shards: For the name of a TensorFlow operation, the numbers of its IPUs, where its instructions do not say.

    Raises:
      ValueError: The bytes are no program, or `trip_counts` names a loop that there is not.
    """
    asked = _Request(serialized, program, replicas, trip_counts, lines, assumptions, ipus, shards)

    def again(
        *,
        system: System | None = None,
        proportion: float | None = None,
        halved: bool = False,
        prefetch: int | None = None,
    ) -> Report:
        return _predicted(asked, system or told[0], proportion or told[1], halved, prefetch or told[2])

    def advise(report: Report, retrace: bool) -> Iterator[Suggestion | NotAsked]:
        del retrace  # There is a program, and nothing to trace it from.
        yield from advice_of_reading(report, report.again or again, told[1])
        yield NotAsked(
            "recomputation, stages, other micro-batches",
            "the program is read as it is, and nothing tells where it could be cut, or what a sample is: reports of pipelines"
            " and of Keras models (`model.ipu_report`) know",
            of_models=True,
        )

    told = system, proportion, prefetch
    return dataclasses.replace(again(), asks=advise, again=again)


class _Request(NamedTuple):
    """What is the same each time that a program is read: arguments of `report_of`."""

    serialized: bytes
    program: str
    replicas: int
    trip_counts: Mapping[str, int] | None
    lines: Mapping[str, str] | None
    assumptions: Sequence[str]
    ipus: int
    shards: Mapping[str, Sequence[int]] | None


def _predicted(asked: _Request, system: System, proportion: float, halved: bool, prefetch: int | None) -> Report:
    entry = _hlo.read(asked.serialized, halved)
    placement = Placement(entry, asked.ipus, asked.shards) if asked.ipus > 1 else None
    walk = Walk(
        system,
        replicas=asked.replicas,
        proportion=proportion,
        trip_counts=asked.trip_counts,
        lines=asked.lines,
        placement=placement,
    )
    operations = tuple(walk.times(entry))
    if walk.unused_trip_counts - {"*"}:
        unused = ", ".join(f"`{name}`" for name in sorted(walk.unused_trip_counts - {"*"}))
        raise ValueError(
            f"`trip_counts` names {unused}, and the program has no loop of this name whose number of iterations is"
            " not known"
        )
    overlaps = system.machine.io_tiles > 0 and (prefetch is None or prefetch > 1)
    memories = (
        replace(_memory.memory_of(entry, system, proportion, placement, ipu), feeds=_feeds(operations, overlaps, ipu))
        for ipu in range(asked.ipus)
    )
    return Report(
        program=asked.program,
        system=system,
        replicas=asked.replicas,
        operations=operations,
        memories=tuple(memories),
        assumptions=(*_CANNOT_KNOW, *(_SHARDED if asked.ipus > 1 else ()), *asked.assumptions, *walk.notes),
        overlaps_host=overlaps,
    )


def _feeds(operations: Sequence[OperationTime], overlaps: bool, ipu: int) -> int:
    """What buffers of queues take: an element each, or two where one is passed while the other one is used."""
    elements = sum(row.host_bytes / row.count for row in operations if row.host_bytes and row.ipu == ipu)
    return round(elements) * (2 if overlaps else 1)
