"""What a program captured, as places that another process finds too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.feeds import stored as stored_feeds
from tensorflow_ipu.kept_traces._reach import NotKept, Reached
from tensorflow_ipu.ops import stored as stored_states

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction

# A kind, and where of that kind it is.
Place = tuple[str, int]


def places_of(program: ConcreteFunction, reached: Reached) -> tuple[list[Place], list[int]]:
    """Where what a program captured is found, and which of the variables that are reached are its own.

    Args:
      program: The program.
      reached: What its function reaches, now that it was traced.

    Raises:
      NotKept: Something is not found.
    """
    handles: dict[int, Place] = {id(each.handle): ("variable", at) for at, each in enumerate(reached.variables)}
    tensors: dict[int, Place] = {id(each): ("tensor", at) for at, each in enumerate(reached.tensors)}
    feeds: dict[int, Place] = {id(each): ("feed", at) for at, each in enumerate(reached.feeds)}
    captured: list[Place] = []
    for tensor in program.captured_inputs:
        feed = getattr(tensor, "_ipu_feed", None)
        place = handles.get(id(tensor)) or tensors.get(id(tensor)) or (feed and feeds.get(id(feed)))
        if place is None and feed is not None:
            place = _state(tensor)
        if place is None:
            raise NotKept(
                f"the program captured {_described(program, tensor)}, which is not found in the function's names"
            )
        captured.append(place)
    return captured, [handles[id(each.handle)][1] for each in program.variables]


def found_at(places: Sequence[Place], reached: Reached, device: str) -> list[tf.Tensor]:
    """What a program captures that captured these places in another process."""
    found: list[tf.Tensor] = []
    for kind, at in places:
        if kind == "variable":
            found.append(reached.variables[at].handle)
        elif kind == "tensor":
            found.append(reached.tensors[at])
        elif kind == "feed":
            found.append(reached.feeds[at].state(device))
        elif kind == "order":
            found.append(stored_feeds.shared_order(device))
        else:
            found.append(stored_states.shared(kind, device))
    return found


def _state(tensor: tf.Tensor) -> Place | None:
    """The place of a state that belongs to the device."""
    known = stored_feeds.described(tensor)
    if known is None or known["kind"] != "other":
        return None if known is None or known["kind"] != "order" else ("order", 0)
    kind = stored_states.kind(tensor)
    return None if kind is None else (kind, 0)


def _described(program: ConcreteFunction, tensor: tf.Tensor) -> str:
    for variable in program.variables:
        if variable.handle is tensor:
            return f"the variable `{variable.name}`"
    return f"a tensor of type {tensor.dtype.name} and shape {tensor.shape}"
