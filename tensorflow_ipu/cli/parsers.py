"""What the parsers of all commands share, and how commands print."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence

# What switches of `poprun` take for a value.
YES_NO = ("yes", "no", "true", "false", "on", "off", "1", "0")
# The status where a command line or a file is wrong.
WRONG = 2

# Names and texts of all commands, in the order of their help. The module of a command has its name. Its function `parser`
# returns the parser of its command line, without TensorFlow; `main` executes the words after the command, and returns the
# status.
COMMANDS = {
    "run-script": "runs a script; also what is done where a script is named and no command",
    "run": "runs a script in several processes, as workers of a cluster, and takes the command lines of `poprun`",
    "check": "reads scripts and folders, runs nothing, and says what does not exist",
    "list": "prints all names of IPU TensorFlow, and what each is here",
    "pipeline": "plans a pipeline, draws it, says what it costs",
    "report": "shows a saved report of what a real machine would make of a program, or compares two",
    "precision": "shows a saved report of what float16 makes of a model",
    "info": "shows devices, versions, the processor, caches and which variables act: for oneself or for an issue",
}
CONSOLE = "tensorflow-ipu"


def program() -> str:
    """The command as it was called."""
    return CONSOLE if os.path.basename(sys.argv[0]) == CONSOLE else "python -m tensorflow_ipu"


def make_parser(
    command: str, description: str, statuses: str, usage: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """Makes the parser of a command; `statuses` are sentences on what it exits with besides 2."""
    status = f"status: {statuses}; {WRONG} if the command line or a file is wrong"
    return argparse.ArgumentParser(
        prog=f"{program()} {command}".strip(),
        usage=usage.format(prog=program()) or None,
        description=description if "\n" in description else textwrap.fill(description, 100),
        epilog="\n\n".join(filter(None, [examples.rstrip(), textwrap.fill(status, 100)])),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print it as JSON, for other programs")


def execute(
    made: argparse.ArgumentParser,
    arguments: Sequence[str],
    act: Callable[[argparse.Namespace], int | None],
    kinds: tuple[type[Exception], ...] = (),
) -> int:
    """Calls `act` with the options of a command line. Errors of the usual kinds and of `kinds` end it by a message."""
    try:
        return act(made.parse_args(arguments)) or 0
    except BrokenPipeError:
        raise
    except (OSError, ValueError, ImportError, *kinds) as exc:  # A picture needs a library that may be missing.
        message = getattr(exc, "message", None) or str(exc)
        if isinstance(exc, OSError) and exc.filename is not None:
            message = f"`{exc.filename}`: {exc.strerror}"
        print(f"{made.prog}: {message}", file=sys.stderr)  # noqa: T201
        return WRONG


def show(text: str) -> None:
    """Prints what was asked for."""
    print(text)  # noqa: T201


def show_json(values: object) -> None:
    """Prints values as JSON."""
    show(json.dumps(values, indent=1))


def split(words: Sequence[str], valued: Iterable[str], switches: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Divides options from the program that follows them: the first word that is no option, or `-m` or `-c`.

    The word after one of `valued` is its value; after one of `switches`, if it says yes or no.
    """
    own, rest = list[str](), list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        own.append(rest.pop(0))
        if rest and (own[-1] in valued or (own[-1] in switches and rest[0] in YES_NO)):
            # In one word, as the value may look like an option.
            own[-1] += ("=" if own[-1].startswith("--") else "") + rest.pop(0)
    return own, rest


def meant(word: str) -> str:
    """The end of a message on a word that is no command: the one that was meant."""
    near = difflib.get_close_matches(word.lstrip("-"), COMMANDS, n=1)
    return f". Did you mean the command `{near[0]}`?" if near else ""


def kind_of(path: str | os.PathLike[str]) -> str:
    """What a file is, and what shows it, as the end of a sentence; empty where that is not known."""
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
