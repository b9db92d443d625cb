"""Counts of a tensor's values: their exponents in float32, and their overflows and underflows in float16."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# The range of counted exponents. Values outside count as the first or the last exponent.
LOWEST, HIGHEST = -64, 63
# The largest value of float16, and the exponents of its smallest normal and its smallest subnormal value.
LARGEST = 65504.0
SMALLEST_NORMAL, SMALLEST = -14, -24
# Magnitudes from the first value on round beyond the largest float16. Magnitudes up to the second one round to 0.
_ROUNDS_UP, _ROUNDS_DOWN = 65520.0, 2.0**-25


@dataclass(frozen=True)
class Figures:
    """Counts of the elements of a tensor, in one step or in several.

    Attributes:
      elements: The number of elements, in all steps.
      zeros: Elements that are 0 in float32.
      zeros_half: Elements that are 0 in float16.
      subnormal: Elements that are subnormal in float16.
      beyond: Elements that are finite in float32, but exceed the range of float16.
      infinite: Elements that overflowed in float16: infinities and NaN, and the largest value, to which machines
        saturate.
      lost: Elements that are not 0 in float32, but would be 0 if rounded to float16.
      largest: The largest magnitude in float32; 0 if all elements are 0.
      smallest: The smallest magnitude above 0; 0 if all elements are 0.
      exponents: The number of elements with each exponent (of 2) in float32, from `LOWEST` to `HIGHEST`.
    """

    elements: int
    zeros: int
    zeros_half: int
    subnormal: int
    beyond: int
    infinite: int
    lost: int
    largest: float
    smallest: float
    exponents: tuple[int, ...]

    def __add__(self, other: Figures) -> Figures:
        counts = ("elements", "zeros", "zeros_half", "subnormal", "beyond", "infinite", "lost")
        return Figures(
            **{name: getattr(self, name) + getattr(other, name) for name in counts},
            largest=max(self.largest, other.largest),
            smallest=min((smallest for smallest in (self.smallest, other.smallest) if smallest), default=0.0),
            exponents=tuple(a + b for a, b in zip(self.exponents, other.exponents, strict=True)),
        )

    @property
    def overflow(self) -> float:
        """The share of elements that overflowed in float16."""
        return self.infinite / self.elements if self.elements else 0.0

    @property
    def underflow(self) -> float:
        """The share of elements that are 0 in float16, but not in float32."""
        return max(0, self.zeros_half - self.zeros) / self.elements if self.elements else 0.0

    @property
    def subnormals(self) -> float:
        """The share of elements that are subnormal in float16, and so have lower precision."""
        return self.subnormal / self.elements if self.elements else 0.0

    @property
    def largest_exponent(self) -> int | None:
        """The exponent of the largest magnitude; None if all elements are 0."""
        return exponent_of(self.largest)

    @property
    def smallest_exponent(self) -> int | None:
        """The exponent of the smallest magnitude above 0; None if all elements are 0."""
        return exponent_of(self.smallest)

    def weight_below(self, exponent: int) -> float:
        """Returns the share of the sum of magnitudes that is below an exponent, estimated from `exponents`."""
        weights = np.asarray(self.exponents, np.float64) * np.exp2(np.arange(LOWEST, HIGHEST + 1, dtype=np.float64))
        total = weights.sum()
        below = weights[: max(0, min(exponent - LOWEST, len(weights)))].sum()
        return float(below / total) if total else 0.0


def exponent_of(magnitude: float) -> int | None:
    """Returns the exponent e of a magnitude x with 2 ** e <= x < 2 ** (e + 1); None for 0 and infinity."""
    if not 0 < magnitude < float("inf"):
        return None
    return int(np.frexp(magnitude)[1]) - 1


def figures_of(single: npt.NDArray[Any], half: npt.NDArray[Any]) -> Figures:
    """Returns the counts of a tensor's elements from its values in float32 and in float16."""
    wide = np.abs(np.ravel(single).astype(np.float32))
    narrow = np.abs(np.ravel(half).astype(np.float32))
    # A tensor of the float16 step may have the type float32, such as the gradient of a variable. Values beyond the
    # range of float16 are then no overflow.
    fits = narrow < LARGEST if half.dtype == np.float16 else np.isfinite(narrow) & (narrow != LARGEST)
    finite = wide[np.isfinite(wide)]
    nonzero = finite[finite > 0]
    exponents = np.clip(np.frexp(nonzero)[1] - 1, LOWEST, HIGHEST) - LOWEST
    return Figures(
        elements=int(wide.size),
        zeros=int(wide.size - np.count_nonzero(wide)),
        zeros_half=int(narrow.size - np.count_nonzero(narrow)),
        subnormal=int(np.count_nonzero((narrow > 0) & (narrow < 2.0**SMALLEST_NORMAL))),
        beyond=int(np.count_nonzero(finite >= _ROUNDS_UP)),
        infinite=int(narrow.size - np.count_nonzero(fits)),
        lost=int(np.count_nonzero(nonzero <= _ROUNDS_DOWN)),
        largest=float(nonzero.max(initial=0)),
        smallest=float(nonzero.min()) if nonzero.size else 0.0,
        exponents=tuple(np.bincount(exponents, minlength=HIGHEST - LOWEST + 1).tolist()),
    )


