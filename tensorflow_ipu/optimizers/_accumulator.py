"""Gradient accumulation in variables that somebody else made."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base.checks import parse_method

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Nested, Number


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


class Weights(NamedTuple):
    """The factors of one addition, `total * keep + gradient * scale`: scalars of the total's dtype, None for 1."""

    keep: tf.Tensor | None
    scale: tf.Tensor | None


def weights(method: GradientAccumulationReductionMethod, index: Number, count: Number, dtype: tf.DType) -> Weights:
    """The factors with which a gradient is added to what has accumulated before it.

    With gradients g(0), ..., g(N - 1), the total t(n) after gradient n is

        SUM           t(n) = t(n - 1) + g(n)                               = g(0) + ... + g(n)
        MEAN          t(n) = t(n - 1) + g(n) * 1/N                         = (g(0) + ... + g(n)) / N
        RUNNING_MEAN  t(n) = t(n - 1) * n/(n + 1) + g(n) * 1/(n + 1)       = (g(0) + ... + g(n)) / (n + 1)

    The last line holds by induction: with t(n - 1) = (g(0) + ... + g(n - 1)) / n, the first product is the sum of these
    divided by n + 1. For n = 0 it is 0, so that it does not matter what the total began with.

    The factors are computed in float32 (float64 for a float64 total) and rounded to `dtype` once. float32 holds each
    integer up to 2^24, so up to that many gradients n/(n + 1) and 1/(n + 1) are off by 2^-24 of themselves at most, less
    than what the rounding to a narrower type adds: 2^-11 for float16, 2^-8 for bfloat16. In float16 itself, n + 1 would
    be n from 2048 on, and infinite from 65520 on; in bfloat16, n + 1 would be n from 256 on. The mean would then go
    wrong without a word.
    """
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    if method is GradientAccumulationReductionMethod.SUM:
        return Weights(None, None)
    if method is GradientAccumulationReductionMethod.MEAN:
        return Weights(None, tf.cast(1 / tf.cast(count, wide), dtype))
    before = tf.cast(index, wide)
    return Weights(tf.cast(before / (before + 1), dtype), tf.cast(1 / (before + 1), dtype))


def accumulated(
    total: tf.Tensor, gradient: tf.Tensor, index: Number, count: Number, method: GradientAccumulationReductionMethod
) -> tf.Tensor:
    """What has accumulated after one more gradient."""
    keep, scale = weights(method, index, count, total.dtype)
    value = tf.cast(gradient, total.dtype)
    return (total if keep is None else total * keep) + (value if scale is None else value * scale)


class Accumulator:
    """Adds up the gradients of mini-batches, and after so many of them hands them on.

    Gradients that are `tf.IndexedSlices` are added to their rows; what is handed on is dense.
    """

    def __init__(
        self,
        counter: tf.Variable,
        totals: Sequence[tf.Variable],
        number: int,
        reduction: GradientAccumulationReductionMethod,
    ) -> None:
        """Uses variables, all of them zero at first."""
        self._counter = counter
        self._totals = list(totals)
        self._number = number
        self._reduction = reduction

    @property
    def totals(self) -> list[tf.Variable]:
        """The variables in which it adds up."""
        return self._totals

    def step(self, gradients: Sequence[Gradient], update: Callable[[list[tf.Tensor]], Nested]) -> tf.Operation:
        """Adds the gradients of a mini-batch, and updates if it is the last one."""
        done = [self._add(total, gradient) for total, gradient in zip(self._totals, gradients, strict=True)]
        with tf.control_dependencies(done):
            count = self._counter.assign_add(1, read_value=True)

        def complete(_: tf.Tensor) -> tf.Tensor:
            reduced = [total.read_value() for total in self._totals]
            with tf.control_dependencies(_operations(update(reduced))):
                cleared = [total.assign(tf.zeros_like(total), read_value=False) for total in self._totals]
                cleared.append(self._counter.assign(0, read_value=False))
            with tf.control_dependencies(cleared):
                return tf.constant(False)

        # A loop of one iteration or none. Of a branch, XLA would copy all that it may update, in every mini-batch, or
        # compute the update each time and select.
        due = tf.equal(count, self._number)
        return tf.group(tf.while_loop(lambda due: due, complete, [due], parallel_iterations=1))

    def _add(self, total: tf.Variable, gradient: Gradient) -> tf.Operation:
        index = self._counter.read_value()
        if not isinstance(gradient, tf.IndexedSlices):
            new = accumulated(total.read_value(), gradient, index, self._number, self._reduction)
            return total.assign(new, read_value=False)
        keep, scale = weights(self._reduction, index, self._number, total.dtype)
        kept = [] if keep is None else [total.assign(total.read_value() * keep, read_value=False)]
        with tf.control_dependencies(kept):
            values = tf.cast(gradient.values, total.dtype)
            values = values if scale is None else values * scale
            return total.scatter_add(tf.IndexedSlices(values, gradient.indices)).op


def _operations(updated: Nested) -> list[tf.Operation | tf.Tensor]:
    """What can be waited for in what an update returned."""
    return [value for value in tf.nest.flatten(updated) if isinstance(value, (tf.Operation, tf.Tensor))]
