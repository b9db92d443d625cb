"""The pictures of a report on precision, as SVG in the colours of its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tensorflow_ipu.precision._figures import HIGHEST, LOWEST, SMALLEST, SMALLEST_NORMAL, Figures
from tensorflow_ipu.precision._report import TensorRow

_LEFT, _STEP, _ROW, _BAR = 340, 11, 26, 20
_MOST_LETTERS = 43  # Of a name: as many capitals are as wide as there is room.
# Exponents beyond this are beyond float16: it ends at 65504, almost 2 ** 16.
_LAST = 15


def exponents(rows: Sequence[TensorRow], scale: float | None = None) -> str:
    """A histogram of exponents for each tensor, over the ranges of float16.

    Args:
      rows: The tensors.
      scale: A loss scale with which to draw float16's range as well; None for none.
    """
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
        name = f"{row.layer}: {what}"
        parts.append(
            f'<text x="{_LEFT - 8}" y="{base - 5}" text-anchor="end">{escape(_short(row.layer, what))}'
            f"<title>{escape(name)}</title></text>"
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
    for exponent in range(first - first % 8 + 8, last, 8):
        parts.append(f'<text x="{left - 6}" y="{y(exponent) + 4:.1f}" text-anchor="end">2^{exponent}</text>')
    every = max(1, steps // 10)
    for step in range(0, steps, every):
        parts.append(f'<text x="{x(step):.1f}" y="{height - 8}" text-anchor="middle">{step + 1}</text>')
    return _svg(width, height, parts, "the largest and smallest gradients of each step", "narrow")


def _range(totals: Sequence[Figures]) -> tuple[int, int]:
    """The exponents to show: float16's range, and what there is beside it."""
    used = [LOWEST + at for total in totals for at, count in enumerate(total.exponents) if count]
    return max(LOWEST, min([*used, SMALLEST - 4])), min(HIGHEST, max([*used, _LAST + 3]))


def _short(layer: str, what: str) -> str:
    """A name that has room beside its row: what the tensor is stays whole, if possible, and the number behind a layer."""
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
