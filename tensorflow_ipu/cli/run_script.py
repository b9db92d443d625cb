"""The command `run-script`, which is also what is done where no command is named."""

from __future__ import annotations

import argparse
import atexit
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tensorflow_ipu._base import environment, requirements
from tensorflow_ipu.cli.parsers import COMMANDS, WRONG, make_parser, meant, program, show, split
from tensorflow_ipu.cli.programs import program_of
from tensorflow_ipu.compat import _keras_version, _missing, _tensorflow_version
from tensorflow_ipu.compat._api_files import KERAS_2
from tensorflow_ipu.compat._keras_version import KerasChoice, KerasFinding, Weight
from tensorflow_ipu.compat._project import Finding, Project
from tensorflow_ipu.compat._tensorflow_version import OldTensorFlow
from tensorflow_ipu.errors import LibraryError

FAILED = "the script ended with status "  # A worker that fails writes it, and `run` reads it.

_USAGE = """\
{prog} [--keras 2|3] [--tensorflow 1|2] [--force] [--emulations=FILE] SCRIPT [ARGUMENT ...]
       {prog} [OPTION ...] -m MODULE | -c CODE [ARGUMENT ...]
       {prog} COMMAND ..."""

_DESCRIPTION = """\
Runs a script that was written for Graphcore IPUs, unmodified, on emulated ones:
`from tensorflow.python import ipu` and the other names of IPU TensorFlow are found
in tensorflow_ipu. All else is as with `python SCRIPT ARGUMENT ...`.

The script is read first. Where it needs names that do not exist in this version,
all of them are listed on the error output, and it is not run (status 2)."""

_END = "All that follows SCRIPT is the script's own; a script named like a command runs by `run-script`.\n"
_END += "docs/porting.md and docs/command_line.md have more."


def parser() -> argparse.ArgumentParser:
    commands = [f"  {name:12}{text}" for name, text in COMMANDS.items()]
    examples = "\n".join(["commands, of which each has `--help`:", *commands, "", _END])
    statuses = "that of the script, and 1 where it ends by an error"
    made = make_parser("", _DESCRIPTION, statuses, _USAGE, examples)
    made.add_argument(
        "--keras",
        choices=("2", "3"),
        help="which Keras `tf.keras`, `keras` and `tensorflow.keras` are: 2, the one of 2021, which is the package `tf_keras`,"
        " or 3. By default what `TF_USE_LEGACY_KERAS` says; where that is not set, 2 for code of the SDK, or if any script of"
        " the folder uses what that alone has",
    )
    made.add_argument(
        "--tensorflow",
        choices=("1", "2"),
        help="what `import tensorflow` is in the script and what it imports of its folder: 1, which is `tf.compat.v1` in"
        " graphs, or 2. By default 1 if they use what that alone has",
    )
    made.add_argument("--force", action="store_true", help="run the script even if it needs names that do not exist")
    made.add_argument(
        "--emulations",
        metavar="FILE",
        type=Path,
        help="a Python file to run first, which says what stands in for the script's operations for tiles by"
        " `tensorflow_ipu.ops.register_user_op_emulation`; write `--emulations=FILE`",
    )
    made.add_argument("--version", action="store_true", help="print the version of the package")
    return made


def main(arguments: Sequence[str]) -> int:
    made = parser()
    own, words = split(arguments, ("--keras", "--tensorflow", "--emulations"))
    chosen, unknown = made.parse_known_args(own)
    if unknown:
        made.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0])}")
    if chosen.version:
        from tensorflow_ipu.cli.info import version_of

        show(f"tensorflow-ipu {version_of('tensorflow-ipu')}")
        return 0
    try:
        script = program_of(words)
        project = script.read()
    except ValueError as exc:
        made.error(str(exc)) if not words else made.exit(WRONG, f"{made.prog}: {exc}\n")
    if script.interpreter:  # Options of Python need a Python of their own.
        os.execv(
            sys.executable,
            [sys.executable, *script.interpreter, "-m", "tensorflow_ipu", "run-script", *own, *script.words],
        )
    emulations: Path | None = chosen.emulations
    if emulations is not None and not emulations.is_file():
        made.exit(WRONG, f"{made.prog}: `--emulations={emulations}` names no Python file\n")
    # Devices and scopes have to exist before the script uses TensorFlow, which is not imported before it is read.
    needs = _keras_version.needs(project)
    version = _settle_keras(chosen.keras, script.title, project, needs)
    old = _settle_tensorflow(chosen.tensorflow, script.title, project)
    missing = [*_missing.missing(project), *_keras_version.lost(needs, version)]
    if missing:
        end = f"It was not run. `{program()} --force {script.title}` runs it up to the first of these."
        end = "It is run all the same, as `--force` says." if chosen.force else end
        title = f"`{script.title}` needs what does not exist in this version of tensorflow_ipu:"
        _say("\n".join([title, *map(place, missing), end]))
        if not chosen.force:
            return WRONG
    try:
        requirements.check_tensorflow()
        from tensorflow_ipu import keras  # noqa: F401
        from tensorflow_ipu.compat import _script
    except (LibraryError, ModuleNotFoundError) as exc:
        made.exit(WRONG, f"{made.prog}: {exc}\n")
    if emulations is not None:
        runpy.run_path(str(emulations))
    way = "" if KERAS_2.is_installed else f"; it is the package `tf_keras`: {environment.KERAS_2_COMES_BY}"
    is_of_keras_2 = version == 3 and any(need.version == 2 for need in needs)
    advice = f"`--keras 2` may be what this script needs{way}" if is_of_keras_2 else ""
    is_old = project.script in old.files
    return _as_worker(lambda: _script.run(script.flag, script.text, script.arguments, old, is_old, advice))


