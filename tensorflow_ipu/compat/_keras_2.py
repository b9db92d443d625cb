"""Provides Keras 2 with all names that it had in 2021, when scripts for IPUs were written.

Uses the private modules below `tf_keras.src`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat import _names

_TF = "tensorflow.python"
_KERAS = "tf_keras"
_SOURCE = f"{_KERAS}.src"
_V1, _V2 = f"{_KERAS}.api._v1.keras", f"{_KERAS}.api._v2.keras"

# The names by which scripts import Keras, each with the module of `tf_keras` that they then get.
_NAMES: dict[str, str] = {
    "keras": _KERAS,
    "tensorflow.compat.v1.keras": _V1,
    "tensorflow.compat.v2.keras": _V2,
    "tensorflow.keras": _V2,
    f"{_TF}.keras": _KERAS,
}

# Modules that were moved or split: for each path of 2021, the modules that have its names now, separated by spaces.
_MOVED = _names.pairs("moved in Keras 2")
# Names that were renamed since 2021: for each module, from the old to the new name.
_RENAMED = {
    module: dict(pair.split("=") for pair in pairs.split())
    for module, pairs in _names.pairs("renamed in Keras 2").items()
}


def is_name(fullname: str) -> bool:
    """Returns True if `fullname` is a name of Keras itself, and not of `keras.ipu`, whose names are in names.txt."""
    return _locate(fullname) is not None and not fullname.startswith("keras.ipu")


def spec(fullname: str) -> ModuleSpec | None:
    """Returns the spec of a module of Keras by any of its names, or None if it does not exist."""
    location = _locate(fullname)
    if location is None or not _exists(*location):
        return None
    return ModuleSpec(fullname, _Loader(), is_package=True)


def _locate(fullname: str) -> tuple[str, str] | None:
    """Returns the root of a name of Keras and the path below it, or None for other names.

    Example: `keras.layers.core` -> `("tf_keras", "layers.core")`.
    """
    for name, root in _NAMES.items():
        if fullname == name or fullname.startswith(f"{name}."):
            return root, fullname[len(name) + 1 :]
    return None


def _exists(root: str, path: str) -> bool:
    return not path or path.partition(".")[0] == "ipu" or bool(_sources(path)) or _has(f"{root}.{path}")


@functools.cache
def _sources(path: str) -> tuple[str, ...]:
    """Returns the modules of today that have the names of an old module.

    The longest prefix of `path` in `_MOVED` applies: since `optimizer_v2 = optimizers.legacy`, the names of
    `optimizer_v2.adam` are in `tf_keras.src.optimizers.legacy.adam`.
    """
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        moved = _MOVED.get(".".join(parts[:end]))
        if moved is not None:
            candidates = [".".join([_SOURCE, target, *parts[end:]]) for target in moved.split()]
            break
    else:
        candidates = [f"{_SOURCE}.{path}"]
    return tuple(filter(_has, candidates))


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # Its parent does not exist either.
        return False


class _Loader(Loader):
    """Returns a module of Keras for an import by another name."""

    def exec_module(self, module: ModuleType) -> None:
        root, path = _locate(module.__name__) or ("", "")
        # The import then returns this entry of `sys.modules` instead of `module`.
        sys.modules[module.__name__] = _module(root, path)


def _module(root: str, path: str) -> ModuleType:
    if path.partition(".")[0] == "ipu":
        return importlib.import_module(f"keras.{path}")
    public = f"{root}.{path}" if path else root
    if path not in _MOVED and _has(public):
        return importlib.import_module(public)
    sources = _sources(path)
    if path not in _RENAMED and (path not in _MOVED or _is_plain(sources)):
        return importlib.import_module(sources[0])
    return _gathered(path)


def _is_plain(sources: Sequence[str]) -> bool:
    return len(sources) == 1 and not hasattr(importlib.import_module(sources[0]), "__path__")


@functools.cache
def _gathered(path: str) -> ModuleType:
    """Returns a module that has the names of several modules."""
    gathered = ModuleType(f"keras.{path}", f"`keras.{path}` of 2021, whose names are in other modules of Keras 2 now.")
    gathered.__dict__.update(
        __path__=[], __getattr__=_make_getattr(path, gathered.__name__), __dir__=lambda: sorted(_all_in(path))
    )
    return gathered


def _make_getattr(path: str, holder: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module, which finds the names that the module at `path` had in 2021."""

    def find(name: str) -> Any:
        full = f"{path}.{name}".removeprefix(".")
        if full in _MOVED or full in _RENAMED:
            return importlib.import_module(f"keras.{full}")
        if not name.startswith("__"):
            new_name = _RENAMED.get(path, {}).get(name, name)
            for module in _modules_of(path):
                if new_name in vars(module):
                    return vars(module)[new_name]
            if _exists(_KERAS, full):
                return importlib.import_module(f"keras.{full}")
        raise AttributeError(f"module `{holder}` has no attribute `{name}`", name=name)

    return find


