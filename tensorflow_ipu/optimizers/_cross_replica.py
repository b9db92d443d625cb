"""The optimizer that takes the mean of gradients over the replicas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.optimizers import _reduced
from tensorflow_ipu.optimizers._ipu_optimizer import IpuOptimizer

if TYPE_CHECKING:
    from tensorflow_ipu._types import Gradient


def apply_cross_replica_op_single(grad: Gradient | None, var: tf.Variable) -> tuple[tf.Tensor | None, tf.Variable]:
    """Takes the mean of a gradient over the replicas.

    Args:
      grad: A tensor, `tf.IndexedSlices`, which becomes dense, or None, which is passed on.
      var: The gradient's variable.

    Returns:
      The mean, and `var`.

    Raises:
      RuntimeError: No program is being traced.
    """
    return apply_cross_replica_op([(grad, var)])[0]


def apply_cross_replica_op(
    grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
) -> list[tuple[tf.Tensor | None, tf.Variable]]:
    """Takes the means of gradients over the replicas, all in one exchange.

    Args:
      grads_and_vars: Pairs of gradient and variable; see `apply_cross_replica_op_single`.

    Returns:
      The pairs of mean and variable.

    Raises:
      RuntimeError: No program is being traced.
    """
    pairs = list(grads_and_vars)
    means = _reduced.mean([gradient for gradient, _ in pairs])
    return [(gradient, variable) for gradient, (_, variable) in zip(means, pairs, strict=True)]


class CrossReplicaOptimizer(IpuOptimizer):
    """Has the wrapped optimizer update with the mean of the gradients over the replicas.

    So R replicas train as a single one would with R times the batch. Under a strategy, other optimizers take the sum.
    """

    def __init__(self, opt: tf.compat.v1.train.Optimizer, name: str = "CrossReplicaOptimizer") -> None:
        """Wraps `opt`.

        Args:
          opt: A `tf.compat.v1.train.Optimizer`.
          name: The wrapper's name.

        Raises:
          ValueError: `opt` is no such optimizer.
        """
        super().__init__(opt, name)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Takes the means of the gradients, and has the wrapped optimizer update the variables.

        Args:
          grads_and_vars: Pairs of gradient and variable. `tf.IndexedSlices` become dense.
          global_step: A variable to count the updates in.
          name: The name of the operation.

        Returns:
          The operation that updates.

        Raises:
          RuntimeError: No program is being traced.
        """
        means = apply_cross_replica_op(grads_and_vars)
        with _reduced.as_they_are():
            return super().apply_gradients(means, global_step=global_step, name=name)
