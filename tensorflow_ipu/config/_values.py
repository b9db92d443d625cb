"""How values of attributes are written as plain data and read back."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable
from enum import Enum
from typing import Any


def encode(value: object) -> Any:
    """Plain data for `value`: the name of an enumerator, a list for a tuple, otherwise a copy."""
    if isinstance(value, Enum):
        return str(value)
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


def decode(name: str, value: object, hint: object) -> Any:
    """The value of attribute `name` that `encode` wrote as `value`."""
    if not (isinstance(hint, type) and issubclass(hint, Enum) and type(value) is str):
        return copy.deepcopy(value)
    spelled = value.removeprefix(f"{hint.__name__}.")
    if spelled not in hint.__members__:
        known = {member.name: str(member) for member in hint}
        raise ValueError(f"`{name}` has no enumerator `{value}`{did_you_mean(spelled, known)}")
    return hint[spelled]


def did_you_mean(name: str, known: dict[str, str]) -> str:
    """The end of a message about the unknown `name`."""
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"; did you mean `{known[nearest[0]]}`?"
    return f"; known are {listing(known.values())}"


def listing(names: Iterable[str], most: int = 12) -> str:
    """Up to `most` of `names` in backticks, with a word on how many there are beyond."""
    unique = list(dict.fromkeys(names))
    text = ", ".join(f"`{name}`" for name in unique[:most])
    return text if len(unique) <= most else f"{text} and {len(unique) - most} more"


def show(value: object) -> str:
    """`value` as a user would write it."""
    return str(value) if isinstance(value, Enum) else repr(value)
