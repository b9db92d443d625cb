"""Reports as text, and the comparison of two reports as text."""

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
    """Returns a count with a decimal prefix, such as `1.5 M`. The unit follows it."""
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} T"


def machine_text(report: Report) -> str:
    """Returns the name of a report's machine with its system, such as `Bow in Bow Pod16`."""
    system, machine = report.system, report.system.machine
    return system.name if system.name == machine.name else f"{machine.name} in {system.name}"


def memory_parts(memory: Memory) -> tuple[tuple[str, int], ...]:
    """Returns the names and bytes of a memory's parts, except the code."""
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
    """Returns the operations of a report, slowest first, with one row for each TensorFlow operation, kind and IPU."""
    merged: dict[tuple[object, ...], OperationTime] = {}
    for row in report.operations:
        key = row.name, row.kind, row.ipu, row.part
        total = merged.get(key)
        if total is not None:
            sums = {name: getattr(total, name) + getattr(row, name) for name in _SUMMED}
            total = replace(total, **sums, plan=total.plan or row.plan, source=total.source or row.source)
        merged[key] = total or row
    return sorted(merged.values(), key=lambda row: -row.seconds)


_BAR = 40
_TOP = 10
_CHANGE = 88
_WIDTH = 118
_SIGNS = {"compute": "#", "exchange": "=", "sync": "-", "links": "~", "host": "."}


def report_text(report: Report) -> str:
    return "\n".join(_text_lines(report))


def _text_lines(report: Report) -> Iterator[str]:
    replicas = f", {report.replicas} replicas" if report.replicas > 1 else ""
    yield f"{report.program} on {machine_text(report)}{replicas}: a prediction; nothing was run"
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
        yield from _suggestions("changes that help, each on its own", report, advice)
    if advice.not_asked:
        yield ""
        yield "changes that may help, but were not evaluated"
        for entry in advice.not_asked:
            text = f"{entry.change}: {entry.why}"
            yield from textwrap.wrap(text, _WIDTH, initial_indent="  * ", subsequent_indent="    ")


def _suggestions(heading: str, report: Report, suggestions: Iterable[Suggestion]) -> Iterator[str]:
    yield f"{heading:<{_CHANGE}} {'speed':>8} {'memory':>8}"
    for suggestion in suggestions:
        share = suggestion.memory / report.memory.capacity
        first, *lines = textwrap.wrap(suggestion.change, _CHANGE)
        yield f"{first:<{_CHANGE}} {f'x {suggestion.speed:.2f}':>8} {share:>8.0%}  {suggestion.verdict}"
        yield from (f"  {line}" for line in lines)


def _recipe(report: Report, recipe: Recipe) -> Iterator[str]:
    yield ""
    yield from _suggestions("changes that help together, each in addition to those above", report, recipe.steps)
    yield from textwrap.wrap(recipe.left, _WIDTH)
    if recipe.code:
        yield ""
        yield from recipe.code.splitlines()


def _memory(report: Report) -> Iterator[str]:
    has_several_ipus = report.ipus_per_replica > 1
    for memory in report.memories:
        certain = "#" * round(_BAR * min(1.0, memory.low / memory.capacity))
        possible = "+" * (round(_BAR * min(1.0, memory.high / memory.capacity)) - len(certain))
        bar = (certain + possible).ljust(_BAR, ".")
        low, high = (f"{part / memory.capacity:.0%}" for part in (memory.low, memory.high))
        heading = f"memory of IPU {memory.ipu}" if has_several_ipus else "memory of an IPU"
        yield f"{heading}  [{bar}] {low} to {high} of {format_bytes(memory.capacity)}: {memory.verdict}"
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory_parts(memory) if size)
        off_chip = f"; off the chip {format_bytes(memory.off_chip)}" if memory.off_chip else ""
        code = f"code {format_bytes(memory.code_low)} to {format_bytes(memory.code_high)}"
        yield f"  {parts}{', ' if parts else ''}{code}{off_chip}"


def _time(report: Report) -> Iterator[str]:
    times = {part: report.part_seconds(part) for part in _SIGNS}
    total = sum(times.values())
    bar = "".join(sign * round(_BAR * times[part] / total) for part, sign in _SIGNS.items()) if total else ""
    noun = "a step" if report.timeline is None else "a micro-batch"
    step = f"{noun} of {report.steps}" if report.steps > 1 else "a run"
    low, high = (format_seconds(seconds) for seconds in report.step_seconds_range)
    yield f"time of {step}  [{bar[:_BAR].ljust(_BAR)}] {format_seconds(report.step_seconds)} ({low} to {high})"
    if total:
        shares = (f"{sign} {part} {times[part] / total:.0%}" for part, sign in _SIGNS.items() if times[part])
        overlap = "; transfers with the host overlap the other parts" if report.overlaps_host and times["host"] else ""
        yield f"  {', '.join(shares)}{overlap}"
    if report.timeline is not None:
        seconds = format_seconds(report.timeline.seconds)
        yield (
            f"  a pass of {report.timeline.micro_batches} micro-batches takes {seconds}, in which IPUs wait for others"
            f" {report.timeline.bubble:.0%} of the time"
        )
    elif report.ipus_per_replica > 1:
        works = ((memory.ipu, report.ipu_seconds(memory.ipu) / report.seconds) for memory in report.memories)
        yield f"  IPUs work one after the other: {', '.join(f'IPU {ipu} {share:.0%}' for ipu, share in works)}"
    rate = report.flops / report.seconds / report.ipus_per_replica / 1e12 if report.seconds else 0.0
    yield f"  {count_text(report.flops / report.steps)}FLOP, {rate:.1f} TFLOP/s of an IPU"


