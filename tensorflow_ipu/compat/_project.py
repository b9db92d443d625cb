"""Files of Python that belong together, and what the names in them stand for."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._reading import Reading, Scope, Use, imported_by

_MAIN = "__main__"
_MOST_RENAMINGS = 100

# A file, its package and its full name.
_File = tuple[Path, str, str]


class Project:
    """Files, read together; names lead through all of them to modules outside."""

    def __init__(self, script: Path, folders: Sequence[Path], package: str = "", source: bytes | None = None) -> None:
        """Reads a script, which is in a file or in `source`, and its imports; a file that cannot be read is left out."""
        self.script = script
        self.unreadable: list[Found] = []
        self._folders = folders
        self._package = package
        self._modules: dict[str, Reading] = {}
        self._seen: set[Path] = set()
        self.files = self._read([(script, package, _MAIN)], source)  # In the order of imports.

    @functools.cached_property
    def beside(self) -> dict[Path, Reading]:
        """The other scripts of the script's folder that mention TensorFlow or Keras, and what they import."""
        scripts = list[_File]()
        for file in sorted(self.script.parent.glob("*.py")) if self._folders else ():
            try:
                text = file.read_bytes() if file.is_file() else b""
            except OSError:
                continue
            if b"keras" in text or b"tensorflow" in text:
                scripts.append((file, self._package, f"{self._package}.{file.stem}".removeprefix(".")))
        unreadable, self.unreadable = self.unreadable, []
        beside = self._read(scripts)
        self.unreadable = unreadable  # Nobody asked for those.
        return beside

    def _read(self, queue: list[_File], source: bytes | None = None) -> dict[Path, Reading]:
        """Reads files that are not read yet, and what they import."""
        files = dict[Path, Reading]()
        while queue:
            file, package, name = queue.pop(0)
            if file.resolve() in self._seen:
                continue
            self._seen.add(file.resolve())
            try:
                given = source if name == _MAIN else None
                tree = ast.parse(file.read_bytes() if given is None else given, str(file))
                reading = Reading(tree, package)
            except (SyntaxError, ValueError, OSError) as exc:
                self.unreadable.append(Found(str(file), getattr(exc, "lineno", None) or 1, f"{exc.args[0]}"))
                continue
            except (RecursionError, MemoryError):  # The parser of Python 3.10 says the latter.
                self.unreadable.append(Found(str(file), 1, "its code is nested too deeply"))
                continue
            files[file] = self._modules[name] = reading
            queue += [found for module in sorted(reading.modules) for found in _files(self._folders, module)]
        return files

    def meanings(self, use: Use) -> set[str]:
        """All full names that an expression can stand for; none where it may be anything else."""
        return self._of(use.node, use.scope, frozenset())

    def full(self, name: str) -> str:
        """What a full name stands for where a module of the project imports it."""
        for _ in range(len(self._modules) + 1):  # Two modules can have a name from each other.
            words = name.split(".")
            for end in range(len(words) - 1, 0, -1):
                reading = self._modules.get(".".join(words[:end]))
                found = self._bound(reading.scope, words[end], frozenset()) if reading is not None else set()
                if len(found) == 1:
                    name = ".".join([found.pop(), *words[end + 1 :]])
                    break
            else:
                break
        return name

    def sources(self, use: Use) -> Iterator[str]:
        """The old modules that an unbound name can only come from, by `from module import *`."""
        if not isinstance(use.node, ast.Name) or _scope_of(use.node.id, use.scope) is not None:
            return
        seen = set[str]()
        queue = list(_outermost(use.scope).stars)
        while queue:
            module = queue.pop()
            if module in seen:
                continue
            seen.add(module)
            if module in self._modules:
                queue += self._modules[module].scope.stars
            elif _names.module_exists(module):
                yield module

    def _of(self, node: ast.expr, scope: Scope, asked: frozenset[tuple[int, str]]) -> set[str]:
        attributes = list[str]()
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if attributes:
            names = self._of(node, scope, asked)
            for attribute in reversed(attributes):
                names = {self.full(f"{name}.{attribute}") for name in names}
            return names
        if isinstance(node, ast.Name):
            around = _scope_of(node.id, scope)
            return self._bound(around or _outermost(scope), node.id, asked)
        if isinstance(node, ast.NamedExpr):
            return self._of(node.value, scope, asked)
        module = imported_by(node)
        return set() if module is None else {module}

    def _bound(self, scope: Scope, name: str, asked: frozenset[tuple[int, str]]) -> set[str]:
        """What a name of a scope stands for, by its bindings or by star imports."""
        # It is bound to itself, by way of another, or by way of more than anybody writes.
        if (id(scope), name) in asked or len(asked) > _MOST_RENAMINGS:
            return set()
        asked |= {(id(scope), name)}
        found = set[str]()
        for value in scope.bound.get(name, ()):
            full = {value} if isinstance(value, str) else self._of(value, scope, asked) if value is not None else set()
            if not full:
                return set()
            found |= full
        if found or name in scope.bound:
            return found
        for module in scope.stars:
            if module in self._modules:
                found |= self._bound(self._modules[module].scope, name, asked)
            elif _names.module_exists(module) and name in _names.existing(module):
                found.add(f"{module}.{name}")
        return found


def _scope_of(name: str, scope: Scope) -> Scope | None:
    """The scope that binds a name for an expression in `scope`, or None."""
    scope = scope.elsewhere.get(name, scope)
    around: Scope | None = scope
    while around is not None and (name not in around.bound or (around.is_class and around is not scope)):
        around = around.parent
    return around


def _outermost(scope: Scope) -> Scope:
    while scope.parent is not None:
        scope = scope.parent
    return scope


def _files(folders: Sequence[Path], module: str) -> Iterator[_File]:
    """The files of a module and of the packages around it, each with its package and full name."""
    words = module.split(".")
    for folder in folders:
        for end in range(1, len(words) + 1):
            name, start = ".".join(words[:end]), folder.joinpath(*words[:end])
            beside = start.with_suffix(".py")
            if beside.is_file():
                yield beside, name.rpartition(".")[0], name
            if (start / "__init__.py").is_file():
                yield start / "__init__.py", name, name


def begin(use: Use) -> Use:
    """The name that a chain of attributes begins with."""
    node = use.node
    while isinstance(node, ast.Attribute):
        node = node.value
    return Use(use.line, node, use.scope)


@dataclass(frozen=True, order=True)
class Found:
    """A place with a message."""

    path: str
    line: int
    message: str


def of_script(script: Path) -> Project:
    """Reads a script, and the modules of its folder that it imports."""
    return Project(script, [script.parent])


def of_all(paths: Iterable[Path]) -> list[Project]:
    """Reads scripts and the Python files of folders."""
    roots = list(paths)
    folders = [path for path in roots if path.is_dir()]
    # A folder may have other things under such a name, such as a pipe, at which a read would wait.
    files = [path for path in roots if path not in folders]
    files += [file for folder in folders for file in sorted(folder.rglob("*.py")) if file.is_file()]
    return [Project(file, [file.parent, *(folder for folder in folders if folder in file.parents)]) for file in files]
