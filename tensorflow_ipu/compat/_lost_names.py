"""Names that modules of NumPy and TensorFlow have lost, given back to them; the first use of each is logged."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat import _names

_logger = logging.getLogger(__name__)
_noted: set[str] = set()

NINF = float("-inf")


def asscalar(a: np.ndarray) -> Any:
    """Returns the only element of an array, as NumPy did."""
    return a.item()


def note(old: str, new: str) -> None:
    """Logs what stands for something old, once."""
    if old not in _noted:
        _noted.add(old)
        _logger.info("%s is not there any more: it is taken for %s", old, new)


def bridge(changes: Changes) -> None:
    """Gives modules the names that they lack back; undone with `changes`."""
    lent: dict[str, dict[str, str]] = {}
    for module, name, target in _names.ATTRIBUTES:
        lent.setdefault(module, {})[name] = target
    for module, names in lent.items():
        holder = importlib.import_module(module)
        lost = {name: target for name, target in names.items() if name not in vars(holder)}
        changes.put(holder, "__getattr__", _finding(holder, lost))


def _finding(holder: ModuleType, lost: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a module's `__getattr__`, which also finds the names that are lost."""
    before = vars(holder).get("__getattr__")

    def find(name: str) -> Any:
        if name not in lost:
            if before is not None:
                return before(name)
            raise AttributeError(f"module {holder.__name__!r} has no attribute {name!r}", name=name, obj=holder)
        note(f"`{holder.__name__}.{name}`", f"`{lost[name].removeprefix('builtins:').replace(':', '.')}`")
        return _names.resolve(lost[name])

    return find
