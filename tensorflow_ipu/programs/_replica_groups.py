"""Groups of replicas, among which collectives reduce and exchange."""

from __future__ import annotations

import dataclasses

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import check_bool, is_int


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
        """Checks the attributes."""
        check_size("size", self.size, optional=True)
        check_bool("orthogonal", self.orthogonal)


def check_size(argument: str, size: object, optional: bool) -> None:
    """Checks the size of a group of replicas."""
    if size is None and optional:
        return
    if not is_int(size):
        raise TypeError(f"`{argument}` must be a number of replicas or a `ReplicaGroups` that has one, but is {size!r}")
    if size < 1:
        raise ValueError(f"`{argument}` is {size}, and a group has at least one replica")
    if size > environment.MOST_IPUS:
        raise ValueError(f"`{argument}` is {size}, and there are at most {environment.MOST_IPUS} replicas")
