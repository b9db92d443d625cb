"""A reduction over replicas whose result is divided between the replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from tensorflow_ipu.ops import _collectives
from tensorflow_ipu.programs import ReplicaGroups

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tensorflow as tf

    from tensorflow_ipu._base.types import OneTensorLike, TensorLike

__all__ = ["reduce_scatter"]


@overload
def reduce_scatter(
    x: OneTensorLike, replication_factor: int | ReplicaGroups, op: str = ..., name: str | None = ...
) -> tf.Tensor: ...
@overload
def reduce_scatter(
    x: Sequence[TensorLike], replication_factor: int | ReplicaGroups, op: str = ..., name: str | None = ...
) -> list[tf.Tensor]: ...
def reduce_scatter(
    x: TensorLike, replication_factor: int | ReplicaGroups, op: str = "COLLECTIVE_OP_ADD", name: str | None = None
) -> tf.Tensor | list[tf.Tensor]:
    """Reduces vectors over the replicas. Replica r returns part r of the result.

    With 2 replicas:

        replica 0  [a, b, c]  ->  [a + d, b + e]
        replica 1  [d, e, f]  ->  [c + f, 0]

    The gradient of a sum or mean is an all-gather of the upstream gradients.

    Args:
      x: A tensor of rank 1, or a list of them, which one collective reduces together.
      replication_factor: The number k of replicas. A smaller k makes groups of k consecutive replicas. Pass a
        `ReplicaGroups` for other groups.
      op: The reduction: `COLLECTIVE_OP_ADD`, `_MUL`, `_MIN`, `_MAX` or `_MEAN` for numeric types, `_LOGICAL_AND` or
        `_LOGICAL_OR` for booleans. With `COLLECTIVE_OP_LOCAL` each replica returns its part of its own vector.
      name: A name for the operation.

    Returns:
      A vector of ceil(n / k) elements for a vector of n elements, or a list of them. Elements beyond n are zeros.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `op` does not support the dtype of `x`, or `replication_factor` is not an int.
      ValueError: `x` is not of rank 1, or is an empty list; `op` is unsupported; or `replication_factor` is below 1.
      tf.errors.InvalidArgumentError: When the program runs, the group size does not divide the number of replicas.
    """
    groups = _collectives.groups_of("replication_factor", replication_factor)
    reduction = _collectives.reduction_of(op, tuple(_collectives.REDUCTIONS))
    values = _collectives.as_tensors(x)
    for value in values:
        if value.shape.rank not in (None, 1):
            raise ValueError(f"`x` must have rank 1, but has shape {value.shape}. `tf.reshape(x, [-1])` it")
    scattered = _collectives.reduce_scatter("reduce_scatter", values, reduction, groups, name)
    return scattered if isinstance(x, (list, tuple)) else scattered[0]
