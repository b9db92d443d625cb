"""The panels of a report's page, each an element of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from tensorflow_ipu._base.page import prose
from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.analysis.machine._comparison import (
    PARTS,
    Change,
    changed_figures,
    changed_operations,
    count_text,
    machine_text,
    memory_parts,
    top_operations,
)
from tensorflow_ipu.analysis.machine._layers import grouped, layers_of, name_in
from tensorflow_ipu.analysis.machine.page import _pictures

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine._advice import Suggestion
    from tensorflow_ipu.analysis.machine._report import Report
    from tensorflow_ipu.analysis.machine._walk import OperationTime

# More rows make a page that browsers are slow with; the JSON has all.
_MOST_ROWS = 1500
_MOST_IPUS = 8
_MOST_ALIVE = 8  # The others are folded.
_SHORT = 14  # Letters that stay in one line.


def summary(report: Report) -> tuple[str, str]:
    """The title of the page, and its head: what the report says in a few figures."""
    title = escape(f"{report.program} on {machine_text(report)}")
    memory, verdict = report.memory, report.memory.verdict
    low, high = (format_seconds(each) for each in report.step_seconds_range)
    share_low, share_high = (f"{size / memory.capacity:.0%}" for size in (memory.low, memory.high))
    rate = report.flops / report.seconds / 1e12 if report.seconds else 0.0
    ipus = report.replicas * report.ipus_per_replica
    several = f"{report.replicas} replica{'s' * (report.replicas > 1)} of {report.ipus_per_replica}"
    share = f"{share_low} to {share_high} of the fullest IPU's memory"
    figures = (
        (f'<b class="{verdict.replace(" ", "-")}">{verdict}</b>', share),
        (f"<b>{format_seconds(report.step_seconds)}</b>", f"a step; between {low} and {high}"),
        (f"<b>{report.throughput(1):,.0f} /s</b>", "steps of all replicas; times the batch size, samples"),
        (f"<b>{rate:.1f} TFLOP/s</b>", f"of a replica; {count_text(report.flops / report.steps)}FLOP a step"),
        (f"<b>{ipus} IPU{'s' * (ipus > 1)}</b>", f"{several}; {report.steps} step{'s' * (report.steps > 1)} a run"),
    )
    cells = "".join(f'<div>{figure}<span class="soft">{escape(words)}</span></div>' for figure, words in figures)
    said = '<p class="soft">A prediction; nothing was run.</p>'
    return title, f'<h1>{title}</h1>\n{said}\n<div class="figures">{cells}</div>'


def comparison(before: Report, after: Report) -> str:
    """A panel of what changed from one report to another."""
    verdicts = f"{before.memory.verdict} there, {after.memory.verdict} here."
    words = f"From {before.program} on {machine_text(before)}: {verdicts}"

    def rows(changes: Sequence[Change]) -> list[list[str]]:
        return [
            [
                ("\u2003" if each.detail else "") + escape(each.name),
                _number(each.before, each.text(each.before)),
                _number(each.after, each.text(each.after)),
                f'<td class="n">{each.ratio}</td>',
            ]
            for each in changes
        ]

    heads = [("before", "n"), ("after", "n"), ("change", "n")]
    figures = _table([("", ""), *heads], rows(changed_figures(before, after)))
    operations = _table([("operations that changed most, a step", ""), *heads], rows(changed_operations(before, after)))
    tables = (f'<div class="scrolls">{table}</div>' for table in (figures, operations))
    return _panel("comparison", "What changed", f"<p>{escape(words)}</p>", *tables, wide=True)


def panels(report: Report) -> Iterator[str]:
    """All panels, in their order on the page."""
    yield _told(report)
    if report.advice() or report.advice().not_asked or report.advice().recipe:
        yield _advice(report)
    yield from (panel(report) for panel in (_memory, _time, _liveness, _host, _timeline, _operations))


def _panel(name: str, heading: str, *content: str, wide: bool = False) -> str:
    inside = "\n".join(content)
    return f'<section class="card{" wide" * wide}" id="{name}">\n<h2>{escape(heading)}</h2>\n{inside}\n</section>'


def _key(*entries: tuple[str, str, str]) -> str:
    """What the colours mean: a colour, a name, a figure each."""
    items = "".join(
        f'<li><i{" class=maybe" * (colour == "maybe")} style="background:var(--{colour})"></i>{escape(f"{name} {figure}")}</li>'
        for colour, name, figure in entries
    )
    return f'<ul class="key">{items}</ul>'


def _told(report: Report) -> str:
    items = "".join(f"<li>{prose(line)}</li>" for line in report.assumptions)
    heading = "What this cannot know, and takes for granted"
    return _panel("assumptions", heading, f'<ul class="told">{items}</ul>', wide=True)


def _suggestions(report: Report, heading: str, suggestions: Sequence[Suggestion]) -> str:
    rows = [
        [
            prose(each.change),
            _number(each.speed, f"x {each.speed:.2f}"),
            _number(each.memory, f"{each.memory / report.memory.capacity:.0%}"),
            f'<td class="{each.verdict.replace(" ", "-")}">{each.verdict}</td>',
        ]
        for each in suggestions
    ]
    heads = [(heading, ""), ("speed", "n"), ("memory", "n"), ("", "")]
    return f'<div class="scrolls">{_table(heads, rows)}</div>' if rows else ""


def _recipe(report: Report) -> str:
    recipe = report.advice().recipe
    if recipe is None:
        return ""
    table = _suggestions(report, "all together, each after those above", recipe.steps)
    left = f"<p>{prose(recipe.left)}</p>" if recipe.left else ""
    return table + left + (f'<pre class="scrolls">{escape(recipe.code)}</pre>' if recipe.code else "")


def _advice(report: Report) -> str:
    table = _suggestions(report, "each change alone", report.advice())
    others = "".join(f"<li>{prose(f'{each.change}: {each.why}')}</li>" for each in report.advice().not_asked)
    content = (
        _recipe(report),
        table or '<p class="soft">Nothing that was asked.</p>',
        f'<p class="soft">Not asked:</p><ul class="told">{others}</ul>' if others else "",
    )
    return _panel("advice", "What would help", *content, wide=True)


def _memory(report: Report) -> str:
    memory = report.memory
    key = _key(
        ("always", "always there", format_bytes(memory.always - memory.stash)),
        ("data", "not always, at the peak", format_bytes(memory.data)),
        *([("stash", "stash", format_bytes(memory.stash))] if memory.stash else []),
        ("code", "code, at least", format_bytes(memory.code_low)),
        ("maybe", "at most", format_bytes(memory.code_high)),
    )
    rows = [[name, _size(size)] for name, size in memory_parts(memory) if size]
    if memory.off_chip:
        rows.append(["beside the chip (Streaming Memory)", _size(memory.off_chip)])
    whose = f"IPU {memory.ipu}, the fullest" if report.ipus_per_replica > 1 else "an IPU"
    table = _table([(whose, ""), ("size", "n")], rows)
    return _panel("memory", "Memory", f"<figure>{_pictures.memory_picture(report, 1)}</figure>", key, table)


def _liveness(report: Report) -> str:
    memory = report.memory
    heading = "Liveness" + (f" of IPU {memory.ipu}" if report.ipus_per_replica > 1 else "")
    if not memory.liveness:
        words = "It is not known when its data are in memory." if memory.data else "The program has no data of its own."
        return _panel("liveness", heading, f'<p class="soft">{words}</p>')
    key = _key(("always", "always there", ""), ("data", "results and temporary values", ""))
    layers = layers_of(report)
    rows = [[escape(str(layers.known_as(name))), _size(size)] for name, size in memory.largest]
    rows, folded = rows[:_MOST_ALIVE], rows[_MOST_ALIVE:]
    rest = memory.data - sum(size for _, size in memory.largest)
    if rest > 0:
        rows.append(["what the operation of that moment takes besides, and smaller values", _size(rest)])
    others = [each for each in report.memories if each.ipu != memory.ipu and each.liveness][: _MOST_IPUS - 1]
    pictures = "".join(
        f"<figure>{_pictures.liveness_picture(each, at)}<figcaption>IPU {each.ipu}</figcaption></figure>"
        for at, each in enumerate(others, start=10)
    )
    table = _table([("alive at the peak", ""), ("size", "n")], rows)
    more = _folded(f"{len(folded)} more", _table([("", ""), ("", "n")], folded) if folded else "")
    figure = f"<figure>{_pictures.liveness_picture(memory, 2)}</figure>"
    return _panel("liveness", heading, figure, key, table, more, _folded("other IPUs", pictures))


def _folded(summary: str, content: str) -> str:
    """What a click on its summary shows; nothing without content."""
    return f"<details><summary>{summary}</summary>{content}</details>" if content else ""


def _time(report: Report) -> str:
    times = {part: report.part_seconds(part) for part in PARTS}
    whole = sum(times.values()) or 1.0
    bar = "".join(
        f'<span style="flex:{time / whole:.4f} 0 0;background:var(--{part})" title="{part} {time / whole:.0%}"></span>'
        for part, time in times.items()
        if time
    )
    key = _key(*((part, part, f"{time / whole:.0%}") for part, time in times.items() if time))
    kinds: dict[str, float] = {}
    for each in report.operations:
        kinds[each.kind] = kinds.get(each.kind, 0.0) + each.seconds
    rows = [
        [escape(kind), _time_cell(seconds / report.steps), _number(seconds / whole, f"{seconds / whole:.1%}")]
        for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1])[:8]
    ]
    heading = "Time of a step" + (", over all IPUs" if report.ipus_per_replica > 1 else "")
    table = _table([("kind", ""), ("a step", "n"), ("share", "n")], rows)
    return _panel("time", heading, f'<div class="bar">{bar}</div>', key, table)


def _timeline(report: Report) -> str:
    timeline = report.timeline
    if timeline is None:
        if not report.seconds:
            return _panel("timeline", "Execution", '<p class="soft">Nothing takes time.</p>', wide=True)
        words = "One operation after the other." + " Data passes beside the computation." * report.overlaps_host
        picture, names = _pictures.step_picture(report, 3), [part for part in PARTS if report.part_seconds(part)]
        heading = "Execution of a step"
    else:
        few = f", of which {timeline.shown} are drawn" if timeline.shown < timeline.micro_batches else ""
        words = (
            f"A pass of {timeline.micro_batches} micro-batches{few}: {format_seconds(timeline.seconds)}, and the IPUs wait for"
            f" each other in {timeline.bubble:.0%} of it."
        )
        picture = _pictures.pipeline_picture(timeline, 3)
        kinds = {task.kind for task in timeline.tasks}
        names = [name for name in ("forward", "recompute", "backward", "update") if name in kinds]
        names += ["move"] if kinds & {"load", "save", "exchange"} else []
        heading = "Execution of the pipeline"
    key = _key(*((name, name, "") for name in names))
    figure = f'<figure class="scrolls">{picture}</figure>'
    return _panel("timeline", heading, f'<p class="soft">{escape(words)}</p>', figure, key, wide=True)


def _host(report: Report) -> str:
    rows = [each for each in top_operations(report) if each.host_bytes]
    if not rows:
        return _panel("host", "Host input and output", '<p class="soft">The program has no feeds.</p>')
    system, steps = report.system, report.steps
    whole = sum(each.host_bytes for each in rows) / steps
    demand = whole / report.step_seconds
    waits = "while the chip waits: tiles for it (`io_tiles`) would overlap them"
    beside = "beside the computation" if report.overlaps_host else waits
    words = (
        f"A step passes {format_bytes(whole)} {beside}. At its pace that is {count_text(demand)}B/s of an IPU, of the"
        f" {count_text(system.host_bytes_per_second)}B/s of its link, and {report.throughput(1):,.0f} elements/s of all"
        " replicas."
    )
    layers = layers_of(report)
    cells = [
        [escape(name_in(layers, each)), each.kind, _size(each.host_bytes / steps), _time_cell(each.host / steps)]
        for each in rows
    ]
    table = _table([("queue", ""), ("kind", ""), ("a step", "n"), ("time", "n")], cells)
    return _panel("host", "Host input and output", f"<p>{prose(words)}</p>", f'<div class="scrolls">{table}</div>')


def _operations(report: Report) -> str:
    found, layers = top_operations(report), layers_of(report)
    whole = sum(each.seconds for each in found) or 1.0
    several = report.ipus_per_replica > 1
    heads = [("operation", ""), ("kind", ""), *([("IPU", "n")] if several else []), ("times", "n"), ("a run", "n")]
    heads += [
        ("share", "n"),
        ("at the peak", "n"),
        ("bound", ""),
        ("FLOP", "n"),
        ("shape", ""),
        ("tiles", ""),
        ("line", ""),
    ]
    alive: dict[str, int] = {}
    for name, size in (each for memory in report.memories for each in memory.largest):
        alive[name] = alive.get(name, 0) + size
    known = {each.name: layers.known_as(each.name, each.kind) for each in found}
    known |= {name: layers.known_as(name) for name in alive if name not in known}
    groups = grouped({each.layer for each in known.values()})
    of_groups: dict[str, list[OperationTime]] = {}
    for each in found:
        of_groups.setdefault(groups[known[each.name].layer], []).append(each)
    bodies = []
    left = _MOST_ROWS
    for group, members in sorted(of_groups.items(), key=lambda item: -sum(each.seconds for each in item[1])):
        if left <= 0:
            break
        size = sum(size for name, size in alive.items() if groups[known[name].layer] == group)
        sums = _group(group or "in no layer", members, size, whole, several)
        rows = [_row(each, str(known[each.name]), alive.pop(each.name, 0), whole, several) for each in members[:left]]
        left -= len(rows)
        bodies.append([sums, *rows])
    words = f"{len(found)} operations" + (f", of which {_MOST_ROWS} are listed" if len(found) > _MOST_ROWS else "")
    find = '<input type="search" placeholder="layer, operation, kind or line" aria-label="filter the operations">'
    note = f'<p class="soft">{words}, by layer. A click on a layer unfolds it, one on a heading sorts.</p>'
    content = f'{find}<div class="scrolls">{_table(heads, *bodies, sortable=True)}</div>'
    return _panel("operations", "Operations", note, content, wide=True)


def _group(name: str, members: Sequence[OperationTime], size: int, whole: float, several: bool) -> list[str]:
    """The row of a layer: its sums."""
    seconds, flops = (sum(getattr(each, part) for each in members) for part in ("seconds", "flops"))
    bounds: dict[str, float] = {}
    for each in members:
        bounds[each.bound] = bounds.get(each.bound, 0.0) + each.seconds
    return [
        f'<td class="name"><button aria-expanded="true">{escape(name)}</button></td>',
        f"<td>{len(members)} operation{'s' * (len(members) > 1)}</td>",
        *(["<td></td>"] if several else []),
        "<td></td>",
        _time_cell(seconds),
        _number(seconds / whole, f"{seconds / whole:.1%}"),
        _size(size) if size else "<td></td>",
        max(bounds, key=lambda bound: bounds[bound]),
        _number(flops, count_text(flops) if flops else ""),
        *(["<td></td>"] * 3),
    ]


def _row(each: OperationTime, name: str, size: int, whole: float, several: bool) -> list[str]:
    share = each.seconds / whole
    return [
        escape(f"{name.removesuffix(' (gradient)')} ({each.part})" if each.part else name),
        f'<td class="kind">{escape(each.kind)}</td>',
        *([_number(each.ipu, str(each.ipu))] if several else []),
        _number(each.count, f"{each.count:,}"),
        _time_cell(each.seconds),
        _number(share, f"{share:.2%}"),
        _number(size, format_bytes(size) if size else ""),
        each.bound,
        _number(each.flops, count_text(each.flops) if each.flops else ""),
        _wrapped(each.shape if len(each.shape) < 40 else each.shape[:37] + "..."),
        escape(each.plan),
        _wrapped(each.source),
    ]


def _table(heads: Sequence[tuple[str, str]], *bodies: Sequence[Sequence[str]], sortable: bool = False) -> str:
    """A table of cells that are HTML already; those that are numbers are whole elements. What is sortable has groups."""

    def head(text: str, kind: str) -> str:
        inside = f"<button>{text}</button>" if sortable else text
        return f"<th{f' class={kind}' * bool(kind)}>{inside}</th>"

    def cell(text: str, at: int) -> str:
        return text if text.startswith("<td") else f"<td{' class=name' * (at == 0)}>{text}</td>"

    first = "".join(head(*each) for each in heads)
    found = "".join(
        "<tbody>"
        + "\n".join(f"<tr>{''.join(cell(text, at) for at, text in enumerate(row))}</tr>" for row in rows)
        + "</tbody>"
        for rows in bodies
    )
    return f"<table{' class=sortable' * sortable}><thead><tr>{first}</tr></thead>{found}</table>"


def _wrapped(text: str) -> str:
    return f"<td{' class=wraps' * (len(text) > _SHORT)}>{escape(text)}</td>"


def _number(value: float, text: str) -> str:
    return f'<td class="n" data-value="{value:.6g}">{text}</td>'


def _size(size: float) -> str:
    return _number(size, format_bytes(size))


def _time_cell(seconds: float) -> str:
    return _number(seconds, format_seconds(seconds))


LOOKS = """\
:root {
  --grid: #dfe3e9;
  --compute: #2f6fdb; --exchange: #e39a2d; --sync: #9aa4b2; --links: #1f9e8f; --host: #b453c6;
  --always: #35618f; --data: #57b0a3; --stash: #e39a2d; --code: #9aa4b2; --limit: #d2373f;
  --forward: #7fb0f5; --backward: #efb766; --recompute: #b7d4a8; --update: #d79ae2; --move: #9aa4b2;
  --good: #1b7f4b; --unsure: #9a6400; --bad: #c22932;
}
@media (prefers-color-scheme: dark) {
  :root {
    --grid: #323b48;
    --compute: #6ea2ff; --exchange: #f0b04f; --sync: #6d7889; --links: #45c2b2; --host: #cd7fdc;
    --always: #5b8fc6; --data: #4fa598; --stash: #e0a040; --code: #6d7889; --limit: #ff6b70;
    --forward: #3b72c4; --backward: #b07a28; --recompute: #5c8a4a; --update: #8f4fa0; --move: #6d7889;
    --good: #5fd19a; --unsure: #f0b04f; --bad: #ff7b80;
  }
}
main { grid-template-columns: 1fr 1fr; }
header, .wide { grid-column: 1 / -1; }
@media (max-width: 820px) { main { grid-template-columns: 1fr; padding: 12px 10px 32px; gap: 10px; } }
.fits { color: var(--good); } .may-fit { color: var(--unsure); } .does-not-fit { color: var(--bad); }
.card:not(.wide) svg { max-width: 520px; }
figure { margin: 0; }
.scrolls svg { min-width: 640px; }
.key .maybe { background: repeating-linear-gradient(135deg, var(--code) 0 2px, transparent 2px 5px) !important;
  outline: 1px solid var(--code); outline-offset: -1px; }
