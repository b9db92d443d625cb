"""What float16 makes of a model: a report that can be read, saved and drawn."""

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

# Which share of the sum of magnitudes of a tensor may become 0, and may be subnormal.
_MOST = 0.01
# Steps to come have gradients that no step so far had: the advised scale leaves so many powers of two above.
_HEADROOM = 2
# Scales that nobody needs: float16's range is 40 powers of two.
_LEAST_POWER, _GREATEST_POWER = -32, 32


@dataclass(frozen=True)
class Scales:
    """The loss scales that fit, all powers of two.

    Attributes:
      least: The least with which no tensor of gradients loses more than a hundredth of its sum of magnitudes to 0.
      greatest: The greatest with which no gradient overflows.
      advised: The one to take: with it no more than a hundredth is subnormal either, where that leaves the gradients of
        steps to come two powers of two to grow by. The greatest where none fits.
    """

    least: float
    greatest: float
    advised: float

    @property
    def fit(self) -> bool:
        """Whether any scale fits."""
        return self.least <= self.greatest


def scales_for(gradients: Sequence[Figures]) -> Scales:
    known = [each for each in gradients if each.largest > 0]
    if not known:
        return Scales(1.0, 1.0, 1.0)
    greatest = math.floor(math.log2(LARGEST / max(each.largest for each in known)))
    greatest = min(max(greatest, _LEAST_POWER), _GREATEST_POWER)
    # A number of the exponent below the smallest is rounded up to it.
    least = max(_power_keeping(each, SMALLEST - 1) for each in known)
    whole = max(_power_keeping(each, SMALLEST_NORMAL) for each in known)
    advised = min(max(min(max(whole, 0), greatest - _HEADROOM), least), greatest)
    return Scales(2.0**least, 2.0**greatest, 2.0**advised)


def saved_by(figures: Figures, scale: float) -> bool:
    """Returns True if a tensor of gradients loses at most a hundredth of its sum with this scale."""
    return _power_keeping(figures, SMALLEST - 1) <= math.log2(scale)


def _power_keeping(figures: Figures, exponent: int) -> int:
    """Returns the least power of two that leaves at most a hundredth of the sum of magnitudes below an exponent."""
    power = _LEAST_POWER
    while power < _GREATEST_POWER and figures.weight_below(exponent - power) > _MOST:
        power += 1
    return power


# Of a tensor's numbers or sum, what is not worth a word.
_FEW = 0.01
# Which share of weights may be stuck before there is advice on it.
_STUCK = 0.25


def float32_layers(report: PrecisionReport) -> tuple[str, ...]:
    """Returns the layers that need float32 by the counts, in their order."""
    layers = [row.layer for row, _ in _origins(report)]
    layers += [row.layer for row in report.of([ACTIVATION]) if row.total.weight_below(SMALLEST - 1) > _FEW]
    layers += _unsaved(report)
    order = [row.layer for row in report.rows]
    return tuple(sorted(set(layers), key=order.index))


def sentences(report: PrecisionReport) -> Iterator[str]:
    """Yields the advice, the most important first."""
    yield from _on_activations(report)
    yield from _on_scale(report)
    yield from _on_updates(report)
    if report.trial is not None:
        yield _on_trial(report)


def _origins(report: PrecisionReport) -> list[tuple[TensorRow, bool]]:
    """Returns the activations where overflows begin, and whether float32 has them beyond float16 too."""
    found, seen = [], False
    for row in report.of([ACTIVATION]):
        figures = row.total
        if figures.beyond:
            found.append((row, True))
        elif figures.infinite and not seen:
            found.append((row, False))
        seen = seen or figures.infinite > 0
    return found


def _on_activations(report: PrecisionReport) -> Iterator[str]:
    told = set()
    for row, beyond in _origins(report):
        told.add(row.layer)
        top = _power(row.total.largest_exponent)
        if beyond:
            yield (
                f"`{row.layer}` computes numbers up to {top}, and float16 ends at 65504: compute it in float32"
                " (`dtype='float32'`), or make its inputs or weights smaller"
            )
        else:
            yield (
                f"`{row.layer}` overflows within, though its result is at most {top}: compute it in float32"
                " (`dtype='float32'`)"
            )
    for row in report.of([ACTIVATION]):
        if row.total.weight_below(SMALLEST - 1) > _FEW and row.layer not in told:
            told.add(row.layer)
            yield (
                f"`{row.layer}` computes numbers below {_power(row.total.largest_exponent)}, many of which float16 rounds to"
                " 0: compute it in float32 (`dtype='float32'`), or make its results larger"
            )
    others = [layer for layer in report.float32_layers if layer not in told | _unsaved(report)]
    if others and told:
        names = ", ".join(f"`{layer}`" for layer in others)
        yield f"{names} would then get numbers that are beyond float16: compute in float32 as well"


