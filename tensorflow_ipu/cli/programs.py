"""What a command line names to be run: a script, a module or code, as after `python`."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from tensorflow_ipu.cli.parsers import kind_of, meant
from tensorflow_ipu.compat import _project

_PYTHON = re.compile(r"python[\d.]*")
_VALUED = ("-W", "-X")


@dataclass(frozen=True)
class Program:
    """A script, or the module or code after `-m` or `-c`, with its arguments and the options of Python itself."""

    flag: str
    text: str
    arguments: tuple[str, ...]
    interpreter: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The words that name it."""
        return [*filter(None, [self.flag]), self.text, *self.arguments]

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"{self.flag} {self.text}" if self.flag == "-m" else self.text if not self.flag else "-c"

    def read(self) -> _project.Project:
        """Reads it with what it imports of its folder; a ValueError says that it does not exist."""
        if self.flag == "-c":
            return _project.Project(Path("<string>"), [Path.cwd()], source=self.text.encode())
        if self.flag == "-m":
            return _project.Project(*_module(self.text))
        path = Path(self.text)
        if not path.is_file():
            others = "is no regular file" if path.exists() else "does not exist"
            kind = "is a folder, not a script" if path.is_dir() else others
            raise ValueError(f"`{path}` {kind}; name a Python file{meant(self.text)}")
        if path.suffix in (".json", ".html") and (other := kind_of(path)):
            raise ValueError(f"`{path}` {other}")
        return _project.of_script(path)


def program_of(words: Sequence[str]) -> Program:
    """The program that words name, with or without `python` in front; a ValueError says what they lack."""
    rest, interpreter = list(words), list[str]()
    if rest and _PYTHON.fullmatch(os.path.basename(rest[0])):
        del rest[0]
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            count = 1 + (rest[0] in _VALUED)
            interpreter += rest[:count]
            del rest[:count]
    flag = rest.pop(0) if rest and rest[0] in ("-m", "-c") else ""
    if not rest:
        what = {"-m": "the module to run, after `-m`", "-c": "the code to run, after `-c`"}
        raise ValueError(f"name {what.get(flag, 'the script to run, after all options')}")
    return Program(flag, rest[0], tuple(rest[1:]), tuple(interpreter))


def _module(name: str) -> tuple[Path, list[Path], str]:
    """The file of a module, the folder that it was found in, and its package; nothing is imported."""
    here = [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]  # As of Python 3.11.
    folders: Sequence[str] | None = [*here, *sys.path]
    spec, words = None, name.split(".")
    for end in range(1, len(words) + 1):
        spec = None if folders is None else PathFinder.find_spec(".".join(words[:end]), folders)
        if spec is None:
            raise ValueError(f"there is no module `{'.'.join(words[:end])}`; name one as in `import`, or a Python file")
        folders = spec.submodule_search_locations
    package = name.rpartition(".")[0]
    if folders is not None:  # A package has a module for this.
        spec, package = PathFinder.find_spec(f"{name}.__main__", folders), name
        if spec is None:
            raise ValueError(f"`{name}` is a package without a module `__main__`; name a module of it")
    if spec is None or not (spec.origin or "").endswith(".py"):
        raise ValueError(f"the module `{name}` is no Python file")
    file = Path(spec.origin or "")
    folder = file.parents[package.count(".") + 1] if package else file.parent
    # What is installed beside it is not read: that may be much.
    return file, [] if str(folder) in sysconfig.get_paths().values() else [folder], package
