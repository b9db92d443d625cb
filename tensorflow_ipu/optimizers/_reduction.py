"""How the gradients of micro-batches become one."""

from __future__ import annotations

import enum

from tensorflow_ipu._checks import parse_method


class GradientAccumulationReductionMethod(enum.Enum):
    """How the gradients of N micro-batches are reduced to the one of a weight update.

    `SUM` adds them. `MEAN` adds each divided by N, which keeps the sum in the range of a single one. `RUNNING_MEAN` keeps
    the mean of those so far: after gradient n (from 0), acc = acc * n / (n + 1) + gradient / (n + 1).
    """

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, reduction_method: object) -> GradientAccumulationReductionMethod:
        """Takes a method, or its name in any case.

        Raises:
          ValueError: It is neither.
        """
        return parse_method(cls, reduction_method)
