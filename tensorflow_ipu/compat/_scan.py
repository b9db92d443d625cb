"""Finds what a script needs of the old names and does not get, by reading it."""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu.compat import _names

# Who catches one of these around an import or a use has thought of the case.
_GUARDS = frozenset({"AttributeError", "BaseException", "Exception", "ImportError", "ModuleNotFoundError"})


@dataclass(frozen=True, order=True)
class Missing:
    """A place that needs something that does not exist.

    Attributes:
      path: The file.
      line: The line in it, from 1.
      message: What is missing, and why.
    """

    path: str
    line: int
    message: str


def scan(script: Path) -> list[Missing]:
    """Reads a script, and the modules in its folder that it imports.

    What stands in a `try` that catches the error is left out. So are uses of an imported name that the file also binds
    otherwise, since they may mean the other thing.

    Args:
      script: The file.

    Returns:
      What is missing, each thing once a line, in order. Nothing for a file that does not parse: running it will tell.
    """
    found: list[Missing] = []
    queue, seen = [script], {script.resolve()}
    while queue:
        file = queue.pop(0)
        try:
            tree = ast.parse(file.read_bytes(), str(file))
        except (SyntaxError, ValueError, OSError):
            continue
        reader = _Reader(tree)
        found += sorted({Missing(str(file), line, message) for line, message in reader.missing()})
        for name in reader.modules:
            for beside in _files(script.parent, name):
                if beside.resolve() not in seen:
                    seen.add(beside.resolve())
                    queue.append(beside)
    return found


def _files(folder: Path, module: str) -> list[Path]:
    """The files of a module and of the packages around it, in this folder."""
    words = module.split(".")
    starts = [folder.joinpath(*words[:end]) for end in range(1, len(words) + 1)]
    candidates = [path for start in starts for path in (start.with_suffix(".py"), start / "__init__.py")]
    return [path for path in candidates if path.is_file()]


class _Reader:
    """What one file imports, binds and uses."""

    def __init__(self, tree: ast.Module) -> None:
        self.modules: set[str] = set()  # All that is imported, with each name of a `from` as it were a module.
        self._tree = tree
        self._guarded = {id(node) for block in _guarded_blocks(tree) for node in ast.walk(block)}
        self._names: dict[str, str] = {}  # A name in the file: what it was imported as, in full.
        self._imports: list[tuple[int, str, str | None]] = []  # Line, module, name of it.
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._note_import(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._note_import_from(node.module, node)
        bound = Counter([*self._names, *_bound_otherwise(tree)])
        self._names = {name: full for name, full in self._names.items() if bound[name] == 1}
        for name, value in _renamings(tree):
            full = self._full_name(value) if bound[name] == 1 else None
            if full is not None:
                self._names[name] = full

    def missing(self) -> Iterator[tuple[int, str]]:
        """Lines, and what is missing there."""
        for line, module, name in self._imports:
            message = _missing_import(module, name)
            if message is not None:
                yield line, message
        inner = {id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner and id(node) not in self._guarded:
                message = _missing_use(self._full_name(node))
                if message is not None:
                    yield node.end_lineno or node.lineno, message

    def _note_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.modules.add(alias.name)
            if alias.asname:
                self._names[alias.asname] = alias.name
            else:
                top = alias.name.partition(".")[0]
                self._names[top] = top
            if id(node) not in self._guarded:
                self._imports.append((alias.lineno, alias.name, None))

    def _note_import_from(self, module: str, node: ast.ImportFrom) -> None:
        self.modules.add(module)
        for alias in node.names:
            full = f"{module}.{alias.name}"
            if alias.name != "*":
                self.modules.add(full)
                self._names[alias.asname or alias.name] = full
            if id(node) not in self._guarded:
                self._imports.append((alias.lineno, module, None if alias.name == "*" else alias.name))

    def _full_name(self, node: ast.expr) -> str | None:
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value
        root = self._names.get(node.id) if isinstance(node, ast.Name) else None
        return None if root is None else ".".join([root, *words])


def _missing_import(module: str, name: str | None) -> str | None:
    words = module.split(".")
    around = (".".join(words[:end]) for end in range(1, len(words) + 1))
    message = next(filter(None, map(_names.missing_module, around)), None) or _missing_companion(module)
    if message is not None or name is None:
        return message
    if _names.module_exists(module):
        return _names.missing_name(module, name)
    return _names.missing_module(f"{module}.{name}")


def _missing_companion(module: str) -> str | None:
    top = module.partition(".")[0]
    if top not in _names.COMPANIONS or importlib.util.find_spec(top) is not None:
        return None
    return f"there is no package `{top}`: it belongs to Graphcore's SDK, and tensorflow_ipu has nothing in its place"


def _missing_use(full: str | None) -> str | None:
    if full is None:
        return None
    words = full.split(".")
    for end in range(len(words) - 1, 0, -1):
        module = ".".join(words[:end])
        if _names.module_exists(module):
            return _names.missing_name(module, words[end])
    return None


def _guarded_blocks(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(_catches(handler) for handler in node.handlers):
            yield from node.body


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _GUARDS for kind in kinds)


def _renamings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """What the file calls by another name, as in `keras = tf.keras`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Name)):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value


def _bound_otherwise(tree: ast.Module) -> Iterator[str]:
    """Names that the file binds by something other than an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
            yield node.name