def _modules_of(path: str) -> Iterator[ModuleType]:
    """Yields the modules that have the names of an old module, then the modules below them that Keras has imported."""
    sources = _sources(path) if path else ()
    yield from map(importlib.import_module, sources)
    prefixes = tuple(f"{source}." for source in sources)
    yield from (module for name, module in list(sys.modules.items()) if prefixes and name.startswith(prefixes))


def _all_in(path: str) -> set[str]:
    return {name for module in _modules_of(path) for name in vars(module) if not name.startswith("_")}


def bridge(changes: Changes) -> None:
    """Makes imports of Keras by any name return Keras 2 with its names of 2021; undoing `changes` reverts this."""
    roots = [importlib.import_module(root) for root in dict.fromkeys(_NAMES.values())]
    # Before `compat.install()`, TensorFlow may have imported Keras's files as modules such as `tensorflow.keras`.
    roots += [sys.modules[name] for name in _NAMES if name.startswith("tensorflow.") and _is_separate_module(name)]
    for root in roots:
        _add_old_names(root, changes)
    changes.enter(_by_all_names())
    changes.put(importlib.import_module(_TF), "keras", importlib.import_module(_KERAS))
    optimizers = importlib.import_module(f"{_SOURCE}.optimizers")
    changes.put(optimizers, "deserialize", _deserialize(optimizers.deserialize))


def _is_separate_module(name: str) -> bool:
    return name in sys.modules and sys.modules[name].__name__ == name and "python" not in name


def _add_old_names(root: ModuleType, changes: Changes) -> None:
    prefix = f"{root.__name__}."
    for name, module in list(sys.modules.items()):
        path = name.removeprefix(prefix) if name.startswith(prefix) else ""
        if module is root or (path and path.partition(".")[0] not in ("api", "src") and _sources(path)):
            changes.put(module, "__getattr__", _make_getattr(path, name))
    legacy = root.optimizers.legacy
    for name in vars(legacy):
        if isinstance(vars(legacy)[name], type):
            changes.put(root.optimizers, name, vars(legacy)[name])
    # The public class only creates an instance of the class of 2021 or of a newer class. Subclasses in scripts must
    # inherit from the class of 2021.
    scaling = importlib.import_module(f"{_SOURCE}.mixed_precision.loss_scale_optimizer")
    changes.put(root.mixed_precision, "LossScaleOptimizer", scaling.LossScaleOptimizer)
    if root.__name__ != _KERAS:
        changes.put(root, "__version__", importlib.import_module(_KERAS).__version__)


@contextlib.contextmanager
def _by_all_names() -> Iterator[None]:
    """A context in which Keras's names import Keras 2. Modules that had these names before are restored at its end."""
    earlier = {name: sys.modules.pop(name) for name in _imported()}
    try:
        yield
    finally:
        for name in _imported():
            del sys.modules[name]
        sys.modules.update(earlier)


def _imported() -> list[str]:
    return [name for name in sys.modules if _locate(name) is not None]


def _deserialize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `deserialize` that creates the optimizers of 2021 from names such as "sgd"."""

    @functools.wraps(original)
    def deserialize(config: Any, *args: Any, **kwargs: Any) -> Any:
        return original(config, *args, **{**kwargs, "use_legacy_optimizer": True})

    return deserialize
