"""Finds uses of names that TensorFlow 1, TensorFlow 2 or both lack, and chooses the TensorFlow of a script."""

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

# Modules below `tensorflow` that are not public, or that `_keras_version.py` checks.
_UNCHECKED = frozenset(
    ["_api", "compat", "compiler", "core", "estimator", "include", "keras", "lite", "python", "tools", "tsl"]
)
# Modules of `tf` that are modules of Keras.
_OF_KERAS = frozenset({"initializers", "losses", "metrics", "optimizers"})
# Modules that `tf.compat.v1` creates when it is imported. Its source files do not contain them.
_LATE = ("app.flags.", "layers.", "nn.rnn_cell.")

# Names with which a script itself chooses eager execution or graphs.
_EAGER = (".GradientTape", ".disable_eager_execution", ".disable_v2_behavior", ".enable_eager_execution")
_EAGER += (".enable_v2_behavior", ".function")
# Names of scripts that build a graph themselves, or that train with the strategy.
_GRAPH_OR_STRATEGY = (".Graph", ".IPUStrategy")
# Names that need a graph. Sessions need one only if they run something: TensorFlow 2 scripts configure GPUs with them.
_PLACEHOLDERS = tuple(f"{_V1}.{name}" for name in ("placeholder", "sparse_placeholder"))
_MONITORED = ("MonitoredSession", "MonitoredTrainingSession", "SingularMonitoredSession", "Supervisor")
_SESSIONS = (f"{_V1}.InteractiveSession", f"{_V1}.Session", *(f"{_V1}.train.{name}" for name in _MONITORED))
# Arguments of Keras's `fit` that methods of the same name in other packages lack.
_OF_FIT = frozenset({"batch_size", "epochs", "steps_per_epoch", "validation_data"})


class Version(enum.Enum):
    """The only version of TensorFlow that has a name, or NONE if neither version has it."""

    ONE = enum.auto()
    TWO = enum.auto()
    NONE = enum.auto()


@dataclass(frozen=True)
class OldTensorFlow:
    """The features of TensorFlow 1 that a script needs, and the findings that show it."""

    files: frozenset[Path] = frozenset()  # The files in which `tensorflow` is `tf.compat.v1`.
    in_graphs: bool = False  # True if the script needs graphs instead of eager execution.
    because: tuple[Finding, ...] = ()


def old_tensorflow(project: Project) -> OldTensorFlow:
    """Returns which files of a script need `tf.compat.v1`, and whether the script needs graphs.

    * If names of TensorFlow 1 are used, but none of TensorFlow 2, all files get `tf.compat.v1`. They run in graphs,
      unless a file selects eager execution.
    * If names of both are used, a file with names of TensorFlow 1 and none of TensorFlow 2 gets `tf.compat.v1`, with
      eager execution.
    * If names of neither are used, `tf.compat.v1.placeholder` or a session that runs something shows that the script
      needs graphs, unless it also trains eagerly or with Keras.
    """
    problems = list(_problems(project))
    of_1 = [finding for finding, version in problems if version is Version.ONE]
    of_2 = {Path(finding.path) for finding, version in problems if version is Version.TWO}
    uses = [(str(file), *use) for file, reading in project.files.items() for use in project.meanings(reading)]
    of_tensorflow = [full for _, _, full in uses if full.startswith(f"{_TF}.")]
    methods = list(_methods(project))
    is_eager = any(full.endswith(_EAGER) for full in of_tensorflow) or any(
        name == "numpy" and not (call.args or call.keywords) for name, call in methods
    )
    is_decided = of_1 or of_2 or is_eager or any(full.endswith(_GRAPH_OR_STRATEGY) for full in of_tensorflow)
    graph_names = () if is_decided else _graph_names(methods)
    graphs = sorted(Finding(path, line, f"`{full}` needs a graph") for path, line, full in uses if full in graph_names)
    files = {Path(finding.path) for finding in of_1} if of_2 else set(project.files if of_1 else ())
    files -= of_2
    because = [finding for finding in of_1 if Path(finding.path) in files] or graphs
    in_graphs = bool(graphs or (of_1 and not of_2 and not is_eager))
    return OldTensorFlow(frozenset(files), in_graphs, tuple(because))


def lost(project: Project, old: OldTensorFlow) -> list[Finding]:
    """Returns the uses of names that TensorFlow has removed, and of TensorFlow 1's names in files without `tf.compat.v1`."""
    findings = set[Finding]()
    for finding, version in _problems(project):
        if version is Version.NONE or (version is Version.ONE and Path(finding.path) not in old.files):
            findings.add(finding)
    return sorted(findings)


def _problems(project: Project) -> Iterator[tuple[Finding, Version]]:
    for file, reading in project.files.items():
        for line, (message, version) in project.problems(reading, _problem):
            yield Finding(str(file), line, message), version


def _problem(full: str) -> tuple[str, Version] | None:
    parts = full.split(".")[1:] if full.startswith(f"{_TF}.") else []
    if full.startswith(f"{_CONTRIB}."):
        message = _names.missing_name(_CONTRIB, parts[1])
        return (message, Version.NONE) if message else None
    compat = parts[1] if parts[:1] == ["compat"] and len(parts) > 2 else ""  # `v1`, `v2` or none.
    parts = parts[2:] if compat else parts
    if not parts or parts[0] in _UNCHECKED or parts[-1].startswith("__") or not TENSORFLOW_2.is_installed:
        return None
    if any(f"{module}.{name}" == full for module, name, _ in _names.ATTRIBUTES):  # The compatibility layer has it.
        return None
    in_1, in_2 = _in_1(".".join(parts)), _in_2(".".join(parts))
    if not (in_1 if compat == "v1" else in_2 if compat else in_1 or in_2):
        return f"TensorFlow has no `{full}` any more", Version.NONE
    if compat or in_1 == in_2:
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
    """Yields the name and the call of each method call. Calls of functions in modules are not included."""
    for reading in project.files.values():
        for use in reading.calls:
            match use.node:
                case ast.Call(func=ast.Attribute(attr=name) as method) as call:
                    if not project.meaning(Use(use.line, method, use.scope)):
                        yield name, call


def _graph_names(methods: list[tuple[str, ast.Call]]) -> tuple[str, ...]:
    """Returns the names whose use shows that a script needs graphs; none if it calls Keras's `compile` or `fit`."""
    options = {keyword.arg for name, call in methods if name == "fit" for keyword in call.keywords}
    if options & _OF_FIT or any(name == "compile" for name, _ in methods):
        return ()
    runs = any(name == "run" or (name == "eval" and not call.args) for name, call in methods)
    return (*_PLACEHOLDERS, *(_SESSIONS if runs else ()))
