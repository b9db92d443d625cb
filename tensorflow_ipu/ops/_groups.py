"""Which replicas of a program take part in a collective together."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class ReplicaGroups:
    """Divides the replicas of a program into groups of one size.

    8 replicas in groups of 2:

        ReplicaGroups(2)                   (0 1) (2 3) (4 5) (6 7)
        ReplicaGroups(2, orthogonal=True)  (0 4) (1 5) (2 6) (3 7)

    Operations that take a group size take one of these in its place. Within a group, replicas are in ascending order.

    Attributes:
      size: Replicas of a group, 1 or more. It must divide the number of replicas, which is known when the program runs.
        None makes one group of all.
      orthogonal: Whether the members of a group are as far apart as there are groups, and not neighbours.
    """

    size: int | None = None
    orthogonal: bool = False

    def __post_init__(self) -> None:
        """Checks the attributes.

        Raises:
          TypeError: `size` is no int, or `orthogonal` no bool.
          ValueError: `size` is below 1.
        """
        _check_size("size", self.size, optional=True)
        if not isinstance(self.orthogonal, bool):
            raise TypeError(f"`orthogonal` must be True or False, but is {self.orthogonal!r}")


def optional(argument: str, value: Any) -> ReplicaGroups:
    """The groups of an argument that is a group size, a `ReplicaGroups`, or None for all replicas.

    Raises:
      TypeError: It is something else.
      ValueError: The size is below 1.
    """
    if isinstance(value, ReplicaGroups):
        return value
    _check_size(argument, value, optional=True)
    return ReplicaGroups(value)


def sized(argument: str, value: Any) -> tuple[ReplicaGroups, int]:
    """The groups of an argument that decides the shape of a result, and their size, which must be known.

    Raises:
      TypeError: It is neither a group size nor a `ReplicaGroups` with a size.
      ValueError: The size is below 1.
    """
    size: Any = value.size if isinstance(value, ReplicaGroups) else value
    _check_size(argument, size, optional=False)
    return value if isinstance(value, ReplicaGroups) else ReplicaGroups(size), size


def _check_size(argument: str, size: Any, optional: bool) -> None:
    if size is None and optional:
        return
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"`{argument}` must be a number of replicas or a `ReplicaGroups` that has one, but is {size!r}")
    if size < 1:
        raise ValueError(f"`{argument}` is {size}, and a group has at least one replica")
