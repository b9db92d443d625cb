"""The search for advice: evaluates single changes of a program, and combines changes until the program fits.

A `Variant` holds the differences from the original program. A move makes one change: it returns another variant, or
None if the variant already has the change. For example, the move "float16" returns the variant with `halved=True`.
Programs, pipelines and models each supply their moves and a function that evaluates a variant. The function reads the
program again, costs another plan of the pipeline, or cuts the model into other stages.
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

# A change helps if it leaves at most the first share of the memory. Its cost in time counts as the second share at least.
_LEANER, _CHEAP = 0.97, 0.02
STATE_OFF_CHIP = "optimizer state off the chip (`offload_weight_update_variables`)"
HALF = "float16 instead of float32 for weights, optimizer state, activations and data"
_MORE = "only more prefetching (`prefetch_depth`)"
_IO_TILES = 64
# The shares of memory for products that are evaluated, and the share for a program that does not fit.
_PROPORTIONS = (0.1, 0.2, 0.4, 0.9)
TIGHT = 0.1


@dataclass(frozen=True)
class Variant:
    """The changes of a program. The default has none. The last four attributes are for models only.

    Attributes:
      halved: Whether all float32 becomes float16.
      proportion: The `availableMemoryProportion` of products.
      system: Another machine.
      prefetch: The number of elements that infeeds fetch ahead.
      state: The share of the optimizer's slots on the chip.
      plan: Another plan of a pipeline.
      samples: The samples of a micro-batch.
      steps: The micro-batches of an update; 0 for any number.
      stages: The number of stages; 1 without a pipeline.
      recompute: Whether activations are recomputed; None to recompute only if needed. A model with one stage that
        recomputes becomes a pipeline with all its stages on IPU 0.
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
        """Returns the changes that `Report.again` makes, as its keyword arguments."""
        values = {name: getattr(self, name) for name in ("halved", "proportion", "system", "prefetch")}
        return {name: value for name, value in values.items() if value}


class Effect(NamedTuple):
    """The effect of a variant: its relative speed, the memory of its fullest IPU, and the IPUs of a replica."""

    speed: float
    memory: Memory
    ipus: int = 1

    @property
    def cost(self) -> float:
        return self.ipus / self.speed

    def as_suggestion(self, change: str) -> Suggestion:
        return Suggestion(change, self.speed, self.memory.high, self.memory.verdict)


def effect_of(before: Report, after: Report, state: float = 1.0, updates: int = 1, samples: float = 1.0) -> Effect:
    """Returns the effect of a change, from the reports before and after it.

    `state` is the share of the optimizer's slots on the chip after the change. If it is 0, each of the `updates` of a
    run moves the slots to the chip and back. `samples` is the size of a step after the change, as a multiple of that
    before.
    """
    memories = [replace(memory, optimizer=round(state * memory.optimizer)) for memory in after.memories]
    moved = 0 if state else 2 * updates * max(memory.optimizer for memory in after.memories)
    seconds = after.step_seconds + moved / before.system.streaming_bytes_per_second / after.steps
    speed = samples * before.step_seconds / seconds if seconds else 1.0
    return Effect(speed, max(memories, key=lambda memory: memory.high))


def changed(change: str, before: Report, after: Report, samples: float = 1.0) -> Suggestion:
    """Returns the effect of a change, from the reports before and after it, as a suggestion."""
    return effect_of(before, after, samples=samples).as_suggestion(change)


# Moves.


def changing(**changes: object) -> Callable[[Variant], Variant | None]:
    """Returns the move that sets attributes of a variant. It returns None if one of them is set already."""

    def move(variant: Variant) -> Variant | None:
        start = Variant()
        is_set = any(getattr(variant, name) != getattr(start, name) for name in changes)
        return None if is_set else replace(variant, **changes)  # pyright: ignore[reportArgumentType]

    return move


def half_moves(report: Report) -> Moves[Variant]:
    return {HALF: changing(halved=True)} if any("f32[" in row.shape for row in report.operations) else {}


