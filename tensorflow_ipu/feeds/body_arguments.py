"""The elements of an infeed as the arguments of a loop's body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow_ipu.feeds import _element
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested


def take(queue: IPUInfeedQueue) -> tuple[list[Nested], dict[str, Nested]]:
    """Takes the next element in the program being traced: the arguments by position, and those by name."""
    return _element.arguments(queue._dequeue())


def expected(queue: IPUInfeedQueue) -> tuple[int, tuple[str, ...]]:
    """How many arguments an element is by position, and the names of those by name."""
    positional, named = _element.arguments(queue.element_spec)
    return len(positional), tuple(named)


def specs(queue: IPUInfeedQueue) -> tuple[list[Nested], dict[str, Nested]]:
    """The arguments that an element is, as `tf.TensorSpec`: by position, and by name."""
    return _element.arguments(queue.element_spec)
