"""The search for advice: changes of a program, each alone, and together until the program fits.

A variant holds what differs from the program as it is. A move makes one change: it returns another variant, or None if the
change is made already. Each kind of program has its moves and its evaluation, which reads the program again, costs another
plan of its pipeline, or cuts its model into other stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tensorflow_ipu._base.units import format_bytes
from tensorflow_ipu.analysis.machine.advice import NotAsked, Recipe, Suggestion
from tensorflow_ipu.analysis.machine.memory import FITS

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine.machine import System
    from tensorflow_ipu.analysis.machine.memory import Memory
    from tensorflow_ipu.analysis.machine.report import Report

_S = TypeVar("_S")
Moves = Mapping[str, Callable[[_S], "_S | None"]]
WhatIf = Callable[..., "Report"]

# A change that leaves more than this share of the memory does not help, and no change costs less than this.
_LEANER, _CHEAP = 0.97, 0.02
STATE_OFF_CHIP = "optimizer state off the chip (`offload_weight_update_variables`)"
HALF = "float16 for all that is float32: weights, optimizer state, activations and data"
_MORE = "more prefetch alone (`prefetch_depth`)"
_IO_TILES = 64
# The shares of memory that products are tried with, and the one for a program that does not fit.
_PROPORTIONS = (0.1, 0.2, 0.4, 0.9)
TIGHT = 0.1


@dataclass(frozen=True)
class Variant:
    """The changes of a program; the default has none.

    Attributes:
      halved: Whether all float32 becomes float16.
      proportion: The share of the memory for products.
      system: Another machine.
      prefetch: How many elements infeeds fetch ahead.
      state: The share of the optimizer's state on the chip.
      plan: Another plan of a pipeline.
      samples: Of a model: the samples of a micro-batch.
      steps: Of a model: the micro-batches of an update; 0 for any number.
      stages: Of a model: the stages; 1 without a pipeline.
      recompute: Of a model: whether it recomputes activations; None for only if needed. With one stage, pieces share IPU 0.
    """

    halved: bool = False
    proportion: float | None = None
    system: System | None = None
    prefetch: int | None = None
    state: float = 1.0
    plan: object = None
    samples: int = 1
    steps: int = 1
    stages: int = 1
    recompute: bool | None = False

    def reading(self) -> dict[str, object]:
        """Returns the changes for which a program is read again."""
        values = {name: getattr(self, name) for name in ("halved", "proportion", "system", "prefetch")}
        return {name: value for name, value in values.items() if value}


class Effect(NamedTuple):
    """The effect of a variant: samples a second as a multiple of before, the fullest IPU's memory, and the IPUs."""

    speed: float
    memory: Memory
    ipus: int = 1

    @property
    def cost(self) -> float:
        return self.ipus / self.speed

    def as_suggestion(self, change: str) -> Suggestion:
        return Suggestion(change, self.speed, self.memory.high, self.memory.verdict)


def effect_of(before: Report, after: Report, state: float = 1.0, updates: int = 1, samples: float = 1.0) -> Effect:
    """Returns the effect of another report, of so many times the samples, with a share of the state on the chip."""
    memories = [replace(memory, optimizer=round(state * memory.optimizer)) for memory in after.memories]
    moved = 0 if state else 2 * updates * max(memory.optimizer for memory in after.memories)
    seconds = after.step_seconds + moved / before.system.streaming_bytes_per_second / after.steps
    speed = samples * before.step_seconds / seconds if seconds else 1.0
    return Effect(speed, max(memories, key=lambda memory: memory.high))


def changed(change: str, before: Report, after: Report, samples: float = 1.0) -> Suggestion:
    """Returns the effect of another report as a line of advice."""
    return effect_of(before, after, samples=samples).as_suggestion(change)


# Candidates.


