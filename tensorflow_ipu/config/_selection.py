"""Which IPUs a selection of devices takes out of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def as_tuple(selection: Any) -> tuple[int, ...]:
    """The selection in one form: a number alone means a single device."""
    return (selection,) if type(selection) is int else tuple(selection)


def multi_ipu(index: int, machine: int) -> range | None:
    """The IPUs behind one MultiIPU id.

    In a machine of N IPUs the ids 0 to N-1 are the single IPUs; then come the N/2 pairs of neighbours, then the N/4
    fours, and so on. With N a power of two the last id, 2N-2, is the whole machine. With another N each row has as
    many groups as are complete. Four IPUs:

        id    0  1  2  3    4     5      6
        IPUs  0  1  2  3   0 1   2 3   0 1 2 3
    """
    size = 1
    while index >= 0 and size <= machine:
        groups = machine // size
        if index < groups:
            return range(index * size, (index + 1) * size)
        index -= groups
        size *= 2
    return None


def machine_for(index: int) -> int:
    """How many IPUs, a power of two, the smallest machine has that knows the MultiIPU id `index`."""
    machine = 1
    while 2 * machine - 2 < index:
        machine *= 2
    return machine


def overlaps(ids: Sequence[int], machine: int) -> list[tuple[int, int]]:
    """Pairs of known MultiIPU ids that share an IPU, each as it stands in `ids`."""
    groups = {index: group for index in dict.fromkeys(ids) if (group := multi_ipu(index, machine)) is not None}
    known = list(groups)
    return [
        (first, second)
        for at, first in enumerate(known)
        for second in known[at + 1 :]
        if groups[first].start < groups[second].stop and groups[second].start < groups[first].stop
    ]