def state_moves(report: Report) -> Moves[Variant]:
    """Returns the moves that take the optimizer's slots off each chip. There are none if their size is unknown."""
    if not any(memory.optimizer for memory in report.memories):
        return {}
    # Sharing costs no time: a reduce-scatter and an all-gather replace an all-reduce of gradients, and send as many
    # bytes.
    text = f"optimizer state shared by the {report.replicas} replicas (`replicated_optimizer_state_sharding`)"
    shared = {text: changing(state=1 / report.replicas)} if report.replicas > 1 else {}
    # Shared slots may also leave the chip, so this move does not require that `state` is 1.
    return {**shared, STATE_OFF_CHIP: lambda variant: replace(variant, state=0.0) if variant.state else None}


def tight_moves(report: Report) -> Moves[Variant]:
    has_products = any(row.plan for row in report.operations)
    return {text_of_proportion(TIGHT): changing(proportion=TIGHT)} if has_products else {}


def text_of_proportion(proportion: float | None) -> str:
    return f"`availableMemoryProportion` of {proportion}"


# Single changes.


def single_changes(start: _S, moves: Moves[_S], evaluate: Callable[[_S], Effect | None]) -> Iterator[Suggestion]:
    for text, move in moves.items():
        variant = move(start)
        effect = None if variant is None else evaluate(variant)
        if effect is not None:
            yield effect.as_suggestion(text)


def advice_of_reading(report: Report, again: WhatIf, proportion: float | None) -> Iterator[Suggestion | NotAsked]:
    """Yields the effects of changes that need no new trace: `again` reads the program with the change.

    `proportion` is the current `availableMemoryProportion`; None if several are set.
    """

    def evaluate(variant: Variant) -> Effect:
        return effect_of(report, again(**variant.reading()))

    yield from single_changes(Variant(), half_moves(report), evaluate)
    yield from _on_data(report, evaluate)
    if not tight_moves(report):
        return
    current = "the proportions that are set" if proportion is None else f"{proportion}"
    moves = {
        f"{text_of_proportion(share)} in place of {current}": changing(proportion=share)
        for share in _PROPORTIONS
        if share != proportion
    }
    suggestions = list(single_changes(Variant(), moves, evaluate))
    fastest = max(suggestions, key=lambda suggestion: suggestion.speed)
    smallest = min(suggestions, key=lambda suggestion: suggestion.memory)
    yield from {fastest.change: fastest, smallest.change: smallest}.values()


def _on_data(report: Report, evaluate: Callable[[Variant], Effect]) -> Iterator[Suggestion | NotAsked]:
    machine = report.system.machine
    if report.overlaps_host or not report.part_seconds("host"):
        return
    if machine.io_tiles:
        text = "`prefetch_depth` of 2 in place of 1: transfers overlap the computation"
        yield from single_changes(Variant(), {text: changing(prefetch=2)}, evaluate)
        return
    yield NotAsked(
        _MORE,
        "without tiles for data (`io_tiles`) the chip waits during transfers, however many elements are ready;"
        " `report.data_balance` reports whether the dataset keeps up",
    )
    if machine.tiles > 2 * _IO_TILES:
        system = replace(report.system, machine=replace(machine, io_tiles=_IO_TILES))
        text = f"`io_tiles.num_io_tiles` of {_IO_TILES}, and prefetching feeds: transfers overlap the computation"
        yield from single_changes(Variant(), {text: changing(system=system, prefetch=2)}, evaluate)


def advice_on_state(report: Report, updates: int) -> Iterator[Suggestion]:
    """Yields the effects of taking the optimizer's slots off each chip, for a run of this number of updates."""
    yield from single_changes(
        Variant(), state_moves(report), lambda variant: effect_of(report, report, variant.state, updates)
    )


# Combined changes.


