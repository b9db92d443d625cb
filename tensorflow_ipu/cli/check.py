"""The command `check`: reads scripts and reports the names in them that do not exist."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu._base import environment
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.cli.parsers import WRONG, add_json, kind_of, make_parser, show, show_json
from tensorflow_ipu.compat import _keras_version, _missing, _project, _tensorflow_version
from tensorflow_ipu.compat._api_files import KERAS_2
from tensorflow_ipu.compat._keras_version import KerasChoice, KerasFinding, Weight
from tensorflow_ipu.compat._project import Finding, Project
from tensorflow_ipu.compat._tensorflow_version import OldTensorFlow

_TITLES = {
    "unreadable": "cannot be read as Python:",
    "missing": "does not exist:",
    "keras_2_alone": "exists only in Keras 2:",
    "keras_3_alone": "exists only in Keras 3:",
    "tensorflow_1": "exists only in TensorFlow 1, with which its scripts run:",
    "recorded": "is recorded, but changes no result:",
}


def parser() -> argparse.ArgumentParser:
    command_parser = make_parser(
        "check",
        "Reads Python files and the modules that they import from their own folders. Runs nothing. Prints where they use"
        " names of TensorFlow that do not exist, names that exist only in one Keras or only in TensorFlow 1, and names that"
        " are recorded but change no result. Also prints with which Keras each script runs.",
        "0 if nothing is missing; 1 if a name does not exist, a file cannot be read, or Keras 2 is needed but not installed",
    )
    command_parser.add_argument(
        "paths", metavar="PATH", type=Path, nargs="+", help="a Python file, or a folder of them"
    )
    add_json(command_parser)
    return command_parser


@dataclass(frozen=True)
class _Script:
    """A script with the modules that it imports, and the versions of Keras and TensorFlow that they need."""

    project: Project
    needs: list[KerasFinding]
    choice: KerasChoice
    old: OldTensorFlow

    @property
    def version(self) -> int:
        """The version of Keras that it runs with."""
        if environment.KERAS_VARIABLE in os.environ:
            return 2 if environment.uses_keras_2() else 3
        return self.choice.version if KERAS_2.is_installed else 3

    @property
    def missing(self) -> list[Finding]:
        """The places at which the script would fail, except those that fail only because Keras 2 is not installed."""
        lost = _keras_version.lost(self.needs, self.version) if KERAS_2.is_installed else []
        findings = [*_missing.missing(self.project), *lost, *_tensorflow_version.lost(self.project, self.old)]
        return sorted(findings, key=lambda place: (place.path, place.line))


def main(arguments: Sequence[str]) -> int:
    command_parser = parser()
    options = command_parser.parse_args(arguments)
    if message := _path_error(options.paths):
        command_parser.exit(WRONG, f"{command_parser.prog}: {message}\n")
    scripts = list(_read(options.paths))
    needs = [need for script in scripts for need in script.needs if need.weight is not Weight.ORIGIN]
    findings: dict[str, Iterable[Finding]] = {
        "unreadable": (place for script in scripts for place in script.project.unreadable),
        "missing": (place for script in scripts for place in script.missing),
        "keras_2_alone": (need for need in needs if need.version == 2),
        "keras_3_alone": (need for need in needs if need.version == 3),
        "tensorflow_1": (place for script in scripts for place in script.old.because),
        "recorded": (place for script in scripts for place in _missing.recorded(script.project)),
    }
    sections = {name: list(dict.fromkeys(places)) for name, places in findings.items()}
    lacks_keras_2 = bool(sections["keras_2_alone"]) and not KERAS_2.is_installed
    status = int(bool(sections["missing"] or sections["unreadable"]) or lacks_keras_2)
    if options.json:
        values: dict[str, object] = {
            name: [{"path": place.path, "line": place.line, "message": place.message} for place in places]
            for name, places in sections.items()
        }
        keras = {str(script.project.script): script.version for script in scripts}
        show_json({**values, "keras": keras, "keras_2_installed": KERAS_2.is_installed})
        return status
    for name, places in sections.items():
        _show(_TITLES[name], places)
    chosen = [script for script in scripts if run_script.keras_line("", script.choice, script.project)]
    chosen = [script for script in chosen if script.version == script.choice.version]
    if environment.KERAS_VARIABLE in os.environ:
        value, version = os.environ[environment.KERAS_VARIABLE], 2 if environment.uses_keras_2() else 3
        show(f"All scripts run with Keras {version}, since `{environment.KERAS_VARIABLE}` is `{value}`.")
    else:
        for version in (2, 3):
            because = dict.fromkeys(script.choice.because[0] for script in chosen if script.version == version)
            _show(f"makes scripts run with Keras {version}:", because)
    if lacks_keras_2:
        show(f"Keras 2, the package `tf_keras`, is not installed: {environment.KERAS_2_COMES_BY}.")
    elif not status:
        uses_keras_2 = any(script.version == 2 for script in chosen)
        show("Nothing is missing with Keras 2, which these scripts use." if uses_keras_2 else "Nothing is missing.")
    return status


def _path_error(paths: Sequence[Path]) -> str:
    """Returns an error message on the first unusable path, or an empty string."""
    unknown = [str(path) for path in paths if not path.exists()]
    if unknown:
        return f"there is no file or folder `{'`, `'.join(unknown)}`"
    for path in paths:
        if not (path.is_file() or path.is_dir()):  # Reading a pipe or a device may block.
            return f"`{path}` is no regular file; name a Python file or a folder"
        if path.suffix != ".py" and (kind := kind_of(path)):
            return f"`{path}` {kind}"
        if path.is_dir() and not any(path.rglob("*.py")):
            return f"there is no Python file in `{path}`"
    return ""


def _read(paths: Iterable[Path]) -> Iterator[_Script]:
    folder_needs: dict[Path, list[KerasFinding]] = {}
    for project in _project.of_all(paths):
        needs = _keras_version.needs(project)
        folder = project.script.parent
        if folder not in folder_needs:
            folder_needs[folder] = _keras_version.needs_of_folder(project, needs)
        choice = _keras_version.choose(needs, folder_needs[folder])
        yield _Script(project, needs, choice, _tensorflow_version.old_tensorflow(project))


def _show(title: str, places: Iterable[Finding]) -> None:
    lines = [*map(run_script.place, places)]
    if lines:
        show("\n".join([title, *lines]))
