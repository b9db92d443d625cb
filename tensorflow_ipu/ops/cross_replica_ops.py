"""The collectives sum, mean and broadcast over the replicas of a program."""

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
    """Sums a tensor over the replicas, in their order. So every run has the same result to the bit.

    float16 and bfloat16 accumulate in float32 and are rounded at the end; integers wrap around. The gradient is the sum
    of the upstream gradients over the same replicas.

    Args:
      x: A tensor of real numbers, of any shape.
      replica_group_size: The size of the groups of consecutive replicas that sum together, or a `ReplicaGroups`. None
        and 0 mean all replicas.
      name: A name for the operation.

    Returns:
      A tensor of the same type and shape, equal on all replicas of a group.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` does not hold real numbers, or `replica_group_size` is not an int.
      ValueError: `replica_group_size` is negative.
      tf.errors.InvalidArgumentError: When the program runs, the group size does not divide the number of replicas.
    """
    return _reduce("cross_replica_sum", x, "sum", replica_group_size, name)


def cross_replica_mean(
    x: TensorLike | Gradient, replica_group_size: int | ReplicaGroups | None = None, name: str | None = None
) -> tf.Tensor:
    """Computes the mean of a tensor over the replicas; see `cross_replica_sum` for the arguments.

    The mean of integers is rounded toward zero. The gradient is the mean of the upstream gradients.
    """
    return _reduce("cross_replica_mean", x, "mean", replica_group_size, name)


def cross_replica_broadcast(
    x: TensorLike | Gradient,
    root: int = 0,
    replica_group_size: int | ReplicaGroups | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Copies the tensor of one replica, the root, to all replicas.

    The gradient on the root is the sum of the upstream gradients of all replicas. On the others it is zero.

    Args:
      x: A tensor of real numbers or booleans.
      root: The rank of the root in its group; without groups, its replica index.
      replica_group_size: The groups, as for `cross_replica_sum`. Each group has a root.
      name: A name for the operation.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      TypeError: `x` holds neither real numbers nor booleans, or `root` or `replica_group_size` is not an int.
      ValueError: `root` or `replica_group_size` is negative, or `root` is not below the group size.
      tf.errors.InvalidArgumentError: When the program runs, a group has no such rank, or the group size does not divide
        the number of replicas.
    """
    check_int("root", root)
    groups = _collectives.groups_of("replica_group_size", replica_group_size, optional=True)
    if root < 0 or (groups.size is not None and root >= groups.size):
        raise ValueError(f"`root` must be a rank, from 0 to the size of a group - 1, but is {root}")
    value = tf.convert_to_tensor(x, name="x")
    return _collectives.broadcast("cross_replica_broadcast", [value], root, groups, name)[0]


def assume_equal_across_replicas(tensors: Nested, inplace: bool = False) -> Nested:
    """Returns a structure of tensors, and asserts that they are equal on all replicas.

    The vendor's compiler relies on the assertion; this package ignores it. With `inplace`, the result has the same
    tensors; otherwise it has copies.

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
