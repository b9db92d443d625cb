"""The page of a report on a program, and the page of the differences of two reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow_ipu._base.units import format_seconds
from tensorflow_ipu.analysis.machine import Memory, OperationTime, Report
from tensorflow_ipu.analysis.machine.layers import grouped, layers_of, name_in
from tensorflow_ipu.analysis.machine.text import (
    PARTS,
    ReportChanges,
    changed_figures,
    changed_operations,
    count_text,
    machine_text,
    memory_parts,
    top_operations,
)
from tensorflow_ipu.analysis.pages import report_pictures
from tensorflow_ipu.analysis.pages.templates import page_of, render

# Browsers are slow with more rows. The JSON file has all of them.
_MOST_ROWS = 1500
_MOST_IPUS = 8
_MOST_ALIVE = 8  # The number of buffers that are visible before a click.


@page_of.register
def report_page(report: Report, before: Report | None = None) -> str:
    """Returns the page of a report. With the report `before`, the page has a panel of differences."""
    return _rendered("report.html.jinja", report, before)


@page_of.register
def _(changes: ReportChanges) -> str:
    return _rendered("comparison.html.jinja", changes.after, changes.before)


def _rendered(template: str, report: Report, before: Report | None) -> str:
    values: dict[str, Any] = {
        "title": f"{report.program} on {machine_text(report)}",
        "report": report,
        "figures": _figures(report),
        "before": before,
    }
    if before is not None:
        values["source"] = f"{before.program} on {machine_text(before)}"
        values["changes"] = (
            ("", changed_figures(before, report)),
            ("operations that changed most, a step", changed_operations(before, report)),
        )
    if template == "report.html.jinja":
        layers, seconds = layers_of(report), sum(row.seconds for row in report.operations) or 1.0
        values |= {
            "advice": report.advice(),
            "pictures": report_pictures,
            "memory_parts": [(name, size) for name, size in memory_parts(report.memory) if size],
            "parts": [(part, time / seconds) for part in PARTS if (time := report.part_seconds(part))],
            "kinds": _kinds(report),
            "alive": [(str(layers.known_as(name)), size) for name, size in report.memory.largest],
            "shown": _MOST_ALIVE,
            "others": _others(report),
            "feeds": [(name_in(layers, row), row) for row in top_operations(report) if row.host_bytes],
            "colours": [(name, name) for name in _timeline_colours(report)],
            "groups": list(_groups(report)),
            "most": _MOST_ROWS,
            "operations": len(top_operations(report)),
            "seconds": seconds,
        }
    return render(template, **values)


def _figures(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yields the figures at the top of the page, each with its explanation and its CSS class."""
    memory, verdict = report.memory, report.memory.verdict
    low, high = map(format_seconds, report.step_seconds_range)
    rate = report.flops / report.seconds / 1e12 if report.seconds else 0.0
    ipus = report.replicas * report.ipus_per_replica
    share = f"{memory.low / memory.capacity:.0%} to {memory.high / memory.capacity:.0%}"
    replicas = f"{_counted(report.replicas, 'replica')} of {report.ipus_per_replica}"
    yield verdict, f"{share} of the fullest IPU's memory", verdict.replace(" ", "-")
    yield format_seconds(report.step_seconds), f"a step; between {low} and {high}", ""
    yield f"{report.throughput(1):,.0f} /s", "steps of all replicas; multiply by the batch size for samples", ""
    yield f"{rate:.1f} TFLOP/s", f"of a replica; {count_text(report.flops / report.steps)}FLOP a step", ""
    yield _counted(ipus, "IPU"), f"{replicas}; {_counted(report.steps, 'step')} a run", ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}s" if count > 1 else f"{count} {noun}"


def _kinds(report: Report) -> list[tuple[str, float]]:
    kinds: defaultdict[str, float] = defaultdict(float)
    for row in report.operations:
        kinds[row.kind] += row.seconds
    return sorted(kinds.items(), key=lambda item: -item[1])[:8]


def _others(report: Report) -> list[Memory]:
    memories = [memory for memory in report.memories if memory.ipu != report.memory.ipu and memory.liveness]
    return memories[: _MOST_IPUS - 1]


def _timeline_colours(report: Report) -> list[str]:
    if report.timeline is None:
        return [part for part in PARTS if report.part_seconds(part)]
    kinds = {task.kind for task in report.timeline.tasks}
    moves = ["move"] if kinds & {"load", "save", "exchange"} else []
    return [name for name in ("forward", "recompute", "backward", "update") if name in kinds] + moves


@dataclass(frozen=True)
class _Group:
    """The operations of a layer, with the sums of their figures."""

    name: str
    rows: Sequence[tuple[str, int, OperationTime]]  # For each: name, bytes at the peak of memory, and times.
    members: int
    seconds: float
    flops: float
    alive: int
    bound: str


def _groups(report: Report) -> Iterator[_Group]:
    """Yields the layers of a report, slowest first, until they have `_MOST_ROWS` operations."""
    rows, layers = top_operations(report), layers_of(report)
    alive: Counter[str] = Counter()
    for name, size in (buffer for memory in report.memories for buffer in memory.largest):
        alive[name] += size
    user_names = {name: layers.known_as(name) for name in alive} | {
        row.name: layers.known_as(row.name, row.kind) for row in rows
    }
    groups = grouped({user_name.layer for user_name in user_names.values()})
    members: defaultdict[str, list[OperationTime]] = defaultdict(list)
    sizes: Counter[str] = Counter()
    for row in rows:
        members[groups[user_names[row.name].layer]].append(row)
    for name, size in alive.items():
        sizes[groups[user_names[name].layer]] += size
    remaining = _MOST_ROWS
    for group, group_rows in sorted(members.items(), key=lambda item: -sum(row.seconds for row in item[1])):
        if remaining <= 0:
            return
        bounds: defaultdict[str, float] = defaultdict(float)
        for row in group_rows:
            bounds[row.bound] += row.seconds
        shown = [
            (_row_name(row, str(user_names[row.name])), alive.pop(row.name, 0), row) for row in group_rows[:remaining]
        ]
        remaining -= len(shown)
        yield _Group(
            name=group or "in no layer",
            rows=shown,
            members=len(group_rows),
            seconds=sum(row.seconds for row in group_rows),
            flops=sum(row.flops for row in group_rows),
            alive=sizes[group],
            bound=max(bounds, key=lambda bound: bounds[bound]),
        )


def _row_name(row: OperationTime, name: str) -> str:
    return f"{name.removesuffix(' (gradient)')} ({row.part})" if row.part else name
