"""Finds and executes commands, and completes them for shells."""

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
    """Executes a command line, by default that of this process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    name = _SPELLINGS.get(words[0], words[0]) if words else ""
    try:
        try:
            return _module(name).main(words[1:]) if name in COMMANDS else _module("run-script").main(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # Whoever reads has read enough. Python itself would complain as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tensorflow_ipu.cli.{name.replace('-', '_')}")


def _complete() -> None:
    """Answers a shell that asks how to complete a command line, if argcomplete is installed, and ends the process."""
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(whole_parser())


def whole_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = argparse.ArgumentParser(parents=[_module("run-script").parser()], add_help=False)
    commands = whole.add_subparsers()
    # The first word may be a script, too.
    commands.completer = lambda prefix, **_: [*COMMANDS, *_scripts(prefix)]  # pyright: ignore[reportAttributeAccessIssue]
    for name in COMMANDS:
        made = commands.add_parser(name, parents=[_module(name).parser()], add_help=False)
        if name.startswith("run"):
            made.add_argument("program", nargs="*")
    return whole


def _scripts(prefix: str) -> list[str]:
    folder = Path(os.path.dirname(prefix) or ".")
    found = [path for path in folder.glob("[!.]*") if path.is_dir() or path.suffix == ".py"]
    return [os.path.join(os.path.dirname(prefix), path.name) + "/" * path.is_dir() for path in found]
