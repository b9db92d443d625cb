"""Which loss scales fit the gradients of a model: none of them overflows, and what they are made of does not vanish."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorflow_ipu.precision._figures import LARGEST, SMALLEST, SMALLEST_NORMAL, Figures

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
    """The loss scales that fit.

    Args:
      gradients: What was counted of each tensor of gradients, of a loss without a scale.
    """
    known = [each for each in gradients if each.largest > 0]
    if not known:
        return Scales(1.0, 1.0, 1.0)
    greatest = math.floor(math.log2(LARGEST / max(each.largest for each in known)))
    greatest = min(max(greatest, _LEAST_POWER), _GREATEST_POWER)
    # A number of the exponent below the smallest is rounded up to it.
    least = max(_power_keeping(each, SMALLEST - 1) for each in known)
    whole = max(_power_keeping(each, SMALLEST_NORMAL) for each in known)
    advised = min(max(whole, 0), greatest - _HEADROOM)
    advised = min(max(advised, least), greatest)
    return Scales(2.0**least, 2.0**greatest, 2.0**advised)


def saved_by(figures: Figures, scale: float) -> bool:
    """Whether a tensor of gradients loses no more than a hundredth of its sum with this scale."""
    return _power_keeping(figures, SMALLEST - 1) <= math.log2(scale)


def _power_keeping(figures: Figures, exponent: int) -> int:
    """The least power of two that leaves at most a hundredth of the sum of magnitudes below an exponent."""
    power = _LEAST_POWER
    while power < _GREATEST_POWER and figures.weight_below(exponent - power) > _MOST:
        power += 1
    return power
