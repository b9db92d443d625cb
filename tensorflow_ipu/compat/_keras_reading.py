"""Finds the names and forms of Keras in files of Python that only Keras 2 has, or only Keras 3."""

from __future__ import annotations

import ast
import enum
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._api_files import KERAS_2, KERAS_3
from tensorflow_ipu.compat._names import SPELLINGS
from tensorflow_ipu.compat._project import Found, Project, begin
from tensorflow_ipu.compat._reading import Reading, Use

# How Keras is imported; that of TensorFlow's own is what is left of Keras 2.
_TF = "tensorflow.python"
_LEFT = f"{_TF}.keras"
_SPELLINGS = ("keras", *SPELLINGS, _LEFT)


class Weight(enum.Enum):
    """What a form means for the choice of Keras."""

    BRIDGED = enum.auto()  # The compatibility layer gives it to Keras 3.
    ORIGIN = enum.auto()  # It is of IPU TensorFlow, which came with Keras 2.
    DECIDES = enum.auto()  # Keras 3 is likely to refuse it, or does another thing.
    LOST = enum.auto()  # With Keras 3 the script ends there.


@dataclass(frozen=True)
class KerasFound(Found):
    """A place with what only one Keras has."""

    weight: Weight
    version: int = 2  # The Keras that has it.


# Methods of the optimizers of 2021, with what their subclasses override.
_OF_OPTIMIZERS = ("_decayed_lr", "_get_hyper", "_serialize_hyperparameter", "_set_hyper", "get_gradients")
_OPTIONS = ("gradient_aggregator", "gradient_transformers")  # Of all of them.
_OVERRIDDEN = ("_create_slots", "_prepare_local", "_resource_apply_dense", "_resource_apply_sparse")
_OF_MODELS = ("add_metric", "add_update", "get_input_at", "get_output_at", "fit_generator", "predict_generator")
_WEIGHTS = ("get_weights", "set_weights")
_WORKERS = ("max_queue_size", "use_multiprocessing", "workers")
_OF_KERAS_3 = ("enable_lora", "stateless_apply", "stateless_call", "stateless_compute_loss")

# Of TensorFlow, and made by Keras 2.
_LEGACY = tuple(
    f"{tensorflow}.{name}"
    for tensorflow in ("tensorflow.compat.v1", "tensorflow")
    for name in ("layers", "nn.rnn_cell")
)
# What the SDK brought.
_ORIGINS = (_names.IPU, _names.POPLAR, _names.ADDONS, "popdist", *(f"{keras}.ipu" for keras in ("keras", *SPELLINGS)))
_INPUTS = ("Input", "layers.Input", "layers.InputLayer")


def needs(project: Project, files: Mapping[Path, Reading] | None = None) -> list[KerasFound]:
    """Returns what of the uses in files only one Keras has, by file and line: those of a script if omitted."""
    return [
        KerasFound(str(file), line, message, weight, version)
        for file, reading in (project.files if files is None else files).items()
        for line, message, weight, version in sorted(set(_found(project, reading)), key=lambda found: found[:2])
    ]


def mentions_keras(project: Project) -> bool:
    """Returns True if a script or what it imports uses a name of Keras."""
    imported = (module for reading in project.files.values() for module in reading.modules)
    used = (full for reading in project.files.values() for use in reading.uses for full in project.meanings(use))
    return any(map(_path, itertools.chain(imported, used)))


def _found(project: Project, reading: Reading) -> Iterator[tuple[int, str, Weight, int]]:
    yield from _origin(project, reading)
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
            yield from ((use.line, message, Weight.DECIDES, version) for message, version in _of_attribute(use.node))
    for call in reading.calls:
        yield from ((call.line, *found) for found in _of_call(project, call))
    for line, name, bases, scope in reading.classes:
        of_keras = [full for base in bases for full in _single(project, Use(line, base, scope)) if _path(full)]
        if of_keras and set(name) & set(_OVERRIDDEN):
            message = f"`{min(set(name) & set(_OVERRIDDEN))}` is not called by optimizers of Keras 3"
            yield line, message, Weight.DECIDES, 2


def _origin(project: Project, reading: Reading) -> Iterator[tuple[int, str, Weight, int]]:
    """The first place with a name of the SDK."""
    imported = ((line, module) for module, line in reading.modules.items())
    used = ((use.line, full) for use in reading.uses for full in project.meanings(use))
    origins = tuple(f"{origin}." for origin in _ORIGINS)
    for line, full in itertools.chain(imported, used):
        if f"{full}.".startswith(origins):
            origin = next(origin for origin in _ORIGINS if f"{full}.".startswith(f"{origin}."))
            yield line, f"`{origin}` came with Keras 2", Weight.ORIGIN, 2
            return


