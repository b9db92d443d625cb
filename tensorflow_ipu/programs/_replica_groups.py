"""Groups of replicas: each collective operates within every group."""

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

    Every operation with a group size argument also accepts a `ReplicaGroups`. Replicas in a group are in ascending
    order.

    Attributes:
      size: The number of replicas in a group, 1 or more. It must divide the number of replicas, which is known when the
        program runs. None makes one group of all replicas.
      orthogonal: Whether the members of a group are spaced by the number of groups instead of being neighbours.
    """

    size: int | None = None
    orthogonal: bool = False

    def __post_init__(self) -> None:
        check_size("size", self.size, optional=True)
        check_bool("orthogonal", self.orthogonal)


def check_size(argument: str, size: object, optional: bool) -> None:
    """Raises an error unless `size` is a valid number of replicas in a group."""
    if size is None and optional:
        return
    if not is_int(size):
        raise TypeError(f"`{argument}` must be a number of replicas or a `ReplicaGroups` that has one, but is {size!r}")
    if size < 1:
        raise ValueError(f"`{argument}` must be at least 1 replica, but is {size}")
    if size > environment.MOST_IPUS:
        raise ValueError(f"`{argument}` must be at most {environment.MOST_IPUS} replicas, but is {size}")
