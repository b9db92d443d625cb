"""Finds the names that only Keras 2 or only Keras 3 has, and chooses the Keras of a script by those of its folder."""

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

# Names of TensorFlow that are made by Keras 2.
_LEGACY = tuple(
    f"{tensorflow}.{name}."
    for tensorflow in ("tensorflow.compat.v1", "tensorflow")
    for name in ("layers", "nn.rnn_cell")
)
# What the SDK brought.
_ORIGINS = (_names.IPU, _names.POPLAR, _names.ADDONS, "popdist", *(f"{keras}.ipu" for keras in ("keras", *SPELLINGS)))
# Packages that Keras calls, and that know nothing of it.
_CALLED = ("tensorflow", "numpy", "optree")


class Weight(enum.Enum):
    """What a name means for the choice of Keras."""

    ORIGIN = enum.auto()  # It is of IPU TensorFlow, which came with Keras 2.
    DECIDES = enum.auto()  # It exists with Keras 3 too, whose classes are others.
    LOST = enum.auto()  # With the other Keras the script ends there.


# The message, the weight, and the Keras that has the name.
_Fault = tuple[str, Weight, int]


@dataclass(frozen=True)
class KerasFinding(Finding):
    """A place with a name that only one Keras has."""

    weight: Weight
    version: int = 2  # The Keras that has it.


@dataclass(frozen=True)
class KerasChoice:
    """A choice, and the places that decide it, of which there are none where it is TensorFlow's."""

    version: int
    because: tuple[KerasFinding, ...] = ()


def needs(project: Project, files: Mapping[Path, Reading] | None = None) -> list[KerasFinding]:
    """Returns the places in files with names that only one Keras has: the files of the script by default."""
    findings = list[KerasFinding]()
    for file, reading in (project.files if files is None else files).items():
        faults = {*_origin(project, reading), *project.faults(reading, _fault)}
        of_file = [KerasFinding(str(file), line, *fault) for line, fault in faults]
        findings += sorted(of_file, key=lambda finding: (finding.line, finding.message))
    return findings


def needs_of_folder(project: Project, own: Sequence[KerasFinding]) -> list[KerasFinding]:
    """Returns what all scripts of a folder need; `own` is what the script of the project needs, with its imports."""
    return [*own, *needs(project, project.beside)]


def choose(own: Sequence[KerasFinding], of_folder: Sequence[KerasFinding]) -> KerasChoice:
    """Chooses by what a script needs, and all scripts of its folder.

    All get the same, so that one reads the files that another writes: Keras 2 if any is code for the SDK or uses what only
    Keras 2 has, but Keras 3 if any uses what only Keras 3 has. Where some need the one and some the other, each gets its own.
    """
    of_2, of_3 = _deciding(of_folder, 2), _deciding(of_folder, 3)
    if of_2 and of_3:
        of_2, of_3 = _deciding(own, 2), _deciding(own, 3)
    origins = [need for need in of_folder if need.weight is Weight.ORIGIN]
    if of_3 and not of_2:
        return KerasChoice(3, tuple(of_3) if origins else ())
    return KerasChoice(2, tuple(of_2 or origins)) if of_2 or origins else KerasChoice(3)


def lost(needs: Sequence[KerasFinding], version: int) -> list[KerasFinding]:
    """Returns what ends a script with this Keras."""
    return [need for need in needs if need.version != version and need.weight is Weight.LOST]


def mentions_keras(project: Project) -> bool:
    """Returns True if a script or what it imports uses a name of Keras."""
    return any(
        _path(full)
        for reading in project.files.values()
        for full in (*reading.modules, *(full for _, full in project.meanings(reading)))
    )


def _deciding(needs: Sequence[KerasFinding], version: int) -> list[KerasFinding]:
    return [need for need in needs if need.version == version and need.weight is not Weight.ORIGIN]


def _origin(project: Project, reading: Reading) -> list[tuple[int, _Fault]]:
    """Returns the first place with a name of the SDK, if there is one."""
    places = [*((line, module) for module, line in reading.modules.items()), *project.meanings(reading)]
    for line, full in sorted(places):
        for origin in _ORIGINS:
            if f"{full}.".startswith(f"{origin}."):
                return [(line, (f"`{origin}` came with Keras 2", Weight.ORIGIN, 2))]
    return []


def _fault(full: str) -> _Fault | None:
    if full.rpartition(".")[2].startswith("__"):  # As all modules and classes have.
        return None
    if full.startswith(f"{LEFT_OF_KERAS_2}."):
        message = f"`{LEFT_OF_KERAS_2}` is what TensorFlow has left of Keras 2, whose classes are not those of Keras 3"
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
    """Returns what a full name is below Keras; empty where it is of others, and for `keras.ipu`."""
    for spelling in ("keras", *SPELLINGS, LEFT_OF_KERAS_2):
        if full.startswith(f"{spelling}."):
            path = full[len(spelling) + 1 :]
            return "" if path.partition(".")[0] == "ipu" else path
    return ""


def _lost(path: str) -> str | None:
    """Returns the message for a name that Keras 3, as the compatibility layer has it, lacks."""
    parts = path.split(".")
    if parts[:2] == ["optimizers", "legacy"]:  # Keras 3 has the names, and they raise an error when they are called.
        return "Keras 3 has no `keras.optimizers.legacy`, the optimizers of Keras 2"
    for at, part in enumerate(parts):
        above, here = ".".join(parts[:at]), ".".join(parts[: at + 1])
        if _names.module_exists(f"keras.{here}"):
            continue
        if at and _names.module_exists(f"keras.{above}"):
            return _names.missing_name(f"keras.{above}", part)
        if KERAS_3.is_module(here):
            continue
        if part in KERAS_3.names(above):
            return None
        return _names.missing_module(f"keras.{here}") or f"Keras 3 has no `keras.{here}`"
    return None


def is_of_keras(exc: BaseException) -> bool:
    """Returns True if Keras raised an error, or lacks a name, a module or an attribute that was asked of it."""
    if isinstance(exc, ImportError) and _is_below_keras(exc.name or ""):
        return True
    if isinstance(exc, AttributeError) and exc.obj is not None:
        holder = exc.obj
        modules = (
            [holder.__name__] if isinstance(holder, ModuleType) else [kind.__module__ for kind in type(holder).__mro__]
        )
        if any(map(_is_below_keras, modules)):
            return True
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
