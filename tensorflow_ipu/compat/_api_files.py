"""Reads the names of installed packages from files that are not imported."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Api:
    """The public names below folders of a package; of a name in several folders, the first counts."""

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
        """Returns True if there is the package."""
        return bool(self._roots)

    def is_module(self, path: str) -> bool:
        """Returns True if there is a module of this dotted path below the package."""
        return bool(_files(self._roots, path))

    def names(self, path: str) -> set[str]:
        """Returns the names of a module."""
        return _names(_files(self._roots, path))

    def has(self, path: str) -> bool:
        """Returns True if a dotted path leads to a module, a name, or something below a name, which is not followed."""
        above = ""
        for word in path.split("."):
            here = f"{above}.{word}".removeprefix(".")
            if not self.is_module(here):
                return word in self.names(above)
            above = here
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
    """Yields what a module binds, in functions too, and what it sets as attributes of itself."""
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
