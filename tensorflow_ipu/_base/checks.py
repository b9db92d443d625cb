"""Checks of arguments that many functions share."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar


class Faults:
    """Collects faults and raises them as one exception of the first one's kind."""

    def __init__(self) -> None:
        self._found: list[tuple[Callable[[str], Exception], str]] = []

    def add(self, kind: Callable[[str], Exception], message: str) -> None:
        self._found.append((kind, message))

    def check(self, check: Callable[..., object], *arguments: Any) -> None:
        """Calls `check`, and records the `TypeError` or `ValueError` that it raises."""
        try:
            check(*arguments)
        except (TypeError, ValueError) as exc:
            self.add(type(exc), str(exc))

    def raise_any(self) -> None:
        """Raises what was recorded, if anything was."""
        if not self._found:
            return
        kind = self._found[0][0]
        messages = [message for _, message in self._found]
        if len(messages) == 1:
            raise kind(messages[0])
        raise kind(f"{len(messages)} faults:\n" + "\n".join(f"  - {message}" for message in messages))


_Method = TypeVar("_Method", bound=enum.Enum)


def is_int(value: object) -> TypeGuard[int]:
    """Returns True for an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_int(value: Any) -> int | None:
    """Returns a whole number of any kind (Python's, NumPy's, a tensor) as an int; None for a bool and all else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_number(value: object) -> TypeGuard[int | float]:
    """Returns True for an int or a float that is no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_int(argument: str, value: object, least: int | None = None, most: int | None = None) -> None:
    """Raises `TypeError` unless a value is an int, and `ValueError` if it is below `least` or above `most`."""
    if not is_int(value):
        raise TypeError(f"`{argument}` must be an int, but is {value!r}")
    limits = f"{least} or more" if most is None else f"from {least} to {most}"
    if (least is not None and value < least) or (most is not None and value > most):
        raise ValueError(f"`{argument}={value}` must be {limits}")


def check_instance(argument: str, value: object, kinds: type | tuple[type, ...], description: str) -> None:
    """Raises `TypeError` unless a value is an instance of `kinds`, which the message calls `description`."""
    if not isinstance(value, kinds):
        raise TypeError(f"`{argument}` must be {description}, but is {value!r}")


def check_bool(argument: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(_no_bool(argument, value, ""))


def note_bool(argument: str, value: object, faults: Faults, *, optional: bool = False) -> bool:
    """Records a fault for a value that is no bool, nor None if `optional`; returns True if it is fine."""
    if isinstance(value, bool) or (optional and value is None):
        return True
    faults.add(TypeError, _no_bool(argument, value, ", False or None" if optional else ""))
    return False


def _no_bool(argument: str, value: object, choices: str) -> str:
    return f"`{argument}` must be True{choices or ' or False'}, but is {value!r}"


def parse_method(methods: type[_Method], value: object) -> _Method:
    """Returns a member of an enumeration, passed as itself or by its name in any case."""
    if isinstance(value, methods):
        return value
    if isinstance(value, str) and value.upper() in methods.__members__:
        return methods[value.upper()]
    raise ValueError(
        f"Cannot parse {value!r} as one of {methods.__name__}. Valid values are: {', '.join(methods.__members__)}"
    )
