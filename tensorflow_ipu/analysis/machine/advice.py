"""What would help a program on a machine: changes, each with the effect that the model predicts for it."""

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

# A change is worth telling from these on: samples a second, and memory, as shares of what they were.
_FASTER, _LEANER = 1.02, 0.97
_VERDICTS = (FITS, MAY_FIT, DOES_NOT_FIT)


@dataclass(frozen=True)
class Suggestion:
    """One change, alone, and what the model predicts of it.

    Attributes:
      change: What to do.
      speed: Samples a second, as a multiple of what they are without it.
      memory: Bytes that the fullest IPU then needs, at most.
      verdict: Whether the program then fits: `fits`, `may fit` or `does not fit`.
    """

    change: str
    speed: float
    memory: int
    verdict: str


@dataclass(frozen=True)
class NotAsked:
    """A change whose effect the model was not asked for.

    Attributes:
      change: The change.
      why: Why that is so, and where there is one, the way to ask.
      of_models: Whether a report of a Keras model can ask.
    """

    change: str
    why: str
    of_models: bool = False


@dataclass(frozen=True)
class Recipe(SavedValue):
    """Changes that belong together.

    Attributes:
      steps: The changes in order, each with what it and those before it come to.
      code: The changes as code to paste; empty where they are of the program's own text.
      traced: Whether the last step is a report on the whole, traced anew, and not a sum of parts.
      left: Why nothing fits, and what would; empty where the last step fits.
    """

    steps: tuple[Suggestion, ...]
    code: str = ""
    traced: bool = False
    left: str = ""

    @property
    def fits(self) -> bool:
        """Whether the program fits with all changes."""
        return bool(self.steps) and self.steps[-1].verdict == FITS


@dataclass(frozen=True)
class Suggestions(NotebookView, Sequence[Suggestion]):
    """What would help, in order: a sequence of suggestions.

    Attributes:
      suggestions: The changes that help.
      not_asked: Those whose effect is not known, each with the reason.
      recipe: Changes that help together, where the program does not surely fit; None where there are none.
    """

    suggestions: tuple[Suggestion, ...] = ()
    not_asked: tuple[NotAsked, ...] = ()
    recipe: Recipe | None = None

    @overload
    def __getitem__(self, at: int) -> Suggestion: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Suggestion, ...]: ...
    def __getitem__(self, at: int | slice) -> Suggestion | tuple[Suggestion, ...]:
        return self.suggestions[at]

    def __len__(self) -> int:
        return len(self.suggestions)

    def __repr__(self) -> str:
        best = f": first {self[0].change} (x {self[0].speed:.2f}, {self[0].verdict})" if self else ""
        return f"<{len(self)} suggestion{'s' * (len(self) != 1)}{best}; {len(self.not_asked)} not asked>"


def gathered(report: Report, found: Iterable[Suggestion | NotAsked | Recipe]) -> Suggestions:
    """Returns the changes that help, in order, and those whose effect is not known."""
    answers = list(found)
    recipe = next((each for each in answers if isinstance(each, Recipe)), None)
    asked = [each for each in answers if isinstance(each, Suggestion)]
    not_asked = tuple(each for each in answers if isinstance(each, NotAsked))
    low = report.memory.high * _LEANER
    if report.memory.verdict == FITS:
        fits = [each for each in asked if each.verdict == FITS]
        helps = [a for a in fits if a.speed >= _FASTER or (a.memory <= low and a.speed > 1 / _FASTER)]
        return Suggestions(tuple(sorted(helps, key=lambda each: -each.speed)), not_asked, recipe)
    lean = [each for each in asked if each.memory <= low]
    order = sorted(lean, key=lambda each: (_VERDICTS.index(each.verdict), each.memory))
    return Suggestions(tuple(order), not_asked, recipe)


@dataclass(frozen=True)
class SupplyAndDemand:
    """What a program takes, and what a dataset gives.

    Attributes:
      demand: Elements a second that all replicas take together, as predicted.
      demand_bytes: Bytes a second, likewise.
      supply: Elements a second that the dataset gave on this host, as measured.
    """

    demand: float
    demand_bytes: float
    supply: float

    @property
    def is_bound(self) -> bool:
        """Whether the machine would wait for the dataset."""
        return self.supply < self.demand

    def __str__(self) -> str:
        taken = f"the program takes {self.demand:,.0f} elements/s ({count_text(self.demand_bytes)}B/s)"
        if self.is_bound:
            bound = f"bound by data, {self.demand / self.supply:.1f} times too slow"
        else:
            bound = f"not bound by data, with room for {self.supply / self.demand:.1f} times as much"
        return f"{taken}, the dataset gives {self.supply:,.0f} elements/s: {bound}"


def balance_of(report: Report, benchmark: str | bytes | Mapping[str, Any]) -> SupplyAndDemand:
    rows = [each for each in report.operations if each.kind == "infeed"]
    if not rows:
        raise ValueError(f"`{report.program}` reads no infeed, so no dataset can keep it waiting")
    try:
        values: Any = benchmark if isinstance(benchmark, Mapping) else json.loads(benchmark)
        supply = float(values["epochs"][-1]["elements_per_second"])
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        raise ValueError(
            "`benchmark` must be the JSON that `dataset_benchmark` returns (`result.numpy()[0]`), with `elements_per_second`"
            f" of each of its `epochs`, but is {benchmark!r}"
        ) from exc
    taken = sum(each.host_bytes for each in rows) / report.seconds
    return SupplyAndDemand(report.throughput(1), report.replicas * taken, supply)


@dataclass(frozen=True)
class TaskTime:
    """What one IPU does for a while.

    Attributes:
      ipu: Its number within the replica.
      begin: Seconds from the begin of the pass.
      end: When it ends, likewise.
      kind: `forward`, `recompute`, `backward`, `update`, `load`, `save` or `exchange`.
      stage: The stage whose work it is; -1 for an exchange.
      label: As the plan has it, such as `2F0`: stage 2 forward on micro-batch 0.
    """

    ipu: int
    begin: float
    end: float
    kind: str
    stage: int
    label: str


@dataclass(frozen=True)
class Timeline(SavedValue):
    """How a pipeline passes its time.

    Attributes:
      seconds: The time of a pass, from the first micro-batch to the update, without the host.
      micro_batches: How many micro-batches a pass has.
      passes: How many passes a run has.
      bubble: The share of the time of all IPUs in which they wait for others.
      shown: How many micro-batches `tasks` are for: a pass of many is shown as one of few, with the same ramps.
      tasks: What the IPUs do, in the order of their begin.
    """

    seconds: float
    micro_batches: int
    passes: int
    bubble: float
    shown: int
    tasks: tuple[TaskTime, ...] = field(repr=False)
