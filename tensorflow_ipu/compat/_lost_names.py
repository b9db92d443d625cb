"""Restores names that NumPy and TensorFlow have removed, and logs the first use of each."""

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
    """Returns the only element of an array, as in earlier releases of NumPy."""
    return a.item()


def note(old: str, new: str) -> None:
    """Logs the first use of the replacement `new` for the name or type `old`."""
    if old not in _noted:
        _noted.add(old)
        _logger.info("%s is replaced by %s", old, new)


def bridge(changes: Changes) -> None:
    """Restores the names that modules lack; undoing `changes` removes them."""
    by_module: dict[str, dict[str, str]] = {}
    for module, name, target in _names.ATTRIBUTES:
        by_module.setdefault(module, {})[name] = target
    for module, names in by_module.items():
        holder = importlib.import_module(module)
        lost = {name: target for name, target in names.items() if name not in vars(holder)}
        changes.put(holder, "__getattr__", _make_getattr(holder, lost))


def _make_getattr(holder: ModuleType, lost: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module that also finds its lost names."""
    original = vars(holder).get("__getattr__")

    def find(name: str) -> Any:
        if name not in lost:
            if original is not None:
                return original(name)
            raise AttributeError(f"module {holder.__name__!r} has no attribute {name!r}", name=name, obj=holder)
        note(f"`{holder.__name__}.{name}`", f"`{lost[name].removeprefix('builtins:').replace(':', '.')}`")
        return _names.resolve(lost[name])

    return find
