"""The report on a program: the predicted time and memory of a run on a machine."""

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

# The error of predictions: the real time of a step, as a multiple of the predicted time, at least and at most.
# Predicted throughputs were 10 percent below to 38 percent above published results (`benchmarks/machine-model`).
_FASTER, _SLOWER = 0.85, 1.45


@dataclass(frozen=True)
class Report(SavedReport):
    """The prediction for one run of a program on one machine. Nothing was run.

    Attributes:
      program: The program's name.
      system: The machine.
      replicas: The number of replicas that run the program, each on `ipus_per_replica` IPUs.
      operations: The operations that take time, in the program's order.
      memories: The memory of each IPU of a replica.
      assumptions: The assumptions of the prediction, a sentence each.
      overlaps_host: Whether data is transferred between host and chip while the chip computes.
      timeline: The tasks of a pipeline; None for a program without a pipeline, which runs its operations in sequence.
      given_advice: The result of the last call of `advice`, or the advice in the file; None before.
      asks: A function that returns further advice on a report; its second argument is True if it may trace again.
      again: A function that reads the program again and returns the new report; None for a report from a file. Its
        keyword arguments are `system`, `proportion` (another `availableMemoryProportion`), `halved` (True for float16
        instead of float32), and `prefetch` (the number of elements that queues fetch ahead).
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
        """The number of IPUs of a replica."""
        return len(self.memories)

    @property
    def memory(self) -> Memory:
        """The memory of the fullest IPU: the one that decides whether the program fits."""
        return max(self.memories, key=lambda memory: memory.high)

    @property
    def liveness(self) -> tuple[tuple[int, int], ...]:
        """The `Memory.liveness` of the fullest IPU: the course of its data in memory while the program runs."""
        return self.memory.liveness

    @property
    def fits(self) -> bool | None:
        """True if the program fits the memory of each of its IPUs, False if it does not fit, None if it may fit."""
        verdict = self.memory.verdict
        return None if verdict == MAY_FIT else verdict == FITS

    @property
    def steps(self) -> int:
        """The number of steps of a run.

        It is the number of reads of the infeed that is read most, or 1 without an infeed. For a pipeline, it is the
        number of micro-batches.
        """
        if self.timeline is not None:
            return self.timeline.micro_batches * self.timeline.passes
        return max((row.count for row in self.operations if row.kind == "infeed"), default=1) or 1

    @property
    def seconds(self) -> float:
        """The time of a run, in seconds."""
        host = self.part_seconds("host")
        if self.timeline is not None:
            chip = self.timeline.seconds * self.timeline.passes
        else:
            chip = sum(self.part_seconds(part) for part in ("compute", "exchange", "sync", "links"))
        return max(chip, host) if self.overlaps_host else chip + host

    @property
    def step_seconds(self) -> float:
        """The time of a step, in seconds."""
        return self.seconds / self.steps

    @property
    def step_seconds_range(self) -> tuple[float, float]:
        """The shortest and the longest likely time of a step in seconds, from the error of past predictions."""
        return _FASTER * self.step_seconds, _SLOWER * self.step_seconds

    @property
    def flops(self) -> float:
        """The floating-point operations of one replica in a run."""
        return sum(row.flops for row in self.operations)

    def part_seconds(self, part: str) -> float:
        """Returns the seconds of a run that `part` takes, summed over the IPUs of a pipeline.

        Args:
          part: `compute`, `exchange`, `sync`, `links` or `host`.
        """
        return sum(getattr(row, part) for row in self.operations)

    def ipu_seconds(self, ipu: int) -> float:
        """Returns the seconds of a run that an IPU spends computing, exchanging, sending and receiving.

        Args:
          ipu: The number of the IPU within the replica.

        Raises:
          ValueError: A replica has no such IPU.
        """
        if ipu not in {memory.ipu for memory in self.memories}:
            raise ValueError(f"`ipu` is {ipu!r}, and a replica has IPUs 0 to {self.ipus_per_replica - 1}")
        return sum(row.seconds - row.host for row in self.operations if row.ipu in (ipu, -1))

    def throughput(self, batch_size: int) -> float:
        """Returns the samples a second of all replicas together.

        Args:
          batch_size: The number of samples that one replica processes in a step.

        Raises:
          ValueError: `batch_size` is below 1.
        """
        if not is_int(batch_size) or batch_size < 1:
            raise ValueError(f"`batch_size` must be the samples of a step, 1 or more, but is {batch_size!r}")
        return batch_size * self.replicas / self.step_seconds if self.step_seconds else float("inf")

    def advice(self, retrace: bool = False) -> Suggestions:
        """Returns changes that make a step faster or reduce memory, as predicted by the same model.

        Each change is evaluated separately. If the program fits, the fastest change is first; else the one with the
        least memory. If the program may not fit, the result also has a `recipe`: a combination of changes until the
        program fits. The recipe first makes changes that save much memory for little time.

        Args:
          retrace: Whether to trace the Keras model of a report again: with other micro-batches, with recomputation, in
            more stages, and with all changes of the recipe.
        """
        if self.given_advice is None or retrace:
            with progress.of(f"advice on `{self.program}`"):
                advice = [] if self.asks is None else list(self.asks(self, retrace))
                updates = 1
                if self.timeline is not None:
                    updates = self.timeline.passes
                    advice += advice_on_state(self, updates)
                if (
                    self.again is not None
                    and self.fits is not True
                    and not any(isinstance(entry, Recipe) for entry in advice)
                ):
                    again = self.again
                    advice += recipe_of_reading(
                        self, lambda variant: effect_of(self, again(**variant.reading()), variant.state, updates)
                    )
            object.__setattr__(
                self, "given_advice", gathered(self, advice)
            )  # The class is frozen, and this is a cache.
        return Suggestions() if self.given_advice is None else self.given_advice

    def data_balance(self, benchmark: str | bytes | Mapping[str, Any]) -> SupplyAndDemand:
        """Compares the predicted demand for data with the supply in the last epoch of a benchmark.

        Args:
          benchmark: The JSON of `dataset_benchmark` or `infeed_benchmark` (`result.numpy()[0]`), or a mapping decoded
            from it.

        Raises:
          ValueError: `benchmark` is neither, or the program reads no infeed.
        """
        return balance_of(self, benchmark)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as a dictionary that JSON can encode."""
        advice = self.advice()
        values = dataclasses.asdict(dataclasses.replace(self, asks=None, again=None, given_advice=None))
        del values["asks"], values["again"], values["given_advice"]
        suggestions = {"advice": advice.suggestions, "not_asked": advice.not_asked}
        lists = {name: [dataclasses.asdict(change) for change in changes] for name, changes in suggestions.items()}
        recipe = None if advice.recipe is None else dataclasses.asdict(advice.recipe)
        return {"schema": self._SCHEMA, **values, **lists, "recipe": recipe}

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


