"""The old modules as Python imports them: made on demand, with names that are looked up in the tables."""

from __future__ import annotations

import dis
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._table import resolve

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class OldModule(ModuleType):
    """A module whose names are those of its row in the table."""

    def __getattr__(self, name: str) -> Any:
        """Finds a name."""
        if name == "__all__":
            return _names.existing(self.__name__)
        message = None if name.startswith("__") else _names.missing_name(self.__name__, name)
        if message is not None:
            caller = sys._getframe(1)
            # `from` turns an AttributeError into an ImportError with words of its own.
            if _imports_from(caller.f_code, caller.f_lasti):
                raise ImportError(message, name=self.__name__)
            raise AttributeError(message, name=name, obj=self)
        target = None if name.startswith("__") else _names.target(self.__name__, name)
        if isinstance(target, str):
            value = resolve(target)
        elif _names.module_exists(f"{self.__name__}.{name}"):
            value = importlib.import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module `{self.__name__}` has no attribute `{name}`", name=name, obj=self)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        """The names that exist."""
        return _names.existing(self.__name__)


class _OldModuleLoader(Loader):
    """Makes a module of the tables, or hands out the one that a second name stands for."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return OldModule(spec.name, f"`{spec.name}`, as tensorflow_ipu has it.")

    def exec_module(self, module: ModuleType) -> None:
        original = _names.original(module.__name__)
        if original is not None:
            # The import system takes what stands there in the end.
            sys.modules[module.__name__] = importlib.import_module(original)


class OldModuleFinder(MetaPathFinder):
    """Finds the modules of the tables, and Keras by all its names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Gives the spec of an old module or of a second name of one of Keras; None for what is not the tables' to say."""
        del path, target
        if (
            fullname.partition(".")[0] in _names.YIELDING
            and PathFinder.find_spec(fullname.partition(".")[0]) is not None
        ):
            return None
        if _names.module_exists(fullname) or _is_second_name(fullname):
            # All are packages, so that what is asked for below them comes here too.
            return ModuleSpec(fullname, _OldModuleLoader(), is_package=True)
        message = _names.missing_module(fullname)
        if message is None:
            return None
        raise ModuleNotFoundError(message, name=fullname)


def remove_all() -> None:
    """Takes every old module out of `sys.modules` and out of the modules above, and second names out of `sys.modules`."""
    for name in [name for name, module in sys.modules.items() if isinstance(module, OldModule)]:
        del sys.modules[name]
        parent, _, child = name.rpartition(".")
        above = sys.modules.get(parent)
        if isinstance(vars(above).get(child) if above is not None else None, OldModule):
            delattr(above, child)
    for name, module in list(sys.modules.items()):
        original = _names.original(name)
        # TensorFlow's own module of the name, made before the installation, stays.
        if original is not None and module is sys.modules.get(original):
            del sys.modules[name]


def _is_second_name(fullname: str) -> bool:
    original = _names.original(fullname)
    try:
        return original is not None and importlib.util.find_spec(original) is not None
    except ModuleNotFoundError:  # Nor is there the module above.
        return False


def _imports_from(code: CodeType, offset: int) -> bool:
    return offset >= 0 and code.co_code[offset] == _IMPORT_FROM
