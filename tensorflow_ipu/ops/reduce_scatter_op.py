"""A reduction over the replicas of a program that leaves each of them a part of the result."""

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
    """Reduces vectors over the replicas; replica r gets part r of the result.

    With 2 replicas:

        replica 0  [a, b, c]  ->  [a + d, b + e]
        replica 1  [d, e, f]  ->  [c + f, 0]

    The gradient of a sum or mean gathers the parts of the upstream gradient.

    Args:
      x: A tensor of rank 1, or a list of them, which are reduced at once.
      replication_factor: The number k of replicas; a smaller one makes groups of so many consecutive replicas. A
        `ReplicaGroups` describes other groups.
      op: How to reduce: `COLLECTIVE_OP_ADD`, `_MUL`, `_MIN`, `_MAX` or `_MEAN` for numbers, `_LOGICAL_AND` or
        `_LOGICAL_OR` for booleans; with `COLLECTIVE_OP_LOCAL` each replica keeps the part of its own vector.
      name: A name for the operation.

    Returns:
      A vector of ceil(n / k) elements for one of n, or a list of them. What lies beyond the end of the result is zero.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` is of a type that cannot be reduced so, or `replication_factor` is no int.
      ValueError: `x` is not of rank 1 or an empty list, `op` is unknown, or `replication_factor` below 1.
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
