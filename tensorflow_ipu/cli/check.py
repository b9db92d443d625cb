"""The command `check`, which reads scripts and says what does not exist."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tensorflow_ipu._base import environment
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.cli.parsers import WRONG, add_json, kind_of, make_parser, show, show_json
from tensorflow_ipu.compat import _keras_reading, _reading


def parser() -> argparse.ArgumentParser:
    """The parser of its command line."""
    made = make_parser(
        "check",
        "Reads Python files, with what they import of their own folders, and runs nothing. Prints where they need names of"
        " IPU TensorFlow that do not exist, what Keras 2 alone has, and names that change no result here.",
        "0 if nothing is missing; 1 if anything does not exist or cannot be read, or if Keras 2 is needed and not installed",
    )
    made.add_argument("paths", metavar="PATH", type=Path, nargs="+", help="a Python file, or a folder of them")
    add_json(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Executes a command line."""
    made = parser()
    options = made.parse_args(arguments)
    paths: list[Path] = options.paths
    unknown = [str(path) for path in paths if not path.exists()]
    if unknown:
        made.error(f"there is no file or folder `{'`, `'.join(unknown)}`")
    for path in paths:
        if path.suffix != ".py" and (other := kind_of(path)):
            made.exit(WRONG, f"{made.prog}: `{path}` {other}\n")
        if path.is_dir() and not any(path.rglob("*.py")):
            made.exit(WRONG, f"{made.prog}: there is no Python file in `{path}`\n")
    projects = _reading.of_all(paths)
    missing = dict.fromkeys(found for project in projects for found in _reading.missing(project))
    needs = dict.fromkeys(need for project in projects for need in _keras_reading.needs(project))
    of_keras_2 = [need for need in needs if need.weight is not _keras_reading.Weight.BRIDGED]
    sections = {
        "cannot be read as Python:": dict.fromkeys(found for project in projects for found in project.unreadable),
        "does not exist:": missing,
        "is of Keras 2 alone:": of_keras_2,
        "is of Keras 2, and taken by Keras 3 too:": [need for need in needs if need not in of_keras_2],
        "is written down, and changes no result:": dict.fromkeys(
            found for project in projects for found in _reading.recorded(project)
        ),
    }
    unreadable, *_ = sections.values()
    lacks_keras_2 = bool(of_keras_2) and not run_script.has_keras_2()
    status = int(bool(missing or unreadable) or lacks_keras_2)
    if options.json:
        names = ("unreadable", "missing", "keras_2_alone", "keras_2_bridged", "recorded")
        places = [
            [{"path": found.path, "line": found.line, "message": found.message} for found in section]
            for section in sections.values()
        ]
        show_json({**dict(zip(names, places, strict=True)), "keras_2_installed": run_script.has_keras_2()})
        return status
    for title, found in sections.items():
        if found:
            show("\n".join([title, *map(run_script.place, found)]))
    if lacks_keras_2:
        show(f"Keras 2, the package `tf_keras`, is not installed: {environment.KERAS_2_COMES_BY}.")
    elif not status:
        show("Nothing is missing with Keras 2, which such scripts get." if of_keras_2 else "Nothing is missing.")
    return status
