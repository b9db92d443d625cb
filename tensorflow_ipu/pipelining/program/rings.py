"""Ring buffers in a compiled program that are read and written in place.

XLA updates a buffer in place where it can prove that nobody reads it later, and copies it, ring and all, where it
cannot. Nothing in a data flow says that the backward pass of one micro-batch reads its place before the forward pass of
another takes it. So a `Sequencer` threads a token through the program: an integer scalar. Each instruction is a loop of one
iteration (`once`), which begins with what the last one left of the token, and adds it to the positions of its reads and
writes. At run time the token is always 0; XLA does not know that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from tensorflow_ipu._library import ops
from tensorflow_ipu._tensorflow import assembly
from tensorflow_ipu.pipelining.program.once import run_once

Position: TypeAlias = "int | tf.Tensor"  # An int32 scalar.


class Sequencer:
    """Runs the instructions of a program one after the other, by a token.

    Attributes:
      token: An int32 scalar that is 0, and depends on all that was run so far.
    """

    def __init__(self, zero: tf.Tensor, token: tf.Tensor) -> None:
        """Begins.

        Args:
          zero: An int32 scalar that is 0 for a reason that XLA does not see.
          token: `token` of what comes before, or `zero`.
        """
        self._zero = zero
        self.token = token

    def once(
        self,
        skipped: tf.Tensor | None,
        reads: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        body: Callable[[Position, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Runs `body` after all that was run so far and before all that will be, or skips it.

        Args:
          skipped: An int32 scalar: 0 where it is run, 1 where it is skipped; None where it is run in any case.
          reads: Tensors that `body` uses, other than those that it reads at a position.
          before: What the results take the place of, with their shapes and types: they are made in the same memory. They
            are the results where it is skipped.
          body: From an int32 scalar that is 0, to be added to positions, `reads` and `before`, to the results.
        """
        skip = tf.constant(0) if skipped is None else skipped
        self.token, results = run_once(skip, self._zero, self.token, reads, before, body)
        return results

    def fence(self, values: Sequence[tf.Tensor], behind: Position = 0) -> tuple[Position, list[tf.Tensor]]:
        """Materialises values: what they were computed from is not read any more where they are used.

        Args:
          values: Tensors.
          behind: An int32 scalar that is 0, and that has to be known before.

        Returns:
          An int32 scalar that is 0, for the positions of what comes behind; the same tensors.
        """
        passed, *fenced = assembly.put(_graph(), "IpuFence", "IpuFence", [tf.convert_to_tensor(behind), list(values)])
        return passed, fenced


def opaque_zero(variables: Sequence[tf.Variable]) -> tf.Tensor:
    """An int32 scalar that is 0, though XLA cannot know: whether a weight is infinite and no number at once.

    A plain constant where there is no weight of a floating type.
    """
    for variable in variables:
        if variable.dtype.is_floating and variable.shape.num_elements():
            weight = tf.reshape(variable, [-1])[0]
            return tf.cast(tf.math.is_nan(weight) & tf.math.is_inf(weight), tf.int32)
    return tf.constant(0)


def empty(kept: Sequence[tuple[Sequence[tf.TensorSpec], int]]) -> list[list[tf.Tensor]]:
    """Zeros, all made at once: so that each has its place from the start, where equal constants are one that is copied.

    Args:
      kept: For each ring its tensors of one micro-batch, and how many micro-batches it holds.

    Returns:
      For each its tensors, without the axis of the micro-batches where there is only one.
    """
    shapes = [one.shape if depth == 1 else [depth, *one.shape] for specs, depth in kept for one in specs]
    if not shapes:
        return [[] for _ in kept]
    dtypes = [one.dtype for specs, _ in kept for one in specs]
    zeros = iter(ops.ipu_ring_zeros(T=dtypes, output_shapes=shapes))
    return [list(itertools.islice(zeros, len(specs))) for specs, _ in kept]


def read(ring: Sequence[tf.Tensor], position: Position) -> list[tf.Tensor]:
    """What is at a position of a ring of several places."""
    if not ring:
        return []
    return assembly.put(_graph(), "IpuRingRead", "IpuRingRead", [list(ring), tf.convert_to_tensor(position)])


def written(ring: Sequence[tf.Tensor], position: Position, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Such a ring with values at a position."""
    if not ring:
        return []
    taken = [list(ring), list(values), tf.convert_to_tensor(position)]
    return assembly.put(_graph(), "IpuRingWrite", "IpuRingWrite", taken)


def behind(position: Position, zero: Position) -> Position:
    """A position that is known once an int32 scalar is, which is 0."""
    if isinstance(zero, int):
        return position
    [found] = assembly.put(_graph(), "AddV2", "AddV2", [tf.convert_to_tensor(position), zero])
    return found


def _graph() -> tf.Graph:
    return tf.compat.v1.get_default_graph()
