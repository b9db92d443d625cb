"""The command `check`, which reads scripts and says what does not exist."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu._base import environment
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.cli.parsers import WRONG, add_json, kind_of, make_parser, show, show_json
from tensorflow_ipu.compat import _keras_choice, _keras_reading, _missing, _project, _tensorflow_reading
from tensorflow_ipu.compat._api_files import KERAS_2
from tensorflow_ipu.compat._keras_choice import KerasChoice
from tensorflow_ipu.compat._keras_reading import KerasFound, Weight
from tensorflow_ipu.compat._project import Found, Project
from tensorflow_ipu.compat._tensorflow_reading import OldTensorFlow


def parser() -> argparse.ArgumentParser:
    """The parser of its command line."""
    made = make_parser(
        "check",
        "Reads Python files, with what they import of their own folders, and runs nothing. Prints where they need names of"
        " TensorFlow that do not exist, what one Keras or TensorFlow 1 alone has, which Keras they run with, and names that"
        " change no result here.",
        "0 if nothing is missing; 1 if anything does not exist or cannot be read, or if Keras 2 is needed and not installed",
    )
    made.add_argument("paths", metavar="PATH", type=Path, nargs="+", help="a Python file, or a folder of them")
    add_json(made)
    return made


@dataclass(frozen=True)
class _Script:
    """What was read of a script, with what it imports."""

    project: Project
    needs: list[KerasFound]
    choice: KerasChoice
    old: OldTensorFlow

    @property
    def version(self) -> int:
        """The Keras that it runs with."""
        if environment.KERAS_VARIABLE in os.environ:
            return 2 if environment.uses_keras_2() else 3
        return self.choice.version if KERAS_2.is_installed else 3

    @property
    def missing(self) -> list[Found]:
        """What ends it where it comes to that, but for the lack of Keras 2."""
        lost = _keras_choice.lost(self.needs, self.version) if KERAS_2.is_installed else []
        of_tensorflow = _tensorflow_reading.lost(self.project, self.old)
        found = [*_missing.missing(self.project), *_missing.refused(self.project), *lost, *of_tensorflow]
        return sorted(found, key=lambda place: (place.path, place.line))


def _read(paths: Iterable[Path]) -> Iterator[_Script]:
    of_folders: dict[Path, list[KerasFound]] = {}
    for project in _project.of_all(paths):
        needs = _keras_reading.needs(project)
        folder = project.script.parent
        if folder not in of_folders:
            of_folders[folder] = _keras_choice.of_folder(project, needs)
        old = _tensorflow_reading.old_tensorflow(project)
        yield _Script(project, needs, _keras_choice.choose(needs, of_folders[folder]), old)


def main(arguments: Sequence[str]) -> int:
    """Executes a command line."""
    made = parser()
    options = made.parse_args(arguments)
    paths: list[Path] = options.paths
    unknown = [str(path) for path in paths if not path.exists()]
    if unknown:
        made.error(f"there is no file or folder `{'`, `'.join(unknown)}`")
    for path in paths:
        if not (path.is_file() or path.is_dir()):  # A pipe or a device, at which a read may wait.
            made.exit(WRONG, f"{made.prog}: `{path}` is no regular file; name a Python file or a folder\n")
        if path.suffix != ".py" and (other := kind_of(path)):
            made.exit(WRONG, f"{made.prog}: `{path}` {other}\n")
        if path.is_dir() and not any(path.rglob("*.py")):
            made.exit(WRONG, f"{made.prog}: there is no Python file in `{path}`\n")
    scripts = list(_read(paths))
    needs = dict.fromkeys(need for script in scripts for need in script.needs if need.weight is not Weight.ORIGIN)
    of_keras_2 = [need for need in needs if need.version == 2 and need.weight is not Weight.BRIDGED]
    sections = {
        "unreadable": ("cannot be read as Python:", (one for script in scripts for one in script.project.unreadable)),
        "missing": ("does not exist:", (one for script in scripts for one in script.missing)),
        "keras_2_alone": ("is of Keras 2 alone:", of_keras_2),
        "keras_2_bridged": (
            "is of Keras 2, and taken by Keras 3 too:",
            (need for need in needs if need.weight is Weight.BRIDGED),
        ),
        "keras_3_alone": ("is of Keras 3 alone:", (need for need in needs if need.version == 3)),
        "tensorflow_1": (
            "is of TensorFlow 1, which scripts with it get:",
            (place for script in scripts for place in script.old.because),
        ),
        "recorded": (
            "is written down, and changes no result:",
            (one for script in scripts for one in _missing.recorded(script.project)),
        ),
    }
    found = {name: list(dict.fromkeys(places)) for name, (_, places) in sections.items()}
    lacks_keras_2 = bool(of_keras_2) and not KERAS_2.is_installed
    status = int(bool(found["missing"] or found["unreadable"]) or lacks_keras_2)
    if options.json:
        places = {name: [_as_json(place) for place in each] for name, each in found.items()}
        keras = {str(script.project.script): script.version for script in scripts}
        show_json({**places, "keras": keras, "keras_2_installed": KERAS_2.is_installed})
        return status
    for name, places in found.items():
        if places:
            show("\n".join([sections[name][0], *map(run_script.place, places)]))
    chosen = (script for script in scripts if script.version == script.choice.version)
    told = [script for script in chosen if run_script.said("", script.choice, script.project)]
    if environment.KERAS_VARIABLE in os.environ:
        value, version = os.environ[environment.KERAS_VARIABLE], 2 if environment.uses_keras_2() else 3
        show(f"All scripts run with Keras {version}, since `{environment.KERAS_VARIABLE}` is `{value}`.")
    else:
        for version in (2, 3):
            because = dict.fromkeys(script.choice.because[0] for script in told if script.version == version)
            if because:
                show("\n".join([f"has scripts run with Keras {version}:", *map(run_script.place, because)]))
    if lacks_keras_2:
        show(f"Keras 2, the package `tf_keras`, is not installed: {environment.KERAS_2_COMES_BY}.")
    elif not status:
        gets_2 = any(script.version == 2 for script in told)
        show("Nothing is missing with Keras 2, which such scripts get." if gets_2 else "Nothing is missing.")
    return status


def _as_json(found: Found) -> dict[str, object]:
    return {"path": found.path, "line": found.line, "message": found.message}
