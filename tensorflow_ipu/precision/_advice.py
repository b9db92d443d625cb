"""What to do about what float16 makes of a model: which layers in float32, which loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow_ipu.precision import _report
from tensorflow_ipu.precision._figures import SMALLEST, Figures
from tensorflow_ipu.precision._report import PrecisionReport, TensorRow
from tensorflow_ipu.precision._scales import saved_by

# Of a tensor's numbers or sum, what is not worth a word.
_FEW = 0.01
# Which share of weights may be stuck before there is advice on it.
_STUCK = 0.25


def float32_layers(report: PrecisionReport) -> tuple[str, ...]:
    """The layers that are to compute in float32 by what was counted, in their order.

    Those where overflows begin, those whose results vanish, and those whose gradients no loss scale saves.
    """
    layers = [row.layer for row, _ in _origins(report)]
    layers += [row.layer for row in report.of([_report.ACTIVATION]) if _vanishes(row.total)]
    layers += _unsaved(report)
    order = [row.layer for row in report.rows]
    return tuple(sorted(set(layers), key=order.index))


def sentences(report: PrecisionReport) -> Iterator[str]:
    """The advice, the weightiest first."""
    yield from _on_activations(report)
    yield from _on_scale(report)
    yield from _on_updates(report)
    if report.trial is not None:
        yield _on_trial(report)


def _origins(report: PrecisionReport) -> list[tuple[TensorRow, bool]]:
    """The activations where overflows begin, and whether float32 has them beyond float16 too.

    What comes behind an overflow is infinite as well, so that only float32 can tell there.
    """
    found, seen = [], False
    for row in report.of([_report.ACTIVATION]):
        figures = row.total
        if figures.beyond:
            found.append((row, True))
        elif figures.infinite and not seen:
            found.append((row, False))
        seen = seen or figures.infinite > 0
    return found


def _vanishes(figures: Figures) -> bool:
    return figures.weight_below(SMALLEST - 1) > _FEW


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
    for row in report.of([_report.ACTIVATION]):
        if _vanishes(row.total) and row.layer not in told:
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
    """The layers whose gradients no loss scale saves together with the others."""
    scales = report.scales
    if scales.fit:
        return set()
    return {row.layer for row in report.of(_report.GRADIENTS) if not saved_by(row.total, scales.advised)}


def _on_scale(report: PrecisionReport) -> Iterator[str]:
    scales, gradients = report.scales, report.of(_report.GRADIENTS)
    if not any(row.total.largest for row in gradients):
        return
    lost = [row for row in gradients if not saved_by(row.total, report.loss_scale)]
    now, advised = scale_text(report.loss_scale), scale_text(scales.advised)
    least, greatest = scale_text(scales.least), scale_text(scales.greatest)
    if not scales.fit:
        unsaved = _unsaved(report)
        worst = ", ".join(
            f"`{layer}`" for layer in dict.fromkeys(row.layer for row in gradients if row.layer in unsaved)
        )
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
    stuck = [row for row in report.of([_report.UPDATE]) if row.stuck > _STUCK]
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
    """A loss scale as users write it."""
    return f"{scale:g}" if scale < 1 else f"{int(scale)}"


def _power(exponent: int | None) -> str:
    return "0" if exponent is None else f"2^{exponent + 1}"
