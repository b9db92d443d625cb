"""Finds the names and forms of Keras in files of Python that only Keras 2 has."""

from __future__ import annotations

import ast
import enum
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._keras_names import SPELLINGS
from tensorflow_ipu.compat._reading import Found, Project, Reading, Use, begin

# How Keras is imported; that of TensorFlow's own is what is left of Keras 2.
_TF = "tensorflow.python"
_LEFT = f"{_TF}.keras"
_SPELLINGS = ("keras", *SPELLINGS, _LEFT)


class Weight(enum.Enum):
    """What a form means for the choice of Keras."""

    BRIDGED = enum.auto()  # The compatibility layer gives it to Keras 3.
    DECIDES = enum.auto()  # Keras 3 is likely to refuse it, or does another thing.
    LOST = enum.auto()  # With Keras 3 the script ends there.


@dataclass(frozen=True)
class KerasFound(Found):
    """A place with what only Keras 2 has."""

    weight: Weight


# Methods of the optimizers of 2021, with what their subclasses override.
_OF_OPTIMIZERS = ("_decayed_lr", "_get_hyper", "_serialize_hyperparameter", "_set_hyper", "get_gradients")
_OPTIONS = ("gradient_aggregator", "gradient_transformers")  # Of all of them.
_OVERRIDDEN = ("_create_slots", "_prepare_local", "_resource_apply_dense", "_resource_apply_sparse")
_OF_MODELS = ("add_metric", "add_update", "get_input_at", "get_output_at", "fit_generator", "predict_generator")
_WEIGHTS = ("get_weights", "set_weights")
_WORKERS = ("max_queue_size", "use_multiprocessing", "workers")
_INPUTS = ("Input", "layers.Input", "layers.InputLayer")


def needs(project: Project) -> list[KerasFound]:
    """What only Keras 2 has of what the files use, by file and line."""
    return [
        KerasFound(str(file), line, message, weight)
        for file, reading in project.files.items()
        for line, message, weight in sorted(set(_found(project, reading)), key=lambda found: found[:2])
    ]


def _found(project: Project, reading: Reading) -> Iterator[tuple[int, str, Weight]]:
    imported = [(one.line, f"{one.module}.{one.name}" if one.name else one.module) for one in reading.imports]
    # What is said of its first name is said at the import.
    used = [
        (use.line, full)
        for use in reading.uses
        if not any(map(_of_name, _single(project, begin(use))))
        for full in _single(project, use)
    ]
    for line, full in [*imported, *used]:
        found = _of_name(full)
        if found is not None:
            yield line, *found
    for use in reading.uses:
        if isinstance(use.node, ast.Attribute):
            yield from ((use.line, message, Weight.DECIDES) for message in _of_attribute(use.node))
    for call in reading.calls:
        yield from ((call.line, *found) for found in _of_call(project, call))
    for line, name, bases, scope in reading.classes:
        of_keras = [full for base in bases for full in _single(project, Use(line, base, scope)) if _path(full)]
        if of_keras and set(name) & set(_OVERRIDDEN):
            message = f"`{min(set(name) & set(_OVERRIDDEN))}` is not called by optimizers of Keras 3"
            yield line, message, Weight.DECIDES


def _of_name(full: str) -> tuple[str, Weight] | None:
    message = _lost(full)
    if message is not None:
        return message, Weight.LOST
    if full.startswith(f"{_LEFT}.") and not _names.is_ours(full):
        words = f"`{_LEFT}` is what TensorFlow has left of Keras 2, whose classes are not those of Keras 3"
        return words, Weight.DECIDES
    return None


def _single(project: Project, use: Use) -> set[str]:
    """The full name that an expression stands for, if it can stand for one alone."""
    found = project.meanings(use)
    return found if len(found) == 1 else set()


def _path(full: str) -> str:
    """What a full name is below Keras; empty where it is of others, and for `keras.ipu`."""
    for spelling in _SPELLINGS:
        if full.startswith(f"{spelling}."):
            path = full[len(spelling) + 1 :]
            return "" if path.partition(".")[0] == "ipu" else path
    return ""


def _lost(full: str) -> str | None:
    """The message for a name that Keras 3, as the compatibility layer has it, lacks."""
    path = _path(full)
    words = path.split(".") if path and not full.startswith(_LEFT) and _folders() else []
    if words[:2] == ["optimizers", "legacy"]:  # Keras 3 has the names, and they say so.
        return "Keras 3 has no `keras.optimizers.legacy`, the optimizers of Keras 2"
    for at, word in enumerate(words):
        above, here = ".".join(words[:at]), ".".join(words[: at + 1])
        if _names.module_exists(f"keras.{here}"):
            continue
        if at and _names.module_exists(f"keras.{above}"):
            return _names.missing_name(f"keras.{above}", word)
        if _files(here):
            continue
        if word in _api(above):
            return None
        return _names.missing_module(f"keras.{here}") or f"Keras 3 has no `{'.'.join(['keras', here])}`"
    return None


def _of_attribute(node: ast.Attribute) -> Iterator[str]:
    holder = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    if node.attr in _OF_OPTIMIZERS:
        yield f"optimizers of Keras 3 have no `{node.attr}`"
    elif node.attr in _OF_MODELS:
        yield f"layers and models of Keras 3 have no `{node.attr}`"
    elif node.attr in _WEIGHTS and holder in ("optimizer", "_optimizer"):
        yield f"optimizers of Keras 3 have no `{node.attr}`"


