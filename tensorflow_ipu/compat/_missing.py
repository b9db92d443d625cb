"""Finds the old names that do not exist, or have no effect, of those that files of Python use."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._api_files import OURS
from tensorflow_ipu.compat._names import Absent
from tensorflow_ipu.compat._project import Found, Project, begin
from tensorflow_ipu.compat._reading import Reading, Use


def missing(project: Project) -> list[Found]:
    """What does not exist of what files use, but for Keras's own names."""
    # Left out is what stands in a `try` that catches the error, or below `hasattr`; so are uses of a name that its scope
    # also binds otherwise than by an import or a renaming.
    return list(_found(project, _missing))


def refused(project: Project) -> list[Found]:
    """Arguments that functions and classes do not take here, of those that files pass by name."""
    return list(_found(project, _refused))


def recorded(project: Project) -> list[Found]:
    """What has no effect of what files use."""
    return list(_found(project, _recorded))


def _found(project: Project, say: Callable[[Project, Reading], Iterator[tuple[int, str]]]) -> Iterator[Found]:
    for file, reading in project.files.items():
        yield from sorted({Found(str(file), line, message) for line, message in say(project, reading)})


def _missing(project: Project, reading: Reading) -> Iterator[tuple[int, str]]:
    for needed in reading.imports:
        message = _missing_import(needed.module, needed.name)
        if message is not None:
            yield needed.line, message
    for use in reading.uses:
        # What is missing of its first name is told at the import.
        if isinstance(use.node, ast.Attribute) and not _all_missing(project.meanings(begin(use))):
            messages = _all_missing(project.meanings(use))
            if messages:
                yield use.line, messages[0]
        for module in project.sources(use):
            if isinstance(use.node, ast.Name) and isinstance(_names.target(module, use.node.id), Absent):
                yield use.line, _names.missing_name(module, use.node.id) or ""


def _all_missing(names: set[str]) -> list[str]:
    """The messages for names of which one has to exist; none where one does."""
    messages = [_missing_use(full) for full in sorted(names)]
    return [] if None in messages else [message for message in messages if message]


def _refused(project: Project, reading: Reading) -> Iterator[tuple[int, str]]:
    for call in reading.calls:
        node = call.node
        assert isinstance(node, ast.Call)
        meant = project.meanings(Use(call.line, node.func, call.scope))
        for full in meant if len(meant) == 1 else ():
            module, name = _split(full)
            target = _names.target(module, name) if f"{module}.{name}" == full else None
            place = target.split(":") if isinstance(target, str) and target.startswith(OURS.package) else []
            takes = OURS.arguments_at(*place) if len(place) == 2 else None
            if takes is None or takes.others:
                continue
            unknown = [one.arg for one in node.keywords if one.arg is not None and one.arg not in takes.keywords]
            yield from ((call.line, f"`{full}` takes no `{name}`") for name in unknown)


def _recorded(project: Project, reading: Reading) -> Iterator[tuple[int, str]]:
    for use in reading.uses:
        for full in sorted(project.meanings(use)):
            module, name = _split(full)
            what = _names.recorded(_names.target(module, name)) if name else None
            if what is not None:
                yield use.line, f"`{module}.{name}` changes no result: {what}"


def _missing_import(module: str, name: str | None) -> str | None:
    if _names.is_of_keras(module) or (name and _names.is_of_keras(f"{module}.{name}")):
        return None
    words = module.split(".")
    around = (".".join(words[:end]) for end in range(1, len(words) + 1))
    message = next(filter(None, map(_names.missing_module, around)), None) or _missing_companion(module)
    if message is not None or name is None:
        return message
    if _names.module_exists(module):
        return _names.missing_name(module, name)
    return _names.missing_module(f"{module}.{name}")


def _missing_companion(module: str) -> str | None:
    top = module.partition(".")[0]
    if top not in _names.COMPANIONS or importlib.util.find_spec(top) is not None:
        return None
    return f"there is no package `{top}`: it belongs to Graphcore's SDK, and tensorflow_ipu has nothing in its place"


def _missing_use(full: str) -> str | None:
    module, name = _split(full)
    if not name or _names.is_of_keras(module) or module == _names.CONTRIB:  # Of which others read.
        return None
    return _names.missing_name(module, name)


def _split(full: str) -> tuple[str, str]:
    """The innermost old module in a full name, and the word after it; empty where there is neither."""
    words = full.split(".")
    for end in range(len(words) - 1, 0, -1):
        module = ".".join(words[:end])
        if _names.module_exists(module):
            return module, words[end]
    return "", ""
