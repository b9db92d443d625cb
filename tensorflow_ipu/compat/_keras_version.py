"""Finds uses of names that only Keras 2 or only Keras 3 has, and chooses the Keras version of a script."""

from __future__ import annotations

import enum
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._api_files import KERAS_2, KERAS_3
from tensorflow_ipu.compat._names import LEFT_OF_KERAS_2, SPELLINGS
from tensorflow_ipu.compat._project import Finding, Project
from tensorflow_ipu.compat._reading import Reading

# Modules of TensorFlow that Keras 2 implements.
_LEGACY = tuple(
    f"{tensorflow}.{name}."
    for tensorflow in ("tensorflow.compat.v1", "tensorflow")
    for name in ("layers", "nn.rnn_cell")
)
# Modules of the SDK.
_ORIGINS = (_names.IPU, _names.POPLAR, _names.ADDONS, "popdist", *(f"{keras}.ipu" for keras in ("keras", *SPELLINGS)))
# Packages that Keras calls. Errors in their files may be errors of Keras.
_CALLED = ("tensorflow", "numpy", "optree")


class Weight(enum.Enum):
    """The weight of a name in the choice of the Keras version."""

    ORIGIN = enum.auto()  # The name belongs to IPU TensorFlow, which came with Keras 2.
    DECIDES = enum.auto()  # The name is in `tensorflow.python.keras`, a part of Keras 2 that exists with Keras 3 too.
    LOST = enum.auto()  # The script fails at this name with the other version.


# The message, the weight, and the version of Keras that has the name.
_Problem = tuple[str, Weight, int]


@dataclass(frozen=True)
class KerasFinding(Finding):
    """A use of a name that only one version of Keras has."""

    weight: Weight
    version: int = 2  # The version that has the name.


@dataclass(frozen=True)
class KerasChoice:
    """A version of Keras and the findings that decided it. There are none if the version is TensorFlow's default."""

    version: int
    because: tuple[KerasFinding, ...] = ()


def needs(project: Project, files: Mapping[Path, Reading] | None = None) -> list[KerasFinding]:
    """Returns the uses of names that only one Keras has, in `files` or by default in all files of the script."""
    findings = list[KerasFinding]()
    for file, reading in (project.files if files is None else files).items():
        problems = {*_origin(project, reading), *project.problems(reading, _problem)}
        of_file = [KerasFinding(str(file), line, *problem) for line, problem in problems]
        findings += sorted(of_file, key=lambda finding: (finding.line, finding.message))
    return findings


def needs_of_folder(project: Project, of_script: Sequence[KerasFinding]) -> list[KerasFinding]:
    """Returns the needs of all scripts of a folder, including `of_script`, the needs of the project's own script."""
    return [*of_script, *needs(project, project.siblings)]


def choose(of_script: Sequence[KerasFinding], of_folder: Sequence[KerasFinding]) -> KerasChoice:
    """Chooses the Keras version of a script from its own needs and the needs of its folder.

    All scripts of a folder get the same version, so that each can read the files that another one writes:

        only names of Keras 2, or code for the SDK    -> Keras 2
        only names of Keras 3, also in SDK code       -> Keras 3
        names of both                                 -> only the needs of the script decide
    """
    of_2, of_3 = _deciding(of_folder, 2), _deciding(of_folder, 3)
    if of_2 and of_3:
        of_2, of_3 = _deciding(of_script, 2), _deciding(of_script, 3)
    origins = [need for need in of_folder if need.weight is Weight.ORIGIN]
    if of_3 and not of_2:
        return KerasChoice(3, tuple(of_3) if origins else ())
    return KerasChoice(2, tuple(of_2 or origins)) if of_2 or origins else KerasChoice(3)


def lost(needs: Sequence[KerasFinding], version: int) -> list[KerasFinding]:
    """Returns the needs at which a script fails with this version of Keras."""
    return [need for need in needs if need.version != version and need.weight is Weight.LOST]


def mentions_keras(project: Project) -> bool:
    """Returns True if a script or a file that it imports uses a name of Keras."""
    return any(
        _path(full)
        for reading in project.files.values()
        for full in (*reading.modules, *(full for _, full in project.meanings(reading)))
    )


