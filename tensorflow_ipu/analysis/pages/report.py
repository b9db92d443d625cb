"""The page of a report on a program, and of what changed between two."""

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

# More rows make a page that browsers are slow with; the JSON has all.
_MOST_ROWS = 1500
_MOST_IPUS = 8
_MOST_ALIVE = 8  # The others are folded.


@page_of.register
def report_page(report: Report, before: Report | None = None) -> str:
    """Returns the page of a report, with a panel of what changed from the report `before`."""
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
            "parts": [(part, taken / seconds) for part in PARTS if (taken := report.part_seconds(part))],
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
    """Yields the figures at the top: each with its meaning, and its class of CSS."""
    memory, verdict = report.memory, report.memory.verdict
    low, high = map(format_seconds, report.step_seconds_range)
    rate = report.flops / report.seconds / 1e12 if report.seconds else 0.0
    ipus = report.replicas * report.ipus_per_replica
    share = f"{memory.low / memory.capacity:.0%} to {memory.high / memory.capacity:.0%}"
    several = f"{report.replicas} replica{'s' * (report.replicas > 1)} of {report.ipus_per_replica}"
    yield verdict, f"{share} of the fullest IPU's memory", verdict.replace(" ", "-")
    yield format_seconds(report.step_seconds), f"a step; between {low} and {high}", ""
    yield f"{report.throughput(1):,.0f} /s", "steps of all replicas; times the batch size, samples", ""
    yield f"{rate:.1f} TFLOP/s", f"of a replica; {count_text(report.flops / report.steps)}FLOP a step", ""
    yield f"{ipus} IPU{'s' * (ipus > 1)}", f"{several}; {report.steps} step{'s' * (report.steps > 1)} a run", ""


def _kinds(report: Report) -> list[tuple[str, float]]:
    kinds: defaultdict[str, float] = defaultdict(float)
    for row in report.operations:
        kinds[row.kind] += row.seconds
    return sorted(kinds.items(), key=lambda item: -item[1])[:8]


def _others(report: Report) -> list[Memory]:
    others = [memory for memory in report.memories if memory.ipu != report.memory.ipu and memory.liveness]
    return others[: _MOST_IPUS - 1]


def _timeline_colours(report: Report) -> list[str]:
    if report.timeline is None:
        return [part for part in PARTS if report.part_seconds(part)]
    kinds = {task.kind for task in report.timeline.tasks}
    moves = ["move"] if kinds & {"load", "save", "exchange"} else []
    return [name for name in ("forward", "recompute", "backward", "update") if name in kinds] + moves


@dataclass(frozen=True)
class _Group:
    """The operations of a layer, with what they take together."""

    name: str
    rows: Sequence[tuple[str, int, OperationTime]]  # With their names, and what they have in memory at the peak.
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
    known = {name: layers.known_as(name) for name in alive} | {
        row.name: layers.known_as(row.name, row.kind) for row in rows
    }
    groups = grouped({one.layer for one in known.values()})
    members: defaultdict[str, list[OperationTime]] = defaultdict(list)
    sizes: Counter[str] = Counter()
    for row in rows:
        members[groups[known[row.name].layer]].append(row)
    for name, size in alive.items():
        sizes[groups[known[name].layer]] += size
    left = _MOST_ROWS
    for group, found in sorted(members.items(), key=lambda item: -sum(row.seconds for row in item[1])):
        if left <= 0:
            return
        bounds: defaultdict[str, float] = defaultdict(float)
        for row in found:
            bounds[row.bound] += row.seconds
        shown = [(_row_name(row, str(known[row.name])), alive.pop(row.name, 0), row) for row in found[:left]]
        left -= len(shown)
        yield _Group(
            name=group or "in no layer",
            rows=shown,
            members=len(found),
            seconds=sum(row.seconds for row in found),
            flops=sum(row.flops for row in found),
            alive=sizes[group],
            bound=max(bounds, key=lambda bound: bounds[bound]),
        )


def _row_name(row: OperationTime, name: str) -> str:
    return f"{name.removesuffix(' (gradient)')} ({row.part})" if row.part else name
