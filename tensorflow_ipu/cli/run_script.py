"""The command `run-script`, which is the default if the first word is no command."""

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

FAILED = "the script ended with status "  # Printed by a worker that fails; `run` parses it.

_USAGE = """\
{prog} [--keras 2|3] [--tensorflow 1|2] [--force] [--emulations=FILE] SCRIPT [ARGUMENT ...]
       {prog} [OPTION ...] -m MODULE | -c CODE [ARGUMENT ...]
       {prog} COMMAND ..."""

_DESCRIPTION = """\
Runs an unmodified script for Graphcore IPUs on emulated IPUs. tensorflow_ipu provides
`from tensorflow.python import ipu` and the other names of IPU TensorFlow. Otherwise the
script runs as by `python SCRIPT ARGUMENT ...`.

The script is read before it runs. If it uses names that do not exist in this version, they
are all listed on the error output, and the script does not run (status 2)."""

_END = "Arguments after SCRIPT belong to the script. A script with the name of a command needs `run-script`.\n"
_END += "See docs/porting.md and docs/command_line.md."


def parser() -> argparse.ArgumentParser:
    commands = [f"  {name:12}{text}" for name, text in COMMANDS.items()]
    examples = "\n".join(["commands (each has `--help`):", *commands, "", _END])
    statuses = "that of the script, or 1 if it ends with an error"
    command_parser = make_parser("", _DESCRIPTION, statuses, _USAGE, examples)
    command_parser.add_argument(
        "--keras",
        choices=("2", "3"),
        help="the version of `tf.keras` and `keras`: 2 (the package `tf_keras`, as in 2021) or 3. Default: as set by"
        " `TF_USE_LEGACY_KERAS`; if that is unset, 2 for scripts of the SDK and if a script of the folder uses names that exist"
        " only in Keras 2; else 3",
    )
    command_parser.add_argument(
        "--tensorflow",
        choices=("1", "2"),
        help="the version of `tensorflow` in the script and in the modules of its folder that it imports: 1 (`tf.compat.v1`"
        " in graphs) or 2. Default: 1 if they use names that exist only in TensorFlow 1; else 2",
    )
    command_parser.add_argument(
        "--force", action="store_true", help="run the script even if it uses names that do not exist"
    )
    command_parser.add_argument(
        "--emulations",
        metavar="FILE",
        type=Path,
        help="a Python file to run before the script. It registers emulations of the script's operations for tiles by"
        " `tensorflow_ipu.ops.register_user_op_emulation`. Write `--emulations=FILE`",
    )
    command_parser.add_argument("--version", action="store_true", help="print the version of the package")
    return command_parser


def main(arguments: Sequence[str]) -> int:
    command_parser = parser()
    own_arguments, program_arguments = split(arguments, ("--keras", "--tensorflow", "--emulations"))
    options, unknown = command_parser.parse_known_args(own_arguments)
    if unknown:
        command_parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0])}")
    if options.version:
        from tensorflow_ipu.cli.info import version_of

        show(f"tensorflow-ipu {version_of('tensorflow-ipu')}")
        return 0
    try:
        script = program_of(program_arguments)
        project = script.read()
    except ValueError as exc:
        message = str(exc)
        if not program_arguments:
            command_parser.error(message)
        command_parser.exit(WRONG, f"{command_parser.prog}: {message}\n")
    if script.interpreter:  # Python reads its own options only at its start.
        own_arguments = ["-m", "tensorflow_ipu", "run-script", *own_arguments]
        os.execv(sys.executable, [sys.executable, *script.interpreter, *own_arguments, *script.words])
    emulations: Path | None = options.emulations
    if emulations is not None and not emulations.is_file():
        command_parser.exit(WRONG, f"{command_parser.prog}: `--emulations={emulations}` names no Python file\n")
    # The Keras and TensorFlow of the script are settled from its source, before TensorFlow is imported.
    needs = _keras_version.needs(project)
    version = _settle_keras(options.keras, script.title, project, needs)
    old = _settle_tensorflow(options.tensorflow, script.title, project)
    missing = [*_missing.missing(project), *_keras_version.lost(needs, version)]
    if missing:
        outcome = f"It was not run. `{program()} --force {script.title}` runs it up to the first of these."
        outcome = "It runs anyway because of `--force`." if options.force else outcome
        title = f"`{script.title}` uses names that do not exist in this version of tensorflow_ipu:"
        _print_error("\n".join([title, *map(place, missing), outcome]))
        if not options.force:
            return WRONG
    try:
        requirements.check_tensorflow()
        from tensorflow_ipu import keras  # noqa: F401
        from tensorflow_ipu.compat import _script
    except (LibraryError, ModuleNotFoundError) as exc:
        command_parser.exit(WRONG, f"{command_parser.prog}: {exc}\n")
    if emulations is not None:
        runpy.run_path(str(emulations))
    installation = "" if KERAS_2.is_installed else f"; it is the package `tf_keras`: {environment.KERAS_2_COMES_BY}"
    may_need_keras_2 = version == 3 and any(need.version == 2 for need in needs)
    advice = f"`--keras 2` may be what this script needs{installation}" if may_need_keras_2 else ""
    is_old = project.script in old.files
    return _as_worker(lambda: _script.run(script.flag, script.text, script.arguments, old, is_old, advice))


