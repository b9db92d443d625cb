"""Plans as pictures: IPUs down, time across."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflow_ipu._base import files
from tensorflow_ipu._base.chrome import Chrome
from tensorflow_ipu._base.units import format_bytes, format_seconds, round_ticks, tick_label
from tensorflow_ipu.analysis.pipelines.cost import PlanCost, Span, StageCosts, plan_cost, timeline
from tensorflow_ipu.pipelining.schedule.plan import (
    Backward,
    Forward,
    Instruction,
    Load,
    Plan,
    Recompute,
    Save,
    Section,
    Update,
    micro_batch_of,
    stage_letters,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from tensorflow_ipu.analysis.machine import Machine, System

# Told apart with every kind of colour vision: Okabe and Ito's colours, ordered so that neighbours differ in lightness.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#0072B2", "#CC79A7", "#D55E00", "#BBBBBB")
INK = "#202020"
BUBBLE = "#EFEFEF"
EXCHANGE = "#A8325E"
_WITH_WHITE_TEXT = frozenset({"#0072B2", "#D55E00", "#009E73"})
_HATCHES = {Backward: "/////", Recompute: "....."}
_MARGIN = 0.06  # Above and below a box, of a row.
_HATCHED = 0.06  # Inches; narrower boxes have no room for a hatch.
_SMALLEST, _LARGEST = 4.5, 9.0  # Points of the letters; what would be smaller is left out.


def _add_rectangle(axes: Axes, begin: float, end: float, top: float, bottom: float, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    at = (begin, top + _MARGIN), end - begin, bottom - top - 2 * _MARGIN
    axes.add_patch(Rectangle(*at, **style))


def draw_box(
    axes: Axes,
    instruction: Instruction,
    begin: float,
    end: float,
    row: float,
    *,
    inches: float,
    label: str | None = None,
) -> None:
    face, ink = _colours(instruction)
    place = axes, begin, end, row, row + 1
    style = (0, (2.5, 1.5)) if isinstance(instruction, Load | Save) else "-"
    # Else the edges of many narrow boxes would be all that is seen.
    edge = min(0.8, 8 * inches)
    _add_rectangle(*place, facecolor=face, edgecolor=INK, linewidth=edge, linestyle=style, zorder=2)
    hatch = _HATCHES.get(type(instruction)) if inches > _HATCHED else None
    if hatch:
        # A hatch has the colour of the edge, so it is a box of its own.
        faint = (0.0, 0.0, 0.0, 0.38)
        _add_rectangle(*place, facecolor="none", edgecolor=faint, linewidth=0, hatch=hatch, zorder=2.2)
    text = _label(instruction) if label is None else label
    size = min(_LARGEST, 72 * inches / (0.82 * max(2, len(text))))
    if not text or size < _SMALLEST:
        return
    back = {"boxstyle": "round,pad=0.14", "facecolor": face, "edgecolor": "none"} if hatch else None
    middle = ((begin + end) / 2, row + 0.51)
    axes.text(*middle, text, color=ink, fontsize=size, ha="center", va="center", bbox=back, zorder=2.5)


def draw_bubble(axes: Axes, begin: float, end: float, row: float) -> None:
    """Draws the background of a row, which is visible while its IPU waits."""
    _add_rectangle(axes, begin, end, row, row + 1, facecolor=BUBBLE, edgecolor="none", zorder=0)


def draw_exchange(axes: Axes, begin: float, end: float, top: float, bottom: float) -> None:
    """Draws the time in which all IPUs exchange, between the tops of two rows."""
    _add_rectangle(axes, begin, end, top, bottom, facecolor=EXCHANGE, edgecolor="none", zorder=2)


def _label(instruction: Instruction) -> str:
    letters = stage_letters(instruction.stage, instruction.part)
    if isinstance(instruction, Load | Save):
        return f"{letters}{'↓' if isinstance(instruction, Load) else '↑'}"
    micro_batch = micro_batch_of(instruction)
    if micro_batch is None:
        return letters
    return f"{letters}{'·' if instruction.part is not None else ''}{micro_batch}"


def _colours(instruction: Instruction) -> tuple[str, str]:
    if isinstance(instruction, Load | Save):
        return "white", INK
    micro_batch = micro_batch_of(instruction)
    if isinstance(instruction, Update) or micro_batch is None:
        return "#404040", "white"
    colour = COLOURS[micro_batch % len(COLOURS)]
    return colour, "white" if colour in _WITH_WHITE_TEXT else INK


_DRAWN = 110  # So many forward passes in a row are drawn at most: more are too narrow to be read.
# Inches.
_ROW = 0.42
_ABOVE, _BELOW = 0.86, 0.42  # Title, figures and names of the sections; axis of time.
_LEFT = 0.72  # Names of the IPUs.
_CHARACTER = 0.078  # Of the names beside the rows.
_NAMED = 5  # So many stages of an IPU at most.
_LEGEND = 0.42  # Of a line of it.
_WAITS, _EXCHANGES = "bubble: the IPU waits", "exchange between IPUs"
_NARROWEST, _WIDEST = 6.5, 24.0  # Of the rows.
# Of the shortest forward pass, where there is room for it; with parts; with transfers, which are shorter.
_FORWARD, _NUMBERED, _TRANSFERRED = 0.30, 0.42, 0.62

_Steps = list[tuple[Section, float, float, list[Span]]]


def draw_plan(
    plan: Plan,
    path: str | Path,
    stage_costs: StageCosts = None,
    *,
    title: str | None = None,
    machine: System | Machine | str | None = None,
) -> None:
    """Draws a plan: a row is an IPU, a box a task, whose letter is the stage, number and colour the micro-batch.

    A long plan is drawn with fewer micro-batches, and says so; its figures are those of the whole.

    Args:
      plan: The plan.
      path: The file. Its ending names the format, such as `.png`.
      stage_costs: What each stage takes, as for `plan_cost`, which says how long boxes are.
      title: The title; one made of the plan if omitted.
      machine: The machine, as for `plan_cost`: the axis is one of seconds.

    Raises:
      ImportError: matplotlib is missing.
    """
    draw_plans([plan], path, stage_costs, titles=None if title is None else [title], machine=machine)


def draw_plans(
    plans: Sequence[Plan],
    path: str | Path,
    stage_costs: StageCosts = None,
    *,
    titles: Sequence[str] | None = None,
    machine: System | Machine | str | None = None,
) -> None:
    """Draws plans below each other on one axis of time; other arguments are those of `draw_plan`, for all plans.

    Raises:
      ImportError: matplotlib is missing.
      ValueError: There is no plan, or not one title a plan.
    """
    figure = _figure(plans, stage_costs, titles, machine)
    suffix = Path(path).suffix or f".{figure.canvas.get_default_filetype()}"
    with files.replacing(Path(path).with_suffix(suffix)) as file:
        figure.savefig(file, format=suffix[1:])


def _figure(
    plans: Sequence[Plan],
    stage_costs: StageCosts,
    titles: Sequence[str] | None,
    machine: System | Machine | str | None,
) -> Figure:
    if not plans:
        raise ValueError("`plans` is empty; give at least one plan")
    if titles is not None and len(titles) != len(plans):
        raise ValueError(f"`titles` has {len(titles)} items, but there are {len(plans)} plans")
    figure_class, canvas_class = _matplotlib()
    costs = [plan_cost(plan, stage_costs, machine=machine) for plan in plans]
    drawn = _shortened(costs, stage_costs, machine)
    steps = [list(timeline(plan, stage_costs, machine=machine)) for plan in drawn]
    longest = max(found[-1][2] for found in steps) or 1.0
    forward = _NUMBERED if any(any(plan.concurrent) for plan in plans) else _FORWARD
    forward = _TRANSFERRED if any(plan.phased for plan in plans) else forward
    rows_width = min(_WIDEST, max(_NARROWEST, forward * longest / _shortest_forward(steps, longest)))
    right = 0.3 + _CHARACTER * max(len(text) for cost in costs for text in _stashes(cost))
    width = _LEFT + rows_width + right
    figure = figure_class(dpi=110, facecolor="white")
    legend = _Legend(figure, canvas_class(figure).get_renderer(), [step for found in steps for step in found])
    lines = legend.lines(width - _LEFT)
    height = sum(_ABOVE + _ROW * len(plan.ipus) + _BELOW for plan in plans) + _LEGEND * lines + 0.2
    figure.set_size_inches(width, height)
    top = height
    for number, (plan, cost, short, found) in enumerate(zip(plans, costs, drawn, steps, strict=True)):
        rows = _ROW * len(plan.ipus)
        top -= _ABOVE + rows
        axes = figure.add_axes((_LEFT / width, top / height, rows_width / width, rows / height))
        _draw(axes, plan, found, longest, rows_width / longest)
        _sections(axes, found, rows_width / longest, plan.section("steady").repeat)
        heading = titles[number] if titles else plan.heading
        _caption(axes, heading, cost, short, found[-1][2], machine is not None)
        top -= _BELOW
    legend.draw(width, height)
    return figure


def picture_of(
    plans: Sequence[Plan], stage_costs: StageCosts = None, *, machine: System | Machine | str | None = None
) -> bytes:
    """Returns the picture of `draw_plans` as PNG."""
    written = io.BytesIO()
    _figure(plans, stage_costs, None, machine).savefig(written, format="png")
    return written.getvalue()


def _matplotlib() -> tuple[type[Figure], type[FigureCanvasAgg]]:
    """Returns the classes of matplotlib that need no screen and no global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ImportError(
            "pictures need matplotlib, which is not installed; `pip install 'tensorflow-ipu[report]'` brings it"
        ) from exc
    return Figure, FigureCanvasAgg


