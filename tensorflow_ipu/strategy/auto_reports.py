"""Reports that `POPLAR_ENGINE_OPTIONS` asks for, one of each program that runs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from tensorflow_ipu._base import environment, lifetimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow_ipu.analysis.machine import Report

_warned = False


def auto_reports() -> AutoReports | None:
    """The reports that `POPLAR_ENGINE_OPTIONS` asks for, or None."""
    directory = environment.report_directory()
    return None if directory is None else AutoReports(directory)


class AutoReports:
    """Saves a report of each program in a folder. A run never fails for its report."""

    def __init__(self, directory: str) -> None:
        """Takes the folder, which is made with the first report."""
        self._directory = directory
        self._seen = lifetimes.WeakObjects()  # Programs.

    def save(self, program: object, make: Callable[[], Report]) -> None:
        """Saves the report of a program, once."""
        if program in self._seen:
            return
        self._seen.add(program)
        from tensorflow_ipu.analysis import machine

        try:
            machine.autosave(make(), self._directory)
        except Exception as exc:
            self.warn(f"{type(exc).__name__}: {exc}")

    def warn(self, reason: str) -> None:
        """Warns once in a process that a program has no report."""
        global _warned  # noqa: PLW0603
        if not _warned:
            _warned = True
            variable = environment.ENGINE_VARIABLE
            warnings.warn(f"`{variable}` asks for reports, and a program has none: {reason}", stacklevel=4)