def _of_call(project: Project, call: Use) -> Iterator[tuple[str, Weight]]:
    node = call.node
    assert isinstance(node, ast.Call)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    if isinstance(node.func, ast.Attribute):
        first = node.args[0] if node.args else None
        if node.func.attr == "add_weight" and isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield "`add_weight` of Keras 3 takes the shape first, and `name=`", Weight.DECIDES
        if node.func.attr in ("fit", "evaluate", "predict") and keywords.keys() & set(_WORKERS):
            yield f"`{node.func.attr}` of Keras 3 takes no `{min(keywords.keys() & set(_WORKERS))}`", Weight.DECIDES
    for full in _single(project, Use(call.line, node.func, call.scope)):
        path = _path(full)
        if path in _INPUTS:
            shape = keywords.get("shape", node.args[0] if node.args else None)
            if isinstance(shape, ast.Constant) and isinstance(shape.value, int):
                yield (
                    f"a shape of Keras 3 is a tuple, not `{shape.value}`; it is taken for one all the same",
                    Weight.BRIDGED,
                )
        elif path and not full.startswith(_LEFT):
            yield from ((message, Weight.DECIDES) for message in _of_arguments(path, node, set(keywords)))


def _of_arguments(path: str, node: ast.Call, keywords: set[str]) -> Iterator[str]:
    above, _, name = path.rpartition(".")
    place = _api(above).get(name)
    takes = None if place is None else _signature(place, name)
    if takes is None:
        return
    if (
        takes.most is not None
        and not any(isinstance(arg, ast.Starred) for arg in node.args)
        and len(node.args) > takes.most
    ):
        yield f"`keras.{path}` of Keras 3 takes {takes.most} positional arguments, not {len(node.args)}"
    others = set(_OPTIONS) if above == "optimizers" else set()
    lost = sorted(keywords & others if takes.others else keywords - takes.keywords - ({"lr"} if others else set()))
    if lost:
        yield f"`keras.{path}` of Keras 3 takes no `{lost[0]}`"


# The files of Keras 3, which is not imported.


@functools.cache
def _folders() -> tuple[Path, ...]:
    """The folders of Keras 3's public names: of `keras`, and those that `tf.keras` has beside; none where it is not there."""
    found = importlib.util.find_spec("keras")
    if found is None or found.origin is None:
        return ()
    folder = Path(found.origin).parent
    return folder, folder / "_tf_keras" / "keras"


@functools.cache
def _files(path: str) -> tuple[Path, ...]:
    """The files of a module of Keras."""
    starts = [folder.joinpath(*path.split(".")) if path else folder for folder in _folders()]
    files = [file for start in starts for file in (start / "__init__.py", start.with_suffix(".py"))]
    return tuple(file for file in files if file.is_file())


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


@functools.cache
def _api(path: str) -> dict[str, tuple[str, str] | None]:
    """The names of a module of Keras, and where those are that it imports: the module and the name there."""
    return {name: place for file in reversed(_files(path)) for name, place in _bound(_tree(file)).items()}


def _bound(tree: ast.Module) -> dict[str, tuple[str, str] | None]:
    found: dict[str, tuple[str, str] | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.update({one.asname or one.name: (node.module or "", one.name) for one in node.names})
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)) or (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ):
            found.setdefault(node.id if isinstance(node, ast.Name) else node.name, None)
    return found


@dataclass(frozen=True)
class _Arguments:
    """What a class or function takes: how many arguments by position, which by name, and whether others too."""

    most: int | None
    keywords: frozenset[str]
    others: bool


@functools.cache
def _signature(place: tuple[str, str], name: str) -> _Arguments | None:
    """What a class or function of Keras takes; None where that is not known."""
    module, name = place
    start = _folders()[0].parent.joinpath(*module.split("."))
    file = start / "__init__.py" if start.is_dir() else start.with_suffix(".py")
    if not file.is_file():
        return None
    tree = _tree(file)
    node = next((one for one in tree.body if getattr(one, "name", None) == name), None)
    if isinstance(node, ast.FunctionDef):
        return _arguments(node, 0, ())
    if not isinstance(node, ast.ClassDef):
        further = _bound(tree).get(name)
        return _signature(further, name) if further is not None else None
    above = [_signature((module, base.id), base.id) for base in node.bases if isinstance(base, ast.Name)]
    bases = tuple(one for one in above if one is not None)
    init = next((one for one in node.body if getattr(one, "name", None) == "__init__"), None)
    if isinstance(init, ast.FunctionDef):
        # Of `Model`, other functions say what it takes.
        return None if init.args.vararg else _arguments(init, 1, bases)
    return bases[0] if bases else None


def _arguments(node: ast.FunctionDef, skipped: int, bases: tuple[_Arguments, ...]) -> _Arguments:
    by_position = [*node.args.posonlyargs, *node.args.args][skipped:]
    keywords = {arg.arg for arg in (*by_position, *node.args.kwonlyargs)}
    if node.args.kwarg is None:
        return _Arguments(None if node.args.vararg else len(by_position), frozenset(keywords), False)
    # It takes some out of the others by their names, and hands the rest on.
    keywords |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    keywords |= {name for base in bases for name in base.keywords}
    others = not bases or any(base.others for base in bases)
    return _Arguments(None if node.args.vararg else len(by_position), frozenset(keywords), others)