def changing(**changes: object) -> Callable[[Variant], Variant | None]:
    """Returns the move that makes changes, unless one of them is made already."""

    def move(variant: Variant) -> Variant | None:
        start = Variant()
        made = any(getattr(variant, name) != getattr(start, name) for name in changes)
        return None if made else replace(variant, **changes)  # pyright: ignore[reportArgumentType]

    return move


def half_moves(report: Report) -> Moves[Variant]:
    return {HALF: changing(halved=True)} if any("f32[" in row.shape for row in report.operations) else {}


def state_moves(report: Report) -> Moves[Variant]:
    """Returns the moves of the optimizer's state off each chip, where the report knows its size."""
    if not any(memory.optimizer for memory in report.memories):
        return {}
    # A reduce-scatter and an all-gather replace an all-reduce of gradients, and pass as many bytes.
    words = f"optimizer state shared by the {report.replicas} replicas (`replicated_optimizer_state_sharding`)"
    shared = {words: changing(state=1 / report.replicas)} if report.replicas > 1 else {}
    # What is shared may also leave the chip.
    return {**shared, STATE_OFF_CHIP: lambda variant: replace(variant, state=0.0) if variant.state else None}


def tight_moves(report: Report) -> Moves[Variant]:
    return (
        {words_of_proportion(TIGHT): changing(proportion=TIGHT)} if any(row.plan for row in report.operations) else {}
    )


def words_of_proportion(proportion: float | None) -> str:
    return f"`availableMemoryProportion` of {proportion}"


# Each change alone.


def each_alone(start: _S, moves: Moves[_S], evaluate: Callable[[_S], Effect | None]) -> Iterator[Suggestion]:
    for words, move in moves.items():
        variant = move(start)
        effect = None if variant is None else evaluate(variant)
        if effect is not None:
            yield effect.as_suggestion(words)


def advice_of_reading(report: Report, again: WhatIf, proportion: float | None) -> Iterator[Suggestion | NotAsked]:
    """Yields the effects of changes for which the program is only read again; `proportion` is that of today."""

    def evaluate(variant: Variant) -> Effect:
        return effect_of(report, again(**variant.reading()))

    yield from each_alone(Variant(), half_moves(report), evaluate)
    yield from _on_data(report, evaluate)
    if not tight_moves(report):
        return
    instead = "in place of the proportions that are set" if proportion is None else f"in place of {proportion}"
    moves = {
        f"{words_of_proportion(share)} {instead}": changing(proportion=share)
        for share in _PROPORTIONS
        if share != proportion
    }
    found = list(each_alone(Variant(), moves, evaluate))
    fastest, leanest = max(found, key=lambda each: each.speed), min(found, key=lambda each: each.memory)
    yield from {fastest.change: fastest, leanest.change: leanest}.values()


def _on_data(report: Report, evaluate: Callable[[Variant], Effect]) -> Iterator[Suggestion | NotAsked]:
    machine = report.system.machine
    if report.overlaps_host or not report.part_seconds("host"):
        return
    if machine.io_tiles:
        words = "`prefetch_depth` of 2 in place of 1: data pass beside the computation"
        yield from each_alone(Variant(), {words: changing(prefetch=2)}, evaluate)
        return
    yield NotAsked(
        _MORE,
        "without tiles for data (`io_tiles`) the chip waits while data pass, however many elements are ready; whether the"
        " dataset keeps up, `report.data_balance` tells",
    )
    if machine.tiles > 2 * _IO_TILES:
        system = replace(report.system, machine=replace(machine, io_tiles=_IO_TILES))
        words = f"`io_tiles.num_io_tiles` of {_IO_TILES}, and prefetching feeds: data pass beside the computation"
        yield from each_alone(Variant(), {words: changing(system=system, prefetch=2)}, evaluate)


def advice_on_state(report: Report, updates: int) -> Iterator[Suggestion]:
    """Yields the effects of moving the optimizer's state off each chip."""
    yield from each_alone(
        Variant(), state_moves(report), lambda variant: effect_of(report, report, variant.state, updates)
    )


# Changes together.


