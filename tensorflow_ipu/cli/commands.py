"""Selects and executes commands, and completes command lines in shells."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tensorflow_ipu.cli.parsers import COMMANDS

_SPELLINGS = {"--check": "check", "--list": "list"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Executes `arguments`, by default the command line of this process, and returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    name = _SPELLINGS.get(arguments[0], arguments[0]) if arguments else ""
    try:
        try:
            return _module(name).main(arguments[1:]) if name in COMMANDS else _module("run-script").main(arguments)
        finally:
            sys.stdout.flush()
    except (
        BrokenPipeError
    ):  # The reader, such as `head`, has closed the pipe. Without this, Python prints an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tensorflow_ipu.cli.{name.replace('-', '_')}")


def _complete() -> None:
    """Prints the completions that a shell requested and ends the process; does nothing without argcomplete."""
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(whole_parser())


def whole_parser() -> argparse.ArgumentParser:
    """Returns a parser of all commands, used for completion only."""
    full_parser = argparse.ArgumentParser(parents=[_module("run-script").parser()], add_help=False)
    commands = full_parser.add_subparsers()
    # The first word may be a script instead of a command.
    commands.completer = lambda prefix, **_: [*COMMANDS, *_scripts(prefix)]  # pyright: ignore[reportAttributeAccessIssue]
    for name in COMMANDS:
        command_parser = commands.add_parser(name, parents=[_module(name).parser()], add_help=False)
        if name.startswith("run"):
            command_parser.add_argument("program", nargs="*")
    return full_parser


def _scripts(prefix: str) -> list[str]:
    folder = Path(os.path.dirname(prefix) or ".")
    paths = [path for path in folder.glob("[!.]*") if path.is_dir() or path.suffix == ".py"]
    return [os.path.join(os.path.dirname(prefix), path.name) + ("/" if path.is_dir() else "") for path in paths]
