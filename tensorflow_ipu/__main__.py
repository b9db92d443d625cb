"""The command `python -m tensorflow_ipu`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorflow_ipu._base import environment
from tensorflow_ipu.errors import LibraryError

if TYPE_CHECKING:
    from tensorflow_ipu.compat import _keras_reading, _reading

# Nothing ran: the command was wrong, or the script needs what does not exist.
_NOT_RUN = 2

_USAGE = """\
python -m tensorflow_ipu [--keras 2|3] [--force] [--emulations=FILE] SCRIPT [ARGUMENT ...]
       python -m tensorflow_ipu COMMAND ..."""

_DESCRIPTION = """\
Runs a script that was written for Graphcore IPUs, unmodified, on emulated ones:
`from tensorflow.python import ipu` and the other names of IPU TensorFlow are found
in tensorflow_ipu. All else is as with `python SCRIPT ARGUMENT ...`.

The script is read first. Where it needs names that do not exist in this version,
all of them are listed on the error output, and it is not run (status 2)."""

_EPILOG = """\
commands:
  --check     reads scripts and folders, runs nothing, and says what does not exist; `--check --help` has more
  --list      prints all names of IPU TensorFlow, and what each is here; `--list --help` has more
  pipeline    plans a pipeline, draws it, says what it costs; `pipeline --help` has more
  precision   shows a saved report of what float16 makes of a model
  report      shows a saved report of what a real machine would make of a program, or compares two
  run         runs a script in several processes, as workers of a cluster; `run --help` has more. Without its options,
              what is done without a command; for a script that is named like one

All that follows SCRIPT is the script's own. docs/porting.md has more."""


def main(arguments: Sequence[str]) -> int:
    """Executes a command line."""
    words = list(arguments)
    command = _COMMANDS[words.pop(0)] if words and words[0] in _COMMANDS else _run
    return command(words)


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow_ipu",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--keras",
        choices=("2", "3"),
        help="which Keras `tf.keras`, `keras` and `tensorflow.keras` are: 2, the one of 2021, which is the package `tf_keras`,"
        " or 3. By default what `TF_USE_LEGACY_KERAS` says; where that is not set, 2 if the script uses what that alone has",
    )
    parser.add_argument("--force", action="store_true", help="run the script even if it needs names that do not exist")
    parser.add_argument(
        "--emulations",
        metavar="FILE",
        type=Path,
        help="a Python file to run first, which says what stands in for the script's operations for tiles by"
        " `tensorflow_ipu.ops.register_user_op_emulation`; write `--emulations=FILE`",
    )
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the Python file to run")
    # Everything after the script's name is the script's, whatever it looks like.
    own = 0
    while own < len(arguments) and arguments[own].startswith("-"):
        own += 2 if arguments[own] == "--keras" else 1
    own += 1
    options = parser.parse_args(arguments[:own])
    script: Path = options.script
    if not script.is_file():
        kind = "is a folder, not a script" if script.is_dir() else "does not exist"
        parser.exit(_NOT_RUN, f"python -m tensorflow_ipu: `{script}` {kind}; name a Python file\n")
    emulations: Path | None = options.emulations
    if emulations is not None and not emulations.is_file():
        parser.exit(_NOT_RUN, f"python -m tensorflow_ipu: `--emulations={emulations}` names no Python file\n")
    if options.keras is not None:
        _use_keras(options.keras)
    # Devices and scopes have to exist before the script uses TensorFlow, which is not imported before it is read.
    from tensorflow_ipu.compat import _keras_reading, _reading

    project = _reading.of_script(script)
    needs = [] if environment.uses_keras_2() else _keras_reading.needs(project)
    is_chosen = options.keras is not None or environment.KERAS_VARIABLE in os.environ or "tensorflow" in sys.modules
    deciding = [need for need in needs if need.weight is not _keras_reading.Weight.BRIDGED]
    if deciding and not is_chosen:
        print(_choice(script, deciding), file=sys.stderr, flush=True)
        if _has_keras_2():
            _use_keras("2")
    missing = _reading.missing(project)
    if not environment.uses_keras_2():
        missing += [need for need in needs if need.weight is _keras_reading.Weight.LOST]
    if missing:
        print(_missing_names(script, missing, options.force), file=sys.stderr, flush=True)
        if not options.force:
            return _NOT_RUN
    try:
        from tensorflow_ipu import keras  # noqa: F401
        from tensorflow_ipu.compat import _script
    except LibraryError as exc:
        parser.exit(_NOT_RUN, f"python -m tensorflow_ipu: {exc}\n")
    if emulations is not None:
        runpy.run_path(str(emulations))
    return _script.run(script, arguments[own:])


