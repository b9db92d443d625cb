"""What a replica of a program knows about itself."""

from __future__ import annotations

import tensorflow as tf

from tensorflow_ipu.ops import _collectives, host_callbacks
from tensorflow_ipu.programs import ReplicaGroups

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> tf.Tensor:
    """Returns the index of the replica that runs, an int32 scalar; in an `outside_compilation_scope`, of the part's.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
    """
    part = host_callbacks.around()
    if part is not None:
        return tf.identity(part.replica, name)
    return _collectives.rank("replication_index", ReplicaGroups(), name)
