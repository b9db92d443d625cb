"""Optimizers that a trace builds, which makes their variables: all that one may change of what it reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tensorflow_ipu.kept_traces._reach import NotKept, Reached

# Tells the variables that an optimizer was built for; Keras's own side of the package says how.
_variables_of: list[Callable[[Any], Sequence[Any]]] = []


class Built(NamedTuple):
    """An optimizer that a trace has built.

    Attributes:
      optimizer: Its number.
      variables: The numbers of the variables that it was built for, in a list or tuple as it was given them.
      scope: The name scope that it was built in, such as `while/` in a loop: its slots have it in their names.
    """

    optimizer: int
    variables: Sequence[int]
    scope: str


def by(variables_of: Callable[[Any], Sequence[Any]]) -> None:
    """Says what tells the variables that an optimizer of Keras was built for."""
    _variables_of[:] = [variables_of]


def unbuilt(reached: Reached) -> list[Any]:
    """The optimizers that have no variables yet."""
    return [each for each in reached.optimizers if not each.built] if _variables_of else []


def built(optimizers: Sequence[Any], before: Reached) -> list[Built]:
    """Those of `unbuilt` that are built now, each before those that it has built in its turn.

    Raises:
      NotKept: A variable was not reached, or an optimizer's slots are not where `build` makes them.
    """
    found: list[Built] = []
    made: set[int] = set()
    for optimizer in sorted(optimizers, key=lambda each: -len(each.variables)):
        slots = [each for each in optimizer.variables if before.number_of(each) is None]
        if not optimizer.built or (slots and made.issuperset(map(id, slots))):
            continue
        made.update(map(id, slots))
        variables = _variables_of[0](optimizer)
        numbers = [before.number_of(each) for each in variables]
        number = before.number_of(optimizer)
        if number is None or None in numbers:
            raise NotKept(
                f"the optimizer `{optimizer.name}` was built for variables that are not found in what it names"
            )
        known = [each for each in numbers if each is not None]
        given = tuple(known) if isinstance(variables, tuple) else known
        found.append(Built(number, given, _scope(optimizer, slots)))
    return found


def _scope(optimizer: Any, slots: Sequence[Any]) -> str:
    """The name scope that an optimizer was built in."""
    scopes: set[str] = set()
    for slot in slots:
        name = slot.value.name.partition(":")[0]
        if not slot.path.startswith(f"{optimizer.name}/") or not name.endswith(slot.path):
            raise NotKept(
                f"the optimizer `{optimizer.name}` was built by itself, and not by what it applies: its slot `{slot.path}`"
                f" is called `{name}`. Build it before the program is run"
            )
        scopes.add(name.removesuffix(slot.path))
    if len(scopes) > 1:
        raise NotKept(f"the optimizer `{optimizer.name}` was built in several name scopes, {sorted(scopes)}")
    return "".join(scopes)


def build(found: Sequence[Built], reached: Reached) -> None:
    """Does the same in another process. The caller has entered the strategy's scope."""
    for number, variables, scope in found:
        optimizer = reached.object(number)
        given = [reached.object(each) for each in variables]
        # As `apply` does, in whose scope Keras opens none of the same name.
        with keras.name_scope(optimizer.name, caller=optimizer), tf.name_scope(f"{scope}{optimizer.name}/"):
            optimizer.build(tuple(given) if isinstance(variables, tuple) else given)
