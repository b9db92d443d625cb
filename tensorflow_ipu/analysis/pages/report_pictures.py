"""The pictures of a report: memory, liveness, and the timeline of a step or a pipeline."""

from __future__ import annotations

import functools
import importlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from tensorflow_ipu._base.units import format_bytes, format_seconds, round_ticks, tick_label
from tensorflow_ipu.analysis.machine.memory import Memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tensorflow_ipu.analysis.machine.advice import Timeline
    from tensorflow_ipu.analysis.machine.report import Report

# The colours of the page, by the names of their CSS variables. matplotlib draws with placeholders, which are then
# replaced.
NAMES = (
    "ink", "grid", "compute", "exchange", "sync", "links", "host", "always", "data", "stash", "code", "limit",
    "forward", "backward", "recompute", "update", "move",
)  # fmt: skip
COLOURS = {name: f"#fe{number:02x}fe" for number, name in enumerate(NAMES)}
_FONT_POINTS = 9.0
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_ADDRESSES = re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"')
_SIZE = re.compile(r'(<svg\b[^>]*?)\swidth="[^"]*"|(<svg\b[^>]*?)\sheight="[^"]*"')
_DIGITS = re.compile(r"(\d\.\d\d)\d+")  # More digits are invisible, and double a picture's size.
_NAMED = re.compile(r'(\bid="|"#|url\(#)')


def _or_none(draw: Callable[..., Markup]) -> Callable[..., Markup | None]:
    """Decorates a function that draws a picture: it returns None if matplotlib is missing."""

    @functools.wraps(draw)
    def drawn(*arguments: Any) -> Markup | None:
        try:
            importlib.import_module("matplotlib")
        except ImportError:
            return None
        return draw(*arguments)

    return drawn


@contextmanager
def figure(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A context with an empty figure of a size in inches, and its axes, in the colours of the page."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
        "font.size": _FONT_POINTS,
        "font.family": ["sans-serif"],
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), COLOURS["ink"]
        ),
        "grid.color": COLOURS["grid"],
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.6,
        "path.simplify": True,
    }
    with mpl.rc_context(settings):
        new_figure = Figure(figsize=(width, height), layout="constrained")
        yield new_figure, new_figure.add_subplot()


def inline(drawing: Figure, number: int, description: str) -> Markup:
    """Returns a figure as an `svg` element of a page. `number` makes its identifiers unique within the page."""
    file = io.StringIO()
    drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = _METADATA.sub("", text[text.index("<svg") :])
    text = _ADDRESSES.sub("", text).replace("xlink:href", "href")
    text = _SIZE.sub(r"\1\2", _SIZE.sub(r"\1\2", text, count=1), count=1)
    text = _DIGITS.sub(r"\1", text)
    text = _NAMED.sub(rf"\g<1>p{number}-", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1))


def _size_ticks(end: float) -> tuple[list[float], list[str]]:
    ticks = round_ticks(end, binary=True)
    return ticks, [tick_label(format_bytes(tick * _MEBI)) for tick in ticks]


def _time_ticks(end: float) -> tuple[list[float], list[str]]:
    ticks = round_ticks(end, max_steps=8)
    return ticks, [tick_label(format_seconds(tick)) for tick in ticks]


_WIDTH = 4.2  # The width of a picture in inches. A phone shows it at four fifths of this.
_WIDE = 8.6
_MEBI = 2**20
_BINS = 300
_CHIP = ("compute", "exchange", "sync")
_COMPUTING = ("forward", "backward", "recompute", "update")  # Tasks of all other kinds move data.
_MEMORY = ("always", "data", "stash", "code")


@_or_none
def memory_picture(report: Report, number: int) -> Markup:
    memories = report.memories
    with figure(_WIDTH, 0.75 + 0.32 * len(memories)) as (drawing, axes):
        for row, memory in enumerate(memories):
            sizes = (memory.always - memory.stash, memory.data, memory.stash, memory.code_low)
            left = 0.0
            for name, size in zip(_MEMORY, sizes, strict=True):
                axes.barh(row, size / _MEBI, left=left, height=0.7, color=COLOURS[name])
                left += size / _MEBI
            uncertain = (memory.code_high - memory.code_low) / _MEBI
            style: dict[str, Any] = {
                "facecolor": "none",
                "edgecolor": COLOURS["code"],
                "hatch": "////",
                "linewidth": 0.6,
            }
            axes.barh(row, uncertain, left=left, height=0.7, **style)
        capacity = memories[0].capacity / _MEBI
        axes.axvline(capacity, color=COLOURS["limit"], linewidth=1.4)
        axes.set_yticks(range(len(memories)), [f"IPU {memory.ipu}" for memory in memories])
        axes.invert_yaxis()
        end = 1.04 * max(capacity, *(memory.high / _MEBI for memory in memories))
        axes.set_xlim(0, end)
        axes.set_xticks(*_size_ticks(end))
        axes.set_xlabel(f"the line: {format_bytes(memories[0].capacity)} of an IPU")
        axes.tick_params(axis="y", length=0)
        return inline(drawing, number, "the memory that each IPU needs, compared with the memory that it has")