def searched(start: _S, moves: Moves[_S], evaluate: Callable[[_S], Effect | None]) -> list[tuple[str, _S]]:
    """Returns the moves from a variant to one that fits, or as near as they lead, each with the variant it leads to.

    Each time, that move is made which saves the most memory for the time that it costs. At the end, moves are undone
    without which the program fits as well.
    """
    names: list[str] = []
    variant, now = start, evaluate(start)
    while now is not None and now.memory.verdict != FITS:
        helps = [
            (_worth(now, effect), name, there, effect)
            for name, move in moves.items()
            if (there := move(variant)) is not None
            and (effect := evaluate(there)) is not None
            and effect.memory.high <= _LEANER * now.memory.high
        ]
        if not helps:
            break
        _, name, variant, now = max(helps, key=lambda found: found[0])
        names.append(name)
    for name in list(names):
        fewer = [*names]
        fewer.remove(name)
        before, after = (_reached(start, some, moves) for some in (names, fewer))
        if before is not None and after is not None and _is_better(evaluate(after), evaluate(before)):
            names = fewer
    # The same moves stand together: each is reported once.
    names = [name for first in dict.fromkeys(names) for name in names if name == first]
    made = ((names[at], _reached(start, names[: at + 1], moves)) for at in range(len(names)))
    return [(name, there) for name, there in made if there is not None]


def _worth(before: Effect, after: Effect) -> float:
    room = before.memory.capacity * 0.9  # There is no merit in taking less.
    saved = math.log(before.memory.high / max(after.memory.high, room))
    return saved / max(_CHEAP, math.log(after.cost / before.cost))


def _reached(start: _S, names: Sequence[str], moves: Moves[_S]) -> _S | None:
    variant: _S | None = start
    for name in names:
        variant = None if variant is None else moves[name](variant)
    return variant


def _is_better(without: Effect | None, with_it: Effect | None) -> bool:
    return bool(without and with_it and without.memory.verdict == FITS and without.cost <= with_it.cost)


def recipe_of_reading(
    report: Report, evaluate: Callable[[Variant], Effect], plans: Moves[Variant] | None = None
) -> Iterable[Recipe]:
    """Returns the recipe of changes for which nothing is traced, with other plans of a pipeline; none if no change helps."""
    moves = {**half_moves(report), **state_moves(report), **(plans or {}), **tight_moves(report)}
    made = searched(Variant(), moves, evaluate)
    if not made:
        return []
    effects = [(name, evaluate(variant)) for name, variant in made]
    memory = effects[-1][1].memory
    code = "\n".join(configuration(made[-1][1].proportion))
    left = "" if memory.verdict == FITS else left_over(memory, report.ipus_per_replica)
    return [Recipe(tuple(effect.as_suggestion(name) for name, effect in effects), code, left=left)]


def left_over(memory: Memory, ipus: int) -> str:
    """Returns a sentence on what an IPU has too much of."""
    parts = {name: getattr(memory, name) for name in ("variables", "optimizer", "accumulators", "stash", "data")}
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    whole = f"{ipus} IPU{'s' * (ipus > 1)} of {format_bytes(memory.capacity)}"
    text = f"no combination surely fits: the fullest of {whole} has {words}"
    if memory.largest and memory.largest[0][1] > 0.1 * memory.capacity:
        text += f"; the largest tensor, `{memory.largest[0][0]}`, takes {format_bytes(memory.largest[0][1])}"
    return text


def configuration(proportion: float | None, *lines: str) -> list[str]:
    """Returns code that configures the system: `lines` on an `IPUConfig` named `config`, and the memory for products."""
    categories = () if proportion is None else ("convolutions", "matmuls")
    options = f'poplar_options = {{"availableMemoryProportion": "{proportion}"}}'
    own = [*lines, *(f"config.{category}.{options}" for category in categories)]
    return ["config = ipu.config.IPUConfig()", *own, "config.configure_ipu_system()"] if own else []
