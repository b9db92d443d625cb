"""How the gradients of micro-batches become one, within a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensors import dtype_for
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod, parts

if TYPE_CHECKING:
    from tensorflow_ipu._types import DTypeOf, Number


class Accumulation:
    """Adds the gradients of a pass's micro-batches up, each variable's in a type of its own."""

    def __init__(
        self,
        method: GradientAccumulationReductionMethod,
        count: int | tf.Tensor,
        dtype: DTypeOf = None,
        *,
        sum_captured: bool = True,
    ) -> None:
        """Says how.

        Args:
          method: How gradients become one.
          count: How many micro-batches there are, as a whole number or an int32 scalar.
          dtype: The type of the accumulators: None for that of the variable, a dtype, or a function of the variable.
          sum_captured: Whether gradients that were captured are summed; else those of the last micro-batch are kept.
        """
        self._method = method
        self._count = count
        self._dtype = dtype
        self._sum_captured = sum_captured

    def zeros(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        """The accumulators before the first micro-batch."""
        return [tf.zeros(one.shape, one.dtype) for one in self.specs(variables)]

    def specs(self, variables: Sequence[tf.Variable]) -> list[tf.TensorSpec]:
        """Shapes and types of the accumulators."""
        return [tf.TensorSpec(variable.shape, dtype_for(self._dtype, variable)) for variable in variables]

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], micro_batch: Number) -> list[tf.Tensor]:
        """The accumulators after one more micro-batch.

        Args:
          sums: The accumulators before.
          gradients: Its gradients.
          micro_batch: Its number, from 0.
        """
        return [
            parts.accumulated(total, gradient, micro_batch, self._count, self._method)
            for total, gradient in zip(sums, gradients, strict=True)
        ]

    def captured(self, before: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The captured gradients after one more micro-batch, whose `gradients` they are."""
        if not self._sum_captured:
            return list(gradients)
        return [total + gradient for total, gradient in zip(before, gradients, strict=True)]