def _as_worker(run: Callable[[], int]) -> int:
    """Runs a script. If it fails as a worker of MPI, prints its status and ends the other workers."""
    if not {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} & set(os.environ):
        return run()
    process, status = os.getpid(), 1

    def has_failed() -> bool:
        return status != 0 and os.getpid() == process  # A forked child is no worker.

    # If a worker fails before it has initialized MPI, hydra lets the other workers wait for it forever. So this process
    # sends hydra the command to abort. The handler is registered first and therefore runs after all other handlers.
    with suppress(KeyError, OSError, ValueError):
        pmi = os.dup(int(os.environ["PMI_FD"]))
        atexit.register(lambda: has_failed() and os.write(pmi, b"cmd=abort exitcode=%d\n" % status))
    try:
        status = run()
    except SystemExit as exc:
        status = exc.code & 255 if isinstance(exc.code, int) else int(exc.code is not None)
        raise
    finally:
        if has_failed():
            _print_error(f"{FAILED}{status}")
    return status


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _settle_keras(version: str | None, script: str, project: Project, needs: Sequence[KerasFinding]) -> int:
    """Returns this process's version of Keras. Chooses it, unless `--keras`, a variable or an import has set it."""
    chosen = None if version is None else int(version)
    if chosen is None and not (environment.KERAS_VARIABLE in os.environ or "tensorflow" in sys.modules):
        choice = _keras_version.choose(needs, _keras_version.needs_of_folder(project, needs))
        if line := keras_line(script, choice, project):
            _print_error(line)
        chosen = choice.version if choice.because and (choice.version == 3 or KERAS_2.is_installed) else None
    if chosen is not None:
        # Child processes inherit the choice. Some libraries would set the variable if it were unset.
        os.environ[environment.KERAS_VARIABLE] = str(int(chosen == 2))
    return 2 if environment.uses_keras_2() else 3


def keras_line(script: str, choice: KerasChoice, project: Project) -> str:
    """Returns a message on the Keras of a script; empty if the script has TensorFlow's default Keras or uses none."""
    if not choice.because:
        return ""
    is_by_origin = choice.because[0].weight is Weight.ORIGIN
    begin = _reason(script, f"Keras {choice.version}", choice.because[:1] if is_by_origin else choice.because)
    if choice.version == 3:
        return f"{begin} and runs with it; `--keras 2` runs it with Keras 2"
    if is_by_origin and not (KERAS_2.is_installed and _keras_version.mentions_keras(project)):
        return ""
    if KERAS_2.is_installed:
        return f"{begin} and runs with it, as `tf_keras`; `--keras 3` runs it with Keras 3"
    return f"{begin}, the package `tf_keras`, which is not installed: {environment.KERAS_2_COMES_BY}"


def _settle_tensorflow(version: str | None, script: str, project: Project) -> OldTensorFlow:
    """Returns the version of TensorFlow for each file of the script, chosen by its names unless `--tensorflow` sets it."""
    if version is not None:
        return OldTensorFlow(frozenset(project.files if version == "1" else ()), in_graphs=version == "1")
    old = _tensorflow_version.old_tensorflow(project)
    if old.because:
        changes = ["`tf.compat.v1` as `tensorflow`"] if old.files else []
        changes += ["graphs in place of eager execution"] if old.in_graphs else []
        outcome = f"and runs with {' and '.join(changes)}; `--tensorflow 2` runs it without"
        _print_error(f"{_reason(script, 'TensorFlow 1', old.because)} {outcome}")
    return old


def _reason(script: str, package: str, because: Sequence[Finding]) -> str:
    more = f", and {len(because) - 1} more, which `check` lists" if len(because) > 1 else ""
    return f"`{script}` is for {package} ({place(because[0]).strip()}{more})"


def place(finding: Finding) -> str:
    """Returns the line on a finding: `  FILE:LINE: MESSAGE`."""
    return f"  {finding.path}:{finding.line}: {finding.message}"
