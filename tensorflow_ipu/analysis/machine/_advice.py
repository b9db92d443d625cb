"""What would help a program on a machine: changes, each with the effect that the model predicts for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, overload

from tensorflow_ipu._base.page import PageView, small_page, table
from tensorflow_ipu._base.units import format_bytes
from tensorflow_ipu.analysis.machine._comparison import count_text
from tensorflow_ipu.analysis.machine._memory import DOES_NOT_FIT, FITS, MAY_FIT

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine._memory import Memory
    from tensorflow_ipu.analysis.machine._report import Report, WhatIf

# A change is worth telling from these on: samples a second, and memory, as shares of what they were.
_FASTER, _LEANER = 1.02, 0.97
STATE_OFF_CHIP = "optimizer state off the chip (`offload_weight_update_variables`)"
HALF = "float16 for all that is float32: weights, optimizer state, activations and data"
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
class Recipe:
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """The recipe whose fields JSON has held."""
        return cls(**{**values, "steps": tuple(Suggestion(**each) for each in values["steps"])})


@dataclass(frozen=True)
class Suggestions(PageView, Sequence[Suggestion]):
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

    def _page(self) -> str:
        def told(heading: str, suggestions: Sequence[Suggestion]) -> str:
            rows = [
                (each.change, f"x {each.speed:.2f}", format_bytes(each.memory), each.verdict) for each in suggestions
            ]
            return table((heading, "speed", "memory", ""), rows, numbers=3) if rows else ""

        found = told("each change alone", self)
        if self.recipe is not None:
            code = f"<pre>{escape(self.recipe.code)}</pre>"
            found = told("all together, each after those above", self.recipe.steps) + code + found
        others = table(("not asked", "why"), [(each.change, each.why) for each in self.not_asked])
        return small_page("What would help", "" if found else "Nothing that was asked.", found, others)


def changed(change: str, before: Report, after: Report, samples: float = 1.0) -> Suggestion:
    """The advice that another report gives."""
    return Suggestion(
        change, samples * before.step_seconds / (after.step_seconds or 1.0), after.memory.high, after.memory.verdict
    )


def gathered(report: Report, found: Iterable[Suggestion | NotAsked | Recipe]) -> Suggestions:
    """What of some advice helps, in order, and what could not be asked."""
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


def advice_on_state(report: Report, updates: int) -> Iterator[Suggestion]:
    """What it does to keep the optimizer's state elsewhere than whole on each chip, where the report knows its size."""
    largest = max(memory.optimizer for memory in report.memories)
    if not largest:
        return

    def on_chip(share: float) -> Sequence[Memory]:
        return [dataclasses.replace(each, optimizer=round(share * each.optimizer)) for each in report.memories]

    moved = 2 * largest * updates / report.system.streaming_bytes_per_second
    yield _with(report, STATE_OFF_CHIP, on_chip(0.0), moved)
    if report.replicas > 1:
        # What replaces an all-reduce of gradients, a reduce-scatter and an all-gather, passes as many bytes.
        words = f"optimizer state shared by the {report.replicas} replicas (`replicated_optimizer_state_sharding`)"
        yield _with(report, words, on_chip(1 / report.replicas), 0.0)


def _with(report: Report, change: str, memories: Sequence[Memory], more_seconds: float) -> Suggestion:
    fullest = max(memories, key=lambda memory: memory.high)
    speed = report.seconds / (report.seconds + more_seconds) if report.seconds else 1.0
    return Suggestion(change, speed, fullest.high, fullest.verdict)


_PROPORTIONS = (0.1, 0.2, 0.4, 0.9)
_IO_TILES = 64
_MORE = "more prefetch alone (`prefetch_depth`)"


def advice_of_reading(report: Report, again: WhatIf, proportion: float | None) -> Iterator[Suggestion | NotAsked]:
    """What reading the program again tells."""
    if any("f32[" in each.shape for each in report.operations):
        yield changed(HALF, report, again(halved=True))
    yield from _on_data(report, again)
    if not any(each.plan for each in report.operations):
        return
    instead = "in place of the proportions that are set" if proportion is None else f"in place of {proportion}"
    found = [
        changed(f"`availableMemoryProportion` of {each} {instead}", report, again(proportion=each))
        for each in _PROPORTIONS
        if each != proportion
    ]
    fastest, leanest = max(found, key=lambda each: each.speed), min(found, key=lambda each: each.memory)
    yield from {fastest.change: fastest, leanest.change: leanest}.values()


def _on_data(report: Report, again: WhatIf) -> Iterator[Suggestion | NotAsked]:
    """What would have data pass beside the computation."""
    if report.overlaps_host or not report.part_seconds("host"):
        return
    machine = report.system.machine
    if machine.io_tiles:
        words = "`prefetch_depth` of 2 in place of 1: data pass beside the computation"
        yield changed(words, report, again(prefetch=2))
        return
    yield NotAsked(
        _MORE,
        "without tiles for data (`io_tiles`) the chip waits while data pass, however many elements are ready; whether the"
        " dataset keeps up, `report.data_balance` tells",
    )
    if machine.tiles > 2 * _IO_TILES:
        system = dataclasses.replace(report.system, machine=dataclasses.replace(machine, io_tiles=_IO_TILES))
        words = f"`io_tiles.num_io_tiles` of {_IO_TILES}, and prefetching feeds: data pass beside the computation"
        yield changed(words, report, again(system=system, prefetch=2))


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
    """Compares what a program takes with what `dataset_benchmark` measured."""
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
class Timeline:
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Timeline:
        """The timeline whose fields JSON has held."""
        return cls(**{**values, "tasks": tuple(TaskTime(**each) for each in values["tasks"])})