def _deciding(needs: Sequence[KerasFinding], version: int) -> list[KerasFinding]:
    return [need for need in needs if need.version == version and need.weight is not Weight.ORIGIN]


def _origin(project: Project, reading: Reading) -> list[tuple[int, _Problem]]:
    """Returns the first use of a name of the SDK, if there is one."""
    places = [*((line, module) for module, line in reading.modules.items()), *project.meanings(reading)]
    for line, full in sorted(places):
        for origin in _ORIGINS:
            if f"{full}.".startswith(f"{origin}."):
                return [(line, (f"`{origin}` came with Keras 2", Weight.ORIGIN, 2))]
    return []


def _problem(full: str) -> _Problem | None:
    if full.rpartition(".")[2].startswith("__"):  # Modules and classes of all versions have names such as `__name__`.
        return None
    if full.startswith(f"{LEFT_OF_KERAS_2}."):
        message = f"`{LEFT_OF_KERAS_2}` is all that is left of Keras 2 in TensorFlow; Keras 3 has other classes"
        return None if _names.is_ours(full) else (message, Weight.DECIDES, 2)
    if full.startswith(_LEGACY):
        legacy = next(name for name in _LEGACY if full.startswith(name))
        return f"`{legacy[:-1]}` of TensorFlow is Keras 2", Weight.LOST, 2
    path = _path(full)
    message = _lost(path) if path and KERAS_3.is_installed else None
    if message is not None:
        return message, Weight.LOST, 2
    if path and KERAS_2.is_installed and KERAS_3.has(path) and not KERAS_2.has(path):
        return f"Keras 2 has no `keras.{path}`", Weight.LOST, 3
    return None


def _path(full: str) -> str:
    """Returns the part of a full name below Keras; it is empty for `keras.ipu` and for names outside of Keras."""
    for spelling in ("keras", *SPELLINGS, LEFT_OF_KERAS_2):
        if full.startswith(f"{spelling}."):
            path = full[len(spelling) + 1 :]
            return "" if path.partition(".")[0] == "ipu" else path
    return ""


def _lost(path: str) -> str | None:
    """Returns the message for a name that Keras 3 lacks even with the compatibility layer; None if the name exists."""
    parts = path.split(".")
    if parts[:2] == ["optimizers", "legacy"]:  # Keras 3 has these classes, but calling them raises an error.
        return "Keras 3 has no `keras.optimizers.legacy`, the optimizers of Keras 2"
    for index, part in enumerate(parts):
        parent, child = ".".join(parts[:index]), ".".join(parts[: index + 1])
        if _names.module_exists(f"keras.{child}"):
            continue
        if index and _names.module_exists(f"keras.{parent}"):
            return _names.missing_name(f"keras.{parent}", part)
        if KERAS_3.is_module(child):
            continue
        if part in KERAS_3.names(parent):
            return None
        return _names.missing_module(f"keras.{child}") or f"Keras 3 has no `keras.{child}`"
    return None


def is_of_keras(exc: BaseException) -> bool:
    """Returns True if Keras raised the error, or if the error reports a missing module or attribute of Keras."""
    if isinstance(exc, ImportError) and _is_below_keras(exc.name or ""):
        return True
    if isinstance(exc, AttributeError) and exc.obj is not None:
        holder = exc.obj
        modules = (
            [holder.__name__] if isinstance(holder, ModuleType) else [kind.__module__ for kind in type(holder).__mro__]
        )
        if any(map(_is_below_keras, modules)):
            return True
    # An error in a function that Keras called, such as an operation of TensorFlow, counts as an error of Keras.
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(exc.__traceback__)]
    skipped = tuple(filter(None, map(_folder, _CALLED)))
    while files and files[-1].startswith(skipped):
        files.pop()
    return bool(files) and files[-1].startswith(_folder("keras") or "\0")


def _is_below_keras(module: str) -> bool:
    return module.partition(".")[0] == "keras"


def _folder(package: str) -> str:
    spec = find_spec(package)
    return "" if spec is None or spec.origin is None else os.path.join(os.path.dirname(spec.origin), "")
