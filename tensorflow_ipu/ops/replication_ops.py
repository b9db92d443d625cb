"""What a replica of a program knows about itself."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.ops import _collectives, _gradients  # noqa: F401  (Registers the gradients.)
from tensorflow_ipu.replicas import ReplicaGroups

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> Any:
    """The number of the replica that runs.

    Args:
      name: A name for the operation.

    Returns:
      An int32 scalar, from 0 to the number of replicas - 1.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
    """
    return _collectives.rank("replication_index", ReplicaGroups(), name)
