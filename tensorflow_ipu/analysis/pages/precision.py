"""The page of a precision report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tensorflow_ipu._base.units import round_ticks
from tensorflow_ipu.analysis.pages.templates import page_of, render
from tensorflow_ipu.analysis.precision.figures import (
    ACTIVATION,
    GRADIENTS,
    HIGHEST,
    LOWEST,
    SMALLEST,
    SMALLEST_NORMAL,
    UPDATE,
    WEIGHT,
    Figures,
    TensorRow,
)
from tensorflow_ipu.analysis.precision.report import PrecisionReport, scale_text, span_text

_LEFT, _STEP, _ROW, _BAR = 340, 11, 26, 20
_MOST_LETTERS = 43  # The longest name to the left of a row. It fits even if all letters are capitals.
# The largest exponent of float16, which ends at 65504, almost 2 ** 16.
_LAST = 15
_PANELS = (
    ("activations", "Activations", (ACTIVATION,)),
    ("gradients", "Gradients, of a loss without a scale", GRADIENTS),
    ("weights", "Weights and updates", (WEIGHT, UPDATE)),
)


@page_of.register
def precision_page(report: PrecisionReport) -> str:
    """Returns the page of a precision report."""
    advised = report.scales.advised
    panels = [
        (name, heading, _histograms(rows, advised if kinds == GRADIENTS and advised != 1 else None))
        for name, heading, kinds in _PANELS
        if (rows := report.of(kinds))
    ]
    gradients = report.of(GRADIENTS)
    return render(
        "precision.html.jinja",
        title=f"Float16 arithmetic of {report.program}",
        report=report,
        figures=_headline(report),
        panels=panels,
        steps=_over_steps(gradients) if report.steps > 1 and gradients else None,
        rows=[(row, row.total, span_text(row.total)) for row in report.rows],
    )


def _headline(report: PrecisionReport) -> Iterator[tuple[str, str, str]]:
    scales = report.scales
    overflowing = sum(row.total.infinite > 0 for row in report.rows)
    fits = f"{scale_text(scales.least)} to {scale_text(scales.greatest)} fit" if scales.fit else "none fits"
    yield str(report.steps), "steps, each from the same weights in both types", ""
    yield f"{overflowing} of {len(report.rows)}", "tensors overflow in float16", "bad" if overflowing else "good"
    yield scale_text(scales.advised), f"the recommended loss scale; {fits}", ""
    yield scale_text(report.loss_scale), "the loss scale of these steps", ""
    for single, half in report.losses[-1:]:
        yield f"{single:.4g}", f"the last loss in float32; {half:.4g} in float16", ""


def _histograms(rows: Sequence[TensorRow], scale: float | None) -> dict[str, object]:
    """Returns the values of the template for a histogram of exponents for each tensor, over the ranges of float16.

    With a loss `scale`, two lines mark the range of float16 for values that are multiplied by the scale.
    """
    totals = [row.total for row in rows]
    used = [LOWEST + index for total in totals for index, count in enumerate(total.exponents) if count]
    first, last = max(LOWEST, min([*used, SMALLEST - 4])), min(HIGHEST, max([*used, _LAST + 3]))

    def x(exponent: float) -> float:
        return _LEFT + _STEP * (min(max(exponent, first), last + 1) - first)

    def bars(total: Figures) -> Iterator[tuple[float, float, int, int, str]]:
        largest = max(total.exponents) or 1
        for exponent in range(first, last + 1):
            count = total.exponents[exponent - LOWEST]
            if count:
                # Heights are logarithmic, so that a few overflows are visible.
                height = max(1.5, _BAR * math.log1p(count) / math.log1p(largest))
                yield x(exponent) + 1, height, exponent, count, "bad" if exponent > _LAST else "single"

    areas = (
        (first, SMALLEST, "zero"),
        (SMALLEST, SMALLEST_NORMAL, "subnormal"),
        (_LAST + 1, last + 1, "beyond"),
    )
    return {
        "width": _LEFT + _STEP * (last - first + 1) + 12,
        "height": _ROW * len(rows) + 34,
        "bottom": _ROW * len(rows),
        "left": _LEFT,
        "right": x(last + 1),
        "bar_width": _STEP - 2,
        "areas": [(x(begin), max(0.0, x(end) - x(begin)), colour) for begin, end, colour in areas],
        "rows": [
            (_short(row), _name(row), _ROW * number - 2, list(bars(total)))
            for number, (row, total) in enumerate(zip(rows, totals, strict=True), 1)
        ],
        "edges": [] if scale is None else [x(edge - math.log2(scale)) for edge in (SMALLEST, _LAST + 1)],
        "ticks": [(x(exponent), exponent) for exponent in range(first + -first % 4, last + 2, 4)],
        "scale": None if scale is None else scale_text(scale),
    }


def _over_steps(rows: Sequence[TensorRow]) -> dict[str, object]:
    """Returns the values of the template for lines of the exponents of the largest and smallest gradients."""
    steps = max(len(row.steps) for row in rows)
    largest, smallest = [], []
    for step in range(steps):
        nonzero = [row.steps[step] for row in rows if step < len(row.steps) and row.steps[step].largest]
        largest.append(max((figures.largest_exponent or 0 for figures in nonzero), default=0))
        smallest.append(min((figures.smallest_exponent or 0 for figures in nonzero), default=0))
    first, last = min([*smallest, SMALLEST]) - 2, max([*largest, _LAST + 1]) + 2
    width, height, left, top = 700, 240, 60, 10
    right = width - 120

    def x(step: int) -> float:
        return left + (right - left) * step / max(1, steps - 1)

    def y(exponent: float) -> float:
        return top + (height - top - 34) * (last - exponent) / (last - first)

    areas = ((first, SMALLEST, "zero"), (SMALLEST, SMALLEST_NORMAL, "subnormal"), (_LAST + 1, last, "beyond"))
    lines = ((largest, "bad", "largest"), (smallest, "single", "smallest"))
    numbers = sorted({1, *map(int, round_ticks(max(steps, 10), max_steps=10)[1:])})
    return {
        "width": width,
        "height": height,
        "left": left,
        "right": right,
        "areas": [(y(high), y(low) - y(high), colour) for low, high, colour in areas],
        "lines": [
            (name, colour, values[-1], y(values[-1]), [(x(step), y(value)) for step, value in enumerate(values)])
            for values, colour, name in lines
        ],
        "exponents": [(y(exponent), exponent) for exponent in range(first - first % 8 + 8, last, 8)],
        "steps": [(x(number - 1), number) for number in numbers if number <= steps],
    }


def _name(row: TensorRow) -> str:
    return f"{row.layer}: {row.title}"


def _short(row: TensorRow) -> str:
    """Returns a name that fits to the left of its row. If it is too long, the middle of the layer's name is omitted."""
    name, layer = _name(row), row.layer
    if len(name) > _MOST_LETTERS:
        end = max(8, _MOST_LETTERS - len(row.title) - 5) // 2
        if len(layer) > 2 * end + 3:
            name = f"{layer[:end]}...{layer[-end:]}: {row.title}"
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 3]}..."
