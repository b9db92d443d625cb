"""Gives files of Python `tf.compat.v1` where they import `tensorflow`, as it was in TensorFlow 1."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from tensorflow_ipu.compat._api_files import TENSORFLOW_1

_TF, _V1 = "tensorflow", "tensorflow.compat.v1"


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Imports as an `import` statement does, and has the modules of TensorFlow 1 for those of TensorFlow."""
    old = name if level else _old(name)
    module = builtins.__import__(old, globals, locals, fromlist or (), level)
    # A statement without `from` binds the module at the top, or goes on from there to the one that `as` names.
    is_top = not (level or fromlist) and f"{name}.".startswith(f"{_TF}.") and not name.startswith(f"{_TF}.compat.")
    return importlib.import_module(_V1) if is_top else module


BUILTINS = {**vars(builtins), "__import__": _import}  # As `__builtins__` of the code of such files.


def _old(module: str) -> str:
    """Returns the name that a module of TensorFlow 1 has now; other modules keep their names."""
    if module == _TF:
        return _V1
    path = module.removeprefix(f"{_TF}.")
    first = path.partition(".")[0]
    is_public = path != module and first != "compat" and (first == "keras" or TENSORFLOW_1.is_module(first))
    return f"{_V1}.{path}" if is_public else module


@contextmanager
def importing(files: frozenset[Path]) -> Iterator[None]:
    """A block in which these files are imported so."""
    finder = _Finder(files)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = BUILTINS
        super().exec_module(module)


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
