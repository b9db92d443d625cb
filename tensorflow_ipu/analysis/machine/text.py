"""Reports as text, and what changed from one to another."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tensorflow_ipu._base.notebook import NotebookText
from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.analysis.machine.layers import layers_of, name_in, shortened
from tensorflow_ipu.analysis.machine.memory import Memory
from tensorflow_ipu.analysis.machine.walk import OperationTime

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine.advice import Recipe, Suggestion
    from tensorflow_ipu.analysis.machine.report import Report

PARTS = ("compute", "exchange", "sync", "links", "host")
_SUMMED = (*PARTS, "count", "flops", "host_bytes")


def count_text(number: float) -> str:
    """Returns a count with a prefix for a unit that follows, for instance `1.5 M`."""
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} T"


def machine_text(report: Report) -> str:
    """Returns the name of a report's machine, with its box: `Bow in Bow Pod16`."""
    system, machine = report.system, report.system.machine
    return system.name if system.name == machine.name else f"{machine.name} in {system.name}"


def memory_parts(memory: Memory) -> tuple[tuple[str, int], ...]:
    """Returns the parts of a memory without code: names and bytes."""
    return (
        ("variables and arguments", memory.variables),
        ("optimizer state", memory.optimizer),
        ("accumulators", memory.accumulators),
        ("stash", memory.stash),
        ("feeds", memory.feeds),
        ("constants", memory.constants),
        ("other data at the peak", memory.data),
    )


def top_operations(report: Report) -> list[OperationTime]:
    """Returns the operations of a report, slowest first, with one row a TensorFlow operation, kind and IPU."""
    found: dict[tuple[object, ...], OperationTime] = {}
    for row in report.operations:
        key = row.name, row.kind, row.ipu, row.part
        have = found.get(key)
        if have is not None:
            sums = {name: getattr(have, name) + getattr(row, name) for name in _SUMMED}
            have = replace(have, **sums, plan=have.plan or row.plan, source=have.source or row.source)
        found[key] = have or row
    return sorted(found.values(), key=lambda row: -row.seconds)


_BAR = 40
_TOP = 10
_CHANGE = 88
_WIDTH = 118
_SIGNS = {"compute": "#", "exchange": "=", "sync": "-", "links": "~", "host": "."}


def report_text(report: Report) -> str:
    return "\n".join(_text_lines(report))


def _text_lines(report: Report) -> Iterator[str]:
    several = f", {report.replicas} replicas" if report.replicas > 1 else ""
    yield f"{report.program} on {machine_text(report)}{several}: a prediction; nothing was run"
    yield from (f"  * {assumption}" for assumption in report.assumptions)
    yield ""
    yield from _memory(report)
    yield ""
    yield from _time(report)
    yield ""
    yield from _table(report)
    advice = report.advice()
    if advice.recipe is not None:
        yield from _recipe(report, advice.recipe)
    if advice:
        yield ""
        yield from _suggestions("what would help, each alone", report, advice)
    if advice.not_asked:
        yield ""
        yield "what would help, and was not asked"
        for each in advice.not_asked:
            text = f"{each.change}: {each.why}"
            yield from textwrap.wrap(text, _WIDTH, initial_indent="  * ", subsequent_indent="    ")


def _suggestions(heading: str, report: Report, suggestions: Iterable[Suggestion]) -> Iterator[str]:
    yield f"{heading:<{_CHANGE}} {'speed':>8} {'memory':>8}"
    for each in suggestions:
        share = each.memory / report.memory.capacity
        first, *others = textwrap.wrap(each.change, _CHANGE)
        yield f"{first:<{_CHANGE}} {f'x {each.speed:.2f}':>8} {share:>8.0%}  {each.verdict}"
        yield from (f"  {line}" for line in others)


