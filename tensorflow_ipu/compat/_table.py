"""The rows of the tables by which old names are found."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOT_YET = "it is not available in this version of tensorflow_ipu"


@dataclass(frozen=True)
class Absent:
    """Stands for an old name that exists nowhere."""

    reason: str = NOT_YET


# Where a name is, as `package.module:attribute`; or why it is nowhere.
Target = str | Absent


@dataclass(frozen=True)
class Module:
    """An old module."""

    names: Mapping[str, Target] = field(default_factory=dict)
    note: str = ""


def here(module: str, *names: str) -> dict[str, Target]:
    """Rows for names, separated by blanks, that `module` has under the same name."""
    return {name: f"{module}:{name}" for name in " ".join(names).split()}


def absent(*names: str, reason: str = NOT_YET) -> dict[str, Target]:
    """Rows for names, separated by blanks, that exist nowhere."""
    return dict.fromkeys(" ".join(names).split(), Absent(reason))


def resolve(target: str) -> Any:
    """Imports what a target names: a name of a module, or a module where it has no colon."""
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


# The place of a name, and what becomes of its use.
RECORDED: dict[str, str] = {
    "tensorflow_ipu.config:move_variable_initialization_to_cpu": "initial values are computed on the host in any case",
    "tensorflow_ipu.ops.internal_ops:remap": "it asks for a layout on tiles, of which there are none here",
    "tensorflow_ipu.ops.internal_ops:remap_deduce": "it asks for a layout on tiles, of which there are none here",
    "tensorflow_ipu.scopes:ipu_jit_scope": "`ipu_compiler.compile` and `IPUStrategy.run` say what becomes one program",
    "tensorflow_ipu.sharding:enable_sharded_gradient_tape": "gradients follow the shards of their operations in any case",
}

_OPTIONS = {"MODEL": "for the machine's report", "RECORDED": "checked, and nothing changes by it"}


def recorded(target: Target | None) -> str | None:
    """What becomes of the use of a name at this place; None where it has its effect."""
    return RECORDED.get(target) if isinstance(target, str) else None


def of_option(effect: str) -> str | None:
    """The same for an option of `IPUConfig`, by the name of its effect."""
    return _OPTIONS.get(effect)
