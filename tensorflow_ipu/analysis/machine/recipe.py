"""Combines changes of a program until it fits: a search that takes what costs the least time first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tensorflow_ipu._base.units import format_bytes
from tensorflow_ipu.analysis.machine._advice import HALF, STATE_OFF_CHIP, Recipe, Suggestion
from tensorflow_ipu.analysis.machine._memory import FITS

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine._memory import Memory
    from tensorflow_ipu.analysis.machine._report import Report

_S = TypeVar("_S")

# A change that leaves more than this share of the memory does not help, and no change costs less than this.
_LEANER, _CHEAP = 0.97, 0.02


class Effect(NamedTuple):
    """What a setting comes to: samples a second as a multiple of what they were, the fullest IPU, and how many there are."""

    speed: float
    memory: Memory
    ipus: int = 1

    @property
    def cost(self) -> float:
        """The time of IPUs that a sample takes."""
        return self.ipus / self.speed

    def as_suggestion(self, words: str) -> Suggestion:
        """The effect as a line of advice."""
        return Suggestion(words, self.speed, self.memory.high, self.memory.verdict)


def searched(
    start: _S, moves: Mapping[str, Callable[[_S], _S | None]], effect: Callable[[_S], Effect | None]
) -> list[tuple[str, _S]]:
    """The moves from a setting to one that fits, or as near as they lead, each with the setting that it comes to.

    Each time, that move is made which saves the most memory for the time that it costs; at the end, those go without which
    the program fits as well.
    """
    names: list[str] = []
    setting, now = start, effect(start)
    while now is not None and now.memory.verdict != FITS:
        found = [(name, there, effect(there)) for name, move in moves.items() if (there := move(setting)) is not None]
        helps = [one for one in found if one[2] is not None and one[2].memory.high <= _LEANER * now.memory.high]
        if not helps:
            break
        name, setting, now = max(helps, key=lambda one, now=now: _worth(now, one[2]))
        names.append(name)
    for name in list(names):
        fewer = [*names]
        fewer.remove(name)
        before, after = (_reached(start, some, moves) for some in (names, fewer))
        if before is not None and after is not None and _is_better(effect(after), effect(before)):
            names = fewer
    # The same ones together: each is told once.
    names = [name for first in dict.fromkeys(names) for name in names if name == first]
    made = ((names[at], _reached(start, names[: at + 1], moves)) for at in range(len(names)))
    return [(name, there) for name, there in made if there is not None]


def _worth(before: Effect, after: Effect | None) -> float:
    assert after is not None
    room = before.memory.capacity * 0.9  # There is no merit in taking less.
    saved = math.log(before.memory.high / max(after.memory.high, room))
    return saved / max(_CHEAP, math.log(after.cost / before.cost))


def _reached(start: _S, names: Sequence[str], moves: Mapping[str, Callable[[_S], _S | None]]) -> _S | None:
    setting: _S | None = start
    for name in names:
        setting = None if setting is None else moves[name](setting)
    return setting


def _is_better(without: Effect | None, with_it: Effect | None) -> bool:
    return bool(without and with_it and without.memory.verdict == FITS and without.cost <= with_it.cost)


def left_over(memory: Memory, ipus: int) -> str:
    """What an IPU has too much of, where no change makes it fit."""
    parts = {name: getattr(memory, name) for name in ("variables", "optimizer", "accumulators", "stash", "data")}
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    whole = f"{ipus} IPU{'s' * (ipus > 1)} of {format_bytes(memory.capacity)}"
    text = f"no combination surely fits: the fullest of {whole} has {words}"
    if memory.largest and memory.largest[0][1] > 0.1 * memory.capacity:
        text += f"; the largest tensor, `{memory.largest[0][0]}`, takes {format_bytes(memory.largest[0][1])}"
    return text


@dataclass(frozen=True)
class _Reading:
    """How a program is read: its type, the share of memory for products, how much state is on the chip, and its plan."""

    halved: bool = False
    proportion: float | None = None
    state: float = 1.0
    plan: str = ""


# The share of memory that products are tried with.
TIGHT = 0.1


def words_of_proportion(proportion: float | None) -> str:
    """The change that gives products this share of memory."""
    return f"`availableMemoryProportion` of {proportion}"


def configuration(proportion: float | None, *lines: str) -> list[str]:
    """Code that configures the system: lines on an `IPUConfig` named `config`, and the memory for products; may be empty."""
    categories = () if proportion is None else ("convolutions", "matmuls")
    options = f'poplar_options = {{"availableMemoryProportion": "{proportion}"}}'
    own = [*lines, *(f"config.{category}.{options}" for category in categories)]
    return ["config = ipu.config.IPUConfig()", *own, "config.configure_ipu_system()"] if own else []


def recipe_of_reading(
    report: Report, again: Callable[..., Report], updates: int, plans: Iterable[str] = ()
) -> Recipe | None:
    """The changes for which nothing is traced anew; None where they are none. `again` knows `plans` by these words."""

    def effect(setting: _Reading) -> Effect:
        planned = {"plan": setting.plan} if setting.plan else {}
        read = again(halved=setting.halved, proportion=setting.proportion, **planned)
        moved = 0.0 if setting.state else 2 * read.memory.optimizer * updates / report.system.streaming_bytes_per_second
        memory = max((_with_state(one, setting.state) for one in read.memories), key=lambda one: one.high)
        speed = report.seconds / (read.seconds + moved) if report.seconds else 1.0
        return Effect(speed, memory)

    has_state = any(memory.optimizer for memory in report.memories)
    shared = f"optimizer state shared by {report.replicas} replicas (`replicated_optimizer_state_sharding`)"
    products = words_of_proportion(TIGHT)
    moves: dict[str, Callable[[_Reading], _Reading | None]] = {}
    if any("f32[" in each.shape for each in report.operations):
        moves[HALF] = lambda one: None if one.halved else dataclasses.replace(one, halved=True)
    if has_state and report.replicas > 1:
        moves[shared] = lambda one: dataclasses.replace(one, state=1 / report.replicas) if one.state == 1.0 else None
    if has_state:
        moves[STATE_OFF_CHIP] = lambda one: dataclasses.replace(one, state=0.0) if one.state else None
    for words in plans:
        moves[words] = lambda one, words=words: None if one.plan else dataclasses.replace(one, plan=words)
    if any(each.plan for each in report.operations):
        moves[products] = lambda one: None if one.proportion else dataclasses.replace(one, proportion=TIGHT)
    made = searched(_Reading(), moves, effect)
    if not made:
        return None
    effects = [effect(setting) for _, setting in made]
    steps = tuple(one.as_suggestion(name) for (name, _), one in zip(made, effects, strict=True))
    code = "\n".join(configuration(made[-1][1].proportion))
    memory = effects[-1].memory
    return Recipe(steps, code, left="" if memory.verdict == FITS else left_over(memory, report.ipus_per_replica))


def _with_state(memory: Memory, share: float) -> Memory:
    return dataclasses.replace(memory, optimizer=round(share * memory.optimizer))
