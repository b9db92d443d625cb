"""Names that modules of NumPy and TensorFlow have lost, given back to them; the first use of each is logged."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat import _names

_logger = logging.getLogger(__name__)
_noted: set[str] = set()

_NUMPY: dict[str, Any] = {
    **{kind.__name__: kind for kind in (bool, complex, float, int, object, str)},
    "Inf": np.inf,
    "Infinity": np.inf,
    "NAN": np.nan,
    "NINF": -np.inf,
    "NaN": np.nan,
    "PINF": np.inf,
    "alltrue": np.all,
    "asscalar": lambda a: a.item(),
    "cfloat": np.complex128,
    "complex_": np.complex128,
    "cumproduct": np.cumprod,
    "float_": np.float64,
    "in1d": np.isin,
    "infty": np.inf,
    "long": int,
    "longfloat": np.longdouble,
    "product": np.prod,
    "round_": np.round,
    "row_stack": np.vstack,
    "singlecomplex": np.complex64,
    "sometrue": np.any,
    "string_": np.bytes_,
    "trapz": getattr(np, "trapezoid", None),
    "unicode": str,
    "unicode_": np.str_,
}


def note(old: str, new: str) -> None:
    """Logs what stands for something old, once."""
    if old not in _noted:
        _noted.add(old)
        _logger.info("%s is not there any more: it is taken for %s", old, new)


def bridge(changes: Changes) -> None:
    """Gives the names back; undone with `changes`."""
    lent: dict[str, dict[str, tuple[Any, str]]] = {
        "numpy": {name: (value, f"`{getattr(value, '__name__', value)}`") for name, value in _NUMPY.items()}
    }
    for module, name, target in _names.ATTRIBUTES:
        lent.setdefault(module, {})[name] = (_names.resolve(target), f"`{target.replace(':', '.')}`")
    for module, names in lent.items():
        _lend(importlib.import_module(module), names, changes)


def _lend(holder: ModuleType, names: Mapping[str, tuple[Any, str]], changes: Changes) -> None:
    """Has a module find names that it lacks; one that it has stays as it is."""
    own = vars(holder)
    lost = {name: found for name, found in names.items() if name not in own}
    before = own.get("__getattr__")

    def find(name: str) -> Any:
        if name not in lost:
            if before is not None:
                return before(name)
            raise AttributeError(f"module {holder.__name__!r} has no attribute {name!r}", name=name, obj=holder)
        value, what = lost[name]
        note(f"`{holder.__name__}.{name}`", what)
        return value

    changes.put(holder, "__getattr__", find)