def _shortened(
    costs: Sequence[PlanCost], stage_costs: StageCosts, machine: System | Machine | str | None
) -> list[Plan]:
    """Returns the plans with so few micro-batches that boxes are readable, all with the same number if possible."""
    fewest, counts = [], []
    for cost in costs:
        plan, steady = cost.plan, cost.plan.section("steady")
        fewest.append(plan.micro_batches - max(0, steady.repeat - 1) * steady.advance)
        counts.append(plan.micro_batches)
        if steady.repeat > 1:
            once = cost.section_times["steady"] / steady.repeat
            short = plan.with_micro_batches(fewest[-1])
            room = _DRAWN * _shortest_forward([list(timeline(short, stage_costs, machine=machine))], 0.0)
            fitting = int((room - cost.time) / once) if once else 0
            counts[-1] = max(fewest[-1], plan.micro_batches + min(0, fitting) * steady.advance)
    if all(count == cost.plan.micro_batches for count, cost in zip(counts, costs, strict=True)):
        return [cost.plan for cost in costs]
    common = max(min(counts), *fewest)
    drawn = []
    for cost in costs:
        plan, advance = cost.plan, cost.plan.section("steady").advance
        less = max(0, plan.micro_batches - common) // advance * advance
        drawn.append(plan.with_micro_batches(plan.micro_batches - less))
    return drawn


