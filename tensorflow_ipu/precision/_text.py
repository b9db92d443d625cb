"""A report on precision for a terminal: the advice, and a table of tensors."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tensorflow_ipu.precision import _report
from tensorflow_ipu.precision._advice import scale_text
from tensorflow_ipu.precision._figures import HIGHEST, LOWEST, SMALLEST, SMALLEST_NORMAL, Figures
from tensorflow_ipu.precision._report import PrecisionReport, TensorRow

_WIDTH = 118
_NAME = 40
_SHADES = " .:-=+*#%@"
# The exponents that a row of text shows, two a letter.
_FROM, _TO = -40, 23


def report_text(report: PrecisionReport) -> str:
    """Writes a report as text, at most some 120 characters wide."""
    return "\n".join(_lines(report))


def _lines(report: PrecisionReport) -> Iterator[str]:
    steps = f"{report.steps} step{'s' * (report.steps != 1)}"
    scale = scale_text(report.loss_scale)
    yield f"{report.program}: {steps} in float32, and in float16 on {report.device} with the loss scale {scale}"
    if report.losses:
        losses = ", ".join(f"{single:.4g} ({half:.4g})" for single, half in report.losses[:6])
        yield f"  losses of float32 (of float16): {losses}{', ...' * (len(report.losses) > 6)}"
    for sentence in report.advice:
        yield from textwrap.wrap(sentence, _WIDTH, initial_indent="  * ", subsequent_indent="    ")
    yield ""
    ranges = (
        "-" * ((SMALLEST - _FROM) // 2)
        + "s" * ((SMALLEST_NORMAL - SMALLEST) // 2)
        + "n" * ((16 - SMALLEST_NORMAL) // 2)
    )
    ranges = ranges.ljust((_TO + 1 - _FROM) // 2, "!")
    yield f"{'':<{_NAME}} {'over-':>7} {'to':>7} {'sub-':>7}  {'exponents':<11} in float32, from 2^{_FROM} to 2^{_TO}:"
    yield f"{'tensor':<{_NAME}} {'flow':>7} {'zero':>7} {'normal':>7}  {'of float32':<11} [{ranges}]"
    layer = None
    for row in report.rows:
        if row.layer != layer:
            layer = row.layer
            yield f"{layer}"
        yield _row(row)
    yield ""
    yield "- is 0 in float16, s is subnormal, n is normal, ! is beyond it; shares are of the elements in float16"


def _row(row: TensorRow) -> str:
    total = row.total
    name = f"  {row.kind}" + (f" {row.name}" if row.name else "")
    if len(name) > _NAME:
        name = f"{name[: _NAME - 3]}..."
    stuck = f"  {row.stuck:.0%} stuck" if row.kind == _report.UPDATE else ""
    shares = " ".join(f"{_share(each):>7}" for each in (total.overflow, total.underflow, total.subnormals))
    return f"{name:<{_NAME}} {shares}  {span_text(total):<11} [{_strip(total)}]{stuck}"


def span_text(figures: Figures) -> str:
    """The exponents of the smallest and of the largest magnitude."""
    if figures.smallest_exponent is None:
        return "all 0"
    return f"{figures.smallest_exponent} to {figures.largest_exponent}"


def _share(share: float) -> str:
    if not share:
        return "."
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def _strip(figures: Figures) -> str:
    """A letter for each two exponents, the darker the more numbers have one."""
    counts = [sum(figures.exponents[at - LOWEST : at - LOWEST + 2]) for at in range(_FROM, _TO, 2)]
    counts[0] += sum(figures.exponents[: _FROM - LOWEST])
    counts[-1] += sum(figures.exponents[_TO + 1 - LOWEST : HIGHEST + 1 - LOWEST])
    most = max(counts) or 1
    return "".join(_SHADES[-(-(len(_SHADES) - 1) * count // most)] for count in counts)