_ASSUMPTIONS = (
    "tensors are assumed to be spread evenly over the tiles: the overflow of a single tile is not detected",
    "the size of the code is estimated within a range; exchanges and code of control flow are not counted",
)
_SHARDED = (
    "the IPUs of a replica work one after the other, in the order of the program's operations",
    "the state of optimizers is counted among the variables",
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
    """Predicts the time and memory of a program on a machine, from its serialized HLO."""
    request = _Request(serialized, program, replicas, trip_counts, lines, assumptions, ipus, shards)

    @functools.lru_cache(maxsize=8)  # The search for a recipe reads the variants of single changes again.
    def again(
        *,
        system: System | None = None,
        proportion: float | None = None,
        halved: bool = False,
        prefetch: int | None = None,
    ) -> Report:
        return _predicted(request, system or defaults[0], proportion or defaults[1], halved, prefetch or defaults[2])

    def advise(report: Report, retrace: bool) -> Iterator[Suggestion | NotAsked]:
        del retrace  # A compiled program cannot be traced again.
        yield from advice_of_reading(report, report.again or again, defaults[1])
        yield NotAsked(
            "recomputation, stages, other micro-batches",
            "a compiled program does not specify where it could be cut, or what a sample is: reports on pipelines and"
            " on Keras models (`model.ipu_report`) evaluate these changes",
            of_models=True,
        )

    defaults = system, proportion, prefetch
    return dataclasses.replace(again(), asks=advise, again=again)


class _Request(NamedTuple):
    """The arguments of `report_of` that stay the same when a program is read again."""

    serialized: bytes
    program: str
    replicas: int
    trip_counts: Mapping[str, int] | None
    lines: Mapping[str, str] | None
    assumptions: Sequence[str]
    ipus: int
    shards: Mapping[str, Sequence[int]] | None


def _predicted(request: _Request, system: System, proportion: float, halved: bool, prefetch: int | None) -> Report:
    entry = hlo.read(request.serialized, halved)
    placement = Placement(entry, request.ipus, request.shards) if request.ipus > 1 else None
    walk = Walk(system, request.replicas, proportion, request.trip_counts, request.lines, placement)
    operations = tuple(walk.times(entry))
    unused = sorted(walk.unused_trip_counts - {"*"})
    if unused:
        names = ", ".join(f"`{name}`" for name in unused)
        raise ValueError(
            f"`trip_counts` names {names}, but the program has no loop of this name with an unknown number of"
            " iterations"
        )
    overlaps = system.machine.io_tiles > 0 and (prefetch is None or prefetch > 1)
    memories = (
        replace(memory_of(entry, system, proportion, placement, ipu), feeds=_feeds(operations, overlaps, ipu))
        for ipu in range(request.ipus)
    )
    return Report(
        program=request.program,
        system=system,
        replicas=request.replicas,
        operations=operations,
        memories=tuple(memories),
        assumptions=(*_ASSUMPTIONS, *(_SHARDED if request.ipus > 1 else ()), *request.assumptions, *walk.notes),
        overlaps_host=overlaps,
    )


def _feeds(operations: Sequence[OperationTime], overlaps: bool, ipu: int) -> int:
    """Returns the size of the queues' buffers: one element each, or two if transfers overlap computation."""
    elements = sum(row.host_bytes / row.count for row in operations if row.host_bytes and row.ipu == ipu)
    return round(elements) * (2 if overlaps else 1)