def _shortest_forward(steps: Sequence[_Steps], longest: float) -> float:
    lengths = (
        span.end - span.begin
        for found in steps
        for *_, spans in found
        for span in spans
        if isinstance(span.instruction, Forward)
    )
    return max(min(lengths, default=longest), longest / 1000)


def _draw(axes: Axes, plan: Plan, steps: _Steps, longest: float, scale: float) -> None:
    """Draws the rows of a plan; `scale` is how many inches a unit of time is."""
    rows = {ipu: row for row, ipu in enumerate(plan.ipus)}
    end = steps[-1][2]
    axes.set_xlim(0, longest)
    axes.set_xticks(round_ticks(longest, most=10))
    axes.set_ylim(len(rows), 0)
    for row in rows.values():
        draw_bubble(axes, 0, end, row)
    before = None
    for section, begin, until, spans in steps:
        computed = max((span.end for span in spans), default=begin)
        if until > computed:
            draw_exchange(axes, computed, until, 0, len(rows))
        if before is not None and section is not before:
            axes.axvline(begin, color=INK, linewidth=1.3, zorder=3)
        elif before is not None:
            axes.axvline(begin, color="#BBBBBB", linewidth=0.6, zorder=1)
        before = section
        for span in spans:
            length = (span.end - span.begin) * scale
            draw_box(axes, span.instruction, span.begin, span.end, rows[span.ipu], inches=length)
    axes.set_yticks([row + 0.5 for row in rows.values()], [f"IPU {ipu}" for ipu in rows])
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.tick_params(axis="x", labelsize=8, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _sections(axes: Axes, steps: _Steps, scale: float, repeat: int) -> None:
    """Writes the names of the sections above the rows, where there is room."""
    begin = 0.0
    for number, (section, start, end, _) in enumerate(steps):
        if number == 0 or section is not steps[number - 1][0]:
            begin = start
        if number + 1 < len(steps) and section is steps[number + 1][0]:
            continue
        name = f"{section.name}, {repeat} times" if section.name == "steady" and repeat > 1 else section.name
        if (end - begin) * scale > 0.066 * len(name) + 0.05:
            axes.annotate(
                name, (begin, 0), xytext=(2, 4), textcoords="offset points", fontsize=8, style="italic", color=INK
            )


def _stashes(cost: PlanCost) -> list[str]:
    """Returns the texts beside the rows of the IPUs."""
    if cost.plan.phased:
        each = [(ipu, "  ".join(letters for letters, _ in ipu.depths)) for ipu in cost.ipus]
        sizes = [f"  ({format_bytes(ipu.on_chip_bytes)}, {format_bytes(ipu.off_chip_bytes)})" for ipu, _ in each]
        known = any(ipu.off_chip_bytes for ipu in cost.ipus)
        texts = [names + size * known for (_, names), size in zip(each, sizes, strict=True)]
        return ["phases" + "  (bytes on the chip, off it)" * known, *texts]
    if not cost.plan.training:
        return [""]
    texts = []
    for ipu in cost.ipus:
        named = [f"{letters} {depth}" for letters, depth in ipu.depths]
        depths = "  ".join(named if len(named) <= _NAMED else [*named[: _NAMED - 1], "...", named[-1]])
        texts.append(f"{depths}  ({format_bytes(ipu.stash_bytes)})" if ipu.stash_bytes else depths)
    return ["stash depth", *texts]


def _caption(axes: Axes, heading: str, cost: PlanCost, drawn: Plan, end: float, seconds: bool) -> None:
    """Writes the texts above, beside and below the rows, which end at `end`."""
    plan = cost.plan
    time = f"{cost.time:.4g}"
    if seconds:
        time = f"{format_seconds(cost.time)}, {format_seconds(cost.time_per_micro_batch)} a micro-batch"
        axes.xaxis.set_major_formatter(lambda at, _: tick_label(format_seconds(at)))
    figures = [f"time {time}", f"utilisation {cost.utilisation:.0%}"]
    figures += [f"recompute {cost.recompute_share:.0%}"] * bool(cost.recompute_share)
    figures += [f"transfers {cost.transfer_share:.0%}"] * bool(cost.transfer_share)
    figures += [f"exchanges {cost.exchange_share:.1%}"] * bool(cost.exchange_share)
    figures += [f"bubble {cost.bubble_share:.0%}", f"{plan.step_count} steps", f"{plan.slot_count} slots"]
    if drawn.micro_batches != plan.micro_batches:
        figures.append(f"(drawn with {drawn.micro_batches} of the {plan.micro_batches} micro-batches)")
    above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": INK}
    axes.annotate(heading, (0, 1), xytext=(0, 33), fontsize=11, fontweight="bold", **above)
    axes.annotate("   ·   ".join(figures), (0, 1), xytext=(0, 18), fontsize=9, **above)
    for row, text in enumerate(_stashes(cost)):
        offset = (8, 5 if row == 0 else 0)
        style = {"style": "italic", "fontsize": 8} if row == 0 else {"fontsize": 9, "va": "center"}
        at = (end, max(0.0, row - 0.5))
        axes.annotate(text, at, xytext=offset, textcoords="offset points", color=INK, annotation_clip=False, **style)


class _Legend:
    """Explains the kinds of boxes of a picture, on as many lines as it takes."""

    def __init__(self, figure: Figure, renderer: RendererBase, steps: _Steps) -> None:
        kinds = {type(span.instruction) for *_, spans in steps for span in spans}
        exchanged = any(end > max((span.end for span in spans), default=end) for _, _, end, spans in steps)
        shown = [
            (Forward(0), "A0", "forward: stage A, micro-batch 0"),
            (Backward(0), "A0", "backward"),
            (Recompute(0), "A0", "recompute"),
            (Update(0), "A", "update of the weights"),
            (Load(Forward(0)), "A↓", "load onto the chip"),
            (Save(Forward(0)), "A↑", "save off the chip"),
            (None, "", _WAITS),
            (None, "", _EXCHANGES),
        ]
        self._figure = figure
        others = {_WAITS, _EXCHANGES} if exchanged else {_WAITS}
        self._items = [item for item in shown if item[2] in others or type(item[0]) in kinds]
        self._widths = []
        for *_, text in self._items:
            drawn = figure.text(0, 0, text, fontsize=9)
            self._widths.append(0.43 + drawn.get_window_extent(renderer).width / figure.dpi + 0.28)
            drawn.remove()

    def lines(self, width: float) -> int:
        """Returns the number of lines in a width of inches."""
        return self._places(width)[-1][1] + 1

    def _places(self, width: float) -> list[tuple[float, int]]:
        places = []
        at, line = 0.0, 0
        for item in self._widths:
            if at and at + item > width:
                at, line = 0.0, line + 1
            places.append((at, line))
            at += item
        return places

    def draw(self, width: float, height: float) -> None:
        lines = self.lines(width - _LEFT)
        axes = self._figure.add_axes((_LEFT / width, 0.12 / height, 1 - _LEFT / width, lines * _LEGEND / height))
        axes.set_xlim(0, width - _LEFT)
        axes.set_ylim(lines, 0)
        axes.axis("off")
        for (instruction, label, text), (at, line) in zip(self._items, self._places(width - _LEFT), strict=True):
            if text == _EXCHANGES:
                draw_exchange(axes, at, at + 0.36, line, line + 1)
            elif instruction is None:
                draw_bubble(axes, at, at + 0.36, line)
            else:
                draw_box(axes, instruction, at, at + 0.36, line, inches=0.36, label=label)
            axes.text(at + 0.43, line + 0.51, text, fontsize=9, va="center", color=INK)


_NAMES = {Forward: "forward", Backward: "backward", Recompute: "recompute"}


def plan_trace(
    plan: Plan,
    stage_costs: StageCosts = None,
    *,
    microseconds: float | None = None,
    machine: System | Machine | str | None = None,
) -> dict[str, Any]:
    """Makes a trace of one pass of a plan for `json.dump`, in Chrome's JSON format, with a track for each IPU.

    Args:
      plan: The plan.
      stage_costs: What each stage takes, as for `plan_cost`.
      microseconds: How many microseconds of the trace a unit of the stages' times is: if omitted 1,000, or the true
        number with a machine.
      machine: The machine, as for `plan_cost`.
    """
    if microseconds is None:
        microseconds = 1e3 if machine is None else 1e6
    cost = plan_cost(plan, stage_costs, machine=machine)
    nanoseconds = 1e3 * microseconds
    trace = Chrome(0)
    tracks = ["sections", *(f"IPU {ipu}" for ipu in plan.ipus)]
    trace.add_tracks(plan.name, *tracks, *(["exchanges between IPUs"] if cost.exchange_share else []))

    def add(track: str, name: str, begin: float, end: float, kind: str, **details: object) -> None:
        trace.add_slice(
            plan.name, track, name, begin * nanoseconds, (end - begin) * nanoseconds, kind, details=details or None
        )

    held = dict.fromkeys(plan.ipus, 0)
    sections: dict[str, tuple[float, float]] = {}
    for section, begin, end, spans in timeline(plan, stage_costs, machine=machine):
        sections[section.name] = sections.get(section.name, (begin, end))[0], end
        computed = max((span.end for span in spans), default=begin)
        if end > computed:
            add("exchanges between IPUs", "exchange", computed, end, "exchange")
        for span in spans:
            instruction, micro_batch = span.instruction, micro_batch_of(span.instruction)
            details = {} if micro_batch is None else {"micro-batch": micro_batch}
            kind = type(instruction).__name__.lower()
            name = _name(instruction)
            add(f"IPU {span.ipu}", name, span.begin, span.end, kind, instruction=str(instruction), **details)
            change = _stashed(plan, instruction)
            if change:
                held[span.ipu] += change
                at = span.end if change > 0 else span.begin
                values = {"micro-batches": held[span.ipu]}
                trace.add_value(plan.name, f"stash of IPU {span.ipu}", at * nanoseconds, values)
    for name, (begin, end) in sections.items():
        add("sections", name, begin, end, "section")
    figures = {
        "utilisation": cost.utilisation,
        "bubble share": cost.bubble_share,
        "steps": plan.step_count,
        "slots": plan.slot_count,
        "micro-batches": plan.micro_batches,
        "peak stash bytes": cost.peak_stash_bytes,
        "peak bytes on a chip": cost.peak_bytes,
        "bytes off the chips": sum(ipu.off_chip_bytes for ipu in cost.ipus),
    }
    return {**trace.trace(), "otherData": figures}


def write_trace(
    plan: Plan,
    path: str | Path,
    stage_costs: StageCosts = None,
    *,
    microseconds: float | None = None,
    machine: System | Machine | str | None = None,
) -> None:
    """Writes `plan_trace(...)` to a JSON file."""
    made = plan_trace(plan, stage_costs, microseconds=microseconds, machine=machine)
    files.write(path, json.dumps(made))


def _name(instruction: Instruction) -> str:
    """Returns a name, for instance `B backward 3`."""
    letters = stage_letters(instruction.stage, instruction.part)
    micro_batch = micro_batch_of(instruction)
    number = "" if micro_batch is None else f" {micro_batch}"
    if isinstance(instruction, Load | Save):
        inner = _NAMES.get(type(instruction.computation), "update")
        return f"{letters} {type(instruction).__name__.lower()} ({inner}){number}"
    return f"{letters} {_NAMES.get(type(instruction), 'update')}{number}"


def _stashed(plan: Plan, instruction: Instruction) -> int:
    """Returns by how many micro-batches an instruction changes its IPU's stashes."""
    if not plan.training:
        return 0
    if isinstance(instruction, Forward):
        return 1
    recomputes = plan.recomputation is not None and instruction.stage < plan.stages - 1
    return -isinstance(instruction, Recompute if recomputes else Backward)
