"""The rows by which old names are found: what they are made of, and how they are read."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOT_YET = "it is not available in this version of tensorflow_ipu"


@dataclass(frozen=True)
class Absent:
    """Stands where an old name has nothing to stand for."""

    reason: str = NOT_YET


# Where a name is, as `package.module:attribute`; or why it is nowhere.
Target = str | Absent


@dataclass(frozen=True)
class Module:
    """An old module."""

    names: Mapping[str, Target] = field(default_factory=dict)
    note: str = ""


def here(module: str, *names: str) -> dict[str, Target]:
    """Rows for names that `module` has under the same name."""
    return {name: f"{module}:{name}" for name in names}


def absent(*names: str, reason: str = NOT_YET) -> dict[str, Target]:
    """Rows for names that exist nowhere."""
    return dict.fromkeys(names, Absent(reason))


def resolve(target: str) -> Any:
    """Imports what a target names: a name of a module, or a module where it has no colon."""
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found
