"""Installs the old names, and runs a script with them."""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import io
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat import _keras_2, _keras_version, _lost_names, _names, _tensorflow_1
from tensorflow_ipu.compat._tensorflow_version import OldTensorFlow

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]

# The first use of each name in these modules is logged.
_NOTED = (_names.TENSORFLOW_ADDONS, "tensorflow.python")


class OldModule(ModuleType):
    """An old module, whose names are looked up in the tables."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return _names.existing(self.__name__)
        message = None if name.startswith("__") else _names.missing_name(self.__name__, name)
        if message is not None:
            caller = sys._getframe(1)
            # A `from` import would replace the message of an AttributeError by its own.
            if caller.f_lasti >= 0 and caller.f_code.co_code[caller.f_lasti] == _IMPORT_FROM:
                raise ImportError(message, name=self.__name__)
            raise AttributeError(message, name=name, obj=self)
        target = None if name.startswith("__") else _names.target(self.__name__, name)
        if isinstance(target, str):
            value = _names.resolve(target)
            if self.__name__.startswith(_NOTED) and not self.__name__.startswith(_names.IPU):
                _lost_names.note(f"`{self.__name__}.{name}`", f"`{target.replace(':', '.')}`")
        elif _names.module_exists(f"{self.__name__}.{name}"):
            value = importlib.import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module `{self.__name__}` has no attribute `{name}`", name=name, obj=self)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return _names.existing(self.__name__)


class _OldModuleLoader(Loader):
    """Creates a module of the tables, or returns the module that has the name as an alias."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return OldModule(spec.name, f"`{spec.name}`, as tensorflow_ipu has it.")

    def exec_module(self, module: ModuleType) -> None:
        original = _names.original(module.__name__)
        if original is not None:
            # The import then returns this entry of `sys.modules` instead of `module`.
            sys.modules[module.__name__] = importlib.import_module(original)


class OldModuleFinder(MetaPathFinder):
    """Finds the modules of the tables, and Keras by all of its names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        top = fullname.partition(".")[0]
        if top in _names.YIELDING and PathFinder.find_spec(top) is not None:
            return None
        if environment.uses_keras_2() and _keras_2.is_name(fullname):
            return _keras_2.spec(fullname)
        if _names.module_exists(fullname) or _is_alias(fullname):
            # Each is a package, so that imports of its submodules use this finder too.
            return ModuleSpec(fullname, _OldModuleLoader(), is_package=True)
        message = _names.missing_module(fullname)
        if message is None:
            return None
        raise ModuleNotFoundError(message, name=fullname)


def remove_all() -> None:
    """Removes all old modules and all aliases from `sys.modules`."""
    for name in [name for name, module in sys.modules.items() if isinstance(module, OldModule)]:
        del sys.modules[name]
        parent, _, child = name.rpartition(".")
        holder = sys.modules.get(parent)
        if isinstance(vars(holder).get(child) if holder is not None else None, OldModule):
            delattr(holder, child)
    for name, module in list(sys.modules.items()):
        original = _names.original(name)
        # A separate module, which TensorFlow imported under this name before `install()`, stays.
        if original is not None and module is sys.modules.get(original):
            del sys.modules[name]


def _is_alias(fullname: str) -> bool:
    original = _names.original(fullname)
    try:
        return original is not None and importlib.util.find_spec(original) is not None
    except ModuleNotFoundError:  # Its parent does not exist either.
        return False


_lock = threading.Lock()
_finder = OldModuleFinder()
_changes = Changes()


def install() -> None:
    """Makes the names of IPU TensorFlow importable, as in `from tensorflow.python import ipu`.

    Also restores the names and arguments of TensorFlow and Keras that scripts for it use and that newer releases lack;
    docs/porting.md lists them. Does nothing if the names are installed already. Thread-safe.
    """
    with _lock:
        if _finder in sys.meta_path:
            return
        sys.meta_path.insert(0, _finder)
        try:
            from tensorflow_ipu.compat import _dataset_stats, _keras

            _lost_names.bridge(_changes)
            _dataset_stats.bridge(_changes)
            _keras.bridge_tensorflow(_changes)
            _keras.bridge(_changes)
        except BaseException:
            _close()
            raise


def uninstall() -> None:
    """Undoes `install`. Modules and names that a script has already imported stay usable. Thread-safe."""
    with _lock:
        if _finder in sys.meta_path:
            _close()


def _close() -> None:
    _changes.undo()
    remove_all()
    sys.meta_path.remove(_finder)


# The exit status of a process that Ctrl-C ended, as shells report it.
_INTERRUPTED = 130


def run(flag: str, text: str, arguments: Sequence[str], old: OldTensorFlow, is_old: bool, advice: str) -> int:
    """Runs a script as the main module of this process, and returns the exit status.

    `text` is the path of the script; if `flag` is `-m` or `-c`, it is the name of a module or code. `old` is what the
    script and its imports need of TensorFlow 1. If `is_old`, `tensorflow` is `tf.compat.v1` in the script itself.
    `advice` is printed after an error of Keras.
    """
    install()
    if old.in_graphs:
        tf.compat.v1.disable_v2_behavior()
    sys.argv = [flag or text, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # As of Python 3.11.
        sys.path[0] = {"-m": os.getcwd(), "-c": ""}.get(flag, os.path.dirname(os.path.realpath(text)))
    # As in Python, the main module has a full path, and `sys.argv` has the path that the user wrote.
    path = "<string>" if flag == "-c" else os.path.abspath(text)
    names: dict[str, object] = {"__builtins__": _tensorflow_1.BUILTINS if is_old else builtins}
    main = ModuleType("__main__")
    vars(main).update(names)
    if not flag:
        vars(main).update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
    sys.modules["__main__"] = main
    try:
        with _tensorflow_1.importing(old.files):
            if flag == "-m":
                runpy.run_module(text, names, "__main__", alter_sys=True)
                return 0
            source: str | bytes = text
            if flag != "-c":
                with io.open_code(path) as file:
                    source = file.read()
            exec(compile(source, path, "exec", dont_inherit=True), vars(main))
    except SystemExit:
        raise
    except BaseException as exc:
        # The frames of this file do not help the author of the script.
        traceback = exc.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        shortened = exc.with_traceback(traceback)
        sys.excepthook(type(shortened), shortened, shortened.__traceback__)
        if advice and _keras_version.is_of_keras(exc):
            print(advice, file=sys.stderr)  # noqa: T201
        return _INTERRUPTED if isinstance(exc, KeyboardInterrupt) else 1
    return 0
