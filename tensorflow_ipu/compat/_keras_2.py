"""Keras 2 by all names that it had in 2021; stands on the modules below `tf_keras.src`, which have these names."""

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

# By what names Keras is imported, and what it is then, as TensorFlow has it.
_NAMES: dict[str, str] = {
    "keras": _KERAS,
    "tensorflow.compat.v1.keras": _V1,
    "tensorflow.compat.v2.keras": _V2,
    "tensorflow.keras": _V2,
    f"{_TF}.keras": _KERAS,
}

# Modules that were moved or split, and which have their names now, with all modules below these.
_MOVED = _names.pairs("moved in Keras 2")
# Names that Keras has under others since.
_RENAMED = {
    module: dict(pair.split("=") for pair in pairs.split())
    for module, pairs in _names.pairs("renamed in Keras 2").items()
}


def is_name(fullname: str) -> bool:
    """Whether Keras 2 says if there is a module of this full name; of those of `keras.ipu` it does not."""
    return _placed(fullname) is not None and not fullname.startswith("keras.ipu")


def spec(fullname: str) -> ModuleSpec | None:
    """The spec of a module of Keras by any of its names, or None."""
    found = _placed(fullname)
    if found is None or not _exists(*found):
        return None
    return ModuleSpec(fullname, _Loader(), is_package=True)


def _placed(fullname: str) -> tuple[str, str] | None:
    """The root of a name of Keras and the path below it, or None."""
    for name, root in _NAMES.items():
        if fullname == name or fullname.startswith(f"{name}."):
            return root, fullname[len(name) + 1 :]
    return None


def _exists(root: str, path: str) -> bool:
    return not path or path.partition(".")[0] == "ipu" or bool(_sources(path)) or _has(f"{root}.{path}")


@functools.cache
def _sources(path: str) -> tuple[str, ...]:
    """The modules that have the names of an old module."""
    words = path.split(".")
    for end in range(len(words), 0, -1):
        moved = _MOVED.get(".".join(words[:end]))
        if moved is not None:
            found = [".".join([_SOURCE, one, *words[end:]]) for one in moved.split()]
            break
    else:
        found = [f"{_SOURCE}.{path}"]
    return tuple(filter(_has, found))


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # Nor is there the module above.
        return False


class _Loader(Loader):
    """Hands out a module of Keras under another name."""

    def exec_module(self, module: ModuleType) -> None:
        root, path = _placed(module.__name__) or ("", "")
        # The import system takes what stands there in the end.
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
    """A module with the names of several."""
    made = ModuleType(f"keras.{path}", f"`keras.{path}` of 2021, whose names are in other modules of Keras 2 now.")
    made.__dict__.update(__path__=[], __getattr__=_finding(path, made.__name__), __dir__=lambda: sorted(_all_in(path)))
    return made


def _finding(path: str, holder: str) -> Callable[[str], Any]:
    """A module's `__getattr__`, which finds what the module of this path had in 2021."""

    def find(name: str) -> Any:
        full = f"{path}.{name}".removeprefix(".")
        if full in _MOVED or full in _RENAMED:
            return importlib.import_module(f"keras.{full}")
        if not name.startswith("__"):
            wanted = _RENAMED.get(path, {}).get(name, name)
            for module in _modules_of(path):
                if wanted in vars(module):
                    return vars(module)[wanted]
            if _exists(_KERAS, full):
                return importlib.import_module(f"keras.{full}")
        raise AttributeError(f"module `{holder}` has no attribute `{name}`", name=name)

    return find


def _modules_of(path: str) -> Iterator[ModuleType]:
    """The modules that have the names of an old module, and then those below, all of which Keras has imported itself."""
    found = _sources(path) if path else ()
    yield from map(importlib.import_module, found)
    below = tuple(f"{source}." for source in found)
    yield from (module for name, module in list(sys.modules.items()) if below and name.startswith(below))


def _all_in(path: str) -> set[str]:
    return {name for module in _modules_of(path) for name in vars(module) if not name.startswith("_")}


def bridge(changes: Changes) -> None:
    """Has all names of Keras lead to Keras 2 as it was in 2021; undone with `changes`."""
    roots = [importlib.import_module(root) for root in dict.fromkeys(_NAMES.values())]
    # What TensorFlow made of Keras's files by names of its own, before the installation.
    roots += [sys.modules[name] for name in _NAMES if name.startswith("tensorflow.") and _is_made(name)]
    for root in roots:
        _add_old_names(root, changes)
    changes.enter(_by_all_names())
    changes.put(importlib.import_module(_TF), "keras", importlib.import_module(_KERAS))
    optimizers = importlib.import_module(f"{_SOURCE}.optimizers")
    changes.put(optimizers, "deserialize", _deserialize(optimizers.deserialize))


def _is_made(name: str) -> bool:
    return name in sys.modules and sys.modules[name].__name__ == name and "python" not in name


def _add_old_names(root: ModuleType, changes: Changes) -> None:
    prefix = f"{root.__name__}."
    for name, module in list(sys.modules.items()):
        path = name.removeprefix(prefix) if name.startswith(prefix) else ""
        if module is root or (path and path.partition(".")[0] not in ("api", "src") and _sources(path)):
            changes.put(module, "__getattr__", _finding(path, name))
    legacy = root.optimizers.legacy
    for name in vars(legacy):
        if isinstance(vars(legacy)[name], type):
            changes.put(root.optimizers, name, vars(legacy)[name])
    # The public class now chooses the one of 2021 or a newer one, and has no subclasses of the user's.
    scaling = importlib.import_module(f"{_SOURCE}.mixed_precision.loss_scale_optimizer")
    changes.put(root.mixed_precision, "LossScaleOptimizer", scaling.LossScaleOptimizer)
    if root.__name__ != _KERAS:
        changes.put(root, "__version__", importlib.import_module(_KERAS).__version__)


@contextlib.contextmanager
def _by_all_names() -> Iterator[None]:
    """A block in which imports by Keras's names find Keras 2, and what was imported by them before is put aside."""
    aside = {name: sys.modules.pop(name) for name in _imported()}
    try:
        yield
    finally:
        for name in _imported():
            del sys.modules[name]
        sys.modules.update(aside)


def _imported() -> list[str]:
    return [name for name in sys.modules if _placed(name) is not None]


def _deserialize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the optimizers of 2021 of names such as "sgd"."""

    @functools.wraps(original)
    def deserialize(config: Any, *args: Any, **kwargs: Any) -> Any:
        return original(config, *args, **{**kwargs, "use_legacy_optimizer": True})

    return deserialize