def _unsaved(report: PrecisionReport) -> set[str]:
    """Returns the layers whose gradients no loss scale keeps together with the others."""
    scales = report.scales
    if scales.fit:
        return set()
    return {row.layer for row in report.of(GRADIENTS) if not saved_by(row.total, scales.advised)}


def _on_scale(report: PrecisionReport) -> Iterator[str]:
    scales, gradients = report.scales, report.of(GRADIENTS)
    if not any(row.total.largest for row in gradients):
        return
    lost = [row for row in gradients if not saved_by(row.total, report.loss_scale)]
    now, advised = scale_text(report.loss_scale), scale_text(scales.advised)
    least, greatest = scale_text(scales.least), scale_text(scales.greatest)
    if not scales.fit:
        unsaved = _unsaved(report)
        layers = dict.fromkeys(row.layer for row in gradients if row.layer in unsaved)
        worst = ", ".join(f"`{layer}`" for layer in layers)
        yield (
            f"no loss scale fits all gradients: below {least} some vanish, and above {greatest} others overflow. Take"
            f" {advised}, and compute {worst} in float32 (`dtype='float32'`)"
        )
    elif scales.greatest < report.loss_scale:
        yield f"with the loss scale {now} gradients overflow: take {advised}; from {least} to {greatest} fit"
    elif lost:
        yield (
            f"with the loss scale {now}, {len(lost)} of {len(gradients)} tensors of gradients lose more than a hundredth of"
            f" their sum to 0: take {advised}; from {least} to {greatest} fit"
        )
    elif scales.advised > report.loss_scale:
        yield (
            f"the loss scale {now} fits, but leaves gradients among the subnormal numbers, which have fewer digits:"
            f" {advised} would not"
        )
    else:
        yield f"the loss scale {now} fits: from {least} to {greatest} do"


def _on_updates(report: PrecisionReport) -> Iterator[str]:
    stuck = [row for row in report.of([UPDATE]) if row.stuck > _STUCK]
    if not stuck:
        return
    worst = max(stuck, key=lambda row: row.stuck)
    many = f"{worst.stuck:.0%} of the updates of `{worst.layer}/{worst.name}`, and many of {len(stuck)} tensors in all"
    if report.half_weights:
        yield (
            f"{many}, change nothing: they are too small for weights of float16. Keep weights in float32"
            " (`keras.mixed_precision.set_global_policy('mixed_float16')`), or round stochastically"
            " (`IPUConfig.floating_point_behaviour.esr`)"
        )
    else:
        yield f"{many}, would change nothing if weights were float16: leave those in float32, or round stochastically"


def _on_trial(report: PrecisionReport) -> str:
    trial = report.trial
    assert trial is not None
    layers = f", {', '.join(f'`{name}`' for name in trial.single)} in float32" if trial.single else ""
    return (
        f"tried on the last step, with the loss scale {scale_text(trial.scale)}{layers}: {trial.overflowing} of"
        f" {trial.tensors} tensors overflow, {trial.vanishing} of {trial.gradients} tensors of gradients vanish in part"
    )


def scale_text(scale: float) -> str:
    return f"{scale:g}" if scale < 1 else f"{int(scale)}"


def _power(exponent: int | None) -> str:
    return "0" if exponent is None else f"2^{exponent + 1}"


@dataclass(frozen=True)
class Trial:
    """The advice, tried on the last of the steps: once more in float16, with the advised scale and layers.

    Attributes:
      scale: The loss scale.
      single: The layers that computed in float32.
      overflowing: How many tensors overflow, of which `tensors` there are.
      vanishing: How many tensors of gradients, of which there are `gradients`, lose more than a hundredth of their numbers
        to 0.
      tensors: How many tensors there are.
      gradients: How many of them are gradients.
    """

    scale: float
    single: tuple[str, ...]
    overflowing: int
    vanishing: int
    tensors: int
    gradients: int


