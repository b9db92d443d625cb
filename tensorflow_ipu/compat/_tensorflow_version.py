"""Finds the names of TensorFlow that only TensorFlow 1 or 2 has, or none, and chooses what a script gets."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._api_files import KERAS_2, KERAS_3, TENSORFLOW_1, TENSORFLOW_2
from tensorflow_ipu.compat._project import Finding, Project
from tensorflow_ipu.compat._reading import Use

_TF, _V1 = "tensorflow", "tensorflow.compat.v1"
_CONTRIB = _names.CONTRIB

# Below `tensorflow`, what is no part of its public names, or is Keras, of which others read.
_OTHERS = frozenset(
    ["_api", "compat", "compiler", "core", "estimator", "include", "keras", "lite", "python", "tools", "tsl"]
)
# Of `tf`, and Keras's.
_OF_KERAS = frozenset({"initializers", "losses", "metrics", "optimizers"})
# Modules of `tf.compat.v1` that are put there when it is imported.
_LATE = ("app.flags.", "layers.", "nn.rnn_cell.")

# What says itself how a program executes.
_EAGER = (".GradientTape", ".disable_eager_execution", ".disable_v2_behavior", ".enable_eager_execution")
_EAGER += (".enable_v2_behavior", ".function")
# What a script that builds a graph by itself, or trains eagerly, has.
_OTHERWISE = (".Graph", ".IPUStrategy")
# What needs a graph; a session, if it runs something: scripts of TensorFlow 2 make one to configure GPUs.
_PLACEHOLDERS = tuple(f"{_V1}.{name}" for name in ("placeholder", "sparse_placeholder"))
_MONITORED = ("MonitoredSession", "MonitoredTrainingSession", "SingularMonitoredSession", "Supervisor")
_SESSIONS = (f"{_V1}.InteractiveSession", f"{_V1}.Session", *(f"{_V1}.train.{name}" for name in _MONITORED))
_OF_FIT = frozenset({"batch_size", "epochs", "steps_per_epoch", "validation_data"})


class Version(enum.Enum):
    """The TensorFlow that alone has a name."""

    ONE = enum.auto()
    TWO = enum.auto()
    NONE = enum.auto()


@dataclass(frozen=True)
class OldTensorFlow:
    """What a script for TensorFlow 1 needs."""

    files: frozenset[Path] = frozenset()  # Those for which `tensorflow` is `tf.compat.v1`.
    in_graphs: bool = False  # As without eager execution.
    because: tuple[Finding, ...] = ()


def old_tensorflow(project: Project) -> OldTensorFlow:
    """Returns what a script needs of TensorFlow 1; nothing where it is for TensorFlow 2.

    If no file of a script has a name that only TensorFlow 2 has, all get `tf.compat.v1`; else those that need it alone.
    """
    faults = list(_faults(project))
    of_1 = [finding for finding, version in faults if version is Version.ONE]
    of_2 = {Path(finding.path) for finding, version in faults if version is Version.TWO}
    uses = [(str(file), *use) for file, reading in project.files.items() for use in project.meanings(reading)]
    of_tensorflow = [full for _, _, full in uses if full.startswith(f"{_TF}.")]
    methods = list(_methods(project))
    is_eager = any(full.endswith(_EAGER) for full in of_tensorflow) or any(
        name == "numpy" and not (call.args or call.keywords) for name, call in methods
    )
    decided = of_1 or of_2 or is_eager or any(full.endswith(_OTHERWISE) for full in of_tensorflow)
    wanted = () if decided else _wanting_graphs(methods)
    graphs = sorted(Finding(path, line, f"`{full}` needs a graph") for path, line, full in uses if full in wanted)
    files = {Path(finding.path) for finding in of_1} if of_2 else set(project.files if of_1 else ())
    files -= of_2
    because = [finding for finding in of_1 if Path(finding.path) in files] or graphs
    in_graphs = bool(graphs or (of_1 and not of_2 and not is_eager))
    return OldTensorFlow(frozenset(files), in_graphs, tuple(because))


def lost(project: Project, old: OldTensorFlow) -> list[Finding]:
    """Returns the places of names that no TensorFlow has any more, or not the one that a file gets."""
    findings = set[Finding]()
    for finding, version in _faults(project):
        if version is Version.NONE or (version is Version.ONE and Path(finding.path) not in old.files):
            findings.add(finding)
    return sorted(findings)


def _faults(project: Project) -> Iterator[tuple[Finding, Version]]:
    for file, reading in project.files.items():
        for line, (message, version) in project.faults(reading, _fault):
            yield Finding(str(file), line, message), version


def _fault(full: str) -> tuple[str, Version] | None:
    parts = full.split(".")[1:] if full.startswith(f"{_TF}.") else []
    if full.startswith(f"{_CONTRIB}."):
        message = _names.missing_name(_CONTRIB, parts[1])
        return (message, Version.NONE) if message else None
    by = parts[1] if parts[:1] == ["compat"] and len(parts) > 2 else ""
    parts = parts[2:] if by else parts
    if not parts or parts[0] in _OTHERS or parts[-1].startswith("__") or not TENSORFLOW_2.is_installed:
        return None
    if any(f"{module}.{name}" == full for module, name, _ in _names.ATTRIBUTES):  # Which the compatibility layer has.
        return None
    in_1, in_2 = _in_1(".".join(parts)), _in_2(".".join(parts))
    if not (in_1 if by == "v1" else in_2 if by else in_1 or in_2):
        return f"TensorFlow has no `{full}` any more", Version.NONE
    if by or in_1 == in_2:
        return None
    return f"only TensorFlow {1 if in_1 else 2} has `{full}`", Version.ONE if in_1 else Version.TWO


def _in_1(path: str) -> bool:
    return TENSORFLOW_1.has(path) or f"{path}.".startswith(_LATE)


def _in_2(path: str) -> bool:
    first, _, name = path.partition(".")
    if first in _OF_KERAS:
        return not name or any(keras.has(path) for keras in (KERAS_2, KERAS_3))
    return TENSORFLOW_2.has(path)


def _methods(project: Project) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls of methods, with their names; functions of modules are none."""
    for reading in project.files.values():
        for use in reading.calls:
            match use.node:
                case ast.Call(func=ast.Attribute(attr=name) as method) as call:
                    if not project.meaning(Use(use.line, method, use.scope)):
                        yield name, call


def _wanting_graphs(methods: list[tuple[str, ast.Call]]) -> tuple[str, ...]:
    """Returns the names, of both TensorFlows, for which a script gets graphs; none beside Keras's `compile` and `fit`."""
    options = {keyword.arg for name, call in methods if name == "fit" for keyword in call.keywords}
    if options & _OF_FIT or any(name == "compile" for name, _ in methods):
        return ()
    runs = any(name == "run" or (name == "eval" and not call.args) for name, call in methods)
    return (*_PLACEHOLDERS, *(_SESSIONS if runs else ()))
