"""The reports that an environment variable asks for: one of each program, when it is run for the first time."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorflow_ipu import _environment

if TYPE_CHECKING:
    from tensorflow_ipu.machine import Report

_warned = False


def auto_reports() -> AutoReports | None:
    """What `POPLAR_ENGINE_OPTIONS` asks for now; None for no reports."""
    directory = _environment.report_directory()
    return None if directory is None else AutoReports(directory)


class AutoReports:
    """Saves a report of each program in a folder. A run never fails for its report."""

    def __init__(self, directory: str) -> None:
        """Takes the folder, which is made with the first report."""
        self._directory = directory
        self._seen: weakref.WeakSet[object] = weakref.WeakSet()  # Programs.

    def save(self, program: object, make: Callable[[], Report]) -> None:
        """Saves the report of a program, once."""
        if program in self._seen:
            return
        self._seen.add(program)
        from tensorflow_ipu import machine  # Not with the package: few programs ask.

        try:
            machine.autosave(make(), self._directory)
        except Exception as exc:
            self.warn(f"{type(exc).__name__}: {exc}")

    def warn(self, reason: str) -> None:
        """Says why a program has no report, once in a process."""
        global _warned  # noqa: PLW0603
        if not _warned:
            _warned = True
            variable = _environment.ENGINE_VARIABLE
            warnings.warn(f"`{variable}` asks for reports, and a program has none: {reason}", stacklevel=4)
