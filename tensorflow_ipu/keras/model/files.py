"""Saves and loads the options and stages of models made in a scope, and describes their inputs for serving."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu._base.checks import Faults, is_int, note_bool
from tensorflow_ipu.keras._keras import internals
from tensorflow_ipu.keras.options.options import OptionGroup, Options, ReplicatedMetricReductionMethod
from tensorflow_ipu.keras.pipeline.graph import StageAssignment
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.pipelining import PipelineStageOptions
from tensorflow_ipu.programs.diagnostics import tracebacks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import h5py

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras._keras import keras
    from tensorflow_ipu.keras.model.extension import Extension

FILE = "ipu_options.json"
_STAGES = "pipeline_stages"
_CALLBACKS = "asynchronous_callbacks"
_ENUMS: dict[str, type[enum.Enum]] = {
    kind.__name__: kind
    for kind in (
        GradientAccumulationReductionMethod,
        ReplicatedMetricReductionMethod,
        pipelining.Liveness,
        pipelining.PhasedExecution,
        pipelining.PipelineSchedule,
        pipelining.RecomputationMode,
    )
}


def to_json(options: Options, stages: StageAssignment) -> str:
    """Returns the options that differ from the defaults, and the stages, as JSON. Without any, returns ""."""
    content: dict[str, object] = {}
    for group, values in options.groups():
        changed = {name: _encode(name, value) for name, value in values.changed().items()}
        if changed:
            content[group] = changed
    if options.asynchronous_callbacks:
        content[_CALLBACKS] = True
    if stages.is_pipelined:
        content[_STAGES] = stages.named()
    return json.dumps(content) if content else ""


def read(stages: StageAssignment | None, text: str) -> Options:
    """Returns the options in a text of `to_json`, and assigns its stages unless `stages` is None."""
    if not text:
        return Options()
    try:
        return _read(json.loads(text), stages)
    except (RuntimeError, TypeError, ValueError) as exc:
        raise ValueError(
            f"the model's options cannot be read from `{FILE}` in its file: {exc}. To load the rest of the file:"
            " `keras.models.load_model` outside of `strategy.scope()` gives the model without its options, and"
            " `load_weights` of a model made in the scope reads its weights"
        ) from exc


def _read(content: object, stages: StageAssignment | None) -> Options:
    """Returns the options of decoded JSON. Stages are assigned last, so that an invalid file changes nothing."""
    remaining = _object(content)
    options, faults, unknown = Options(), Faults(), []
    for group, values in options.groups():
        setattr(options, group, _read_group(values, remaining.pop(group, {}), faults, unknown))
    options.asynchronous_callbacks = remaining.pop(_CALLBACKS, False)
    note_bool(_CALLBACKS, options.asynchronous_callbacks, faults)
    named_stages = remaining.pop(_STAGES, None)
    faults.raise_any()
    if named_stages is not None and stages is not None:
        stages.restore(named_stages)
    unknown += remaining
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        warnings.warn(f"the file has options that this version does not support, and ignores: {names}", stacklevel=9)
    return options


def _read_group(default: OptionGroup, content: object, faults: Faults, unknown: list[str]) -> OptionGroup:
    names = default.names()
    try:
        decoded = {name: _decode(name, value) for name, value in _object(content).items()}
        unknown += [name for name in decoded if name not in names]
        return default.of(**{name: value for name, value in decoded.items() if name in names})
    except (TypeError, ValueError) as exc:
        faults.add(ValueError, f"{default.title}: {exc}")
        return default


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"there should be a JSON object, but there is `{value!r}`")
    return dict(value)


def _encode(name: str, value: object) -> object:
    if isinstance(value, enum.Enum) and type(value).__name__ in _ENUMS:
        return {"enum": type(value).__name__, "name": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and not any(isinstance(part, PipelineStageOptions) for part in value):
        return [_encode(name, part) for part in value]
    if isinstance(value, dict):
        return {"dict": {key: _encode(key, part) for key, part in value.items()}}
    try:
        dtype: Any = value
        return {"dtype": tf.as_dtype(dtype).name}
    except TypeError:
        warnings.warn(
            f"the option `{name}` of the model is {value!r}, which cannot be saved; set it again", stacklevel=8
        )
        return None


def _decode(name: str, value: object) -> Any:
    """Returns the value that `_encode` encoded for an option."""
    if isinstance(value, list):
        return [_decode(name, part) for part in value]
    if not isinstance(value, dict):
        return value
    try:
        if "enum" in value:
            return _ENUMS[value["enum"]][value["name"]]
        if "dtype" in value:
            return tf.as_dtype(value["dtype"])
        return {key: _decode(key, part) for key, part in value["dict"].items()}
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"`{name}` is `{value!r}`, which is not an encoded option") from exc


def called_flat(model: keras.Model, values: Sequence[tf.Tensor]) -> Nested:
    """Calls a model with a flat list of its inputs."""
    structure = internals.input_structure(model)
    if structure is not None:
        return model(tf.nest.pack_sequence_as(structure, list(values)), training=False)
    arguments = values[0] if len(values) == 1 else list(values)
    return model(arguments, training=False) if internals.takes_training(model) else model(arguments)


def input_specs(model: keras.Model, batch_size: int | None) -> list[tf.TensorSpec]:
    """Returns the specs of the model's flat inputs, with static shapes."""
    if batch_size is not None and (not is_int(batch_size) or batch_size < 1):
        raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
    try:
        inputs = internals.input_specs(model)
    except (AttributeError, ValueError) as exc:
        raise RuntimeError(
            f"Cannot get the input signature of model `{model.name}`: it was not called yet. Call it on a batch, fit it, or"
            " make it with an `Input` layer, and export it then"
        ) from exc
    # The specs have no batch size, even if the model's `Input` has, so the shapes are taken from `Model.inputs`.
    declared = getattr(model, "inputs", None) or inputs
    specs = []
    for index, (spec, input_with_batch) in enumerate(zip(inputs, declared, strict=True)):
        name, shape = spec.name or f"input_{index}", input_with_batch.shape
        dims = list(shape)
        if batch_size is not None and dims:
            dims[0] = batch_size
        if None in dims:
            raise ValueError(
                f"Not all dimensions of the inputs can be determined: `{name}` of model `{model.name}` has shape {shape}, and"
                " a program for an IPU has static shapes. Set `batch_size`, and state the other dimensions in the model's"
                " `Input`"
            )
        specs.append(tf.TensorSpec(dims, tf.as_dtype(spec.dtype), name=name))
    return specs


