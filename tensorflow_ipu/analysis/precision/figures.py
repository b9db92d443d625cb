"""What is counted of a tensor: where its numbers lie in float32, and what became of them in float16."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# The exponents that are told apart; what is beyond counts as the first or last of them.
LOWEST, HIGHEST = -64, 63
# Of float16: the largest number, and exponents of the smallest normal number and of the smallest at all.
LARGEST = 65504.0
SMALLEST_NORMAL, SMALLEST = -14, -24
# From here on the nearest number of float16 would be above the largest, and up to there it is 0.
_ROUNDS_UP, _ROUNDS_DOWN = 65520.0, 2.0**-25


@dataclass(frozen=True)
class Figures:
    """Counts of one tensor, of one step or of several.

    Attributes:
      elements: How many elements it has, of all steps.
      zeros: How many are 0 in float32.
      zeros_half: How many are 0 in float16.
      subnormal: How many are subnormal in float16.
      beyond: How many are finite in float32, and beyond what float16 reaches.
      infinite: How many are in float16 no finite number, or at the largest, where a machine that saturates leaves them.
      lost: How many are not 0 in float32, and rounded to float16 would be.
      largest: The largest magnitude in float32; 0 where all are 0.
      smallest: The smallest one that is not 0; 0 where all are.
      exponents: How many have each exponent (of 2) in float32, from `LOWEST` to `HIGHEST`.
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
            smallest=min((each for each in (self.smallest, other.smallest) if each), default=0.0),
            exponents=tuple(a + b for a, b in zip(self.exponents, other.exponents, strict=True)),
        )

    @property
    def overflow(self) -> float:
        """The share that overflowed in float16."""
        return self.infinite / self.elements if self.elements else 0.0

    @property
    def underflow(self) -> float:
        """The share that is 0 in float16 and is not in float32."""
        return max(0, self.zeros_half - self.zeros) / self.elements if self.elements else 0.0

    @property
    def subnormals(self) -> float:
        """The share that is subnormal in float16, and has fewer digits there."""
        return self.subnormal / self.elements if self.elements else 0.0

    @property
    def largest_exponent(self) -> int | None:
        """The exponent of the largest magnitude; None where all are 0."""
        return exponent_of(self.largest)

    @property
    def smallest_exponent(self) -> int | None:
        """The exponent of the smallest magnitude that is not 0; None where all are."""
        return exponent_of(self.smallest)

    def weight_below(self, exponent: int) -> float:
        """The share of the sum of magnitudes that numbers with a lower exponent have, as the exponents tell."""
        weights = np.asarray(self.exponents, np.float64) * np.exp2(np.arange(LOWEST, HIGHEST + 1, dtype=np.float64))
        whole = weights.sum()
        below = weights[: max(0, min(exponent - LOWEST, len(weights)))].sum()
        return float(below / whole) if whole else 0.0


def exponent_of(magnitude: float) -> int | None:
    """Returns the exponent e of a magnitude from 2 ** e on and below 2 ** (e + 1); None for 0 and infinity."""
    if not 0 < magnitude < float("inf"):
        return None
    return int(np.frexp(magnitude)[1]) - 1


def figures_of(single: npt.NDArray[Any], half: npt.NDArray[Any]) -> Figures:
    wide = np.abs(np.ravel(single).astype(np.float32))
    narrow = np.abs(np.ravel(half).astype(np.float32))
    # What float32 holds, such as the gradient of a variable, is beyond float16 and no overflow.
    fits = narrow < LARGEST if half.dtype == np.float16 else np.isfinite(narrow) & (narrow != LARGEST)
    finite = wide[np.isfinite(wide)]
    numbers = finite[finite > 0]
    exponents = np.clip(np.frexp(numbers)[1] - 1, LOWEST, HIGHEST) - LOWEST
    return Figures(
        elements=int(wide.size),
        zeros=int(wide.size - np.count_nonzero(wide)),
        zeros_half=int(narrow.size - np.count_nonzero(narrow)),
        subnormal=int(np.count_nonzero((narrow > 0) & (narrow < 2.0**SMALLEST_NORMAL))),
        beyond=int(np.count_nonzero(finite >= _ROUNDS_UP)),
        infinite=int(narrow.size - np.count_nonzero(fits)),
        lost=int(np.count_nonzero(numbers <= _ROUNDS_DOWN)),
        largest=float(numbers.max(initial=0)),
        smallest=float(numbers.min()) if numbers.size else 0.0,
        exponents=tuple(np.bincount(exponents, minlength=HIGHEST - LOWEST + 1).tolist()),
    )


# The layer, the kind, and the name of a tensor.
Key: TypeAlias = "tuple[str, str, str]"
Values: TypeAlias = "dict[Key, np.ndarray[Any, Any]]"


class Count:
    """The counts of the tensors of some steps."""

    def __init__(self) -> None:
        self._figures: dict[Key, list[Figures]] = {}
        self._stuck: dict[Key, list[float]] = {}

    def step(self, single: Values, half: Values) -> None:
        """Counts the tensors of a step in float32 and float16; tensors of only one of them are left out."""
        for key, value in single.items():
            if key in half and half[key].shape == value.shape:
                self._figures.setdefault(key, []).append(figures_of(value, half[key]))

    def updates(self, weights: Values, updates: Values, stuck: Mapping[Key, float]) -> None:
        """Counts weights and their updates, rounded to float16."""
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
    """A tensor of the model.

    Attributes:
      layer: The layer that it belongs to; of a function, the scope.
      kind: One of `KINDS`.
      name: What tells it from others of the layer.
      steps: What was counted of it, for each step.
      stuck: Which share of the weights an update was to change, and did not or would not in float16; of updates alone.
    """

    layer: str
    kind: str
    name: str
    steps: tuple[Figures, ...]
    stuck: float = 0.0

    @property
    def title(self) -> str:
        """Its kind and name."""
        return f"{self.kind} {self.name}".strip()

    @property
    def total(self) -> Figures:
        """What was counted of it in all steps."""
        return functools.reduce(operator.add, self.steps)
