"""Reads a script with the files that it imports, and resolves the names in them to full names."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._reading import Reading, Scope, Use, imported_by

_MAIN = "__main__"
_MOST_RENAMINGS = 100

# A file, its package and its full module name.
_File = tuple[Path, str, str]
_Problem = TypeVar("_Problem")


@dataclass(frozen=True, order=True)
class Finding:
    """A message about a line of a file."""

    path: str
    line: int
    message: str


class Project:
    """A script and the files that it imports.

    An expression resolves to the full name that its object has in a module outside of the project:

        helper    from tensorflow.python import ipu
                  l = ipu.loops
        script    from helper import l
                  l.repeat(...)                 -> "tensorflow.python.ipu.loops.repeat"

    Names resolve through imports, star imports and assignments such as `l = ipu.loops`, also across files. A name with
    several bindings resolves only if all of them resolve to the same full name. Other bindings, such as loop variables,
    do not resolve. Each name of each scope is resolved once and then stored.
    """

    def __init__(self, script: Path, folders: Sequence[Path], package: str = "", source: bytes | None = None) -> None:
        """Reads a script, from its file or from `source`, and its imports. Files that cannot be read are skipped."""
        self.script = script
        self.unreadable: list[Finding] = []
        self._folders = folders
        self._package = package
        self._modules: dict[str, Reading] = {}
        self._seen: set[Path] = set()
        self._meanings: dict[tuple[int, str], str] = {}
        self.files = self._read([(script, package, _MAIN)], source)  # In the order of imports.

    @functools.cached_property
    def siblings(self) -> dict[Path, Reading]:
        """The other scripts in the folder that mention TensorFlow or Keras, with the files that they import."""
        scripts = list[_File]()
        for file in sorted(self.script.parent.glob("*.py")) if self._folders else ():
            try:
                text = file.read_bytes() if file.is_file() else b""
            except OSError:
                continue
            if b"keras" in text or b"tensorflow" in text:
                scripts.append((file, self._package, f"{self._package}.{file.stem}".removeprefix(".")))
        unreadable, self.unreadable = self.unreadable, []
        siblings = self._read(scripts)
        self.unreadable = unreadable  # Unreadable files of other scripts are not reported.
        return siblings

    def _read(self, queue: list[_File], source: bytes | None = None) -> dict[Path, Reading]:
        """Reads the files of the queue that are not read yet, and the files that they import."""
        files = dict[Path, Reading]()
        while queue:
            file, package, name = queue.pop(0)
            if file.resolve() in self._seen:
                continue
            self._seen.add(file.resolve())
            try:
                text = file.read_bytes() if source is None or name != _MAIN else source
                reading = Reading(ast.parse(text, str(file)), package)
            except (SyntaxError, ValueError, OSError) as exc:
                self.unreadable.append(Finding(str(file), getattr(exc, "lineno", None) or 1, f"{exc.args[0]}"))
                continue
            except (RecursionError, MemoryError):  # The parser of Python 3.10 raises the latter.
                self.unreadable.append(Finding(str(file), 1, "its code is nested too deeply"))
                continue
            files[file] = self._modules[name] = reading
            queue += [part for module in sorted(reading.modules) for part in _files(self._folders, module)]
        return files

    def problems(
        self, reading: Reading, problem_of: Callable[[str], _Problem | None]
    ) -> Iterator[tuple[int, _Problem]]:
        """Yields the line and problem of each full name in a file for which `problem_of` returns a problem.

        If an imported name has a problem, only the import is reported, not the uses of the name.
        """
        names = [(line, f"{module}.{name}" if name else module) for line, module, name in reading.imports]
        for use in reading.uses:
            root = use.node
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(use.node, ast.Attribute):
                imported = self.meaning(Use(use.line, root, use.scope))
                names += [] if imported and problem_of(imported) is not None else [(use.line, self.meaning(use))]
            elif isinstance(use.node, ast.Name) and use.scope.binding(use.node.id) is None:  # From a star import.
                names.append((use.line, self.meaning(use)))
        for line, full in names:
            if full and (problem := problem_of(full)) is not None:
                yield line, problem

    def meanings(self, reading: Reading) -> Iterator[tuple[int, str]]:
        """Yields the line and the full name of each use in a file, except for uses that do not resolve."""
        return ((use.line, full) for use in reading.uses if (full := self.meaning(use)))

    def meaning(self, use: Use, depth: int = 0) -> str:
        """Returns the full name that an expression resolves to, or an empty string if there is not exactly one."""
        node, attributes = use.node, list[str]()
        while isinstance(node, (ast.Attribute, ast.NamedExpr)):
            attributes += [node.attr] if isinstance(node, ast.Attribute) else []
            node = node.value
        name = self._of_name(node.id, use.scope, depth) if isinstance(node, ast.Name) else imported_by(node)
        return self._full(".".join([name, *reversed(attributes)])) if name else ""

    def _full(self, name: str) -> str:
        """Resolves names of the project's modules: `helper.l.repeat` -> `tensorflow.python.ipu.loops.repeat`."""
        # The limit ends cycles, in which two modules import a name from each other.
        for _ in range(len(self._modules) + 1):
            parts = name.split(".")
            for end in range(len(parts) - 1, 0, -1):
                reading = self._modules.get(".".join(parts[:end]))
                full = self._of_name(parts[end], reading.scope) if reading is not None else ""
                if full:
                    name = ".".join([full, *parts[end + 1 :]])
                    break
            else:
                break
        return name

    def _of_name(self, name: str, scope: Scope, depth: int = 0) -> str:
        """Returns the full name that a name in a scope resolves to, by its bindings or by star imports."""
        while scope.parent is not None and scope.binding(name) is None:
            scope = scope.parent
        scope = scope.binding(name) or scope
        key = id(scope), name
        if key not in self._meanings:
            self._meanings[key] = ""  # This entry ends cycles such as `a = b` and `b = a`.
            self._meanings[key] = self._bound(name, scope, depth)
        return self._meanings[key]

    def _bound(self, name: str, scope: Scope, depth: int) -> str:
        if name in scope.bound:
            names = set[str]()
            for value in scope.bound[name]:
                if isinstance(value, ast.expr):
                    names.add(self.meaning(Use(0, value, scope), depth + 1) if depth < _MOST_RENAMINGS else "")
                else:
                    names.add(value or "")
            return names.pop() if len(names) == 1 else ""
        for module in scope.stars:
            if module in self._modules and (full := self._of_name(name, self._modules[module].scope, depth)):
                return full
            if _names.module_exists(module) and (name in _names.existing(module) or _names.target(module, name)):
                return f"{module}.{name}"
        return ""


def _files(folders: Sequence[Path], module: str) -> Iterator[_File]:
    """Yields the files of a module and of its parent packages, each with its package and full name."""
    parts = module.split(".")
    for folder in folders:
        for end in range(1, len(parts) + 1):
            name, start = ".".join(parts[:end]), folder.joinpath(*parts[:end])
            file = start.with_suffix(".py")
            if file.is_file():
                yield file, name.rpartition(".")[0], name
            if (start / "__init__.py").is_file():
                yield start / "__init__.py", name, name


def of_script(script: Path) -> Project:
    """Reads a script and the modules of its folder that it imports."""
    return Project(script, [script.parent])


def of_all(paths: Iterable[Path]) -> list[Project]:
    """Reads scripts, and each Python file of folders as a script."""
    roots = list(paths)
    folders = [path for path in roots if path.is_dir()]
    # A name that ends with `.py` may also be a pipe, whose reader would wait.
    files = [path for path in roots if path not in folders]
    files += [file for folder in folders for file in sorted(folder.rglob("*.py")) if file.is_file()]
    return [Project(file, [file.parent, *(folder for folder in folders if folder in file.parents)]) for file in files]
