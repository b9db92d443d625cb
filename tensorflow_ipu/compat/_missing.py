"""Finds uses of old names that do not exist or have no effect."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._project import Finding, Project
from tensorflow_ipu.compat._reading import Reading


def missing(project: Project) -> list[Finding]:
    """Returns the uses of old names that do not exist, except names of Keras and of `tf.contrib`.

    Code that handles a missing name is skipped, such as a `try` that catches the error, or a block below `hasattr`.
    A name that may mean something else is skipped too, such as an imported name that is also a loop variable.
    """
    return _findings(project, lambda reading: project.problems(reading, _problem))


def recorded(project: Project) -> list[Finding]:
    """Returns the uses of names that have no effect."""
    return _findings(project, lambda reading: _recorded(project, reading))


def _findings(project: Project, places: Callable[[Reading], Iterator[tuple[int, str]]]) -> list[Finding]:
    """Returns the findings of all files, sorted by the order of imports, then by line."""
    findings = list[Finding]()
    for file, reading in project.files.items():
        findings += sorted({Finding(str(file), line, message) for line, message in places(reading)})
    return findings


def _recorded(project: Project, reading: Reading) -> Iterator[tuple[int, str]]:
    for line, full in project.meanings(reading):
        module, name = _split(full)
        reason = _names.recorded(_names.target(module, name)) if name else None
        if reason is not None:
            yield line, f"`{module}.{name}` changes no result: {reason}"


def _problem(full: str) -> str | None:
    top = full.partition(".")[0]
    if top in _names.COMPANIONS and importlib.util.find_spec(top) is None:
        return (
            f"there is no package `{top}`: it belongs to Graphcore's SDK, and tensorflow_ipu has nothing in its place"
        )
    module, name = _split(full)
    if not name or _names.is_of_keras(module) or module == _names.CONTRIB:
        return None
    return _names.missing_name(module, name)


def _split(full: str) -> tuple[str, str]:
    """Returns the innermost old module in a full name and the name after it, or two empty strings."""
    parts = full.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        if _names.module_exists(module):
            return module, parts[end]
    return "", ""