# The layer, kind and name of a tensor.
Key: TypeAlias = "tuple[str, str, str]"
Values: TypeAlias = "dict[Key, np.ndarray[Any, Any]]"


class Count:
    """The counts of the tensors of some steps."""

    def __init__(self) -> None:
        self._figures: dict[Key, list[Figures]] = {}
        self._stuck: dict[Key, list[float]] = {}

    def step(self, single: Values, half: Values) -> None:
        """Counts the tensors of a step in float32 and float16. Tensors that only one of them has are ignored."""
        for key, value in single.items():
            if key in half and half[key].shape == value.shape:
                self._figures.setdefault(key, []).append(figures_of(value, half[key]))

    def updates(self, weights: Values, updates: Values, stuck: Mapping[Key, float]) -> None:
        """Counts weights and their updates as rounded to float16.

        `stuck` are the shares of updates that change nothing.
        """
        for key, value in {**weights, **updates}.items():
            with np.errstate(over="ignore"):
                self._figures.setdefault(key, []).append(figures_of(value, value.astype(np.float16)))
        for key, share in stuck.items():
            self._stuck.setdefault(key, []).append(share)

    def rows(self) -> list[TensorRow]:
        return [
            TensorRow(*key, tuple(figures), float(np.mean(self._stuck.get(key, [0.0]))))
            for key, figures in self._figures.items()
        ]


ACTIVATION = "activation"
GRADIENT = "gradient of activation"
WEIGHT = "weight"
WEIGHT_GRADIENT = "gradient of weight"
UPDATE = "update"
KINDS = (ACTIVATION, GRADIENT, WEIGHT, WEIGHT_GRADIENT, UPDATE)
GRADIENTS = (GRADIENT, WEIGHT_GRADIENT)


@dataclass(frozen=True)
class TensorRow:
    """A tensor of the model, with its counts.

    Attributes:
      layer: The layer of the tensor; for a function, its name scope.
      kind: One of `KINDS`.
      name: The name of the tensor within the layer.
      steps: The counts of each step.
      stuck: For an update: the share of the weights that it should change, but does not change in float16.
    """

    layer: str
    kind: str
    name: str
    steps: tuple[Figures, ...]
    stuck: float = 0.0

    @property
    def title(self) -> str:
        """The kind and name of the tensor."""
        return f"{self.kind} {self.name}".strip()

    @property
    def total(self) -> Figures:
        """The sum of the counts of all steps."""
        return functools.reduce(operator.add, self.steps)
