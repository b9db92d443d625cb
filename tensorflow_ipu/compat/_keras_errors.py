"""Tells errors of Keras 3 from others."""

from __future__ import annotations

import os
import traceback
from importlib.util import find_spec
from types import ModuleType

_KERAS = "keras"
# Keras calls these, and they know nothing of it.
_BELOW = ("tensorflow", "numpy", "optree")


def is_of_keras(exc: BaseException) -> bool:
    """Returns True if Keras raised an error, or lacks a name, a module or an attribute that was asked of it."""
    if isinstance(exc, ImportError) and _is_below(exc.name or ""):
        return True
    if isinstance(exc, AttributeError) and exc.obj is not None:
        holder = exc.obj
        modules = (
            [holder.__name__] if isinstance(holder, ModuleType) else [kind.__module__ for kind in type(holder).__mro__]
        )
        if any(map(_is_below, modules)):
            return True
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(exc.__traceback__)]
    skipped = tuple(filter(None, map(_folder, _BELOW)))
    while files and files[-1].startswith(skipped):
        files.pop()
    return bool(files) and files[-1].startswith(_folder(_KERAS) or "\0")


def _is_below(module: str) -> bool:
    return module.partition(".")[0] == _KERAS


def _folder(package: str) -> str:
    spec = find_spec(package)
    return "" if spec is None or spec.origin is None else os.path.join(os.path.dirname(spec.origin), "")
