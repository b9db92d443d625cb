"""Pictures and traces of plans: a row or track for each IPU, along an axis of time."""

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

# Okabe and Ito's colours, which all kinds of colour vision distinguish, in an order in which neighbours differ in
# lightness.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#0072B2", "#CC79A7", "#D55E00", "#BBBBBB")
INK = "#202020"
BUBBLE = "#EFEFEF"
EXCHANGE = "#A8325E"
_WITH_WHITE_TEXT = frozenset({"#0072B2", "#D55E00", "#009E73"})
_HATCHES = {Backward: "/////", Recompute: "....."}
_MARGIN = 0.06  # The space above and below a box, as a share of the row.
_HATCHED = 0.06  # The width in inches above which a box has a hatch.
_SMALLEST, _LARGEST = 4.5, 9.0  # Sizes of labels in points. A label that would be smaller is omitted.


def _add_rectangle(axes: Axes, begin: float, end: float, top: float, bottom: float, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((begin, top + _MARGIN), end - begin, bottom - top - 2 * _MARGIN, **style))


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
    """Draws the box of a task. `inches` is its width, which limits the label and the hatch."""
    face, ink = _colours(instruction)
    place = axes, begin, end, row, row + 1
    style = (0, (2.5, 1.5)) if isinstance(instruction, Load | Save) else "-"
    # Narrow boxes have thin edges, which would otherwise hide the colours.
    edge = min(0.8, 8 * inches)
    _add_rectangle(*place, facecolor=face, edgecolor=INK, linewidth=edge, linestyle=style, zorder=2)
    hatch = _HATCHES.get(type(instruction)) if inches > _HATCHED else None
    if hatch:
        # Matplotlib draws a hatch in the colour of the edge, so the hatch is a second box.
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
    """Draws the time of an exchange between all IPUs, from the top of one row to the top of another."""
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


