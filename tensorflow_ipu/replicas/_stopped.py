"""Says where in the user's code the operation was made whose numbers stopped a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tensorflow_ipu.replicas._called_functions import without_inlining
from tensorflow_ipu.replicas._description import user_lines

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow import functions

# How `ffi/precision_check.cc` begins, up to the name of the operation.
_FAULT = re.compile(
    r"Floating point exception: (?P<operation>\w* `(?P<name>[^`]*)`)(?P<rest>.*?)(?: \[Op:.*)?$", re.DOTALL
)


def why(program: functions.ConcreteFunction | None, error: str) -> str | None:
    """What stopped a program, with the user's line.

    Args:
      program: The concrete function, whose run failed; None where it was traced elsewhere, and no line is known.
      error: The message of the failure.

    Returns:
      The message for the user; None if something else stopped it.
    """
    found = _FAULT.search(error)
    if found is None:
        return None
    line = None if program is None else user_lines(program).get(without_inlining(found["name"]))
    place = f" ({line})" if line else ""
    return f"Floating point exception: {found['operation']}{place}{found['rest']}"