@dataclass(frozen=True)
class PrecisionReport(SavedReport):
    """What float16 made of some steps of a model, beside float32. Print it, `save` it, or ask for `scales` and `advice`.

    Attributes:
      program: The name of the model or function.
      device: Where float16 was computed.
      loss_scale: The scale of the loss in float16.
      rows: The tensors: layer by layer, in the order in which they are computed.
      losses: The loss of each step, in float32 and in float16.
      half_weights: Whether weights are float16.
      trial: The advice, tried; None where there was none to try.
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
        """How many steps were run."""
        return max((len(row.steps) for row in self.rows), default=0)

    @property
    def scales(self) -> Scales:
        """The loss scales that would fit, by the gradients in float32."""
        return scales_for([row.total for row in self.rows if row.kind in GRADIENTS])

    @property
    def float32_layers(self) -> tuple[str, ...]:
        """The layers that are to compute in float32."""
        return float32_layers(self) if self.trial is None else self.trial.single

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, a sentence each."""
        return tuple(sentences(self))

    def of(self, kinds: Sequence[str]) -> list[TensorRow]:
        """The tensors of some kinds."""
        return [row for row in self.rows if row.kind in kinds]

    def __str__(self) -> str:
        return report_text(self)

    def to_dict(self) -> dict[str, Any]:
        """All of the report in lists, dictionaries, numbers and text; None for a loss that is no finite number."""
        losses = [[loss if math.isfinite(loss) else None for loss in step] for step in self.losses]
        more = {"losses": losses, "scales": dataclasses.asdict(self.scales), "advice": [*self.advice]}
        return {"schema": self._SCHEMA, **dataclasses.asdict(self), **more}

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> PrecisionReport:
        losses = [[math.nan if loss is None else loss for loss in step] for step in values["losses"]]
        fields = ("program", "device", "loss_scale", "rows", "half_weights", "trial")
        return read(cls, {name: values[name] for name in fields} | {"losses": losses})

    def __repr__(self) -> str:
        found = sum(row.total.infinite > 0 for row in self.rows)
        steps = f"{self.steps} step{'s' * (self.steps != 1)}"
        scale = scale_text(self.scales.advised)
        return f"<PrecisionReport of {self.program}, {steps}: {found} of {len(self.rows)} tensors overflow, loss scale {scale}>"


_WIDTH = 118
_NAME = 40
_SHADES = " .:-=+*#%@"
# The exponents that a row of text shows, two a letter.
_FROM, _TO = -40, 23


def report_text(report: PrecisionReport) -> str:
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
    yield "- is 0 in float16, s is subnormal, n is normal, ! is beyond it; shares are of the elements in float16"


def _row_line(row: TensorRow) -> str:
    total = row.total
    name = f"  {row.kind}" + (f" {row.name}" if row.name else "")
    if len(name) > _NAME:
        name = f"{name[: _NAME - 3]}..."
    stuck = f"  {row.stuck:.0%} stuck" if row.kind == UPDATE else ""
    shares = " ".join(f"{_share(each):>7}" for each in (total.overflow, total.underflow, total.subnormals))
    return f"{name:<{_NAME}} {shares}  {span_text(total):<11} [{_strip(total)}]{stuck}"


def span_text(figures: Figures) -> str:
    """Returns the exponents of the smallest and of the largest magnitude."""
    if figures.smallest_exponent is None:
        return "all 0"
    return f"{figures.smallest_exponent} to {figures.largest_exponent}"


def _share(share: float) -> str:
    if not share:
        return "."
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def _strip(figures: Figures) -> str:
    """Returns a letter for each two exponents; more numbers have a darker one."""
    counts = [sum(figures.exponents[at - LOWEST : at - LOWEST + 2]) for at in range(_FROM, _TO, 2)]
    counts[0] += sum(figures.exponents[: _FROM - LOWEST])
    counts[-1] += sum(figures.exponents[_TO + 1 - LOWEST : HIGHEST + 1 - LOWEST])
    most = max(counts) or 1
    return "".join(_SHADES[-(-(len(_SHADES) - 1) * count // most)] for count in counts)


# Each is a program to compile.
_MOST_TRIALS = 8


def trial_of(
    report: PrecisionReport, single: Values, compute: Callable[[float, Sequence[str]], Values]
) -> PrecisionReport:
    """Returns the report after a trial of its advice, if that differs from the run."""
    scales, layers = report.scales, list(report.float32_layers)
    fits = scales.fit and scales.least <= report.loss_scale <= scales.greatest
    scale = report.loss_scale if fits and scales.advised <= report.loss_scale else scales.advised
    if not layers and scale == report.loss_scale:
        return report
    order = [row.layer for row in report.of([ACTIVATION])]
    figures: dict[Key, Figures] = {}
    for _ in range(_MOST_TRIALS):
        tried = compute(scale, layers)
        figures = {key: figures_of(single[key], value) for key, value in tried.items() if key in single}
        found = {layer for (layer, kind, _), each in figures.items() if kind == ACTIVATION and each.infinite}
        if not (found := found - set(layers)):
            break
        layers.append(min(found, key=order.index))
    gradients = {key: each for key, each in figures.items() if key[1] in GRADIENTS}
    trial = Trial(
        scale=scale,
        single=tuple(sorted(layers, key=[row.layer for row in report.rows].index)),
        overflowing=sum(each.infinite > 0 for each in figures.values()),
        vanishing=sum(each.underflow > _FEW and not saved_by(each, scale) for each in gradients.values()),
        tensors=len(figures),
        gradients=len(gradients),
    )
    return dataclasses.replace(report, trial=trial)
