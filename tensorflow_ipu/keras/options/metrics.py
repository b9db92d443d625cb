"""What the replicas' results are to the user: the last one's, all, their sum or their mean."""

from __future__ import annotations

import enum

import numpy as np

from tensorflow_ipu._checks import parse_method


class ReplicatedMetricReductionMethod(enum.Enum):
    """How the metrics of R replicas are reduced to what logs show.

    `NONE` shows those of the last replica, `LIST` all of them, as an array of shape [R], `SUM` their sum, `MEAN` their
    mean.
    """

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4

    @classmethod
    def parse(cls, value: object) -> ReplicatedMetricReductionMethod:
        """Takes a method, or its name in any case.

        Raises:
          ValueError: It is neither.
        """
        return parse_method(cls, value)

    def reduce(self, values: np.ndarray) -> np.ndarray | np.number:
        """Reduces the values of R replicas.

        Args:
          values: Shape [R] + the metric's shape.
        """
        if self is ReplicatedMetricReductionMethod.NONE:
            return values[-1]
        if self is ReplicatedMetricReductionMethod.SUM:
            return values.sum(axis=0)
        if self is ReplicatedMetricReductionMethod.MEAN:
            return values.mean(axis=0, dtype=np.float32 if values.dtype.kind == "f" else None)
        return values