# SavedModels and HDF5 files. Keras has no hooks to save more in these formats.

_WITHOUT_STAGES = (
    "the model is loaded without its pipeline stages ({reason}). Pass its class to `load_model` in `custom_objects`"
)

# The forms in which Keras accepts a file: a path, an open HDF5 file, or an open file that h5py can read.
_File: TypeAlias = "str | os.PathLike[str] | h5py.File | tf.io.gfile.GFile"


def _extra_assets(filepath: _File) -> str:
    """Returns the folder of a SavedModel that TensorFlow reserves for other libraries."""
    return os.path.join(str(filepath), "assets.extra")


def keeping_options(original: Callable[..., object]) -> Callable[..., object]:
    """Wraps a function of Keras that saves or loads models, so that it saves or loads their options too."""
    in_hdf5 = "hdf5" in original.__name__

    @functools.wraps(original)
    def save(model: object, filepath: _File, *args: Nested, **kwargs: Nested) -> object:
        earlier_version = _version(filepath)
        result = original(model, filepath, *args, **kwargs)
        # If the version is the same, Keras wrote nothing: the user declined to overwrite the file.
        if earlier_version is None or earlier_version != _version(filepath):
            extension = _extension_of(model)
            text = "" if extension is None else to_json(extension.options, extension.stages)
            if in_hdf5:
                _write_to_hdf5(filepath, text)
            else:
                write_options(_extra_assets(filepath), text)
        return result

    @functools.wraps(original)
    def load(filepath: _File, *args: Nested, **kwargs: Nested) -> object:
        model = original(filepath, *args, **kwargs)
        extension = _extension_of(model)
        if extension is not None:
            text = _read_from_hdf5(filepath) if in_hdf5 else read_options(_extra_assets(filepath))
            try:
                extension.load_options(text)
            except ValueError as exc:
                if not extension.stages.is_subclassed:
                    raise
                # Without the class, Keras loads a SavedModel as a model whose `call` is one traced function.
                warnings.warn(_WITHOUT_STAGES.format(reason=exc.__cause__), stacklevel=tracebacks.stack_level())
                extension.load_options(text, stages=False)
        return model

    return load if original.__name__.startswith("load") else save


def building_on_device(original: Callable[[keras.Model], None]) -> Callable[[keras.Model], None]:
    """Wraps the function of Keras 2 that builds losses and metrics of a saved model, to run it in the scope."""

    @functools.wraps(original)
    def build(model: keras.Model) -> None:
        extension = _extension_of(model)
        if extension is None:
            original(model)
            return
        with extension.strategy.scope(), extension.calls.turn():
            original(model)

    return build


def _extension_of(model: object) -> Extension | None:
    return getattr(model, "__dict__", {}).get("_ipu_extension")


def _version(filepath: _File) -> int | None:
    """Returns the modification time of a local file or SavedModel in ns, or None for any other file."""
    if not isinstance(filepath, (str, os.PathLike)):
        return None
    path = os.path.join(filepath, tf.saved_model.SAVED_MODEL_FILENAME_PB) if os.path.isdir(filepath) else filepath
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


def write_options(folder: str, text: str) -> None:
    """Writes a text of `to_json` into a folder, or removes the text that another model left."""
    path = os.path.join(folder, FILE)
    if text:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(text)
    elif tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def read_options(folder: str) -> str:
    """Returns the text that `write_options` wrote, or ""."""
    path = os.path.join(folder, FILE)
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path) as file:
        return file.read()


def _opened(filepath: _File, mode: str) -> AbstractContextManager[h5py.File]:
    import h5py  # Imported late, as few models use this format. Keras requires it.

    return contextlib.nullcontext(filepath) if isinstance(filepath, h5py.File) else h5py.File(filepath, mode)


def _write_to_hdf5(filepath: _File, text: str) -> None:
    if text:
        with _opened(filepath, "r+") as file:
            file.create_dataset(FILE, data=text)


def _read_from_hdf5(filepath: _File) -> str:
    with _opened(filepath, "r") as file:
        stored: Nested = file.get(FILE)
        return "" if stored is None else stored.asstr()[()]