def searched(start: _S, moves: Moves[_S], evaluate: Callable[[_S], Effect | None]) -> list[tuple[str, _S]]:
    """Returns the moves that lead from a variant to one that fits, each with the resulting variant.

    The search is greedy. As long as the program does not fit, it makes the move that saves the most memory for the time
    that it costs. It stops when no move saves at least 3 %. Then it undoes each move without which the program still
    fits and costs no more. For example, "state, proportion, float16" may become "float16" if float16 suffices.

    With m moves and a path of n moves, the search makes about (m + 2) * n evaluations. An evaluation may read the whole
    program, so evaluations should be cached.
    """
    names: list[str] = []
    variant, current = start, evaluate(start)
    while current is not None and current.memory.verdict != FITS:
        options = [
            (_worth(current, effect), name, candidate, effect)
            for name, move in moves.items()
            if (candidate := move(variant)) is not None
            and (effect := evaluate(candidate)) is not None
            and effect.memory.high <= _LEANER * current.memory.high
        ]
        if not options:
            break
        _, name, variant, current = max(options, key=lambda option: option[0])
        names.append(name)
    for name in list(names):
        fewer = [*names]
        fewer.remove(name)
        with_move, without_move = (_result_of(start, path, moves) for path in (names, fewer))
        if with_move is None or without_move is None:
            continue
        if _is_better(evaluate(without_move), evaluate(with_move)):
            names = fewer
    # Equal moves follow each other, so that a report can list each of them once.
    names = [name for first in dict.fromkeys(names) for name in names if name == first]
    steps = ((names[end - 1], _result_of(start, names[:end], moves)) for end in range(1, len(names) + 1))
    return [(name, result) for name, result in steps if result is not None]


def _worth(before: Effect, after: Effect) -> float:
    limit = before.memory.capacity * 0.9  # Saving memory below this limit has no merit.
    saved = math.log(before.memory.high / max(after.memory.high, limit))
    return saved / max(_CHEAP, math.log(after.cost / before.cost))


def _result_of(start: _S, names: Sequence[str], moves: Moves[_S]) -> _S | None:
    variant: _S | None = start
    for name in names:
        variant = None if variant is None else moves[name](variant)
    return variant


def _is_better(without_move: Effect | None, with_move: Effect | None) -> bool:
    if without_move is None or with_move is None:
        return False
    return without_move.memory.verdict == FITS and without_move.cost <= with_move.cost


def recipe_of_reading(
    report: Report, evaluate: Callable[[Variant], Effect], plans: Moves[Variant] | None = None
) -> Iterable[Recipe]:
    """Returns the recipe of changes that need no new trace, in a list that is empty if no change helps.

    `plans` are further moves, to other plans of a pipeline.
    """
    moves = {**half_moves(report), **state_moves(report), **(plans or {}), **tight_moves(report)}
    steps = searched(Variant(), moves, evaluate)
    if not steps:
        return []
    effects = [(name, evaluate(variant)) for name, variant in steps]
    memory = effects[-1][1].memory
    code = "\n".join(configuration(steps[-1][1].proportion))
    left = "" if memory.verdict == FITS else left_over(memory, report.ipus_per_replica)
    return [Recipe(tuple(effect.as_suggestion(name) for name, effect in effects), code, left=left)]


def left_over(memory: Memory, ipus: int) -> str:
    """Returns a sentence about the largest parts of an IPU's memory, for a program that does not fit."""
    parts = {name: getattr(memory, name) for name in ("variables", "optimizer", "accumulators", "stash", "data")}
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    noun = "IPUs" if ipus > 1 else "IPU"
    ipus_text = f"{ipus} {noun} of {format_bytes(memory.capacity)}"
    text = f"no combination of changes surely fits: the fullest of {ipus_text} has {sizes}"
    if memory.largest and memory.largest[0][1] > 0.1 * memory.capacity:
        text += f"; the largest tensor, `{memory.largest[0][0]}`, takes {format_bytes(memory.largest[0][1])}"
    return text


def configuration(proportion: float | None, *lines: str) -> list[str]:
    """Returns lines of code that configure the system, or none.

    `lines` set options of the `IPUConfig` named `config`. The lines after them set `proportion` for products.
    """
    categories = () if proportion is None else ("convolutions", "matmuls")
    options = f'poplar_options = {{"availableMemoryProportion": "{proportion}"}}'
    settings = [*lines, *(f"config.{category}.{options}" for category in categories)]
    return ["config = ipu.config.IPUConfig()", *settings, "config.configure_ipu_system()"] if settings else []