def _recipe(report: Report, recipe: Recipe) -> Iterator[str]:
    yield ""
    yield from _suggestions("what would help together, each after those above", report, recipe.steps)
    yield from textwrap.wrap(recipe.left, _WIDTH)
    if recipe.code:
        yield ""
        yield from recipe.code.splitlines()


def _memory(report: Report) -> Iterator[str]:
    several = report.ipus_per_replica > 1
    for memory in report.memories:
        full = "#" * round(_BAR * min(1.0, memory.low / memory.capacity))
        perhaps = "+" * (round(_BAR * min(1.0, memory.high / memory.capacity)) - len(full))
        bar = (full + perhaps).ljust(_BAR, ".")
        low, high = (f"{part / memory.capacity:.0%}" for part in (memory.low, memory.high))
        whose = f"memory of IPU {memory.ipu}" if several else "memory of an IPU"
        yield f"{whose}  [{bar}] {low} to {high} of {format_bytes(memory.capacity)}: {memory.verdict}"
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory_parts(memory) if size)
        away = f"; beside the chip {format_bytes(memory.off_chip)}" if memory.off_chip else ""
        code = f"code {format_bytes(memory.code_low)} to {format_bytes(memory.code_high)}"
        yield f"  {parts}{', ' if parts else ''}{code}{away}"


def _time(report: Report) -> Iterator[str]:
    times = {part: report.part_seconds(part) for part in _SIGNS}
    whole = sum(times.values())
    bar = "".join(sign * round(_BAR * times[part] / whole) for part, sign in _SIGNS.items()) if whole else ""
    one = "a step" if report.timeline is None else "a micro-batch"
    step = f"{one} of {report.steps}" if report.steps > 1 else "a run"
    low, high = (format_seconds(each) for each in report.step_seconds_range)
    yield f"time of {step}  [{bar[:_BAR].ljust(_BAR)}] {format_seconds(report.step_seconds)} ({low} to {high})"
    if whole:
        shares = (f"{sign} {part} {times[part] / whole:.0%}" for part, sign in _SIGNS.items() if times[part])
        beside = "; host beside the rest" if report.overlaps_host and times["host"] else ""
        yield f"  {', '.join(shares)}{beside}"
    if report.timeline is not None:
        passed = f"a pass of {report.timeline.micro_batches} micro-batches {format_seconds(report.timeline.seconds)}"
        yield f"  {passed}, in which IPUs wait for others {report.timeline.bubble:.0%} of the time"
    elif report.ipus_per_replica > 1:
        works = ((memory.ipu, report.ipu_seconds(memory.ipu) / report.seconds) for memory in report.memories)
        yield f"  IPUs work one after the other: {', '.join(f'IPU {ipu} {share:.0%}' for ipu, share in works)}"
    peak = report.flops / report.seconds / report.ipus_per_replica / 1e12 if report.seconds else 0.0
    yield f"  {count_text(report.flops / report.steps)}FLOP, {peak:.1f} TFLOP/s of an IPU"


def _table(report: Report) -> Iterator[str]:
    rows, layers = top_operations(report), layers_of(report)
    whole = sum(row.seconds for row in rows)
    yield f"{'top operations':<{_NAME}}  {'kind':<12} {'times':>8} {'share':>6}  {'bound':<8} {'tiles':<20} line"
    for row in rows[:_TOP]:
        name = shortened(name_in(layers, row), _NAME)
        share = f"{row.seconds / whole:.1%}"
        yield f"{name:<{_NAME}}  {row.kind:<12} {row.count:>8} {share:>6}  {row.bound:<8} {row.plan:<20} {row.source}".rstrip()
    rest = sum(row.seconds for row in rows[_TOP:])
    if rest:
        yield f"{f'{len(rows) - _TOP} others':<{_NAME}}  {'':<12} {'':>8} {f'{rest / whole:.1%}':>6}"


_LISTED = 10
_NOTICED = 0.005
_NAME = 50
_NUMBER = re.compile(r"_\d+(?=[/_ ])")