_DRAWN = 110  # The largest length of a picture, in forward passes. Boxes in a longer one would be unreadable.
# Inches.
_ROW = 0.42
_ABOVE, _BELOW = 0.86, 0.42  # Title, figures and names of the sections; axis of time.
_LEFT = 0.72  # Names of the IPUs.
_CHARACTER = 0.078  # The width of a character of the texts to the right of the rows.
_NAMED = 5  # The most stages of an IPU that are named.
_LEGEND = 0.42  # The height of a line of the legend.
_WAITS, _EXCHANGES = "bubble: the IPU waits", "exchange between IPUs"
_NARROWEST, _WIDEST = 6.5, 24.0  # The width of the rows.
# The width of the shortest forward pass, as far as `_WIDEST` allows: in general; with parts; with transfers.
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
    """Draws a plan into a file.

    A row is an IPU, and a box is a task. The letter of a box is its stage, and the number and colour are its
    micro-batch. A long plan is drawn with fewer micro-batches, as a note states. The figures above the picture are
    those of the whole plan.

    Args:
      plan: The plan.
      path: The file. Its suffix is the format, such as `.png`.
      stage_costs: The costs of the stages, as for `plan_cost`, which determine the lengths of the boxes.
      title: The title; if omitted, a description of the plan.
      machine: The machine, as for `plan_cost`. With a machine, the axis is in seconds.

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
    """Draws plans below each other on the same axis of time, into one file.

    Args:
      plans: The plans.
      path: The file, as for `draw_plan`.
      stage_costs: The costs of the stages, for all plans.
      titles: The title of each plan; if omitted, descriptions of the plans.
      machine: The machine, as for `plan_cost`, for all plans.

    Raises:
      ImportError: matplotlib is missing.
      ValueError: `plans` is empty, or `titles` has another length.
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
    longest = max(plan_steps[-1][2] for plan_steps in steps) or 1.0
    forward = _NUMBERED if any(any(plan.concurrent) for plan in plans) else _FORWARD
    forward = _TRANSFERRED if any(plan.phased for plan in plans) else forward
    rows_width = min(_WIDEST, max(_NARROWEST, forward * longest / _shortest_forward(steps, longest)))
    right = 0.3 + _CHARACTER * max(len(text) for cost in costs for text in _stashes(cost))
    width = _LEFT + rows_width + right
    figure = figure_class(dpi=110, facecolor="white")
    legend = _Legend(figure, canvas_class(figure).get_renderer(), [step for plan_steps in steps for step in plan_steps])
    lines = legend.lines(width - _LEFT)
    height = sum(_ABOVE + _ROW * len(plan.ipus) + _BELOW for plan in plans) + _LEGEND * lines + 0.2
    figure.set_size_inches(width, height)
    top = height
    for number, (plan, cost, short, plan_steps) in enumerate(zip(plans, costs, drawn, steps, strict=True)):
        rows = _ROW * len(plan.ipus)
        top -= _ABOVE + rows
        axes = figure.add_axes((_LEFT / width, top / height, rows_width / width, rows / height))
        _draw(axes, plan, plan_steps, longest, rows_width / longest)
        _sections(axes, plan_steps, rows_width / longest, plan.section("steady").repeat)
        heading = titles[number] if titles else plan.heading
        _caption(axes, heading, cost, short, plan_steps[-1][2], machine is not None)
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
    """Returns the classes of matplotlib for figures without a screen and without global variables."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ImportError(
            "pictures need matplotlib, which is not installed; run `pip install 'tensorflow-ipu[report]'`"
        ) from exc
    return Figure, FigureCanvasAgg


def _shortened(
    costs: Sequence[PlanCost], stage_costs: StageCosts, machine: System | Machine | str | None
) -> list[Plan]:
    """Returns the plans with fewer micro-batches if their boxes would be too narrow.

    A plan is shortened by iterations of its steady section, until it takes no more time than `_DRAWN` forward passes.
    All plans get the same number of micro-batches if their ramps allow it.
    """
    fewest, counts = [], []
    for cost in costs:
        plan, steady = cost.plan, cost.plan.section("steady")
        fewest.append(plan.micro_batches - max(0, steady.repeat - 1) * steady.advance)
        counts.append(plan.micro_batches)
        if steady.repeat > 1:
            iteration = cost.section_times["steady"] / steady.repeat
            shortest = plan.with_micro_batches(fewest[-1])
            limit = _DRAWN * _shortest_forward([list(timeline(shortest, stage_costs, machine=machine))], 0.0)
            added = int((limit - cost.time) / iteration) if iteration else 0  # Negative if the plan is too long.
            counts[-1] = max(fewest[-1], plan.micro_batches + min(0, added) * steady.advance)
    if all(count == cost.plan.micro_batches for count, cost in zip(counts, costs, strict=True)):
        return [cost.plan for cost in costs]
    common = max(min(counts), *fewest)
    drawn = []
    for cost in costs:
        plan, advance = cost.plan, cost.plan.section("steady").advance
        removed = max(0, plan.micro_batches - common) // advance * advance
        drawn.append(plan.with_micro_batches(plan.micro_batches - removed))
    return drawn


def _shortest_forward(steps: Sequence[_Steps], longest: float) -> float:
    lengths = (
        span.end - span.begin
        for plan_steps in steps
        for *_, spans in plan_steps
        for span in spans
        if isinstance(span.instruction, Forward)
    )
    return max(min(lengths, default=longest), longest / 1000)


def _draw(axes: Axes, plan: Plan, steps: _Steps, longest: float, scale: float) -> None:
    """Draws the rows of a plan. `scale` is the width of a unit of time, in inches."""
    rows = {ipu: row for row, ipu in enumerate(plan.ipus)}
    end = steps[-1][2]
    axes.set_xlim(0, longest)
    axes.set_xticks(round_ticks(longest, max_steps=10))
    axes.set_ylim(len(rows), 0)
    for row in rows.values():
        draw_bubble(axes, 0, end, row)
    previous = None
    for section, begin, until, spans in steps:
        computed = max((span.end for span in spans), default=begin)
        if until > computed:
            draw_exchange(axes, computed, until, 0, len(rows))
        if previous is not None and section is not previous:
            axes.axvline(begin, color=INK, linewidth=1.3, zorder=3)
        elif previous is not None:
            axes.axvline(begin, color="#BBBBBB", linewidth=0.6, zorder=1)
        previous = section
        for span in spans:
            length = (span.end - span.begin) * scale
            draw_box(axes, span.instruction, span.begin, span.end, rows[span.ipu], inches=length)
    axes.set_yticks([row + 0.5 for row in rows.values()], [f"IPU {ipu}" for ipu in rows])
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.tick_params(axis="x", labelsize=8, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _sections(axes: Axes, steps: _Steps, scale: float, repeat: int) -> None:
    """Draws the names of the sections above the rows, if they fit the widths of the sections."""
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
    """Returns the texts to the right of the rows: a heading, and one for each IPU."""
    if cost.plan.phased:
        names = ["  ".join(letters for letters, _ in ipu.depths) for ipu in cost.ipus]
        if not any(ipu.off_chip_bytes for ipu in cost.ipus):
            return ["phases", *names]
        sizes = [f"({format_bytes(ipu.on_chip_bytes)}, {format_bytes(ipu.off_chip_bytes)})" for ipu in cost.ipus]
        texts = [f"{name}  {size}" for name, size in zip(names, sizes, strict=True)]
        return ["phases  (bytes on the chip, off it)", *texts]
    if not cost.plan.training:
        return [""]
    texts = []
    for ipu in cost.ipus:
        stages = [f"{letters} {depth}" for letters, depth in ipu.depths]
        depths = "  ".join(stages if len(stages) <= _NAMED else [*stages[: _NAMED - 1], "...", stages[-1]])
        texts.append(f"{depths}  ({format_bytes(ipu.stash_bytes)})" if ipu.stash_bytes else depths)
    return ["stash depth", *texts]


def _caption(axes: Axes, heading: str, cost: PlanCost, drawn: Plan, end: float, seconds: bool) -> None:
    """Draws the texts above, to the right of and below the rows, which end at the time `end`."""
    plan = cost.plan
    time = f"{cost.time:.4g}"
    if seconds:
        time = f"{format_seconds(cost.time)}, {format_seconds(cost.time_per_micro_batch)} a micro-batch"
        axes.xaxis.set_major_formatter(lambda seconds, _: tick_label(format_seconds(seconds)))
    figures = [f"time {time}", f"utilisation {cost.utilisation:.0%}"]
    if cost.recompute_share:
        figures.append(f"recompute {cost.recompute_share:.0%}")
    if cost.transfer_share:
        figures.append(f"transfers {cost.transfer_share:.0%}")
    if cost.exchange_share:
        figures.append(f"exchanges {cost.exchange_share:.1%}")
    figures += [f"bubble {cost.bubble_share:.0%}", f"{plan.step_count} steps", f"{plan.slot_count} slots"]
    if drawn.micro_batches != plan.micro_batches:
        figures.append(f"(drawn with {drawn.micro_batches} of the {plan.micro_batches} micro-batches)")
    above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": INK}
    axes.annotate(heading, (0, 1), xytext=(0, 33), fontsize=11, fontweight="bold", **above)
    axes.annotate("   ·   ".join(figures), (0, 1), xytext=(0, 18), fontsize=9, **above)
    for row, text in enumerate(_stashes(cost)):
        offset = (8, 5 if row == 0 else 0)
        style = {"style": "italic", "fontsize": 8} if row == 0 else {"fontsize": 9, "va": "center"}
        point = (end, max(0.0, row - 0.5))
        axes.annotate(text, point, xytext=offset, textcoords="offset points", color=INK, annotation_clip=False, **style)


class _Legend:
    """The legend of a picture, which explains its kinds of boxes on one line or several."""

    def __init__(self, figure: Figure, renderer: RendererBase, steps: _Steps) -> None:
        kinds = {type(span.instruction) for *_, spans in steps for span in spans}
        has_exchanges = any(end > max((span.end for span in spans), default=end) for _, _, end, spans in steps)
        entries = [
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
        texts = {_WAITS, _EXCHANGES} if has_exchanges else {_WAITS}
        self._entries = [entry for entry in entries if entry[2] in texts or type(entry[0]) in kinds]
        self._widths = []
        for *_, text in self._entries:
            drawn = figure.text(0, 0, text, fontsize=9)
            self._widths.append(0.43 + drawn.get_window_extent(renderer).width / figure.dpi + 0.28)
            drawn.remove()

    def lines(self, width: float) -> int:
        """Returns the number of lines for a width in inches."""
        return self._places(width)[-1][1] + 1

    def _places(self, width: float) -> list[tuple[float, int]]:
        places = []
        x, line = 0.0, 0
        for entry_width in self._widths:
            if x and x + entry_width > width:
                x, line = 0.0, line + 1
            places.append((x, line))
            x += entry_width
        return places

    def draw(self, width: float, height: float) -> None:
        lines = self.lines(width - _LEFT)
        axes = self._figure.add_axes((_LEFT / width, 0.12 / height, 1 - _LEFT / width, lines * _LEGEND / height))
        axes.set_xlim(0, width - _LEFT)
        axes.set_ylim(lines, 0)
        axes.axis("off")
        for (instruction, label, text), (x, line) in zip(self._entries, self._places(width - _LEFT), strict=True):
            if text == _EXCHANGES:
                draw_exchange(axes, x, x + 0.36, line, line + 1)
            elif instruction is None:
                draw_bubble(axes, x, x + 0.36, line)
            else:
                draw_box(axes, instruction, x, x + 0.36, line, inches=0.36, label=label)
            axes.text(x + 0.43, line + 0.51, text, fontsize=9, va="center", color=INK)


_NAMES = {Forward: "forward", Backward: "backward", Recompute: "recompute"}


def plan_trace(
    plan: Plan,
    stage_costs: StageCosts = None,
    *,
    microseconds: float | None = None,
    machine: System | Machine | str | None = None,
) -> dict[str, Any]:
    """Returns a trace of one pass of a plan in Chrome's JSON format, with a track for each IPU, for `json.dump`.

    Args:
      plan: The plan.
      stage_costs: The costs of the stages, as for `plan_cost`.
      microseconds: The microseconds of the trace for a unit of the stages' times. If omitted, 1,000; with a machine
        1,000,000, as times are then in seconds.
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

    stashed = dict.fromkeys(plan.ipus, 0)
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
            change = _stash_change(plan, instruction)
            if change:
                stashed[span.ipu] += change
                time = span.end if change > 0 else span.begin
                values = {"micro-batches": stashed[span.ipu]}
                trace.add_value(plan.name, f"stash of IPU {span.ipu}", time * nanoseconds, values)
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
    trace = plan_trace(plan, stage_costs, microseconds=microseconds, machine=machine)
    files.write(path, json.dumps(trace))


def _name(instruction: Instruction) -> str:
    """Returns the name of an instruction in a trace, such as `B backward 3`."""
    letters = stage_letters(instruction.stage, instruction.part)
    micro_batch = micro_batch_of(instruction)
    number = "" if micro_batch is None else f" {micro_batch}"
    if isinstance(instruction, Load | Save):
        inner = _NAMES.get(type(instruction.computation), "update")
        return f"{letters} {type(instruction).__name__.lower()} ({inner}){number}"
    return f"{letters} {_NAMES.get(type(instruction), 'update')}{number}"


def _stash_change(plan: Plan, instruction: Instruction) -> int:
    """Returns the number of micro-batches that an instruction adds to its IPU's stashes: 1, 0 or -1."""
    if not plan.training:
        return 0
    if isinstance(instruction, Forward):
        return 1
    recomputes = plan.recomputation is not None and instruction.stage < plan.stages - 1
    return -isinstance(instruction, Recompute if recomputes else Backward)
