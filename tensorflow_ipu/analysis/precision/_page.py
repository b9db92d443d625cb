"""A report on precision as one page for a browser, which needs nothing beside itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from tensorflow_ipu._base import page as whole
from tensorflow_ipu._base.units import round_ticks
from tensorflow_ipu.analysis.precision import _figures
from tensorflow_ipu.analysis.precision._figures import HIGHEST, LOWEST, SMALLEST, SMALLEST_NORMAL, Figures, TensorRow
from tensorflow_ipu.analysis.precision._report import PrecisionReport, scale_text, span_text

_LEFT, _STEP, _ROW, _BAR = 340, 11, 26, 20
_MOST_LETTERS = 43  # Of a name: as many capitals are as wide as there is room.
# Exponents beyond this are beyond float16: it ends at 65504, almost 2 ** 16.
_LAST = 15


def exponents(rows: Sequence[TensorRow], scale: float | None = None) -> str:
    """A histogram of exponents for each tensor, over the ranges of float16."""
    totals = [row.total for row in rows]
    first, last = _range(totals)
    width, height = _LEFT + _STEP * (last - first + 1) + 12, _ROW * len(rows) + 34

    def x(exponent: float) -> float:
        return _LEFT + _STEP * (min(max(exponent, first), last + 1) - first)

    parts = [
        _area(x(first), x(SMALLEST), _ROW * len(rows), "zero"),
        _area(x(SMALLEST), x(SMALLEST_NORMAL), _ROW * len(rows), "subnormal"),
        _area(x(_LAST + 1), x(last + 1), _ROW * len(rows), "beyond"),
    ]
    for at, (row, total) in enumerate(zip(rows, totals, strict=True)):
        base = _ROW * (at + 1) - 2
        what = f"{row.kind} {row.name}".strip()
        parts.append(
            f'<text x="{_LEFT - 8}" y="{base - 5}" text-anchor="end">{escape(_short(row.layer, what))}'
            f"<title>{escape(f'{row.layer}: {what}')}</title></text>"
        )
        parts.append(f'<line x1="{_LEFT}" x2="{x(last + 1)}" y1="{base}" y2="{base}" stroke="var(--line)"/>')
        most = max(total.exponents) or 1
        for exponent in range(first, last + 1):
            count = total.exponents[exponent - LOWEST]
            if count:
                # Few are seen as well: what overflows often is.
                bar = max(1.5, _BAR * math.log1p(count) / math.log1p(most))
                colour = "bad" if exponent > _LAST else "single"
                parts.append(
                    f'<rect x="{x(exponent) + 1}" y="{base - bar:.1f}" width="{_STEP - 2}" height="{bar:.1f}"'
                    f' fill="var(--{colour})"><title>2^{exponent}: {count:,}</title></rect>'
                )
    if scale is not None:
        for edge in (SMALLEST, _LAST + 1):
            at = x(edge - math.log2(scale))
            parts.append(
                f'<line x1="{at}" x2="{at}" y1="0" y2="{_ROW * len(rows)}" stroke="var(--half)"'
                ' stroke-width="1.6" stroke-dasharray="5 3"/>'
            )
    parts += [
        f'<text x="{x(exponent)}" y="{_ROW * len(rows) + 18}" text-anchor="middle">{exponent}</text>'
        for exponent in range(first + -first % 4, last + 2, 4)
    ]
    return _svg(width, height, parts, "how many numbers of each tensor have which exponent")


def over_steps(rows: Sequence[TensorRow]) -> str:
    """The exponents of the largest and smallest gradients of each step."""
    steps = max(len(row.steps) for row in rows)
    largest, smallest = [], []
    for step in range(steps):
        known = [row.steps[step] for row in rows if step < len(row.steps) and row.steps[step].largest]
        largest.append(max((each.largest_exponent or 0 for each in known), default=0))
        smallest.append(min((each.smallest_exponent or 0 for each in known), default=0))
    first, last = min([*smallest, SMALLEST]) - 2, max([*largest, _LAST + 1]) + 2
    width, height, left, top = 700, 240, 60, 10

    def x(step: int) -> float:
        return left + (width - left - 120) * step / max(1, steps - 1)

    def y(exponent: float) -> float:
        return top + (height - top - 34) * (last - exponent) / (last - first)

    right = width - 120
    parts = [
        f'<rect x="{left}" width="{right - left}" y="{y(high):.1f}" height="{y(low) - y(high):.1f}" fill="var(--{colour})"/>'
        for low, high, colour in (
            (first, SMALLEST, "zero"), (SMALLEST, SMALLEST_NORMAL, "subnormal"), (_LAST + 1, last, "beyond"),
        )
    ]  # fmt: skip
    for values, colour, name in ((largest, "bad", "largest"), (smallest, "single", "smallest")):
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="var(--{colour})" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="var(--{colour})"/>'
            for step, value in enumerate(values)
        ]
        parts.append(
            f'<text x="{right + 8}" y="{y(values[-1]) + 4:.1f}" style="fill:var(--{colour})">{name}: {values[-1]}</text>'
        )
    parts += [
        f'<text x="{left - 6}" y="{y(exponent) + 4:.1f}" text-anchor="end">2^{exponent}</text>'
        for exponent in range(first - first % 8 + 8, last, 8)
    ]
    numbers = sorted({1, *map(int, round_ticks(max(steps, 10), most=10)[1:])})
    parts += [
        f'<text x="{x(number - 1):.1f}" y="{height - 8}" text-anchor="middle">{number}</text>'
        for number in numbers
        if number <= steps
    ]
    return _svg(width, height, parts, "the largest and smallest gradients of each step", "narrow")


def _range(totals: Sequence[Figures]) -> tuple[int, int]:
    """The exponents to show: float16's range, and what there is beside it."""
    used = [LOWEST + at for total in totals for at, count in enumerate(total.exponents) if count]
    return max(LOWEST, min([*used, SMALLEST - 4])), min(HIGHEST, max([*used, _LAST + 3]))


