"""The collectives all-to-all and all-gather over the replicas of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import tensorflow as tf

from tensorflow_ipu._base.checks import check_int
from tensorflow_ipu.ops import _collectives
from tensorflow_ipu.programs import ReplicaGroups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import OneTensorLike, TensorLike

__all__ = ["all_gather", "all_to_all"]


def all_to_all(
    x: TensorLike,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int | ReplicaGroups,
    name: str | None = None,
) -> tf.Tensor:
    """Splits a tensor into one part for each replica, and concatenates the parts for this replica from all replicas.

    With 2 replicas, `split_dimension` 1 and `concat_dimension` 0:

        replica 0  [[a, b]]  ->  [[a], [c]]
        replica 1  [[c, d]]  ->  [[b], [d]]

    The gradient is an all-to-all in the opposite direction.

    Args:
      x: A tensor of real numbers or booleans, of rank 1 or more.
      split_dimension: The axis to split; the number of replicas must divide its size.
      concat_dimension: The axis along which a replica concatenates the parts that it receives.
      replication_factor: The number of replicas. A smaller number is the size of groups of consecutive replicas; a
        `ReplicaGroups` describes other groups.
      name: A name for the operation.

    Returns:
      A tensor of the same type and number of elements as `x`.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` holds neither real numbers nor booleans, or an argument is not an int.
      ValueError: `x` has no such dimension, or its size is no multiple of the group size.
      tf.errors.InvalidArgumentError: When the program runs, the group size does not divide the number of replicas.
    """
    groups = _collectives.groups_of("replication_factor", replication_factor)
    value = tf.convert_to_tensor(x, name="x")
    _check_dimension("split_dimension", split_dimension, value)
    _check_dimension("concat_dimension", concat_dimension, value)
    length = value.shape[split_dimension] if value.shape.rank is not None else None
    assert groups.size is not None
    if length is not None and length % groups.size:
        raise ValueError(
            f"`replication_factor` must divide the size {length} of dimension `split_dimension={split_dimension}` of"
            f" `x`, whose shape is {value.shape}, but is {groups.size}"
        )
    return _collectives.all_to_all("all_to_all", value, (split_dimension, concat_dimension), groups, name)


@overload
def all_gather(x: OneTensorLike, replication_factor: int | ReplicaGroups, name: str | None = ...) -> tf.Tensor: ...
@overload
def all_gather(
    x: Sequence[TensorLike], replication_factor: int | ReplicaGroups, name: str | None = ...
) -> list[tf.Tensor]: ...
def all_gather(
    x: TensorLike, replication_factor: int | ReplicaGroups, name: str | None = None
) -> tf.Tensor | list[tf.Tensor]:
    """Gathers a tensor from all replicas.

    The gradient of `x` on rank r is the sum of the upstream gradients of row r on all replicas.

    Args:
      x: A tensor of real numbers or booleans, or a list of tensors, which share one rendezvous.
      replication_factor: See `all_to_all`.
      name: A name for the operation.

    Returns:
      A tensor of shape `[replication_factor] + x.shape`, whose row r is the `x` of rank r; a list of such tensors if
      `x` is a list.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` holds neither real numbers nor booleans, or `replication_factor` is not an int.
      ValueError: `replication_factor` is below 1, or `x` is an empty list.
      tf.errors.InvalidArgumentError: When the program runs, the group size does not divide the number of replicas.
    """
    groups = _collectives.groups_of("replication_factor", replication_factor)
    values = _collectives.as_tensors(x)
    gathered = _collectives.all_gather("all_gather", values, groups, name)
    return gathered if isinstance(x, (list, tuple)) else gathered[0]


def _check_dimension(argument: str, dimension: int, value: tf.Tensor) -> None:
    check_int(argument, dimension)
    rank = value.shape.rank
    if dimension < 0 or (rank is not None and dimension >= rank):
        raise ValueError(f"`{argument}` must be an axis of `x`, whose shape is {value.shape}, but is {dimension}")