def _use_keras(version: str) -> None:
    """Has TensorFlow, here and in processes that start from here, take this Keras."""
    if version == "2":
        os.environ[environment.KERAS_VARIABLE] = "1"
    else:
        os.environ.pop(environment.KERAS_VARIABLE, None)


def _has_keras_2() -> bool:
    return importlib.util.find_spec("tf_keras") is not None


def _choice(script: Path, needs: Sequence[_keras_reading.KerasFound]) -> str:
    """The line that says which Keras a script gets, where it needs Keras 2 and nobody has said which."""
    first, more = needs[0], f", and {len(needs) - 1} more, which `--check` lists" if needs[1:] else ""
    begin = f"`{script}` is for Keras 2 ({first.path}:{first.line}: {first.message}{more})"
    if _has_keras_2():
        return f"{begin} and gets it, as `tf_keras`; `--keras 3` has it run with Keras 3"
    return f"{begin}, the package `tf_keras`, which is not installed: {environment.KERAS_2_COMES_BY}"


def _check(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow_ipu --check",
        description="Reads Python files, with what they import of their own folders, and runs nothing. Prints where they"
        " need names of IPU TensorFlow that do not exist, what Keras 2 alone has, and names that change no result here."
        " Status 1 if anything does not exist, or Keras 2 is needed and not installed.",
    )
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="+", help="a Python file, or a folder of them")
    paths: list[Path] = parser.parse_args(arguments).paths
    unknown = [str(path) for path in paths if not path.exists()]
    if unknown:
        parser.error(f"there is no file or folder `{'`, `'.join(unknown)}`")
    from tensorflow_ipu.compat import _keras_reading, _reading  # No TensorFlow.

    projects = _reading.of_all(paths)
    missing = dict.fromkeys(found for project in projects for found in _reading.missing(project))
    needs = dict.fromkeys(need for project in projects for need in _keras_reading.needs(project))
    recorded = dict.fromkeys(found for project in projects for found in _reading.recorded(project))
    of_keras_2 = [need for need in needs if need.weight is not _keras_reading.Weight.BRIDGED]
    sections = {
        "does not exist:": missing,
        "is of Keras 2 alone:": of_keras_2,
        "is of Keras 2, and taken by Keras 3 too:": [need for need in needs if need not in of_keras_2],
        "is written down, and changes no result:": recorded,
    }
    for title, found in sections.items():
        if found:
            print("\n".join([title, *map(_place, found)]))
    if of_keras_2 and not _has_keras_2():
        print(f"Keras 2, the package `tf_keras`, is not installed: {environment.KERAS_2_COMES_BY}.")
        return 1
    if not missing:
        print("Nothing is missing with Keras 2, which such scripts get." if of_keras_2 else "Nothing is missing.")
    return int(bool(missing))


def _list(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow_ipu --list",
        description="Prints all names of IPU TensorFlow, of `keras.ipu`, of the add-ons and of the packages beside them, and"
        " all options of `IPUConfig`, with what each is here, and where or why: `works`; `recorded`, which is checked and"
        " written down and changes no result; `not yet`; `cannot be`. The modules of `ipu.ops` and `ipu.optimizers` are in"
        " `ipu` itself as well.",
    )
    parser.add_argument("--markdown", action="store_true", help="print all names in Markdown")
    parser.add_argument("text", metavar="TEXT", nargs="*", help="print names that have this in them alone")
    options = parser.parse_args(arguments)
    from tensorflow_ipu.compat import _listing  # No TensorFlow.

    print(_listing.markdown() if options.markdown else "\n".join(_listing.lines(options.text)))
    return 0


def _later(
    module: str, *more: Callable[[Sequence[str]], int], function: str = "main"
) -> Callable[[Sequence[str]], int]:
    """The command of a module of `cli`, imported when it runs; none needs TensorFlow, which takes seconds."""
    return lambda arguments: getattr(importlib.import_module(f"tensorflow_ipu.cli.{module}"), function)(
        arguments, *more
    )


def _missing_names(script: Path, missing: list[_reading.Found], forced: bool) -> str:
    lines = list(map(_place, missing))
    if forced:
        end = "It is run all the same, as `--force` says."
    else:
        end = f"It was not run. `python -m tensorflow_ipu --force {script}` runs it up to the first of these."
    return "\n".join([f"`{script}` needs what does not exist in this version of tensorflow_ipu:", *lines, end])


def _place(found: _reading.Found) -> str:
    return f"  {found.path}:{found.line}: {found.message}"


# A command takes the words after it, and returns the exit status.
_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "--check": _check,
    "--list": _list,
    "pipeline": _later("plans"),
    "precision": _later("reports", function="precision"),
    "report": _later("reports", function="machine"),
    "run": _later("launcher", _run),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
