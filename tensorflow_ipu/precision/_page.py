"""A report on precision as one page for a browser, which needs nothing beside itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from tensorflow_ipu._reports import page as whole
from tensorflow_ipu.precision import _pictures, _report
from tensorflow_ipu.precision._advice import scale_text
from tensorflow_ipu.precision._report import PrecisionReport, TensorRow
from tensorflow_ipu.precision._text import span_text

_CODE = re.compile(r"`([^`]*)`")

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


def page(report: PrecisionReport) -> str:
    """Writes a report as HTML."""
    title = f"What float16 makes of {report.program}"
    return whole.page(escape(title), _head(report, title), "\n".join(_panels(report)), _LOOKS)


def _head(report: PrecisionReport, title: str) -> str:
    scales = report.scales
    bad = sum(row.total.infinite > 0 for row in report.rows)
    fits = f"{scale_text(scales.least)} to {scale_text(scales.greatest)}" if scales.fit else "none"
    losses = report.losses[-1:] and f"{report.losses[-1][0]:.4g}, and {report.losses[-1][1]:.4g} in float16"
    figures = [
        (str(report.steps), "steps, each begun with the same weights"),
        (f'<span class="{"bad" if bad else "good"}">{bad} of {len(report.rows)}</span>', "tensors overflow in float16"),
        (scale_text(scales.advised), f"is the loss scale to take; {fits} fit"),
        (scale_text(report.loss_scale), "was the loss scale of float16"),
        *(
            [(escape(str(losses).partition(",")[0]), f"the last loss{escape(str(losses).partition(',')[2])}")]
            if losses
            else []
        ),
    ]
    cells = "".join(f'<div><b>{figure}</b><span class="soft">{words}</span></div>' for figure, words in figures)
    where = f"Float32 beside float16 on {report.device}."
    return f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(where)}</p>\n<div class="figures">{cells}</div>'


def _panels(report: PrecisionReport) -> Iterator[str]:
    items = "".join(f"<li>{_prose(sentence)}</li>" for sentence in report.advice)
    if items:
        yield _panel("advice", "What to do", f"<ul>{items}</ul>")
    key = _key(("zero", "0 in float16"), ("subnormal", "subnormal, with fewer digits"), ("beyond", "beyond float16"))
    words = '<p class="soft">How many numbers of each tensor have which exponent of 2 in float32, in logarithms.</p>'
    for name, heading, kinds in (
        ("activations", "Activations", (_report.ACTIVATION,)),
        ("gradients", "Gradients, of a loss without a scale", _report.GRADIENTS),
        ("weights", "Weights and updates", (_report.WEIGHT, _report.UPDATE)),
    ):
        rows = report.of(kinds)
        if not rows:
            continue
        scale = report.scales.advised if kinds == _report.GRADIENTS and report.scales.advised != 1 else None
        picture = f'<div class="scrolls">{_pictures.exponents(rows, scale)}</div>'
        line = (
            f'<p class="soft">The lines are where float16 begins and ends with the loss scale {scale_text(scale)}.</p>'
            if scale
            else ""
        )
        yield _panel(name, heading, words, picture, key, line)
    if report.steps > 1 and report.of(_report.GRADIENTS):
        yield _panel(
            "steps",
            "Gradients over the steps",
            '<p class="soft">The exponents of the largest and of the smallest magnitude of all gradients, in float32.</p>',
            f'<div class="scrolls">{_pictures.over_steps(report.of(_report.GRADIENTS))}</div>',
        )
    yield _panel("tensors", "Tensors", f'<div class="scrolls">{_table(report.rows)}</div>')


def _panel(name: str, heading: str, *content: str) -> str:
    inside = "\n".join(filter(None, content))
    return f'<section class="card" id="{name}">\n<h2>{escape(heading)}</h2>\n{inside}\n</section>'


def _key(*entries: tuple[str, str]) -> str:
    items = "".join(f'<li><i style="background:var(--{colour})"></i>{escape(name)}</li>' for colour, name in entries)
    return f'<ul class="key">{items}</ul>'


def _table(rows: Sequence[TensorRow]) -> str:
    heads = (
        ("layer", ""),
        ("tensor", ""),
        ("overflow", "n"),
        ("to zero", "n"),
        ("subnormal", "n"),
        ("exponents", ""),
        ("stuck", "n"),
    )
    first = "".join(f"<th{f' class={kind}' * bool(kind)}>{text}</th>" for text, kind in heads)
    body = []
    for row in rows:
        total = row.total
        shares = "".join(_share(each) for each in (total.overflow, total.underflow)) + _share(total.subnormals, bad=2)
        stuck = f'<td class="n">{row.stuck:.0%}</td>' if row.kind == _report.UPDATE else "<td></td>"
        name = f"{row.kind} {row.name}".strip()
        body.append(
            f"<tr><td>{escape(row.layer)}</td><td>{escape(name)}</td>{shares}<td>{span_text(total)}</td>{stuck}</tr>"
        )
    return f"<table><thead><tr>{first}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _share(share: float, bad: float = 0.01) -> str:
    mark = " bad" if share > bad else ""
    return f'<td class="n{mark}">{f"{share:.2%}" if share else ""}</td>'


def _prose(text: str) -> str:
    """Text of the package, with what it sets in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))
