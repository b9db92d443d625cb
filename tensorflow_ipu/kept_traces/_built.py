"""Optimizers that a trace builds, which makes their variables: all that one may change of what it reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorflow_ipu.kept_traces._reach import NotKept, Reached

# Tells the variables that an optimizer was built for; Keras's own side of the package says how.
_variables_of: list[Callable[[Any], Sequence[Any]]] = []


def by(variables_of: Callable[[Any], Sequence[Any]]) -> None:
    """Says what tells the variables that an optimizer of Keras was built for."""
    _variables_of[:] = [variables_of]


def unbuilt(reached: Reached) -> list[Any]:
    """The optimizers that have no variables yet."""
    return [each for each in reached.optimizers if not each.built] if _variables_of else []


def built(optimizers: Sequence[Any], before: Reached) -> list[tuple[int, list[int]]]:
    """Those of `unbuilt` that are built now, by number, with the numbers of the variables that they are for.

    Raises:
      NotKept: A variable was not reached.
    """
    found: list[tuple[int, list[int]]] = []
    for optimizer in optimizers:
        if not optimizer.built:
            continue
        numbers = [before.number_of(each) for each in _variables_of[0](optimizer)]
        number = before.number_of(optimizer)
        if number is None or None in numbers:
            raise NotKept(
                f"the optimizer `{optimizer.name}` was built for variables that are not found in what it names"
            )
        found.append((number, [each for each in numbers if each is not None]))
    return found


def build(found: Sequence[tuple[int, list[int]]], reached: Reached) -> None:
    """Does the same in another process. The caller has entered the strategy's scope."""
    for number, variables in found:
        reached.object(number).build([reached.object(each) for each in variables])
