"""Which instances take part in what a thread exchanges: all, or those of a block."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Collection, Iterator
from contextvars import ContextVar

from tensorflow_ipu import hosts
from tensorflow_ipu._checks import as_int

# The group of all instances in TensorFlow's collectives; smaller ones have keys far from it.
_ALL = 8300
_SMALLER = 0x20000000
_SPAN = 0x0FFFFFFF

_block: ContextVar[tuple[int, ...] | None] = ContextVar("participants", default=None)


def instances() -> tuple[int, int]:
    """The number of this instance, from 0, and how many there are; without joining them."""
    world = hosts.world()
    if world is not None:
        return world.worker, world.workers
    identity = hosts.identity()
    return (0, 1) if identity is None else (identity.worker, identity.workers)


def current() -> tuple[int, ...]:
    """Those that take part now, in order."""
    within = _block.get()
    return tuple(range(instances()[1])) if within is None else within


def group_key() -> int:
    """The number by which TensorFlow's collectives know them: the same on all of them."""
    within = _block.get()
    if within is None or len(within) == instances()[1]:
        return _ALL
    return _SMALLER + (zlib.crc32(repr(within).encode()) & _SPAN)


def checked(chosen: Collection[int], name: str) -> tuple[int, ...]:
    """A choice of instances, in order.

    Args:
      chosen: Their numbers.
      name: What the caller calls them.

    Raises:
      ValueError: There is none, or one does not exist or does not take part now.
      TypeError: They are no numbers.
    """
    if isinstance(chosen, str) or not isinstance(chosen, Collection):
        raise TypeError(f"`{name}` must be a set of numbers of instances, but is {chosen!r}")
    numbers = [as_int(one) for one in chosen]
    if None in numbers:
        raise TypeError(f"`{name}` must be a set of numbers of instances, but is {chosen!r}")
    known = current()
    if not numbers or not set(numbers) <= set(known):
        there = ", ".join(map(str, known))
        raise ValueError(f"`{name}` is {chosen!r}, and must be one or more of the instances that take part: {there}")
    return tuple(sorted({number for number in numbers if number is not None}))


@contextlib.contextmanager
def among(chosen: tuple[int, ...]) -> Iterator[None]:
    """A block in which these alone exchange."""
    token = _block.set(chosen)
    try:
        yield
    finally:
        _block.reset(token)
