"""The arguments of collectives that say which replicas take part together."""

from __future__ import annotations

from tensorflow_ipu.replicas import ReplicaGroups, check_size


def optional(argument: str, value: int | ReplicaGroups | None) -> ReplicaGroups:
    """The groups of an argument that is a group size, a `ReplicaGroups`, or None or 0 for all replicas.

    Raises:
      TypeError: It is something else.
      ValueError: The size is negative.
    """
    if isinstance(value, ReplicaGroups):
        return value
    if value == 0 and type(value) is int:
        return ReplicaGroups()
    check_size(argument, value, optional=True)
    return ReplicaGroups(value)


def sized(argument: str, value: int | ReplicaGroups) -> tuple[ReplicaGroups, int]:
    """The groups of an argument that decides the shape of a result, and their size, which must be known.

    Raises:
      TypeError: It is neither a group size nor a `ReplicaGroups` with a size.
      ValueError: The size is below 1.
    """
    size = value.size if isinstance(value, ReplicaGroups) else value
    check_size(argument, size, optional=False)
    assert size is not None
    return value if isinstance(value, ReplicaGroups) else ReplicaGroups(size), size
