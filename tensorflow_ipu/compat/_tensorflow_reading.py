"""Finds the names of TensorFlow in files of Python that only one of TensorFlow 1 and 2 has, or none."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu.compat import _graph_reading, _names
from tensorflow_ipu.compat._api_files import KERAS_2, KERAS_3, TENSORFLOW_1, TENSORFLOW_2, Api
from tensorflow_ipu.compat._project import Found, Project, begin
from tensorflow_ipu.compat._reading import Reading, Use

_TF, _V1 = "tensorflow", "tensorflow.compat.v1"
_CONTRIB = _names.CONTRIB

# Below `tensorflow`, what is no part of its public names, or is Keras, of which others read.
_OTHERS = frozenset(
    {"_api", "compat", "compiler", "core", "estimator", "include", "keras", "lite", "python", "tools", "tsl"}
)
# Of `tf`, and Keras's.
_OF_KERAS = frozenset({"initializers", "losses", "metrics", "optimizers"})
# Modules of `tf.compat.v1` that are put there when it is imported.
_LATE = ("app.flags", "layers", "nn.rnn_cell")

# What says itself how a program executes.
_EAGER = frozenset(
    {
        "GradientTape",
        "disable_eager_execution",
        "disable_v2_behavior",
        "enable_eager_execution",
        "enable_v2_behavior",
        "function",
    }
)


class Version(enum.Enum):
    """The TensorFlow that has a name."""

    ONE = enum.auto()
    TWO = enum.auto()
    BOTH = enum.auto()
    NONE = enum.auto()


@dataclass(frozen=True)
class OldTensorFlow:
    """What a script for TensorFlow 1 needs."""

    files: frozenset[Path] = frozenset()  # Those for which `tensorflow` is `tf.compat.v1`.
    in_graphs: bool = False  # As without eager execution.
    because: tuple[Found, ...] = ()


def old_tensorflow(project: Project) -> OldTensorFlow:
    """Returns what a script needs of TensorFlow 1; nothing where it is for TensorFlow 2.

    If no file of a script has a name that only TensorFlow 2 has, all get `tf.compat.v1`; else those that need it alone.
    """
    of_1, of_2 = list[Found](), set[Path]()
    is_eager = False
    for file, reading in project.files.items():
        uses = list(_uses(project, reading))
        of_1 += [_only_1(file, line, full) for line, full, version in uses if version is Version.ONE]
        of_2 |= {file for _, _, version in uses if version is Version.TWO}
        names = (full for use in reading.uses for full in project.meanings(use))
        is_eager |= any(full.startswith(f"{_TF}.") and full.rpartition(".")[2] in _EAGER for full in names)
        is_eager |= any(isinstance(call.node, ast.Call) and _is_numpy(call.node) for call in reading.calls)
    graphs = [] if of_1 or of_2 or is_eager else _graph_reading.graphs(project)
    in_graphs = bool(graphs or (of_1 and not of_2 and not is_eager))
    files = {Path(found.path) for found in of_1} if of_2 else set(project.files if of_1 else ())
    files -= of_2
    because = [found for found in of_1 if Path(found.path) in files] or graphs
    return OldTensorFlow(frozenset(files), in_graphs, tuple(because))


def lost(project: Project, old: OldTensorFlow) -> list[Found]:
    """Returns the places of names that no TensorFlow has any more, or not the one that a file gets."""
    found = set[Found]()
    for file, reading in project.files.items():
        for line, full, version in _uses(project, reading):
            if version is Version.NONE and full.startswith(f"{_CONTRIB}."):
                part = full.removeprefix(f"{_CONTRIB}.").partition(".")[0]
                found.add(Found(str(file), line, _names.missing_name(_CONTRIB, part) or ""))
            elif version is Version.NONE:
                found.add(Found(str(file), line, f"TensorFlow has no `{full}` any more"))
            elif version is Version.ONE and file not in old.files:
                found.add(_only_1(file, line, full))
    return sorted(found)


def _only_1(file: Path, line: int, full: str) -> Found:
    return Found(str(file), line, f"only TensorFlow 1 has `{full}`")


def _uses(project: Project, reading: Reading) -> Iterator[tuple[int, str, Version]]:
    """The line, the full name and the version of each name of `tensorflow` that a file uses, with its arguments."""
    for needed in reading.imports:
        full = f"{needed.module}.{needed.name}" if needed.name else needed.module
        if not full.startswith(_CONTRIB):  # Of which others tell.
            yield from ((needed.line, full, version) for version in _version(full))
    for use in reading.uses:
        before = project.meanings(begin(use))
        for full in project.meanings(use) if len(before) == 1 else ():
            # What its first name is without, is told at the import.
            if Version.NONE not in _version(next(iter(before))):
                yield from ((use.line, full, version) for version in _version(full))
    for call in reading.calls:
        node = call.node
        assert isinstance(node, ast.Call)
        for full in project.meanings(Use(call.line, node.func, call.scope)):
            if Version.BOTH in _version(full):
                for keyword in node.keywords:
                    yield from (
                        (call.line, f"{full}({keyword.arg}=)", version) for version in _of_argument(full, keyword.arg)
                    )


def _version(full: str) -> list[Version]:
    """The version of a name of `tensorflow`; nothing for what is no such name."""
    words = _words(full)
    by = words[1] if words[:1] == ["compat"] and len(words) > 2 else ""
    words = words[2:] if by else words
    if not words or words[0] in _OTHERS or words[-1].startswith("__") or not TENSORFLOW_2.is_installed:
        return []
    in_1, in_2 = _in_1(".".join(words)), _in_2(".".join(words))
    if any(f"{module}.{name}" == full for module, name, _ in _names.ATTRIBUTES):  # Which the compatibility layer has.
        return []
    if by:
        return [] if (in_1 if by == "v1" else in_2) else [Version.NONE]
    kinds = {(True, True): Version.BOTH, (True, False): Version.ONE, (False, True): Version.TWO}
    return [kinds.get((in_1, in_2), Version.NONE)]


def _in_1(path: str) -> bool:
    return TENSORFLOW_1.has(path) or any(f"{path}.".startswith(f"{late}.") for late in _LATE)


def _in_2(path: str) -> bool:
    first, _, name = path.partition(".")
    if first in _OF_KERAS:
        return not name or any(keras.has(path) for keras in (KERAS_2, KERAS_3))
    return TENSORFLOW_2.has(path)


def _of_argument(full: str, keyword: str | None) -> list[Version]:
    """The version that alone takes an argument; nothing where both do, or that is not known."""
    path = ".".join(_words(full))
    newer: tuple[Api, ...] = (KERAS_3, KERAS_2) if path.partition(".")[0] in _OF_KERAS else (TENSORFLOW_2,)
    if keyword is None or any(api.place(path) == TENSORFLOW_1.place(path) for api in newer):
        return []
    takes = [TENSORFLOW_1.arguments(path), *(api.arguments(path) for api in newer if api.is_installed)]
    known = [one is not None and not one.others for one in takes]
    if not all(known):
        return []
    by_1, *by_2 = [one is not None and keyword in one.keywords for one in takes]
    if by_1 and not any(by_2):
        return [Version.ONE]
    return [Version.TWO] if all(by_2) and not by_1 else []


def _words(full: str) -> list[str]:
    """The words of a full name below `tensorflow`, which is the name of the module alone; nothing for others."""
    return full.split(".")[1:] if full.startswith(f"{_TF}.") else []


def _is_numpy(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "numpy" and not call.args and not call.keywords
