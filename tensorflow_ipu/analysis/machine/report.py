"""What a machine would make of a program: a report that can be read, saved and asked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from tensorflow_ipu._base import progress
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.units import format_seconds
from tensorflow_ipu.analysis.machine import hlo
from tensorflow_ipu.analysis.machine.advice import (
    NotAsked,
    Recipe,
    Suggestion,
    Suggestions,
    SupplyAndDemand,
    Timeline,
    balance_of,
    gathered,
)
from tensorflow_ipu.analysis.machine.machine import System
from tensorflow_ipu.analysis.machine.memory import FITS, MAY_FIT, Memory, memory_of
from tensorflow_ipu.analysis.machine.search import (
    WhatIf,
    advice_of_reading,
    advice_on_state,
    effect_of,
    recipe_of_reading,
)
from tensorflow_ipu.analysis.machine.sharding import Placement
from tensorflow_ipu.analysis.machine.walk import OperationTime, Walk
from tensorflow_ipu.analysis.saved import SavedReport, read

# How far off predictions are: a step takes so many times as long as predicted, at least and at most. Against published
# results, throughputs were predicted 10 percent too low to 38 percent too high (`benchmarks/machine-model`).
_FASTER, _SLOWER = 0.85, 1.45


@dataclass(frozen=True)
class Report(SavedReport):
    """The prediction for one run of a program on one machine. Nothing was run.

    Attributes:
      program: The program's name.
      system: The machine.
      replicas: How many replicas run it, each on `ipus_per_replica` IPUs.
      operations: What takes time, in the program's order.
      memories: The memory of each IPU of a replica.
      assumptions: What the prediction takes for granted, a sentence each.
      overlaps_host: Whether data passes between host and chip while the chip computes.
      timeline: How a pipeline passes its time; None where the program has none, which does one operation after the other.
      given_advice: What `advice` returned last, or the file had; None before.
      asks: Gives further advice; it is told whether to trace anew.
      again: Reads the program again, with another `system`, another `availableMemoryProportion` (`proportion`), float16 for
        float32 (`halved`), or queues that fetch `prefetch` elements ahead; None for a report from a file.
    """

    _SCHEMA: ClassVar[int] = 2

    program: str
    system: System
    replicas: int
    operations: tuple[OperationTime, ...]
    memories: tuple[Memory, ...]
    assumptions: tuple[str, ...]
    overlaps_host: bool
    timeline: Timeline | None = None
    given_advice: Suggestions | None = field(default=None, compare=False, repr=False)
    asks: Callable[[Report, bool], Iterable[Suggestion | NotAsked | Recipe]] | None = field(
        default=None, compare=False, repr=False
    )
    again: WhatIf | None = field(default=None, compare=False, repr=False)

    @property
    def ipus_per_replica(self) -> int:
        """How many IPUs a replica has."""
        return len(self.memories)

    @property
    def memory(self) -> Memory:
        """The memory of the fullest IPU: the one that decides whether the program fits."""
        return max(self.memories, key=lambda memory: memory.high)

    @property
    def liveness(self) -> tuple[tuple[int, int], ...]:
        """How much of the data of the fullest IPU is in memory while the program runs: `Memory.liveness`."""
        return self.memory.liveness

    @property
    def fits(self) -> bool | None:
        """Whether the program fits the memory of each of its IPUs; None where that cannot be told."""
        verdict = self.memory.verdict
        return None if verdict == MAY_FIT else verdict == FITS

    @property
    def steps(self) -> int:
        """Steps of a run: reads of the infeed that it reads most, 1 where it reads none; of a pipeline, its micro-batches."""
        if self.timeline is not None:
            return self.timeline.micro_batches * self.timeline.passes
        return max((each.count for each in self.operations if each.kind == "infeed"), default=1) or 1

    @property
    def seconds(self) -> float:
        """The time of a run."""
        host = self.part_seconds("host")
        if self.timeline is not None:
            chip = self.timeline.seconds * self.timeline.passes
        else:
            chip = sum(self.part_seconds(part) for part in ("compute", "exchange", "sync", "links"))
        return max(chip, host) if self.overlaps_host else chip + host

    @property
    def step_seconds(self) -> float:
        """The time of a step."""
        return self.seconds / self.steps

    @property
    def step_seconds_range(self) -> tuple[float, float]:
        """The least and the most that a step may well take, from how far off predictions were."""
        return _FASTER * self.step_seconds, _SLOWER * self.step_seconds

    @property
    def flops(self) -> float:
        """Operations of arithmetic in a run, of one replica."""
        return sum(each.flops for each in self.operations)

    def part_seconds(self, part: str) -> float:
        """Seconds of a run that go to `compute`, `exchange`, `sync`, `links` or `host`; of a pipeline, summed over its IPUs."""
        return sum(getattr(each, part) for each in self.operations)

    def ipu_seconds(self, ipu: int) -> float:
        """Seconds of a run in which an IPU, by its number within the replica, computes, exchanges, or sends and receives.

        Raises:
          ValueError: A replica has no such IPU.
        """
        if ipu not in {memory.ipu for memory in self.memories}:
            raise ValueError(f"`ipu` is {ipu!r}, and a replica has IPUs 0 to {self.ipus_per_replica - 1}")
        return sum(each.seconds - each.host for each in self.operations if each.ipu in (ipu, -1))

    def throughput(self, batch_size: int) -> float:
        """Samples a second of all replicas, each of which handles `batch_size` samples in a step.

        Raises:
          ValueError: `batch_size` is below 1.
        """
        if not is_int(batch_size) or batch_size < 1:
            raise ValueError(f"`batch_size` must be the samples of a step, 1 or more, but is {batch_size!r}")
        return batch_size * self.replicas / self.step_seconds if self.step_seconds else float("inf")

    def advice(self, retrace: bool = False) -> Suggestions:
        """Changes of which each alone makes a step faster or the program leaner, by the same model; and a `recipe`.

        Where the program may not fit, the leanest stand first, else the fastest, and the recipe combines changes until it
        does, those first that cost the least time. `retrace` traces reports of Keras models anew as well: with other
        micro-batches, with recomputation, in more stages, and with all of the recipe.
        """
        if self.given_advice is None or retrace:
            with progress.of(f"advice on `{self.program}`"):
                found = [] if self.asks is None else list(self.asks(self, retrace))
                updates = 1
                if self.timeline is not None:
                    updates = self.timeline.passes
                    found += advice_on_state(self, updates)
                if (
                    self.again is not None
                    and self.fits is not True
                    and not any(isinstance(each, Recipe) for each in found)
                ):
                    again = self.again
                    found += recipe_of_reading(
                        self, lambda variant: effect_of(self, again(**variant.reading()), variant.state, updates)
                    )
            object.__setattr__(self, "given_advice", gathered(self, found))  # A cache, in a frozen class.
        return Suggestions() if self.given_advice is None else self.given_advice

    def data_balance(self, benchmark: str | bytes | Mapping[str, Any]) -> SupplyAndDemand:
        """Compares the predicted demand for data with the supply in the last epoch of a benchmark.

        Args:
          benchmark: The JSON of `dataset_benchmark` or `infeed_benchmark` (`result.numpy()[0]`), or what that holds.

        Raises:
          ValueError: It is no such thing, or the program reads no infeed.
        """
        return balance_of(self, benchmark)

    def to_dict(self) -> dict[str, Any]:
        """The report as what JSON can hold."""
        advice = self.advice()
        values = dataclasses.asdict(dataclasses.replace(self, asks=None, again=None, given_advice=None))
        del values["asks"], values["again"], values["given_advice"]
        found = {"advice": advice.suggestions, "not_asked": advice.not_asked}
        told = {name: [dataclasses.asdict(each) for each in all_of] for name, all_of in found.items()}
        recipe = None if advice.recipe is None else dataclasses.asdict(advice.recipe)
        return {"schema": self._SCHEMA, **values, **told, "recipe": recipe}

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Report:
        advice = {
            "suggestions": values.get("advice", ()),
            **{name: values.get(name) for name in ("not_asked", "recipe")},
        }
        fields = ("program", "system", "replicas", "operations", "memories", "assumptions", "overlaps_host", "timeline")
        return read(cls, {name: values[name] for name in fields} | {"given_advice": advice})

    def __repr__(self) -> str:
        from tensorflow_ipu.analysis.machine.text import machine_text

        ipus = f", {self.replicas} x {self.ipus_per_replica} IPUs" if self.replicas * self.ipus_per_replica > 1 else ""
        memory = f"{self.memory.verdict} ({self.memory.high / self.memory.capacity:.0%} of the memory)"
        step = format_seconds(self.step_seconds)
        return f"<Report of {self.program} on {machine_text(self)}{ipus}: {memory}, {step} a step>"

    def __str__(self) -> str:
        from tensorflow_ipu.analysis.machine.text import report_text

        return report_text(self)


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
    """Predicts what a machine makes of a program."""
    asked = _Request(serialized, program, replicas, trip_counts, lines, assumptions, ipus, shards)

    @functools.lru_cache(maxsize=8)  # A recipe reads what single changes have read.
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
    """The arguments of `report_of` that are the same each time that a program is read."""

    serialized: bytes
    program: str
    replicas: int
    trip_counts: Mapping[str, int] | None
    lines: Mapping[str, str] | None
    assumptions: Sequence[str]
    ipus: int
    shards: Mapping[str, Sequence[int]] | None


def _predicted(asked: _Request, system: System, proportion: float, halved: bool, prefetch: int | None) -> Report:
    entry = hlo.read(asked.serialized, halved)
    placement = Placement(entry, asked.ipus, asked.shards) if asked.ipus > 1 else None
    walk = Walk(system, asked.replicas, proportion, asked.trip_counts, asked.lines, placement)
    operations = tuple(walk.times(entry))
    unused = sorted(walk.unused_trip_counts - {"*"})
    if unused:
        names = ", ".join(f"`{name}`" for name in unused)
        raise ValueError(
            f"`trip_counts` names {names}, and the program has no loop of this name whose number of iterations is"
            " not known"
        )
    overlaps = system.machine.io_tiles > 0 and (prefetch is None or prefetch > 1)
    memories = (
        replace(memory_of(entry, system, proportion, placement, ipu), feeds=_feeds(operations, overlaps, ipu))
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
    """Returns the size of the queues' buffers: one element each, or two if transfers overlap computation."""
    elements = sum(row.host_bytes / row.count for row in operations if row.host_bytes and row.ipu == ipu)
    return round(elements) * (2 if overlaps else 1)