@dataclass(frozen=True)
class Change:
    """One figure of two reports."""

    name: str
    text: Callable[[float], str]
    detail: bool
    before: float
    after: float

    @property
    def ratio(self) -> str:
        """The relative change, for instance `+12%`."""
        if self.before == self.after:
            return ""
        if not self.before or not self.after:
            return "new" if not self.before else "gone"
        share = self.after / self.before - 1
        if abs(share) < _NOTICED:
            return ""
        return f"{share:+.0%}" if share < 10 else f"x {self.after / self.before:.0f}"


def changed_figures(before: Report, after: Report) -> list[Change]:
    """Returns the time of a step and the memory of the fullest IPU, with their parts."""
    found = [Change(*one, other[-1]) for one, other in zip(_figures(before), _figures(after), strict=True)]
    return [each for each in found if not each.detail or each.before or each.after]


def _figures(report: Report) -> Iterator[tuple[str, Callable[[float], str], bool, float]]:
    """Yields the name of each figure, its format, whether it is a detail, and its value."""
    memory = report.memory
    yield "time of a step", format_seconds, False, report.step_seconds
    yield from ((part, format_seconds, True, report.part_seconds(part) / report.steps) for part in PARTS)
    yield "steps a second of all replicas", "{:,.0f}".format, False, report.throughput(1)
    yield "arithmetic of a step, FLOP", count_text, False, report.flops / report.steps
    yield "memory of the fullest IPU, at most", format_bytes, False, memory.high
    yield from ((name, format_bytes, True, size) for name, size in memory_parts(memory))
    yield "code, at most", format_bytes, True, memory.code_high
    yield "beside the chip", format_bytes, True, memory.off_chip


def changed_operations(before: Report, after: Report) -> list[Change]:
    """Returns the operations of both reports whose time in a step changed most."""
    one, other = _times(before), _times(after)
    other = _renamed(other, [name for name in one if name not in other], [name for name in other if name not in one])
    names = dict.fromkeys((*one, *other))
    found = [Change(name, format_seconds, False, one.get(name, 0.0), other.get(name, 0.0)) for name in names]
    changed = [each for each in found if each.before != each.after]
    return sorted(changed, key=lambda each: -abs(each.after - each.before))[:_LISTED]


def _times(report: Report) -> dict[str, float]:
    """Returns the seconds of a step for each operation, by name and kind, in the program's order."""
    times: dict[str, float] = {}
    layers = layers_of(report)
    for each in report.operations:
        name = f"{name_in(layers, each)} ({each.kind})"
        times[name] = times.get(name, 0.0) + each.seconds / report.steps
    return times


def _renamed(times: dict[str, float], gone: Sequence[str], new: Sequence[str]) -> dict[str, float]:
    """Replaces new names by old ones that differ in numbers only: layers are numbered anew in each model."""
    places: dict[str, tuple[list[str], list[str]]] = {}
    for at, names in enumerate((gone, new)):
        for name in names:
            places.setdefault(_NUMBER.sub("", name), ([], []))[at].append(name)
    pairs = [pair for pair in places.values() if len(pair[0]) == len(pair[1])]
    old = {late: early for earlies, lates in pairs for early, late in zip(earlies, lates, strict=True)}
    return {old.get(name, name): seconds for name, seconds in times.items()}


class ReportChanges(NamedTuple):
    """What changed between two reports, as a page."""

    before: Report
    after: Report


def compare_reports(before: Report, after: Report) -> str:
    """Returns a table of what changed between two reports: time by part, memory, and the operations that changed most.

    A notebook shows the text as the panel of a page.
    """
    return NotebookText("\n".join(_lines(before, after)), ReportChanges(before, after))


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
            yield _row(shortened(each.name, _NAME), each.text(each.before), each.text(each.after), each.ratio)


def _row(name: str, before: str, after: str, change: str) -> str:
    return f"{name:<{_NAME}} {before:>10} {after:>10} {change:>8}".rstrip()
