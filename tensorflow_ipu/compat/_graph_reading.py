"""Finds where scripts build and run graphs by names of `tf.compat.v1`, which TensorFlow 2 has too."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from pathlib import Path

from tensorflow_ipu.compat._project import Found, Project
from tensorflow_ipu.compat._reading import Reading, Scope, Use

_V1 = "tensorflow.compat.v1"
_GRAPHS = frozenset({"tensorflow.Graph", f"{_V1}.Graph"})
_PLACEHOLDERS = frozenset(f"{_V1}.{name}" for name in ("placeholder", "sparse_placeholder"))
_SESSIONS = frozenset(
    f"{_V1}.{name}"
    for name in (
        "InteractiveSession",
        "Session",
        "train.MonitoredSession",
        "train.MonitoredTrainingSession",
        "train.SingularMonitoredSession",
        "train.Supervisor",
    )
)
_DATASETS = ("tensorflow.data.", f"{_V1}.data.", "tensorflow.compat.v2.data.")
# How functions call the session that they are given.
_USUAL = frozenset({"sess", "session"})
_OF_FIT = frozenset({"batch_size", "epochs", "steps_per_epoch", "validation_data"})


def graphs(project: Project) -> list[Found]:
    """Returns the places that need a graph where a script makes none itself; nothing where it executes eagerly.

    A session alone is no such place: scripts of TensorFlow 2 make one to configure GPUs. It has to run something, and
    code that nobody calls does not count.
    """
    readings = project.files.values()
    names = {full for reading in readings for use in reading.uses for full in project.meanings(use)}
    if names & _GRAPHS or any(name.endswith(".IPUStrategy") for name in names):
        return []
    if any(_is_eager(project, reading) for reading in readings):
        return []
    called = _called(project)
    places = list[tuple[Path, int, str]]()
    for file, reading in project.files.items():
        uses = (use for use in reading.uses if _is_called(use.scope, called))
        places += [(file, use.line, full) for use in uses for full in project.meanings(use)]
    found = [place for place in places if place[2] in _PLACEHOLDERS]
    sessions = [place for place in places if place[2] in _SESSIONS]
    if sessions and any(_runs(project, reading, called) for reading in readings):
        found += sessions
    return sorted(Found(str(file), line, f"`{full}` needs a graph") for file, line, full in found)


def _called(project: Project) -> set[str]:
    """The names of functions and classes that code which is executed mentions."""
    names = [name for reading in project.files.values() for name in reading.names]
    called, size = {"main"}, 0  # Which `tf.compat.v1.app.run()` calls.
    while len(called) > size:
        size = len(called)
        called |= {name for name, scope in names if _is_called(scope, called)}
    return called


def _is_called(scope: Scope | None, called: Collection[str]) -> bool:
    while scope is not None:
        if scope.name and scope.name not in called and not scope.name.startswith("__"):
            return False
        scope = scope.parent
    return True


def _runs(project: Project, reading: Reading, called: Collection[str]) -> bool:
    """Whether code that is executed has a session run something."""
    sessions = _USUAL | _names_of(project, reading, _SESSIONS.__contains__)
    for call in reading.calls:
        func = _func(call)
        if not isinstance(func, ast.Attribute) or not _is_called(call.scope, called):
            continue
        if func.attr == "run" and (_last(func.value) in sessions or _is_made(project, func.value, call.scope)):
            return True
        if func.attr == "eval" and not _node(call).args:  # Of a tensor, by the session around it.
            return True
    return False


def _is_made(project: Project, node: ast.expr, scope: Scope) -> bool:
    return bool(_makers(project, node, scope) & _SESSIONS)


def _is_eager(project: Project, reading: Reading) -> bool:
    """Whether a file has what graphs of TensorFlow 1 refuse, or Keras does otherwise with them."""
    for call in reading.calls:
        func = _func(call)
        if isinstance(func, ast.Attribute) and not project.meanings(Use(call.line, func, call.scope)):
            options = {keyword.arg for keyword in _node(call).keywords}
            if func.attr == "compile" or (func.attr == "fit" and options & _OF_FIT):
                return True
    datasets = _names_of(project, reading, lambda full: full.startswith(_DATASETS))
    iterated = [call for call in reading.calls if getattr(_func(call), "id", None) == "iter" and _node(call).args]
    over = [*reading.loops, *(Use(call.line, _node(call).args[0], call.scope) for call in iterated)]
    return any(
        getattr(node, "id", None) in datasets
        or any(full.startswith(_DATASETS) for full in _makers(project, node, use.scope))
        for use in over
        if not isinstance(use.node, (ast.List, ast.Tuple))  # That has datasets, and is none.
        for node in ast.walk(use.node)
        if isinstance(node, (ast.Call, ast.Name))
    )


def _names_of(project: Project, reading: Reading, makes: Callable[[str], bool]) -> set[str]:
    """The names, or last words of attributes, that hold what a function makes."""
    return {
        _last(target) for target, value, scope in reading.assigned if any(map(makes, _makers(project, value, scope)))
    } - {""}


def _makers(project: Project, node: ast.expr, scope: Scope) -> set[str]:
    """What a chain of calls, such as `tf.data.Dataset.range(3).batch(2)`, begins with."""
    found = set[str]()
    while isinstance(node, (ast.Call, ast.Attribute)):
        if isinstance(node, ast.Call):
            node = node.func
            found = project.meanings(Use(node.lineno, node, scope))
        else:
            node = node.value
    return found


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _node(call: Use) -> ast.Call:
    assert isinstance(call.node, ast.Call)
    return call.node


def _func(call: Use) -> ast.expr:
    return _node(call).func