def _table(report: Report) -> Iterator[str]:
    rows, layers = top_operations(report), layers_of(report)
    total = sum(row.seconds for row in rows)
    yield f"{'top operations':<{_NAME}}  {'kind':<12} {'times':>8} {'share':>6}  {'bound':<8} {'tiles':<20} line"
    for row in rows[:_TOP]:
        name = shortened(name_in(layers, row), _NAME)
        share = f"{row.seconds / total:.1%}"
        yield f"{name:<{_NAME}}  {row.kind:<12} {row.count:>8} {share:>6}  {row.bound:<8} {row.plan:<20} {row.source}".rstrip()
    remaining = sum(row.seconds for row in rows[_TOP:])
    if remaining:
        yield f"{f'{len(rows) - _TOP} others':<{_NAME}}  {'':<12} {'':>8} {f'{remaining / total:.1%}':>6}"


_LISTED = 10
_NOTICED = 0.005
_NAME = 50
_NUMBER = re.compile(r"_\d+(?=[/_ ])")


@dataclass(frozen=True)
class Change:
    """The values of one figure in two reports."""

    name: str
    text: Callable[[float], str]
    detail: bool
    before: float
    after: float

    @property
    def ratio(self) -> str:
        """The relative change, such as `+12%`; empty if it is below 0.5 %."""
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
    changes = [Change(*old, new[-1]) for old, new in zip(_figures(before), _figures(after), strict=True)]
    return [change for change in changes if not change.detail or change.before or change.after]


def _figures(report: Report) -> Iterator[tuple[str, Callable[[float], str], bool, float]]:
    """Yields the name of each figure, its format, True if it is a part of the figure above, and its value."""
    memory = report.memory
    yield "time of a step", format_seconds, False, report.step_seconds
    yield from ((part, format_seconds, True, report.part_seconds(part) / report.steps) for part in PARTS)
    yield "steps a second of all replicas", "{:,.0f}".format, False, report.throughput(1)
    yield "arithmetic of a step, FLOP", count_text, False, report.flops / report.steps
    yield "memory of the fullest IPU, at most", format_bytes, False, memory.high
    yield from ((name, format_bytes, True, size) for name, size in memory_parts(memory))
    yield "code, at most", format_bytes, True, memory.code_high
    yield "off the chip", format_bytes, True, memory.off_chip


def changed_operations(before: Report, after: Report) -> list[Change]:
    """Returns the operations of both reports whose time in a step changed most."""
    old, new = _times(before), _times(after)
    new = _renamed(new, [name for name in old if name not in new], [name for name in new if name not in old])
    names = dict.fromkeys((*old, *new))
    changes = [Change(name, format_seconds, False, old.get(name, 0.0), new.get(name, 0.0)) for name in names]
    changed = [change for change in changes if change.before != change.after]
    return sorted(changed, key=lambda change: -abs(change.after - change.before))[:_LISTED]


def _times(report: Report) -> dict[str, float]:
    """Returns the seconds of a step for each operation, by name and kind, in the program's order."""
    times: dict[str, float] = {}
    layers = layers_of(report)
    for row in report.operations:
        name = f"{name_in(layers, row)} ({row.kind})"
        times[name] = times.get(name, 0.0) + row.seconds / report.steps
    return times


def _renamed(times: dict[str, float], gone: Sequence[str], new: Sequence[str]) -> dict[str, float]:
    """Replaces new names by old names that differ only in numbers, such as `dense_3` by `dense_1`.

    Keras numbers the layers of each model differently. Names are paired in their order if each form of name is as
    frequent in `gone` as in `new`.
    """
    pairs: dict[str, tuple[list[str], list[str]]] = {}
    for index, names in enumerate((gone, new)):
        for name in names:
            pairs.setdefault(_NUMBER.sub("", name), ([], []))[index].append(name)
    equal = [pair for pair in pairs.values() if len(pair[0]) == len(pair[1])]
    old_names = {new_name: old_name for pair in equal for old_name, new_name in zip(*pair, strict=True)}
    return {old_names.get(name, name): seconds for name, seconds in times.items()}


class ReportChanges(NamedTuple):
    """Two reports, whose differences are a page."""

    before: Report
    after: Report


def compare_reports(before: Report, after: Report) -> str:
    """Returns a table of the differences of two reports: time by part, memory, and the operations that changed most.

    A notebook shows the table as a page.
    """
    return NotebookText("\n".join(_lines(before, after)), ReportChanges(before, after))


def _lines(before: Report, after: Report) -> Iterator[str]:
    for label, report in (("before:", before), ("after:", after)):
        replicas = f", {report.replicas} replicas" if report.replicas > 1 else ""
        yield f"{label:<8} {report.program} on {machine_text(report)}{replicas}: {report.memory.verdict}"
    yield ""
    yield _row("", "before", "after", "change")
    for figure in changed_figures(before, after):
        name = f"  {figure.name}" if figure.detail else figure.name
        yield _row(name, figure.text(figure.before), figure.text(figure.after), figure.ratio)
    operations = changed_operations(before, after)
    if operations:
        yield ""
        yield _row("operations that changed most, a step", "before", "after", "change")
        for change in operations:
            name = shortened(change.name, _NAME)
            yield _row(name, change.text(change.before), change.text(change.after), change.ratio)


def _row(name: str, before: str, after: str, change: str) -> str:
    return f"{name:<{_NAME}} {before:>10} {after:>10} {change:>8}".rstrip()
