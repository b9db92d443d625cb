"""Suggested changes to a program, each with its predicted effect on speed and memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from tensorflow_ipu._base.notebook import NotebookView
from tensorflow_ipu.analysis.machine.memory import DOES_NOT_FIT, FITS, MAY_FIT
from tensorflow_ipu.analysis.machine.text import count_text
from tensorflow_ipu.analysis.saved import SavedValue

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine.report import Report

# A change is suggested if it multiplies speed by at least `_FASTER`, or memory by at most `_LEANER`.
_FASTER, _LEANER = 1.02, 0.97
_VERDICTS = (FITS, MAY_FIT, DOES_NOT_FIT)


@dataclass(frozen=True)
class Suggestion:
    """One change to a program, with its predicted effect.

    Attributes:
      change: The change, as a phrase.
      speed: Samples a second with the change, as a multiple of those without it.
      memory: The bytes that the fullest IPU needs with the change, at most.
      verdict: `fits`, `may fit` or `does not fit`: the prediction for the program with the change.
    """

    change: str
    speed: float
    memory: int
    verdict: str


@dataclass(frozen=True)
class NotAsked:
    """A change that was not evaluated.

    Attributes:
      change: The change, as a phrase.
      why: The reason, and how to evaluate the change if that is possible.
      of_models: Whether a report on a Keras model can evaluate the change.
    """

    change: str
    why: str
    of_models: bool = False


@dataclass(frozen=True)
class Recipe(SavedValue):
    """A combination of changes.

    Attributes:
      steps: The changes in order. The effect of each includes the changes before it.
      code: Code to paste that makes the changes; empty if only the program's own source can make them.
      traced: Whether the last step reports a new trace of the program with all changes, not a sum of predicted parts.
      left: The reason why no combination fits, and what would fit; empty if the last step fits.
    """

    steps: tuple[Suggestion, ...]
    code: str = ""
    traced: bool = False
    left: str = ""

    @property
    def fits(self) -> bool:
        """True if the program fits with all changes."""
        return bool(self.steps) and self.steps[-1].verdict == FITS


@dataclass(frozen=True)
class Suggestions(NotebookView, Sequence[Suggestion]):
    """The changes that improve a program, best first, as a sequence of `Suggestion`.

    Attributes:
      suggestions: The changes that make a step faster or the program smaller.
      not_asked: The changes that were not evaluated, each with the reason.
      recipe: A combination of changes for a program that may not fit; None if it fits or no combination helps.
    """

    suggestions: tuple[Suggestion, ...] = ()
    not_asked: tuple[NotAsked, ...] = ()
    recipe: Recipe | None = None

    @overload
    def __getitem__(self, index: int) -> Suggestion: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Suggestion, ...]: ...
    def __getitem__(self, index: int | slice) -> Suggestion | tuple[Suggestion, ...]:
        return self.suggestions[index]

    def __len__(self) -> int:
        return len(self.suggestions)

    def __repr__(self) -> str:
        best = f": first {self[0].change} (x {self[0].speed:.2f}, {self[0].verdict})" if self else ""
        noun = "suggestion" if len(self) == 1 else "suggestions"
        return f"<{len(self)} {noun}{best}; {len(self.not_asked)} not evaluated>"


def gathered(report: Report, advice: Iterable[Suggestion | NotAsked | Recipe]) -> Suggestions:
    """Returns the changes that help: the fastest first if the program fits, else the smallest first."""
    entries = list(advice)
    recipe = next((entry for entry in entries if isinstance(entry, Recipe)), None)
    evaluated = [entry for entry in entries if isinstance(entry, Suggestion)]
    not_evaluated = tuple(entry for entry in entries if isinstance(entry, NotAsked))
    limit = report.memory.high * _LEANER
    if report.memory.verdict == FITS:
        fitting = [change for change in evaluated if change.verdict == FITS]
        helpful = [
            change
            for change in fitting
            if change.speed >= _FASTER or (change.memory <= limit and change.speed > 1 / _FASTER)
        ]
        return Suggestions(tuple(sorted(helpful, key=lambda change: -change.speed)), not_evaluated, recipe)
    smaller = [change for change in evaluated if change.memory <= limit]
    smaller.sort(key=lambda change: (_VERDICTS.index(change.verdict), change.memory))
    return Suggestions(tuple(smaller), not_evaluated, recipe)


@dataclass(frozen=True)
class SupplyAndDemand:
    """The predicted rate at which a program consumes data, and the measured rate at which a dataset produces it.

    Attributes:
      demand: Elements a second that all replicas together consume, as predicted.
      demand_bytes: Bytes a second that all replicas together consume, as predicted.
      supply: Elements a second that the dataset produced on this host, as measured.
    """

    demand: float
    demand_bytes: float
    supply: float

    @property
    def is_bound(self) -> bool:
        """True if the machine would wait for the dataset."""
        return self.supply < self.demand

    def __str__(self) -> str:
        demand = f"the program takes {self.demand:,.0f} elements/s ({count_text(self.demand_bytes)}B/s)"
        if self.is_bound:
            verdict = f"bound by data, {self.demand / self.supply:.1f} times too slow"
        else:
            verdict = f"not bound by data, with room for {self.supply / self.demand:.1f} times as much"
        return f"{demand}, the dataset gives {self.supply:,.0f} elements/s: {verdict}"


def balance_of(report: Report, benchmark: str | bytes | Mapping[str, Any]) -> SupplyAndDemand:
    rows = [row for row in report.operations if row.kind == "infeed"]
    if not rows:
        raise ValueError(f"`{report.program}` reads no infeed, so no dataset can keep it waiting")
    try:
        values: Any = benchmark if isinstance(benchmark, Mapping) else json.loads(benchmark)
        supply = float(values["epochs"][-1]["elements_per_second"])
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        raise ValueError(
            "`benchmark` must be the JSON that `dataset_benchmark` returns (`result.numpy()[0]`), with"
            f" `elements_per_second` of each of its `epochs`, but is {benchmark!r}"
        ) from exc
    bytes_per_second = sum(row.host_bytes for row in rows) / report.seconds
    return SupplyAndDemand(report.throughput(1), report.replicas * bytes_per_second, supply)


@dataclass(frozen=True)
class TaskTime:
    """A task of one IPU in a `Timeline`.

    Attributes:
      ipu: The number of the IPU within the replica.
      begin: The start of the task, in seconds from the start of the pass.
      end: The end of the task, in seconds from the start of the pass.
      kind: `forward`, `recompute`, `backward`, `update`, `load`, `save` or `exchange`.
      stage: The stage that the task belongs to; -1 for an exchange.
      label: The task in the notation of plans, such as `2F0`: stage 2, forward, micro-batch 0.
    """

    ipu: int
    begin: float
    end: float
    kind: str
    stage: int
    label: str


@dataclass(frozen=True)
class Timeline(SavedValue):
    """The predicted tasks of a pipeline's IPUs during one pass.

    Attributes:
      seconds: The time of a pass, from the first micro-batch to the update, without transfers to and from the host.
      micro_batches: The number of micro-batches of a pass.
      passes: The number of passes of a run.
      bubble: The share of all IPUs' time that they spend waiting for other IPUs.
      shown: The number of micro-batches that `tasks` covers. A long pass is shown as a short one with the same ramps.
      tasks: The tasks, ordered by their start.
    """

    seconds: float
    micro_batches: int
    passes: int
    bubble: float
    shown: int
    tasks: tuple[TaskTime, ...] = field(repr=False)
