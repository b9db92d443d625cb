"""The report on a model's float16 arithmetic: overflows and underflows of each tensor, loss scales and advice."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tensorflow_ipu.analysis.precision.figures import (
    ACTIVATION,
    GRADIENTS,
    HIGHEST,
    LARGEST,
    LOWEST,
    SMALLEST,
    SMALLEST_NORMAL,
    UPDATE,
    Figures,
    Key,
    TensorRow,
    Values,
    figures_of,
)
from tensorflow_ipu.analysis.saved import SavedReport, read

# The largest acceptable share of a tensor's sum of magnitudes that becomes 0, or that becomes subnormal.
_MOST = 0.01
# Later steps may have larger gradients. The advised scale leaves room for this number of powers of two.
_HEADROOM = 2
# The limits of loss scales, as powers of two. The range of float16 is 40 powers of two.
_LEAST_POWER, _GREATEST_POWER = -32, 32


@dataclass(frozen=True)
class Scales:
    """The loss scales that are suitable, all powers of two.

    Attributes:
      least: The smallest scale that lets no tensor of gradients lose more than 1 % of its sum of magnitudes to 0.
      greatest: The largest scale that lets no gradient overflow.
      advised: The recommended scale. If possible, at most 1 % of each tensor is subnormal, and gradients of later steps
        may grow by two powers of two. If no scale is suitable, it is `greatest`.
    """

    least: float
    greatest: float
    advised: float

    @property
    def fit(self) -> bool:
        """True if any scale is suitable."""
        return self.least <= self.greatest


def scales_for(gradients: Sequence[Figures]) -> Scales:
    """Returns the suitable loss scales for tensors of gradients.

    A scale 2 ** p adds p to all exponents. For example, gradients have exponents from -30 to -10. Float16 has normal
    values from 2 ** -14 on, subnormal values from 2 ** -24 on, and ends below 2 ** 16. Then p = 5 avoids zeros (a value
    with exponent -25 rounds up to 2 ** -24), p = 16 avoids subnormal values, and p = 25 is the last without an
    overflow. The advised power is 16, which also leaves `_HEADROOM` powers below the last.
    """
    nonzero = [figures for figures in gradients if figures.largest > 0]
    if not nonzero:
        return Scales(1.0, 1.0, 1.0)
    greatest = math.floor(math.log2(LARGEST / max(figures.largest for figures in nonzero)))
    greatest = min(max(greatest, _LEAST_POWER), _GREATEST_POWER)
    # Values with the exponent `SMALLEST - 1` round up to the smallest subnormal value.
    least = max(_least_power(figures, SMALLEST - 1) for figures in nonzero)
    normal = max(_least_power(figures, SMALLEST_NORMAL) for figures in nonzero)
    advised = min(max(min(max(normal, 0), greatest - _HEADROOM), least), greatest)
    return Scales(2.0**least, 2.0**greatest, 2.0**advised)


def saved_by(figures: Figures, scale: float) -> bool:
    """Returns True if a tensor of gradients loses at most 1 % of its sum of magnitudes to 0 with this scale."""
    return _least_power(figures, SMALLEST - 1) <= math.log2(scale)


def _least_power(figures: Figures, exponent: int) -> int:
    """Returns the smallest p for which a scale 2 ** p leaves at most 1 % of the magnitudes' sum below an exponent."""
    power = _LEAST_POWER
    while power < _GREATEST_POWER and figures.weight_below(exponent - power) > _MOST:
        power += 1
    return power


# Losses up to this share of a tensor's values, or of their sum of magnitudes, are not reported.
_FEW = 0.01
# A larger share of stuck weights causes advice.
_STUCK = 0.25


def float32_layers(report: PrecisionReport) -> tuple[str, ...]:
    """Returns the layers that need float32 according to the counts, in the report's order."""
    layers = [row.layer for row, _ in _origins(report)]
    layers += [row.layer for row in report.of([ACTIVATION]) if row.total.weight_below(SMALLEST - 1) > _FEW]
    layers += _unsaved(report)
    order = [row.layer for row in report.rows]
    return tuple(sorted(set(layers), key=order.index))


def sentences(report: PrecisionReport) -> Iterator[str]:
    """Yields the sentences of the advice, most important first."""
    yield from _on_activations(report)
    yield from _on_scale(report)
    yield from _on_updates(report)
    if report.trial is not None:
        yield _on_trial(report)


