"""Sums, means and copies over the replicas of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool, check_int
from tensorflow_ipu.ops import _collectives
from tensorflow_ipu.programs import ReplicaGroups

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Nested, TensorLike

__all__ = ["assume_equal_across_replicas", "cross_replica_broadcast", "cross_replica_mean", "cross_replica_sum"]


def cross_replica_sum(
    x: TensorLike | Gradient, replica_group_size: int | ReplicaGroups | None = None, name: str | None = None
) -> tf.Tensor:
    """Sums a tensor over the replicas, in their order, so that every run has the same result to the bit.

    float16 and bfloat16 accumulate in float32 and are rounded at the end; integers wrap around. The gradient is the sum of
    the upstream gradients over the same replicas.

    Args:
      x: A tensor of numbers, of any shape.
      replica_group_size: Sums in groups of so many consecutive replicas, or in the groups of a `ReplicaGroups`. None
        and 0 sum over all.
      name: A name for the operation.

    Returns:
      A tensor of the same type and shape, equal on all replicas of a group.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` holds no numbers, or `replica_group_size` is no int.
      ValueError: `replica_group_size` is negative.
      tf.errors.InvalidArgumentError: When the program runs, the group size does not divide the number of replicas.
    """
    return _reduce("cross_replica_sum", x, "sum", replica_group_size, name)


def cross_replica_mean(
    x: TensorLike | Gradient, replica_group_size: int | ReplicaGroups | None = None, name: str | None = None
) -> tf.Tensor:
    """Computes the mean over the replicas, that of integers rounded toward zero; see `cross_replica_sum`.

    The gradient is the mean of the upstream gradients.
    """
    return _reduce("cross_replica_mean", x, "mean", replica_group_size, name)


def cross_replica_broadcast(
    x: TensorLike | Gradient,
    root: int = 0,
    replica_group_size: int | ReplicaGroups | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Copies the tensor of one replica to all of them.

    Its gradient is the sum of the upstream gradients of all, and zero on the other replicas.

    Args:
      x: A tensor of numbers or booleans.
      root: The rank of the one in its group; without groups, its index.
      replica_group_size: The groups, as of `cross_replica_sum`.
      name: A name for the operation.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` holds neither numbers nor booleans, or `root` or `replica_group_size` is no int.
      ValueError: `root` is negative, or `replica_group_size` is.
      tf.errors.InvalidArgumentError: When the program runs, a group has no such rank, or the group size does not divide
        the number of replicas.
    """
    check_int("root", root)
    groups = _collectives.groups_of("replica_group_size", replica_group_size, optional=True)
    if root < 0 or (groups.size is not None and root >= groups.size):
        raise ValueError(f"`root` is {root}, and the ranks of a group go from 0 to its size - 1")
    value = tf.convert_to_tensor(x, name="x")
    return _collectives.broadcast("cross_replica_broadcast", [value], root, groups, name)[0]


def assume_equal_across_replicas(tensors: Nested, inplace: bool = False) -> Nested:
    """Asserts to the compiler that a structure's tensors are equal on all replicas, and returns it.

    The emulator ignores that. With `inplace`, the result has the tensors themselves, and not copies.

    Raises:
      TypeError: `inplace` is not a bool.
    """
    check_bool("inplace", inplace)
    return tensors if inplace else tf.nest.map_structure(tf.identity, tensors)


def _reduce(
    function: str,
    x: TensorLike | Gradient,
    reduction: str,
    replica_group_size: int | ReplicaGroups | None,
    name: str | None,
) -> tf.Tensor:
    groups = _collectives.groups_of("replica_group_size", replica_group_size, optional=True)
    value = tf.convert_to_tensor(x, name="x")
    return _collectives.all_reduce(function, [value], reduction, groups, name)[0]
