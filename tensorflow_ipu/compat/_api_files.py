"""Reads the names of installed packages from their source files, without importing them."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Api:
    """The names of a package. A module may have files in several `folders`; it has the names of all these files."""

    package: str
    folders: tuple[str, ...]

    @functools.cached_property
    def _roots(self) -> tuple[Path, ...]:
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            return ()
        return tuple(Path(spec.origin).parent / name for name in self.folders)

    @property
    def is_installed(self) -> bool:
        """True if the package is installed."""
        return bool(self._roots)

    def is_module(self, path: str) -> bool:
        """Returns True if the package has a module with this dotted path."""
        return bool(_files(self._roots, path))

    def names(self, path: str) -> set[str]:
        """Returns the names of the module with this dotted path."""
        return _names(_files(self._roots, path))

    def has(self, path: str) -> bool:
        """Returns True if a dotted path is a module, a name of a module, or anything below such a name.

        What is below a name is not checked: `layers.Dense.no_such` -> True.
        """
        parent = ""
        for part in path.split("."):
            child = f"{parent}.{part}".removeprefix(".")
            if not self.is_module(child):
                return part in self.names(parent)
            parent = child
        return True


KERAS_2 = Api("tf_keras", ("api/_v2/keras", "src", ""))
KERAS_3 = Api("keras", ("", "_tf_keras/keras"))
TENSORFLOW_1 = Api("tensorflow", ("_api/v2/compat/v1",))
TENSORFLOW_2 = Api("tensorflow", ("", "_api/v2"))


@functools.cache
def _files(roots: tuple[Path, ...], path: str) -> tuple[Path, ...]:
    starts = [folder.joinpath(*path.split(".")) if path else folder for folder in roots]
    files = [file for start in starts for file in (start / "__init__.py", start.with_suffix(".py"))]
    return tuple(file for file in files if file.is_file())


@functools.cache
def _names(files: tuple[Path, ...]) -> set[str]:
    return {name for file in files for name in _bound(ast.parse(file.read_bytes()))}


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yields the names that a module binds, also inside functions, and the attributes that it assigns."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in node.names)
            case ast.ClassDef(name) | ast.FunctionDef(name):
                yield name
            case ast.Name(name, ast.Store()) | ast.Attribute(_, name, ast.Store()):
                yield name
            case ast.Call(ast.Name("setattr"), [_, ast.Constant(str(name)), *_]):
                yield name