def _short(layer: str, what: str) -> str:
    """A name that has room beside its row: what the tensor is stays whole, if possible, and the number after a layer."""
    name = f"{layer}: {what}"
    if len(name) > _MOST_LETTERS:
        end = max(8, _MOST_LETTERS - len(what) - 5) // 2
        if len(layer) > 2 * end + 3:
            name = f"{layer[:end]}...{layer[-end:]}: {what}"
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 3]}..."


def _area(left: float, right: float, height: float, colour: str) -> str:
    return f'<rect x="{left}" y="0" width="{max(0.0, right - left)}" height="{height}" fill="var(--{colour})"/>'


def _svg(width: float, height: float, parts: Sequence[str], label: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<svg{named} role="img" aria-label="{label}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'


_LINE = '<p class="soft">The lines are where float16 begins and ends with the loss scale {}.</p>'

_LOOKS = """\
:root { --zero: #fbe4cf; --subnormal: #fbf3d3; --beyond: #f9d5d7; --bad: #c22932; --good: #1b7f4b;
  --single: #2f6fdb; --half: #c2620c; }
@media (prefers-color-scheme: dark) {
  :root { --zero: #4a3420; --subnormal: #3f3a20; --beyond: #522a2e; --bad: #ff7b80; --good: #5fd19a;
    --single: #6ea2ff; --half: #f0a050; } }
.bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); }
svg { min-width: 760px; font-size: 11px; fill: var(--ink); }
svg.narrow { max-width: 760px; min-width: 420px; }
th, td { white-space: nowrap; }
td:nth-child(-n+2) { white-space: normal; overflow-wrap: anywhere; min-width: 140px; }
ul { margin: 0; padding-left: 1.2em; }
.key i { border: 1px solid var(--line); }
"""

_SCRIPT = """\
<script>
const panel = document.querySelector("#tensors"), filter = panel.querySelector("input");
filter.addEventListener("input", () => {
  for (const row of panel.querySelectorAll("tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
});
</script>
"""


def page(report: PrecisionReport) -> str:
    """Writes a report as HTML."""
    title = f"What float16 makes of {report.program}"
    return whole.page(escape(title), _head(report, title), "\n".join(_panels(report)), _LOOKS, _SCRIPT)


def _head(report: PrecisionReport, title: str) -> str:
    scales = report.scales
    bad = sum(row.total.infinite > 0 for row in report.rows)
    fits = f"{scale_text(scales.least)} to {scale_text(scales.greatest)}" if scales.fit else "none"
    figures = [
        (str(report.steps), "steps, each begun with the same weights"),
        (f'<span class="{"bad" if bad else "good"}">{bad} of {len(report.rows)}</span>', "tensors overflow in float16"),
        (scale_text(scales.advised), f"is the loss scale to take; {fits} fit"),
        (scale_text(report.loss_scale), "was the loss scale of float16"),
        *((f"{single:.4g}", f"the last loss and {half:.4g} in float16") for single, half in report.losses[-1:]),
    ]
    cells = "".join(f'<div><b>{figure}</b><span class="soft">{words}</span></div>' for figure, words in figures)
    where = f"Float32 beside float16 on {report.device}."
    return f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(where)}</p>\n<div class="figures">{cells}</div>'


