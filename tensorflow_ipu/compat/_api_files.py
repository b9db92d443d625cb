"""Reads the names of installed packages, and what their functions take, from files that are not imported."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Where a name comes from: a module and the name there; None where the file itself defines it.
Place = tuple[str, str] | None


@dataclass(frozen=True)
class Arguments:
    """What a class or function takes: how many arguments by position, which by name, and whether others too."""

    most: int | None
    keywords: frozenset[str]
    others: bool


@dataclass(frozen=True)
class Api:
    """The public names below folders of a package; of a name in several folders, the first counts."""

    package: str
    folders: tuple[str, ...]

    @property
    def is_installed(self) -> bool:
        """Whether there is the package."""
        return bool(_roots(self))

    def is_module(self, path: str) -> bool:
        """Returns True if there is a module of this dotted path below the package."""
        return bool(_files(self, path))

    def names(self, path: str) -> Mapping[str, Place]:
        """Returns the names of a module, and where they come from."""
        return _names(self, path)

    def has(self, path: str) -> bool:
        """Returns True if a dotted path leads to a module, a name, or something below a name, which is not followed."""
        above = ""
        for word in path.split("."):
            here = f"{above}.{word}".removeprefix(".")
            if not self.is_module(here):
                return word in self.names(above)
            above = here
        return True

    def place(self, path: str) -> Place:
        """Returns where the function or class of a dotted path comes from; None for what is unknown."""
        above, _, name = path.rpartition(".")
        return self.names(above).get(name) if not above or self.is_module(above) else None

    def may_take(self, path: str, keyword: str) -> bool:
        """Returns False if the class or function of a dotted path takes no argument of this name."""
        place = self.place(path)
        file = None if place is None else _file_of(_roots(self)[0], place[0])
        text = b"" if file is None else file.read_bytes()
        if keyword.encode() in text:  # To look takes a tenth of the time of reading.
            return True
        takes = self.arguments(path)
        return takes is None or takes.others or keyword in takes.keywords

    def arguments(self, path: str) -> Arguments | None:
        """Returns what the class or function of a dotted path takes; None for what is unknown."""
        place = self.place(path)
        return None if place is None else self.arguments_at(*place)

    def arguments_at(self, module: str, name: str) -> Arguments | None:
        """Returns what the class or function of a module, by its full name, takes; None for what is unknown."""
        return _signature(_roots(self)[0], (module, name))


OURS = Api("tensorflow_ipu", ("",))
KERAS_2 = Api("tf_keras", ("api/_v2/keras", "src", ""))
KERAS_3 = Api("keras", ("", "_tf_keras/keras"))
TENSORFLOW_1 = Api("tensorflow", ("_api/v2/compat/v1",))
TENSORFLOW_2 = Api("tensorflow", ("", "_api/v2"))


@functools.cache
def _roots(api: Api) -> tuple[Path, ...]:
    """The folder of a package, if it is installed, and those of its names."""
    found = importlib.util.find_spec(api.package)
    if found is None or found.origin is None:
        return ()
    folder = Path(found.origin).parent
    return folder, *(folder / name for name in api.folders)


@functools.cache
def _files(api: Api, path: str) -> tuple[Path, ...]:
    starts = [folder.joinpath(*path.split(".")) if path else folder for folder in _roots(api)[1:]]
    files = [file for start in starts for file in (start / "__init__.py", start.with_suffix(".py"))]
    return tuple(file for file in files if file.is_file())


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


@functools.cache
def _names(api: Api, path: str) -> dict[str, Place]:
    return {name: place for file in reversed(_files(api, path)) for name, place in _bound(_tree(file)).items()}


def _bound(tree: ast.Module) -> dict[str, Place]:
    """What a module binds, in functions too, and what it sets as attributes of itself by `setattr` or a name for it."""
    found: dict[str, Place] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.update({one.asname or one.name: (node.module or "", one.name) for one in node.names})
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.setdefault(node.name, None)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id if isinstance(node, ast.Name) else node.attr, None)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
            found.setdefault(str(getattr(node.args[1], "value", "")), None)
    return found


def _file_of(package: Path, module: str) -> Path | None:
    """The file of a module of a package by its full name, if it is a file of Python."""
    start = package.parent.joinpath(*module.split("."))
    file = start / "__init__.py" if start.is_dir() else start.with_suffix(".py")
    return file if file.is_file() else None


@functools.cache
def _signature(package: Path, place: tuple[str, str]) -> Arguments | None:
    """What a class or function of a module takes; None where that is not known."""
    module, name = place
    file = _file_of(package, module)
    if file is None:
        return None
    tree = _tree(file)
    node = next((one for one in tree.body if getattr(one, "name", None) == name), None)
    if isinstance(node, ast.FunctionDef):
        return _arguments(node, 0, ())
    if not isinstance(node, ast.ClassDef):
        further = _bound(tree).get(name)
        return _signature(package, further) if further is not None else None
    above = [_signature(package, (module, base.id)) for base in node.bases if isinstance(base, ast.Name)]
    bases = tuple(one for one in above if one is not None)
    init = next((one for one in node.body if getattr(one, "name", None) == "__init__"), None)
    if isinstance(init, ast.FunctionDef):
        # Of `Model`, other functions say what it takes.
        return None if init.args.vararg else _arguments(init, 1, bases)
    return bases[0] if bases else None


def _arguments(node: ast.FunctionDef, skipped: int, bases: tuple[Arguments, ...]) -> Arguments:
    by_position = [*node.args.posonlyargs, *node.args.args][skipped:]
    keywords = {arg.arg for arg in (*by_position, *node.args.kwonlyargs)}
    most = None if node.args.vararg else len(by_position)
    if node.args.kwarg is None:
        return Arguments(most, frozenset(keywords), False)
    # It takes some out of the others by their names, and hands the rest on.
    keywords |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    keywords |= {name for base in bases for name in base.keywords}
    return Arguments(most, frozenset(keywords), not bases or any(base.others for base in bases))
