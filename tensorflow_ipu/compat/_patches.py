"""Changes to modules and classes of others that can all be taken back."""

from __future__ import annotations

import importlib
from typing import Any

_NOTHING = object()


class Patches:
    """Remembers what stood where something was put. Not thread-safe."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, holder: Any, name: str, value: Any) -> None:
        """Sets an attribute of a module or class."""
        self._before.append((holder, name, vars(holder).get(name, _NOTHING)))
        setattr(holder, name, value)

    def add(self, module: str, name: str, value: Any) -> None:
        """Gives a module a name that it lacks; one that it has stays as it is."""
        holder = importlib.import_module(module)
        if not hasattr(holder, name):
            self.put(holder, name, value)

    def undo(self) -> None:
        """Takes everything back, the last change first."""
        while self._before:
            holder, name, before = self._before.pop()
            if before is _NOTHING:
                delattr(holder, name)
            else:
                setattr(holder, name, before)
