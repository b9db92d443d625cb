"""Gives files of Python `tf.compat.v1` where they import `tensorflow`, as it was in TensorFlow 1."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tensorflow_ipu.compat._api_files import TENSORFLOW_1

_TF, _V1 = "tensorflow", "tensorflow.compat.v1"


def compiled(source: bytes | str, path: str) -> CodeType:
    """Compiles the text of a file, with its imports of TensorFlow as those of TensorFlow 1."""
    return compile(with_old_imports(ast.parse(source, path)), path, "exec", dont_inherit=True)


def with_old_imports(tree: ast.Module) -> ast.Module:
    """Replaces imports of `tensorflow` and of its public modules, however deep the code is nested."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                statements[:] = [new for statement in statements for new in _replaced(statement)]
    return tree


@contextmanager
def importing(files: frozenset[Path]) -> Iterator[None]:
    """A block in which these files are imported so."""
    finder = _Finder(files)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _replaced(node: ast.stmt) -> list[ast.stmt]:
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        node.module = _old(node.module)
    if not isinstance(node, ast.Import):
        return [node]
    found = list[ast.alias]()
    for alias in node.names:
        name = _old(alias.name)
        binds_tensorflow = not alias.asname and alias.name.partition(".")[0] == _TF
        if not binds_tensorflow or name != _V1:
            found.append(ast.copy_location(ast.alias(name, alias.asname), alias))
        if binds_tensorflow:
            found.append(ast.copy_location(ast.alias(_V1, _TF), alias))
    return [ast.copy_location(ast.Import([alias]), node) for alias in found]


def _old(module: str) -> str:
    """What a module of TensorFlow was in TensorFlow 1."""
    path = module.removeprefix(f"{_TF}.")
    if module == _TF:
        return _V1
    first = path.partition(".")[0]
    is_public = path != module and first != "compat" and (first == "keras" or TENSORFLOW_1.is_module(first))
    return f"{_V1}.{path}" if is_public else module


class _Loader(SourceFileLoader):
    """Loads a file, whose compiled code is that of no other process and is not kept."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compiled(self.get_data(self.path), self.path)


class _Finder(MetaPathFinder):
    """Finds the modules that are in some files."""

    def __init__(self, files: frozenset[Path]) -> None:
        self._files = {os.path.realpath(file) for file in files}
        self._names = {file.parent.name if file.stem == "__init__" else file.stem for file in map(Path, self._files)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.rpartition(".")[2] not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not spec.origin or os.path.realpath(spec.origin) not in self._files:
            return None
        spec.loader = _Loader(fullname, spec.origin)
        return spec
