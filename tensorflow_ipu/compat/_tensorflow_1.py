"""Makes `tensorflow` mean `tf.compat.v1` in the imports of some files, as in TensorFlow 1."""

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
    """Imports like an `import` statement, but replaces modules of `tensorflow` by modules of `tf.compat.v1`."""
    current = name if level else _current_name(name)
    module = builtins.__import__(current, globals, locals, fromlist or (), level)
    # `import a.b` binds `a`, and `import a.b as c` looks `b` up in `a`, so both need the module that replaces `a`.
    is_top = not (level or fromlist) and f"{name}.".startswith(f"{_TF}.") and not name.startswith(f"{_TF}.compat.")
    return importlib.import_module(_V1) if is_top else module


BUILTINS = {**vars(builtins), "__import__": _import}  # The `__builtins__` of files with `tf.compat.v1` as `tensorflow`.


def _current_name(module: str) -> str:
    """Returns the name that a public module of TensorFlow 1 has now, or `module` itself for other modules.

    Examples: `tensorflow.nn` -> `tensorflow.compat.v1.nn`, `tensorflow.python` -> `tensorflow.python`.
    """
    if module == _TF:
        return _V1
    path = module.removeprefix(f"{_TF}.")
    first = path.partition(".")[0]
    is_public = path != module and first != "compat" and (first == "keras" or TENSORFLOW_1.is_module(first))
    return f"{_V1}.{path}" if is_public else module


@contextmanager
def importing(files: frozenset[Path]) -> Iterator[None]:
    """A context in which imports of these files have `tf.compat.v1` as `tensorflow`."""
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
    """Finds the modules whose sources are in a set of files."""

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
