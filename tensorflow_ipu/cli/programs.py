"""The program that a command line names: a script, a module or code, as after `python`."""

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
        """The arguments from which `program_of` makes an equal program, without the options of Python."""
        return [*filter(None, [self.flag]), self.text, *self.arguments]

    @property
    def title(self) -> str:
        """The name used in messages: the script, `-m MODULE` or `-c`."""
        return f"{self.flag} {self.text}" if self.flag == "-m" else self.text if not self.flag else "-c"

    def read(self) -> _project.Project:
        """Reads the program and the modules that it imports from its folder.

        Raises:
          ValueError: The program does not exist or is no Python file.
        """
        if self.flag == "-c":
            return _project.Project(Path("<string>"), [Path.cwd()], source=self.text.encode())
        if self.flag == "-m":
            return _project.Project(*_module(self.text))
        path = Path(self.text)
        if not path.is_file():
            problem = "is no regular file" if path.exists() else "does not exist"
            problem = "is a folder, not a script" if path.is_dir() else problem
            raise ValueError(f"`{path}` {problem}; name a Python file{meant(self.text)}")
        if path.suffix in (".json", ".html") and (kind := kind_of(path)):
            raise ValueError(f"`{path}` {kind}")
        return _project.of_script(path)


def program_of(arguments: Sequence[str]) -> Program:
    """Parses the program on a command line, with or without `python` and its options in front.

    Raises:
      ValueError: The script, module or code is missing.
    """
    remaining, interpreter = list(arguments), list[str]()
    if remaining and _PYTHON.fullmatch(os.path.basename(remaining[0])):
        del remaining[0]
        while remaining and remaining[0].startswith("-") and remaining[0] not in ("-m", "-c"):
            count = 1 + (remaining[0] in _VALUED)
            interpreter += remaining[:count]
            del remaining[:count]
    flag = remaining.pop(0) if remaining and remaining[0] in ("-m", "-c") else ""
    if not remaining:
        missing = {"-m": "the module to run, after `-m`", "-c": "the code to run, after `-c`"}
        raise ValueError(f"name {missing.get(flag, 'the script to run, after all options')}")
    return Program(flag, remaining[0], tuple(remaining[1:]), tuple(interpreter))


def _module(name: str) -> tuple[Path, list[Path], str]:
    """Returns the file of a module, the folders from which its imports are read, and its package. Imports nothing."""
    # As of Python 3.11, the option `-P` keeps the working folder out of `sys.path`.
    working_folder = [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]
    folders: Sequence[str] | None = [*working_folder, *sys.path]
    spec, parts = None, name.split(".")
    for end in range(1, len(parts) + 1):
        spec = None if folders is None else PathFinder.find_spec(".".join(parts[:end]), folders)
        if spec is None:
            raise ValueError(f"there is no module `{'.'.join(parts[:end])}`; name one as in `import`, or a Python file")
        folders = spec.submodule_search_locations
    package = name.rpartition(".")[0]
    if folders is not None:  # `python -m PACKAGE` runs the module `__main__` of the package.
        spec, package = PathFinder.find_spec(f"{name}.__main__", folders), name
        if spec is None:
            raise ValueError(f"`{name}` is a package without a module `__main__`; name a module of it")
    if spec is None or not (spec.origin or "").endswith(".py"):
        raise ValueError(f"the module `{name}` is no Python file")
    file = Path(spec.origin or "")
    folder = file.parents[package.count(".") + 1] if package else file.parent
    # If the module is in site-packages, its neighbors are not read: there may be thousands of files.
    return file, [] if str(folder) in sysconfig.get_paths().values() else [folder], package