def _of_name(full: str) -> tuple[str, Weight, int] | None:
    if full.rpartition(".")[2].startswith("__"):  # As all modules and classes have.
        return None
    message = _lost(full)
    if message is not None:
        return message, Weight.LOST, 2
    if full.startswith(f"{_LEFT}.") and not _names.is_ours(full):
        words = f"`{_LEFT}` is what TensorFlow has left of Keras 2, whose classes are not those of Keras 3"
        return words, Weight.DECIDES, 2
    path = _path(full)
    if path and not full.startswith(_LEFT) and KERAS_2.is_installed and KERAS_3.has(path) and not KERAS_2.has(path):
        return f"Keras 2 has no `keras.{path}`", Weight.LOST, 3
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
    legacy = next((name for name in _LEGACY if full.startswith(f"{name}.")), None)
    if legacy is not None:
        return f"`{legacy}` of TensorFlow is Keras 2"
    path = _path(full)
    words = path.split(".") if path and not full.startswith(_LEFT) and KERAS_3.is_installed else []
    if words[:2] == ["optimizers", "legacy"]:  # Keras 3 has the names, and they say so.
        return "Keras 3 has no `keras.optimizers.legacy`, the optimizers of Keras 2"
    for at, word in enumerate(words):
        above, here = ".".join(words[:at]), ".".join(words[: at + 1])
        if _names.module_exists(f"keras.{here}"):
            continue
        if at and _names.module_exists(f"keras.{above}"):
            return _names.missing_name(f"keras.{above}", word)
        if KERAS_3.is_module(here):
            continue
        if word in KERAS_3.names(above):
            return None
        return _names.missing_module(f"keras.{here}") or f"Keras 3 has no `{'.'.join(['keras', here])}`"
    return None


def _of_attribute(node: ast.Attribute) -> Iterator[tuple[str, int]]:
    holder = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    if node.attr in _OF_OPTIMIZERS:
        yield f"optimizers of Keras 3 have no `{node.attr}`", 2
    elif node.attr in _OF_MODELS:
        yield f"layers and models of Keras 3 have no `{node.attr}`", 2
    elif node.attr in _WEIGHTS and holder in ("optimizer", "_optimizer"):
        yield f"optimizers of Keras 3 have no `{node.attr}`", 2
    elif node.attr in _OF_KERAS_3:
        yield f"layers, models and optimizers of Keras 2 have no `{node.attr}`", 3


def _of_call(project: Project, call: Use) -> Iterator[tuple[str, Weight, int]]:
    node = call.node
    assert isinstance(node, ast.Call)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    if isinstance(node.func, ast.Attribute):
        first = node.args[0] if node.args else None
        if node.func.attr == "add_weight" and isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield "`add_weight` of Keras 3 takes the shape first, and `name=`", Weight.DECIDES, 2
        if node.func.attr in ("fit", "evaluate", "predict") and keywords.keys() & set(_WORKERS):
            yield f"`{node.func.attr}` of Keras 3 takes no `{min(keywords.keys() & set(_WORKERS))}`", Weight.DECIDES, 2
    for full in _single(project, Use(call.line, node.func, call.scope)):
        path = _path(full)
        if path in _INPUTS:
            shape = keywords.get("shape", node.args[0] if node.args else None)
            if isinstance(shape, ast.Constant) and isinstance(shape.value, int):
                yield (
                    f"a shape of Keras 3 is a tuple, not `{shape.value}`; it is taken for one all the same",
                    Weight.BRIDGED,
                    2,
                )
        elif path and not full.startswith(_LEFT):
            yield from (
                (message, Weight.DECIDES, version) for message, version in _of_arguments(path, node, set(keywords))
            )


def _of_arguments(path: str, node: ast.Call, keywords: set[str]) -> Iterator[tuple[str, int]]:
    takes = KERAS_3.arguments(path)
    if takes is None:
        return
    above = path.rpartition(".")[0]
    if (
        takes.most is not None
        and not any(isinstance(arg, ast.Starred) for arg in node.args)
        and len(node.args) > takes.most
    ):
        yield f"`keras.{path}` of Keras 3 takes {takes.most} positional arguments, not {len(node.args)}", 2
    others = set(_OPTIONS) if above == "optimizers" else set()
    lost = sorted(keywords & others if takes.others else keywords - takes.keywords - ({"lr"} if others else set()))
    if lost:
        yield f"`keras.{path}` of Keras 3 takes no `{lost[0]}`", 2
    newer = [keyword for keyword in sorted(keywords & takes.keywords) if not KERAS_2.may_take(path, keyword)]
    if newer:
        yield f"`keras.{path}` of Keras 2 takes no `{newer[0]}`", 3
