"""The index of the replica that runs a program."""

from __future__ import annotations

import tensorflow as tf

from tensorflow_ipu.ops import _collectives, host_callbacks
from tensorflow_ipu.programs import ReplicaGroups

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> tf.Tensor:
    """Returns the index of the replica that runs the program, an int32 scalar.

    In an `outside_compilation_scope`, it is the index of the replica that called the block.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
    """
    host_part = host_callbacks.around()
    if host_part is not None:
        return tf.identity(host_part.replica, name)
    return _collectives.rank("replication_index", ReplicaGroups(), name)
