"""Exchanges of parts and of wholes between the replicas of a program."""

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
    """Splits a tensor in as many parts as there are replicas; each replica gathers the parts of its number.

    With 2 replicas, `split_dimension` 1 and `concat_dimension` 0:

        replica 0  [[a, b]]  ->  [[a], [c]]
        replica 1  [[c, d]]  ->  [[b], [d]]

    The gradient is the same exchange backwards.

    Args:
      x: A tensor of numbers or booleans, of rank 1 or more.
      split_dimension: The axis to split; the number of replicas must divide its size.
      concat_dimension: The axis along which a replica concatenates the parts.
      replication_factor: The number of replicas; a smaller one makes groups of so many consecutive replicas. A
        `ReplicaGroups` describes other groups.
      name: A name for the operation.

    Returns:
      A tensor of the same type and number of elements.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` holds neither numbers nor booleans, or an argument is no int.
      ValueError: A dimension is not one of `x`, or its size cannot be split.
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
            f"`split_dimension` is {split_dimension}, where `x` of shape {value.shape} has size {length}:"
            f" `replication_factor`, which is {groups.size}, must divide it"
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
    """Gathers a tensor from all replicas; the gradient is the sum of the upstream gradients of a replica's own part.

    Args:
      x: A tensor of numbers or booleans, or a list of them, which are exchanged at once.
      replication_factor: See `all_to_all`.
      name: A name for the operation.

    Returns:
      A tensor of shape [replication_factor] + the shape of `x`, or a list of them. Row r is that of rank r.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` holds neither numbers nor booleans, or `replication_factor` is no int.
      ValueError: `replication_factor` is below 1, or `x` an empty list.
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
        raise ValueError(f"`{argument}` is {dimension}, which is no axis of `x` of shape {value.shape}")