@_or_none
def liveness_picture(memory: Memory, number: int) -> Markup:
    """Draws the memory of one IPU over the course of the program."""
    operations = [operation for operation, _ in memory.liveness]
    base = memory.always / _MEBI
    totals = [base + size / _MEBI for _, size in memory.liveness]
    with figure(_WIDTH, 2.5) as (drawing, axes):
        axes.fill_between(operations, 0, base, step="mid", color=COLOURS["always"], linewidth=0)
        axes.fill_between(operations, base, totals, step="mid", color=COLOURS["data"], linewidth=0)
        highest = max(totals)
        index = totals.index(highest)
        is_right = index > len(operations) / 2
        label = f"peak {format_bytes(highest * _MEBI)}"
        offset, side = ((-4, 3), "right") if is_right else ((4, 3), "left")
        axes.annotate(label, (operations[index], highest), offset, textcoords="offset points", ha=side)
        axes.plot([operations[index]], [highest], marker="o", markersize=4, color=COLOURS["ink"])
        capacity = memory.capacity / _MEBI
        if highest > capacity / 2:
            axes.axhline(capacity, color=COLOURS["limit"], linewidth=1.4)
        end = 1.15 * max(highest, capacity if highest > capacity / 2 else 0) or 1
        axes.set_ylim(0, end)
        axes.set_yticks(*_size_ticks(end))
        axes.set_xticks(round_ticks(max(operations[-1], 5)))
        axes.set_xlim(operations[0], max(operations[-1], operations[0] + 1))
        axes.set_xlabel("operations, in the order in which they run")
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        return inline(drawing, number, "the data in memory while the program runs")


@_or_none
def step_picture(report: Report, number: int) -> Markup:
    """Draws the work of the chip, of its links and of the host's link over the course of a step."""
    lanes = _lanes(report)
    names = [name for name in ("host", "links", "IPU") if any(any(values) for values in lanes[name].values())]
    step = report.step_seconds
    edges = [step * index / _BINS for index in range(_BINS + 1)]
    with figure(_WIDE, 0.7 + 0.5 * len(names)) as (drawing, axes):
        for row, lane in enumerate(names):
            low = [row - 0.4] * _BINS
            for part, values in lanes[lane].items():
                high = [under + 0.8 * value for under, value in zip(low, values, strict=True)]
                if any(values):
                    axes.fill_between(
                        edges, [*low, low[-1]], [*high, high[-1]], step="post", color=COLOURS[part], linewidth=0
                    )
                low = high
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.55, len(names) - 0.45)
        axes.set_xlim(0, edges[-1])
        axes.set_xticks(*_time_ticks(step))
        axes.set_xlabel("in the order of the program")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        return inline(drawing, number, "the work of the IPU and its links in the course of a step")


def _lanes(report: Report) -> dict[str, dict[str, list[float]]]:
    """Returns the busy share of each of `_BINS` intervals of a step, by lane and part: `lanes["IPU"]["sync"][0]`."""
    lanes = {name: {part: [0.0] * _BINS for part in parts} for name, parts in (("IPU", _CHIP), ("links", ("links",)))}
    lanes["host"] = {"host": [0.0] * _BINS}
    width = report.seconds / _BINS
    chip, host = 0.0, 0.0  # The ends of the work so far.
    for row in report.operations:
        for lane, part in (*(("IPU", part) for part in _CHIP), ("links", "links")):
            chip = _add(lanes[lane][part], chip, getattr(row, part), width)
        if report.overlaps_host:
            host = _add(lanes["host"]["host"], host, row.host, width)
        else:
            chip = _add(lanes["host"]["host"], chip, row.host, width)
    return lanes


def _add(values: list[float], begin: float, seconds: float, width: float) -> float:
    """Adds a span of time to the intervals that it covers, and returns its end."""
    end = begin + seconds
    index = int(begin / width)
    while seconds and index < len(values) and index * width < end:
        overlap = min(end, (index + 1) * width) - max(begin, index * width)
        values[index] = min(1.0, values[index] + overlap / width)
        index += 1
    return end


@_or_none
def pipeline_picture(timeline: Timeline, number: int) -> Markup:
    """Draws the tasks of each IPU over time, labelled with stage and micro-batch. IPUs wait in the white parts."""
    ipus = sorted({task.ipu for task in timeline.tasks})
    end = max(task.end for task in timeline.tasks)
    with figure(_WIDE, 0.7 + 0.42 * len(ipus)) as (drawing, axes):
        for task in timeline.tasks:
            row = ipus.index(task.ipu)
            span, colour = (task.begin, task.end - task.begin), task.kind if task.kind in _COMPUTING else "move"
            axes.broken_barh([span], (row - 0.4, 0.8), facecolor=COLOURS[colour], edgecolor="none")
        _label(axes, timeline, ipus, end)
        axes.set_xticks(*_time_ticks(end))
        axes.set_yticks(range(len(ipus)), [f"IPU {ipu}" for ipu in ipus])
        axes.invert_yaxis()
        axes.set_xlim(0, end)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        return inline(drawing, number, "the tasks of the pipeline's IPUs over time")


def _label(axes: Axes, timeline: Timeline, ipus: Sequence[int], end: float) -> None:
    for task in timeline.tasks:
        if (task.end - task.begin) / end > 0.008 * len(task.label):
            middle = (task.begin + task.end) / 2
            axes.text(middle, ipus.index(task.ipu), task.label, ha="center", va="center", fontsize=7)