def _origins(report: PrecisionReport) -> list[tuple[TensorRow, bool]]:
    """Returns the activations that cause overflows, each with True if its float32 values exceed float16 too.

    An activation that overflows only in float16 is an origin if no activation before it overflows.
    """
    origins, has_overflowed = [], False
    for row in report.of([ACTIVATION]):
        figures = row.total
        if figures.beyond:
            origins.append((row, True))
        elif figures.infinite and not has_overflowed:
            origins.append((row, False))
        has_overflowed = has_overflowed or figures.infinite > 0
    return origins


def _on_activations(report: PrecisionReport) -> Iterator[str]:
    reported = set()
    for row, exceeds in _origins(report):
        reported.add(row.layer)
        limit = _power(row.total.largest_exponent)
        if exceeds:
            yield (
                f"`{row.layer}` computes values up to {limit}, but float16 ends at 65504: compute it in float32"
                " (`dtype='float32'`), or make its inputs or weights smaller"
            )
        else:
            yield (
                f"`{row.layer}` overflows within, though its result is at most {limit}: compute it in float32"
                " (`dtype='float32'`)"
            )
    for row in report.of([ACTIVATION]):
        if row.total.weight_below(SMALLEST - 1) > _FEW and row.layer not in reported:
            reported.add(row.layer)
            yield (
                f"`{row.layer}` computes values below {_power(row.total.largest_exponent)}, and float16 rounds many of"
                " them to 0: compute it in float32 (`dtype='float32'`), or make its results larger"
            )
    remaining = [layer for layer in report.float32_layers if layer not in reported | _unsaved(report)]
    if remaining and reported:
        names = ", ".join(f"`{layer}`" for layer in remaining)
        yield f"{names} would then receive values beyond float16: compute in float32 as well"


def _unsaved(report: PrecisionReport) -> set[str]:
    """Returns the layers whose gradients vanish with the largest scale that the other gradients allow."""
    scales = report.scales
    if scales.fit:
        return set()
    return {row.layer for row in report.of(GRADIENTS) if not saved_by(row.total, scales.advised)}


def _on_scale(report: PrecisionReport) -> Iterator[str]:
    scales, gradients = report.scales, report.of(GRADIENTS)
    if not any(row.total.largest for row in gradients):
        return
    lost = [row for row in gradients if not saved_by(row.total, report.loss_scale)]
    current, advised = scale_text(report.loss_scale), scale_text(scales.advised)
    least, greatest = scale_text(scales.least), scale_text(scales.greatest)
    if not scales.fit:
        unsaved = _unsaved(report)
        layers = dict.fromkeys(row.layer for row in gradients if row.layer in unsaved)
        worst = ", ".join(f"`{layer}`" for layer in layers)
        yield (
            f"no loss scale fits all gradients: below {least} some vanish, and above {greatest} others overflow. Use"
            f" {advised}, and compute {worst} in float32 (`dtype='float32'`)"
        )
    elif scales.greatest < report.loss_scale:
        yield f"with the loss scale {current} gradients overflow: use {advised}; scales from {least} to {greatest} fit"
    elif lost:
        yield (
            f"with the loss scale {current}, {len(lost)} of {len(gradients)} tensors of gradients lose more than 1% of"
            f" their sum to 0: use {advised}; scales from {least} to {greatest} fit"
        )
    elif scales.advised > report.loss_scale:
        yield (
            f"the loss scale {current} fits, but some gradients are subnormal, which reduces their precision:"
            f" {advised} avoids that"
        )
    else:
        yield f"the loss scale {current} fits, as all scales from {least} to {greatest} do"


def _on_updates(report: PrecisionReport) -> Iterator[str]:
    stuck = [row for row in report.of([UPDATE]) if row.stuck > _STUCK]
    if not stuck:
        return
    worst = max(stuck, key=lambda row: row.stuck)
    updates = f"{worst.stuck:.0%} of the updates of `{worst.layer}/{worst.name}`, and many of {len(stuck)} tensors,"
    if report.half_weights:
        yield (
            f"{updates} change nothing: they are too small for float16 weights. Store the weights in float32"
            " (`keras.mixed_precision.set_global_policy('mixed_float16')`), or round stochastically"
            " (`IPUConfig.floating_point_behaviour.esr`)"
        )
    else:
        yield f"{updates} would change nothing if weights were float16: keep them in float32, or round stochastically"