def _panels(report: PrecisionReport) -> Iterator[str]:
    items = "".join(f"<li>{whole.prose(sentence)}</li>" for sentence in report.advice)
    if items:
        yield _panel("advice", "What to do", f"<ul>{items}</ul>")
    key = _key(("zero", "0 in float16"), ("subnormal", "subnormal, with fewer digits"), ("beyond", "beyond float16"))
    words = '<p class="soft">How many numbers of each tensor have which exponent of 2 in float32, in logarithms.</p>'
    for name, heading, kinds in (
        ("activations", "Activations", (_figures.ACTIVATION,)),
        ("gradients", "Gradients, of a loss without a scale", _figures.GRADIENTS),
        ("weights", "Weights and updates", (_figures.WEIGHT, _figures.UPDATE)),
    ):
        rows = report.of(kinds)
        if not rows:
            continue
        scale = report.scales.advised if kinds == _figures.GRADIENTS and report.scales.advised != 1 else None
        picture = f'<div class="scrolls">{exponents(rows, scale)}</div>'
        line = "" if scale is None else _LINE.format(scale_text(scale))
        yield _panel(name, heading, words, picture, key, line)
    if report.steps > 1 and report.of(_figures.GRADIENTS):
        words = '<p class="soft">The exponents of the largest and of the smallest magnitude of all gradients, in float32.</p>'
        picture = f'<div class="scrolls">{over_steps(report.of(_figures.GRADIENTS))}</div>'
        yield _panel("steps", "Gradients over the steps", words, picture)
    find = '<input type="search" placeholder="layer or tensor" aria-label="filter the tensors">'
    yield _panel("tensors", "Tensors", find, f'<div class="scrolls">{_table(report.rows)}</div>')


def _panel(name: str, heading: str, *content: str) -> str:
    inside = "\n".join(filter(None, content))
    return f'<section class="card" id="{name}">\n<h2>{escape(heading)}</h2>\n{inside}\n</section>'


def _key(*entries: tuple[str, str]) -> str:
    items = "".join(f'<li><i style="background:var(--{colour})"></i>{escape(name)}</li>' for colour, name in entries)
    return f'<ul class="key">{items}</ul>'


def _table(rows: Sequence[TensorRow]) -> str:
    heads = ("layer", "tensor", "overflow", "to zero", "subnormal", "exponents", "stuck")
    texts = ("layer", "tensor", "exponents")
    first = "".join(f"<th{' class=n' * (head not in texts)}>{head}</th>" for head in heads)
    body = []
    for row in rows:
        total = row.total
        shares = "".join(_share(each) for each in (total.overflow, total.underflow)) + _share(total.subnormals, bad=2)
        stuck = f'<td class="n">{row.stuck:.0%}</td>' if row.kind == _figures.UPDATE else "<td></td>"
        name = f"{row.kind} {row.name}".strip()
        body.append(
            f"<tr><td>{escape(row.layer)}</td><td>{escape(name)}</td>{shares}<td>{span_text(total)}</td>{stuck}</tr>"
        )
    return f"<table><thead><tr>{first}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _share(share: float, bad: float = 0.01) -> str:
    mark = " bad" if share > bad else ""
    return f'<td class="n{mark}">{f"{share:.2%}" if share else ""}</td>'
