"""What changed from one report to another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.machine._text import PARTS, count_text, machine_text, memory_parts

if TYPE_CHECKING:
    from tensorflow_ipu.machine._report import Report

_LISTED = 10
_NOTICED = 0.005
_NAME = 50
_NUMBER = re.compile(r"_\d+(?=[/_ ])")


@dataclass(frozen=True)
class Change:
    """One figure of two reports."""

    name: str
    before: float
    after: float
    text: Callable[[float], str]
    detail: bool = False

    @property
    def ratio(self) -> str:
        """By how much it changed, for instance `+12%`."""
        if self.before == self.after:
            return ""
        if not self.before or not self.after:
            return "new" if not self.before else "gone"
        share = self.after / self.before - 1
        if abs(share) < _NOTICED:
            return ""
        return f"{share:+.0%}" if share < 10 else f"x {self.after / self.before:.0f}"


def changed_figures(before: Report, after: Report) -> list[Change]:
    """Time of a step and memory of the fullest IPU, with their parts."""
    found = [
        Change("time of a step", before.step_seconds, after.step_seconds, format_seconds),
        *(
            Change(
                part,
                before.part_seconds(part) / before.steps,
                after.part_seconds(part) / after.steps,
                format_seconds,
                True,
            )
            for part in PARTS
        ),
        Change(
            "steps a second of all replicas", before.throughput(1), after.throughput(1), lambda rate: f"{rate:,.0f}"
        ),
        Change("arithmetic of a step, FLOP", before.flops / before.steps, after.flops / after.steps, count_text),
        Change("memory of the fullest IPU, at most", before.memory.high, after.memory.high, format_bytes),
    ]
    for (name, one), (_, other) in zip(memory_parts(before.memory), memory_parts(after.memory), strict=True):
        found.append(Change(name, one, other, format_bytes, detail=True))
    found.append(Change("code, at most", before.memory.code_high, after.memory.code_high, format_bytes, detail=True))
    found.append(Change("beside the chip", before.memory.off_chip, after.memory.off_chip, format_bytes, detail=True))
    return [each for each in found if not each.detail or each.before or each.after]


def changed_operations(before: Report, after: Report) -> list[Change]:
    """The operations whose time in a step changed most, of both reports together."""
    one, other = _times(before), _times(after)
    other = _renamed(other, [name for name in one if name not in other], [name for name in other if name not in one])
    names = dict.fromkeys((*one, *other))
    found = [Change(name, one.get(name, 0.0), other.get(name, 0.0), format_seconds) for name in names]
    changed = [each for each in found if each.before != each.after]
    return sorted(changed, key=lambda each: -abs(each.after - each.before))[:_LISTED]


def _times(report: Report) -> dict[str, float]:
    """The seconds of a step that go to each operation, by name and kind, in the program's order."""
    times: dict[str, float] = {}
    for each in report.operations:
        name = f"{each.name} ({each.kind})"
        times[name] = times.get(name, 0.0) + each.seconds / report.steps
    return times


def _renamed(times: dict[str, float], gone: Sequence[str], new: Sequence[str]) -> dict[str, float]:
    """The times with old names for new ones that differ in numbers alone: layers are numbered anew in each model."""
    places: dict[str, tuple[list[str], list[str]]] = {}
    for at, names in enumerate((gone, new)):
        for name in names:
            places.setdefault(_NUMBER.sub("", name), ([], []))[at].append(name)
    pairs = [pair for pair in places.values() if len(pair[0]) == len(pair[1])]
    old = {late: early for earlies, lates in pairs for early, late in zip(earlies, lates, strict=True)}
    return {old.get(name, name): seconds for name, seconds in times.items()}


def compare_reports(before: Report, after: Report) -> str:
    """Says what changed from one report to another: time by part, memory, and the operations that changed most.

    Args:
      before: The first report.
      after: The second; another program or machine, too.

    Returns:
      A table, for a terminal.
    """
    return "\n".join(_lines(before, after))


def _lines(before: Report, after: Report) -> Iterator[str]:
    for word, report in (("before", before), ("after", after)):
        replicas = f", {report.replicas} replicas" if report.replicas > 1 else ""
        yield f"{word + ':':<8} {report.program} on {machine_text(report)}{replicas}: {report.memory.verdict}"
    yield ""
    yield _row("", "before", "after", "change")
    for each in changed_figures(before, after):
        yield _row("  " * each.detail + each.name, each.text(each.before), each.text(each.after), each.ratio)
    operations = changed_operations(before, after)
    if operations:
        yield ""
        yield _row("operations that changed most, a step", "before", "after", "change")
        for each in operations:
            name = each.name if len(each.name) <= _NAME else f"...{each.name[3 - _NAME :]}"
            yield _row(name, each.text(each.before), each.text(each.after), each.ratio)


def _row(name: str, before: str, after: str, change: str) -> str:
    return f"{name:<{_NAME}} {before:>10} {after:>10} {change:>8}".rstrip()
