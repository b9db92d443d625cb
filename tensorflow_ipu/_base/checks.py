"""Checks of arguments, and the collection of their errors."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar


class Faults:
    """Collects the errors of a call, and raises them as one exception that has the class of the first error."""

    def __init__(self) -> None:
        self._errors: list[tuple[Callable[[str], Exception], str]] = []

    def add(self, kind: Callable[[str], Exception], message: str) -> None:
        self._errors.append((kind, message))

    def check(self, check: Callable[..., object], *arguments: Any) -> None:
        """Calls `check`, and collects the `TypeError` or `ValueError` that it raises."""
        try:
            check(*arguments)
        except (TypeError, ValueError) as exc:
            self.add(type(exc), str(exc))

    def raise_any(self) -> None:
        """Raises the collected errors, if there are any."""
        if not self._errors:
            return
        kind = self._errors[0][0]
        messages = [message for _, message in self._errors]
        if len(messages) == 1:
            raise kind(messages[0])
        raise kind(f"{len(messages)} faults:\n" + "\n".join(f"  - {message}" for message in messages))


_Method = TypeVar("_Method", bound=enum.Enum)


def is_int(value: object) -> TypeGuard[int]:
    """Returns True if `value` is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_int(value: Any) -> int | None:
    """Returns an integer of Python, NumPy or TensorFlow as an int; None for a bool or any other value."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_number(value: object) -> TypeGuard[int | float]:
    """Returns True if `value` is an int or a float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_int(argument: str, value: object, minimum: int | None = None, maximum: int | None = None) -> None:
    """Raises `TypeError` unless `value` is an int, and `ValueError` if it is below `minimum` or above `maximum`."""
    if not is_int(value):
        raise TypeError(f"`{argument}` must be an int, but is {value!r}")
    limits = f"{minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise ValueError(f"`{argument}={value}` must be {limits}")


def check_instance(argument: str, value: object, kinds: type | tuple[type, ...], description: str) -> None:
    """Raises `TypeError` unless `value` is an instance of `kinds`, which the message calls `description`."""
    if not isinstance(value, kinds):
        raise TypeError(f"`{argument}` must be {description}, but is {value!r}")


def check_bool(argument: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(_bool_message(argument, value, ""))


def note_bool(argument: str, value: object, faults: Faults, *, optional: bool = False) -> bool:
    """Returns True if `value` is a bool, or None and `optional`; otherwise adds an error to `faults`."""
    if isinstance(value, bool) or (optional and value is None):
        return True
    faults.add(TypeError, _bool_message(argument, value, ", False or None" if optional else ""))
    return False


def _bool_message(argument: str, value: object, choices: str) -> str:
    return f"`{argument}` must be True{choices or ' or False'}, but is {value!r}"


def parse_method(methods: type[_Method], value: object) -> _Method:
    """Returns the member of `methods` that `value` is or names, ignoring case; raises `ValueError` if there is none."""
    if isinstance(value, methods):
        return value
    if isinstance(value, str) and value.upper() in methods.__members__:
        return methods[value.upper()]
    raise ValueError(
        f"Cannot parse {value!r} as one of {methods.__name__}. Valid values are: {', '.join(methods.__members__)}"
    )