def _on_trial(report: PrecisionReport) -> str:
    trial = report.trial
    assert trial is not None
    layers = f", {', '.join(f'`{name}`' for name in trial.single)} in float32" if trial.single else ""
    return (
        f"trial of this advice on the last step, with the loss scale {scale_text(trial.scale)}{layers}:"
        f" {trial.overflowing} of {trial.tensors} tensors overflow, {trial.vanishing} of {trial.gradients} tensors of"
        " gradients vanish in part"
    )


def scale_text(scale: float) -> str:
    return f"{scale:g}" if scale < 1 else f"{int(scale)}"


def _power(exponent: int | None) -> str:
    return "0" if exponent is None else f"2^{exponent + 1}"


@dataclass(frozen=True)
class Trial:
    """A trial of the advice: the last step in float16 again, with the advised loss scale and float32 layers.

    Attributes:
      scale: The loss scale.
      single: The layers that compute in float32.
      overflowing: The number of tensors that overflow.
      vanishing: The number of tensors of gradients that lose more than 1 % of their values to 0.
      tensors: The number of tensors.
      gradients: The number of tensors of gradients.
    """

    scale: float
    single: tuple[str, ...]
    overflowing: int
    vanishing: int
    tensors: int
    gradients: int


@dataclass(frozen=True)
class PrecisionReport(SavedReport):
    """The comparison of some steps of a model or function in float16 with the same steps in float32.

    Print the report or `save` it. `scales` and `advice` are computed from its counts.

    Attributes:
      program: The name of the model or function.
      device: The device that computed float16.
      loss_scale: The scale of the loss in float16.
      rows: The tensors, layer by layer, in the order of computation.
      losses: The loss of each step, in float32 and in float16.
      half_weights: Whether the weights are float16.
      trial: The trial of the advice; None if there is no advice that a trial could test.
    """

    _SCHEMA: ClassVar[int] = 1

    program: str
    device: str
    loss_scale: float
    rows: tuple[TensorRow, ...]
    losses: tuple[tuple[float, float], ...]
    half_weights: bool = False
    trial: Trial | None = None

    @property
    def steps(self) -> int:
        """The number of steps that were run."""
        return max((len(row.steps) for row in self.rows), default=0)

    @property
    def scales(self) -> Scales:
        """The suitable loss scales, computed from the gradients in float32."""
        return scales_for([row.total for row in self.rows if row.kind in GRADIENTS])

    @property
    def float32_layers(self) -> tuple[str, ...]:
        """The layers that should compute in float32."""
        return float32_layers(self) if self.trial is None else self.trial.single

    @property
    def advice(self) -> tuple[str, ...]:
        """The advice, a sentence each, most important first."""
        return tuple(sentences(self))

    def of(self, kinds: Sequence[str]) -> list[TensorRow]:
        """Returns the rows of tensors of the given kinds."""
        return [row for row in self.rows if row.kind in kinds]

    def __str__(self) -> str:
        return report_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as a dictionary that JSON can encode, with None for a loss that is not finite."""
        losses = [[loss if math.isfinite(loss) else None for loss in step] for step in self.losses]
        computed = {"losses": losses, "scales": dataclasses.asdict(self.scales), "advice": [*self.advice]}
        return {"schema": self._SCHEMA, **dataclasses.asdict(self), **computed}

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> PrecisionReport:
        losses = [[math.nan if loss is None else loss for loss in step] for step in values["losses"]]
        fields = ("program", "device", "loss_scale", "rows", "half_weights", "trial")
        return read(cls, {name: values[name] for name in fields} | {"losses": losses})

    def __repr__(self) -> str:
        overflowing = sum(row.total.infinite > 0 for row in self.rows)
        scale = scale_text(self.scales.advised)
        counts = f"{overflowing} of {len(self.rows)} tensors overflow"
        return f"<PrecisionReport of {self.program}, {_steps_text(self)}: {counts}, loss scale {scale}>"


def _steps_text(report: PrecisionReport) -> str:
    return "1 step" if report.steps == 1 else f"{report.steps} steps"


_WIDTH = 118
_NAME = 40
_SHADES = " .:-=+*#%@"
# The range of exponents that a row of text shows, with a character for each two.
_FROM, _TO = -40, 23


def report_text(report: PrecisionReport) -> str:
    return "\n".join(_lines(report))


def _lines(report: PrecisionReport) -> Iterator[str]:
    scale = scale_text(report.loss_scale)
    steps = _steps_text(report)
    yield f"{report.program}: {steps} in float32, and in float16 on {report.device} with the loss scale {scale}"
    if report.losses:
        losses = ", ".join(f"{single:.4g} ({half:.4g})" for single, half in report.losses[:6])
        yield f"  losses of float32 (of float16): {losses}{', ...' if len(report.losses) > 6 else ''}"
    for sentence in report.advice:
        yield from textwrap.wrap(sentence, _WIDTH, initial_indent="  * ", subsequent_indent="    ")
    yield ""
    edges = zip("-sn", (_FROM, SMALLEST, SMALLEST_NORMAL), (SMALLEST, SMALLEST_NORMAL, 16), strict=True)
    ranges = "".join(sign * ((end - begin) // 2) for sign, begin, end in edges).ljust((_TO + 1 - _FROM) // 2, "!")
    yield f"{'':<{_NAME}} {'over-':>7} {'to':>7} {'sub-':>7}  {'exponents':<11} in float32, from 2^{_FROM} to 2^{_TO}:"
    yield f"{'tensor':<{_NAME}} {'flow':>7} {'zero':>7} {'normal':>7}  {'of float32':<11} [{ranges}]"
    layer = None
    for row in report.rows:
        if row.layer != layer:
            layer = row.layer
            yield f"{layer}"
        yield _row_line(row)
    yield ""
    yield "- is 0 in float16, s is subnormal, n is normal, ! is beyond float16; shares are of the elements in float16"


def _row_line(row: TensorRow) -> str:
    total = row.total
    name = f"  {row.kind}" + (f" {row.name}" if row.name else "")
    if len(name) > _NAME:
        name = f"{name[: _NAME - 3]}..."
    stuck = f"  {row.stuck:.0%} stuck" if row.kind == UPDATE else ""
    shares = " ".join(f"{_share(share):>7}" for share in (total.overflow, total.underflow, total.subnormals))
    return f"{name:<{_NAME}} {shares}  {span_text(total):<11} [{_strip(total)}]{stuck}"


def span_text(figures: Figures) -> str:
    """Returns the exponents of the smallest and the largest magnitude, such as `-12 to 3`."""
    if figures.smallest_exponent is None:
        return "all 0"
    return f"{figures.smallest_exponent} to {figures.largest_exponent}"


def _share(share: float) -> str:
    if not share:
        return "."
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def _strip(figures: Figures) -> str:
    """Returns a histogram with a character for each two exponents. A darker character means more values."""
    counts = [sum(figures.exponents[begin - LOWEST : begin - LOWEST + 2]) for begin in range(_FROM, _TO, 2)]
    counts[0] += sum(figures.exponents[: _FROM - LOWEST])
    counts[-1] += sum(figures.exponents[_TO + 1 - LOWEST : HIGHEST + 1 - LOWEST])
    largest = max(counts) or 1
    return "".join(_SHADES[-(-(len(_SHADES) - 1) * count // largest)] for count in counts)


# The most programs that a trial compiles.
_MOST_TRIALS = 8


def trial_of(
    report: PrecisionReport, single: Values, compute: Callable[[float, Sequence[str]], Values]
) -> PrecisionReport:
    """Returns the report with a trial of its advice. Returns it unchanged if the run already followed the advice.

    `compute` runs the last step in float16 with a loss scale and float32 layers. `single` are the tensors of that step
    in float32. If a layer overflows in the trial, the first such layer is added to the float32 layers, and the trial
    repeats.
    """
    scales, layers = report.scales, list(report.float32_layers)
    fits = scales.fit and scales.least <= report.loss_scale <= scales.greatest
    scale = report.loss_scale if fits and scales.advised <= report.loss_scale else scales.advised
    if not layers and scale == report.loss_scale:
        return report
    order = [row.layer for row in report.of([ACTIVATION])]
    figures: dict[Key, Figures] = {}
    for _ in range(_MOST_TRIALS):
        values = compute(scale, layers)
        figures = {key: figures_of(single[key], value) for key, value in values.items() if key in single}
        activations = {key[0]: counts for key, counts in figures.items() if key[1] == ACTIVATION and counts.infinite}
        overflowing = activations.keys() - set(layers)
        if not overflowing:
            break
        layers.append(min(overflowing, key=order.index))
    gradients = [counts for key, counts in figures.items() if key[1] in GRADIENTS]
    trial = Trial(
        scale=scale,
        single=tuple(sorted(layers, key=[row.layer for row in report.rows].index)),
        overflowing=sum(counts.infinite > 0 for counts in figures.values()),
        vanishing=sum(counts.underflow > _FEW and not saved_by(counts, scale) for counts in gradients),
        tensors=len(figures),
        gradients=len(gradients),
    )
    return dataclasses.replace(report, trial=trial)
