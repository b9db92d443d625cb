"""Functions that all commands use to parse their arguments and to print."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence

# The values that switches of `poprun` accept.
YES_NO = ("yes", "no", "true", "false", "on", "off", "1", "0")
# The exit status if a command line or a file is invalid.
WRONG = 2

# The commands and their help, in the order in which help lists them. The module of a command has its name and two
# functions: `parser` returns the parser of its command line without importing TensorFlow; `main` executes the arguments
# after the command and returns the exit status.
COMMANDS = {
    "run-script": "runs a script; the default if the first word is a script instead of a command",
    "run": "runs a script as several workers; accepts the command lines of `poprun`",
    "check": "reads scripts and folders without running them, and lists names that do not exist",
    "list": "prints all names of IPU TensorFlow and whether each works here",
    "pipeline": "plans a pipeline, draws it, and estimates its time and memory",
    "report": "shows a saved report on a program's predicted time and memory on real IPUs, or compares two",
    "precision": "shows a saved report on the effect of float16 on a model",
    "info": "shows devices, versions, the processor, caches and environment variables; `--report` is for an issue",
}
CONSOLE = "tensorflow-ipu"


def program() -> str:
    """Returns the command as the user called it: `tensorflow-ipu` or `python -m tensorflow_ipu`."""
    return CONSOLE if os.path.basename(sys.argv[0]) == CONSOLE else "python -m tensorflow_ipu"


def make_parser(
    command: str, description: str, statuses: str, usage: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """Returns the parser of a command; `statuses` is the help text on its exit statuses other than 2."""
    status = f"status: {statuses}; {WRONG} if the command line or a file is invalid"
    return argparse.ArgumentParser(
        prog=f"{program()} {command}".strip(),
        usage=usage.format(prog=program()) or None,
        description=description if "\n" in description else textwrap.fill(description, 100),
        epilog="\n\n".join(filter(None, [examples.rstrip(), textwrap.fill(status, 100)])),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for other programs")


def execute(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    command: Callable[[argparse.Namespace], int | None],
    error_types: tuple[type[Exception], ...] = (),
) -> int:
    """Calls `command` with the parsed options and returns its status.

    OSError, ValueError, ImportError and errors of `error_types` are printed without a traceback; the status is then
    `WRONG`.
    """
    try:
        return command(parser.parse_args(arguments)) or 0
    except BrokenPipeError:
        raise
    except (OSError, ValueError, ImportError, *error_types) as exc:  # The library that draws pictures may be missing.
        message = getattr(exc, "message", None) or str(exc)
        if isinstance(exc, OSError) and exc.filename is not None:
            message = f"`{exc.filename}`: {exc.strerror}"
        print(f"{parser.prog}: {message}", file=sys.stderr)  # noqa: T201
        return WRONG


def show(text: str) -> None:
    """Prints the result of a command."""
    print(text)  # noqa: T201


def show_json(values: object) -> None:
    """Prints values as JSON."""
    show(json.dumps(values, indent=1))


def split(arguments: Sequence[str], valued: Iterable[str], switches: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Splits the options from the program after them. The program begins at `-m`, at `-c` or at the first word without "-".

    The word after an option of `valued` is its value. The word after an option of `switches` is its value if it is one
    of `YES_NO`. Returns the options, each joined with its value, and the program:
    `-n 2 a.py -x` -> `["-n2"], ["a.py", "-x"]`.
    """
    options, program = list[str](), list(arguments)
    while program and program[0].startswith("-") and program[0] not in ("-m", "-c"):
        options.append(program.pop(0))
        if program and (options[-1] in valued or (options[-1] in switches and program[0] in YES_NO)):
            # Option and value become one word, because the value may look like an option.
            options[-1] += ("=" if options[-1].startswith("--") else "") + program.pop(0)
    return options, program


def meant(word: str) -> str:
    """Returns the command that `word` may mean, as the end of a message; empty if there is none."""
    near = difflib.get_close_matches(word.lstrip("-"), COMMANDS, n=1)
    return f". Did you mean the command `{near[0]}`?" if near else ""


def kind_of(path: str | os.PathLike[str]) -> str:
    """Returns the kind of a file and a program that shows it, as the end of a sentence; empty if it is of no known kind."""
    name = os.fspath(path)
    if name.endswith(".py"):
        return f"is a script; `{program()} {name}` runs it"
    if name.endswith(".html"):
        return "is a page; open it in a browser"
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError):
        return ""
    keys = set(values) if isinstance(values, dict) else set()
    if "operations" in keys:
        return f"is a report of a program; `{program()} report {name}` shows it"
    if {"loss_scale", "rows"} <= keys:
        return f"is a report of float16; `{program()} precision {name}` shows it"
    return "is a trace; open it at https://ui.perfetto.dev" if "traceEvents" in keys else ""