def _as_worker(run: Callable[[], int]) -> int:
    """Runs a script. If it fails as a worker of MPI, its status is printed, and the other workers are ended."""
    if not {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} & set(os.environ):
        return run()
    process, status = os.getpid(), 1

    def failed() -> bool:
        return status != 0 and os.getpid() == process  # A forked child is no worker.

    # If a worker fails that has not initialized MPI, hydra lets the others wait for it forever. Handlers that are registered
    # later run before this one.
    with suppress(KeyError, OSError, ValueError):
        pmi = os.dup(int(os.environ["PMI_FD"]))
        atexit.register(lambda: failed() and os.write(pmi, b"cmd=abort exitcode=%d\n" % status))
    try:
        status = run()
    except SystemExit as exc:
        status = exc.code & 255 if isinstance(exc.code, int) else int(exc.code is not None)
        raise
    finally:
        if failed():
            _say(f"{FAILED}{status}")
    return status


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _settle_keras(version: str | None, script: str, project: Project, needs: Sequence[KerasFinding]) -> int:
    """Chooses the Keras of this process, unless the user or an import did, and returns its version."""
    chosen = None if version is None else int(version)
    if chosen is None and not (environment.KERAS_VARIABLE in os.environ or "tensorflow" in sys.modules):
        choice = _keras_version.choose(needs, _keras_version.needs_of_folder(project, needs))
        if line := keras_line(script, choice, project):
            _say(line)
        chosen = choice.version if choice.because and (choice.version == 3 or KERAS_2.is_installed) else None
    if (
        chosen is not None
    ):  # For processes that start from here too, and as some libraries set the variable if it is not set.
        os.environ[environment.KERAS_VARIABLE] = str(int(chosen == 2))
    return 2 if environment.uses_keras_2() else 3


def keras_line(script: str, choice: KerasChoice, project: Project) -> str:
    """Returns the line on the Keras that a script gets; empty where that is TensorFlow's, or the script uses none."""
    if not choice.because:
        return ""
    is_by_origin = choice.because[0].weight is Weight.ORIGIN
    begin = _reason(script, f"Keras {choice.version}", choice.because[:1] if is_by_origin else choice.because)
    if choice.version == 3:
        return f"{begin} and gets it; `--keras 2` has it run with Keras 2"
    if is_by_origin and not (KERAS_2.is_installed and _keras_version.mentions_keras(project)):
        return ""
    if KERAS_2.is_installed:
        return f"{begin} and gets it, as `tf_keras`; `--keras 3` has it run with Keras 3"
    return f"{begin}, the package `tf_keras`, which is not installed: {environment.KERAS_2_COMES_BY}"


def _settle_tensorflow(version: str | None, script: str, project: Project) -> OldTensorFlow:
    """Chooses what the script has as `tensorflow`, unless the user did."""
    if version is not None:
        return OldTensorFlow(frozenset(project.files if version == "1" else ()), in_graphs=version == "1")
    old = _tensorflow_version.old_tensorflow(project)
    if old.because:
        gets = ["`tf.compat.v1` as `tensorflow`"] * bool(old.files)
        gets += ["graphs in place of eager execution"] * old.in_graphs
        end = f"and gets {' and '.join(gets)}; `--tensorflow 2` has it run without"
        _say(f"{_reason(script, 'TensorFlow 1', old.because)} {end}")
    return old


def _reason(script: str, package: str, because: Sequence[Finding]) -> str:
    others = f", and {len(because) - 1} more, which `check` lists" if len(because) > 1 else ""
    return f"`{script}` is for {package} ({place(because[0]).strip()}{others})"


def place(finding: Finding) -> str:
    """Returns a finding as a line."""
    return f"  {finding.path}:{finding.line}: {finding.message}"
