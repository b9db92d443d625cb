"""What strategies and optimizers reduce: any number of tensors over all replicas, in one meeting of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorflow_ipu.ops import _collectives, sites
from tensorflow_ipu.replicas import ReplicaGroups

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["all_reduce", "in_program"]


def in_program() -> bool:
    """Whether a program for an IPU device is being traced, in which there are replicas."""
    return sites.on_ipu()


def all_reduce(values: Sequence[tf.Tensor], mean: bool = False) -> list[tf.Tensor]:
    """Sums tensors of numbers over all replicas, in the order of the replicas, or takes their mean.

    Raises:
      RuntimeError: No program is being traced.
      TypeError: A tensor holds no numbers.
    """
    if not values:
        return []
    return _collectives.all_reduce("all_reduce", values, "mean" if mean else "sum", ReplicaGroups())