ul.key + table, .scrolls + .scrolls { margin-top: 12px; }
.bar { display: flex; height: 26px; border-radius: 5px; overflow: hidden; }
td.name { overflow-wrap: anywhere; min-width: min(150px, 26vw); }
.sortable td.name { min-width: 150px; }
.scrolls + p.soft { margin-top: 12px; }
td:not(.name) { white-space: nowrap; }
td.kind { white-space: normal; }
td.wraps { white-space: normal; overflow-wrap: anywhere; min-width: 90px; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--compute); }
th[aria-sort=descending] button::after { content: " \\25BE"; } th[aria-sort=ascending] button::after { content: " \\25B4"; }
.sortable tbody tr:first-child { font-weight: 600; }
.sortable tbody tr:not(:first-child) td.name { padding-left: 1.2em; }
td button { all: unset; cursor: pointer; } td button:focus-visible { outline: 2px solid var(--compute); }
td button::before { content: "\\25B8\\00A0"; } td button[aria-expanded=true]::before { content: "\\25BE\\00A0"; }
.sortable thead th { position: sticky; top: 0; background: var(--card); }
ul.told { margin: 8px 0 0; padding-left: 1.2em; }
"""

SCRIPT = """\
<script>
for (const table of document.querySelectorAll("table.sortable")) {
  const groups = [...table.tBodies], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent;
  const members = group => [...group.rows].slice(1);
  const fold = (group, folded) => {
    group.querySelector("button").ariaExpanded = String(!folded);
    for (const row of members(group)) row.hidden = folded;
  };
  for (const group of groups) {
    const button = group.querySelector("button");
    button.addEventListener("click", () => fold(group, button.ariaExpanded === "true"));
    fold(group, true);
  }
  const filter = table.closest(".card").querySelector("input");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase();
    for (const group of groups) {
      const found = members(group).map(row => row.textContent.toLowerCase().includes(words));
      fold(group, true);
      group.hidden = !found.includes(true);
      if (!words || group.hidden) continue;
      group.querySelector("button").ariaExpanded = "true";
      members(group).forEach((row, at) => { row.hidden = !found[at]; });
    }
  });
  heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.classList.contains("n");
    const down = head.ariaSort ? head.ariaSort === "ascending" : numbers;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    const compare = numbers
      ? (a, b) => value(a, at) - value(b, at)
      : (a, b) => value(a, at).localeCompare(value(b, at));
    const sort = (a, b) => (down ? -1 : 1) * compare(a, b);
    for (const group of groups) group.append(...members(group).sort(sort));
    table.append(...groups.sort((a, b) => sort(a.rows[0], b.rows[0])));
  }));
}
</script>
"""
