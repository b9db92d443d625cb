"""Counts the tensors of steps, and tries advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tensorflow_ipu.precision import _report
from tensorflow_ipu.precision._figures import Figures, figures_of
from tensorflow_ipu.precision._report import PrecisionReport, TensorRow, Trial
from tensorflow_ipu.precision._scales import saved_by

# The layer, the kind, and the name of a tensor.
Key: TypeAlias = "tuple[str, str, str]"
Values: TypeAlias = "dict[Key, np.ndarray[Any, Any]]"

# Which share of its numbers a tensor may lose to 0 without a word.
_FEW = 0.01
# Each is a program to compile.
_MOST_TRIALS = 8


class Count:
    """What was counted of the tensors of some steps."""

    def __init__(self) -> None:
        self._figures: dict[Key, list[Figures]] = {}
        self._stuck: dict[Key, list[float]] = {}

    def step(self, single: Values, half: Values) -> None:
        """Counts a step by its tensors in float32 and float16; one that only one of them has is left out."""
        for key, value in single.items():
            if key in half and half[key].shape == value.shape:
                self._figures.setdefault(key, []).append(figures_of(value, half[key]))

    def updates(self, weights: Values, updates: Values, stuck: Mapping[Key, float]) -> None:
        """Counts what float16 would make of weights and their updates."""
        for key, value in {**weights, **updates}.items():
            with np.errstate(over="ignore"):
                self._figures.setdefault(key, []).append(figures_of(value, value.astype(np.float16)))
        for key, share in stuck.items():
            self._stuck.setdefault(key, []).append(share)

    def rows(self) -> list[TensorRow]:
        """The tensors."""
        return [
            TensorRow(*key, tuple(figures), float(np.mean(self._stuck.get(key, [0.0]))))
            for key, figures in self._figures.items()
        ]


def trial_of(
    report: PrecisionReport, single: Values, compute: Callable[[float, Sequence[str]], Values]
) -> PrecisionReport:
    """The report with its advice tried, where that is not what was run.

    What a layer of float32 hands on may be too large for the next one, which only trying shows: such layers are added one
    by one.

    Args:
      report: The report.
      single: The tensors of its last step in float32.
      compute: Computes that step in float16, with a loss scale and layers in float32.
    """
    scales, layers = report.scales, list(report.float32_layers)
    fits = scales.fit and scales.least <= report.loss_scale <= scales.greatest
    scale = report.loss_scale if fits and scales.advised <= report.loss_scale else scales.advised
    if not layers and scale == report.loss_scale:
        return report
    order = [row.layer for row in report.of([_report.ACTIVATION])]
    figures: dict[Key, Figures] = {}
    for _ in range(_MOST_TRIALS):
        tried = compute(scale, layers)
        figures = {key: figures_of(single[key], value) for key, value in tried.items() if key in single}
        found = {layer for (layer, kind, _), each in figures.items() if kind == _report.ACTIVATION and each.infinite}
        found -= set(layers)
        if not found:
            break
        layers.append(min(found, key=order.index))
    gradients = {key: each for key, each in figures.items() if key[1] in _report.GRADIENTS}
    trial = Trial(
        scale=scale,
        single=tuple(sorted(layers, key=[row.layer for row in report.rows].index)),
        overflowing=sum(each.infinite > 0 for each in figures.values()),
        vanishing=sum(each.underflow > _FEW and not saved_by(each, scale) for each in gradients.values()),
        tensors=len(figures),
        gradients=len(gradients),
    )
    return dataclasses.replace(report, trial=trial)
