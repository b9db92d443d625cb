"""Files of models that are made in a strategy's scope: their options and stages, and the SavedModel that is served."""

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


def written(options: Options, stages: StageAssignment) -> str:
    """Returns the options that differ from the defaults, and the stages, as text; an empty one where there are none."""
    found: dict[str, object] = {}
    for group, values in options.groups():
        changed = {name: _encode(name, value) for name, value in values.changed().items()}
        if changed:
            found[group] = changed
    if options.asynchronous_callbacks:
        found[_CALLBACKS] = True
    if stages.is_pipelined:
        found[_STAGES] = stages.named()
    return json.dumps(found) if found else ""


def read(stages: StageAssignment | None, text: str) -> Options:
    """Returns the options that `written` returned as text, and assigns its stages unless `stages` is None."""
    if not text:
        return Options()
    try:
        return _read(json.loads(text), stages)
    except (RuntimeError, TypeError, ValueError) as exc:
        raise ValueError(
            f"the model's options cannot be read from `{FILE}` in its file: {exc}. The rest of the file can:"
            " `keras.models.load_model` outside of `strategy.scope()` gives the model without its options, and"
            " `load_weights` of a model made in the scope takes the file too"
        ) from exc


def _read(written: object, stages: StageAssignment | None) -> Options:
    """The options that a file has; stages are set last, so that a faulty file changes nothing."""
    rest = _object(written)
    options, faults, unknown = Options(), Faults(), []
    for group, values in options.groups():
        setattr(options, group, _read_group(values, rest.pop(group, {}), faults, unknown))
    options.asynchronous_callbacks = rest.pop(_CALLBACKS, False)
    note_bool(_CALLBACKS, options.asynchronous_callbacks, faults)
    named = rest.pop(_STAGES, None)
    faults.raise_any()
    if named is not None and stages is not None:
        stages.restore(named)
    unknown += rest
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        warnings.warn(f"the file has options that this version does not know, which are not set: {names}", stacklevel=9)
    return options


def _read_group(default: OptionGroup, written: object, faults: Faults, unknown: list[str]) -> OptionGroup:
    known = default.names()
    try:
        given = {name: _decode(name, value) for name, value in _object(written).items()}
        unknown += [name for name in given if name not in known]
        return default.of(**{name: value for name, value in given.items() if name in known})
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
    """The value of an option that `_encode` wrote."""
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
        raise ValueError(f"`{name}` is `{value!r}`, which stands for no value of an option") from exc


def called_flat(model: keras.Model, values: Sequence[tf.Tensor]) -> Nested:
    """Calls a model with its flat inputs."""
    structure = internals.input_structure(model)
    if structure is not None:
        return model(tf.nest.pack_sequence_as(structure, list(values)), training=False)
    arguments = values[0] if len(values) == 1 else list(values)
    return model(arguments, training=False) if internals.takes_training(model) else model(arguments)


def input_specs(model: keras.Model, batch_size: int | None) -> list[tf.TensorSpec]:
    """The specs of the model's flat inputs, with static shapes."""
    if batch_size is not None and (not is_int(batch_size) or batch_size < 1):
        raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
    try:
        # Of sequential models a list, of the others a list of their structure of inputs.
        inputs = internals.input_specs(model)
    except (AttributeError, ValueError) as exc:
        raise RuntimeError(
            f"Cannot get the input signature of model `{model.name}`: it was not called yet. Call it on a batch, fit it, or"
            " make it with an `Input` layer, and export it then"
        ) from exc
    # Keras exports models for any size of batch, also those whose `Input` states one.
    stated = getattr(model, "inputs", None) or inputs
    found = []
    for at, (spec, with_batch) in enumerate(zip(inputs, stated, strict=True)):
        name, shape = spec.name or f"input_{at}", with_batch.shape
        dims = list(shape)
        if batch_size is not None and dims:
            dims[0] = batch_size
        if None in dims:
            raise ValueError(
                f"Not all dimensions of the inputs can be determined: `{name}` of model `{model.name}` has shape {shape}, and"
                " a program for an IPU has static shapes. Set `batch_size`, and state the other dimensions in the model's"
                " `Input`"
            )
        found.append(tf.TensorSpec(dims, tf.as_dtype(spec.dtype), name=name))
    return found


# SavedModels and HDF5 files, for which Keras has no hooks.

_WITHOUT_STAGES = (
    "the model is loaded without its pipeline stages ({reason}). Pass its class to `load_model` in `custom_objects`"
)

# What Keras saves a model to: a path; an HDF5 file, or one that h5py reads, that is open.
_File: TypeAlias = "str | os.PathLike[str] | h5py.File | tf.io.gfile.GFile"


def _extra_assets(filepath: _File) -> str:
    """Returns the folder of a SavedModel that TensorFlow leaves to others."""
    return os.path.join(str(filepath), "assets.extra")


def keeping_options(plain: Callable[..., object]) -> Callable[..., object]:
    """A function of Keras that saves or loads a model in such a format, and handles its options too."""
    in_hdf5 = "hdf5" in plain.__name__

    @functools.wraps(plain)
    def save(model: object, filepath: _File, *args: Nested, **kwargs: Nested) -> object:
        before = _version(filepath)
        result = plain(model, filepath, *args, **kwargs)
        if before is None or before != _version(filepath):  # The user may keep an earlier file.
            extension = _extension_of(model)
            text = "" if extension is None else written(extension.options, extension.stages)
            if in_hdf5:
                _write_to_hdf5(filepath, text)
            else:
                write_options(_extra_assets(filepath), text)
        return result

    @functools.wraps(plain)
    def load(filepath: _File, *args: Nested, **kwargs: Nested) -> object:
        model = plain(filepath, *args, **kwargs)
        extension = _extension_of(model)
        if extension is not None:
            text = _read_from_hdf5(filepath) if in_hdf5 else read_options(_extra_assets(filepath))
            try:
                extension.take_options(text)
            except ValueError as exc:
                if not extension.stages.is_subclassed:
                    raise
                # Without its class, Keras makes a model of a SavedModel whose `call` is one function.
                warnings.warn(_WITHOUT_STAGES.format(reason=exc.__cause__), stacklevel=tracebacks.stack_level())
                extension.take_options(text, stages=False)
        return model

    return load if plain.__name__.startswith("load") else save


def building_on_device(plain: Callable[[keras.Model], None]) -> Callable[[keras.Model], None]:
    """The function of Keras 2 that makes the losses and metrics of a model that is saved, on any thread."""

    @functools.wraps(plain)
    def build(model: keras.Model) -> None:
        extension = _extension_of(model)
        if extension is None:
            plain(model)
            return
        with extension.strategy.scope(), extension.calls.turn():
            plain(model)

    return build


def _extension_of(model: object) -> Extension | None:
    return getattr(model, "__dict__", {}).get("_ipu_extension")


def _version(filepath: _File) -> int | None:
    """Returns when a file on this host was written; None for any other, which Keras writes without a question."""
    if not isinstance(filepath, (str, os.PathLike)):
        return None
    path = os.path.join(filepath, tf.saved_model.SAVED_MODEL_FILENAME_PB) if os.path.isdir(filepath) else filepath
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


def write_options(folder: str, text: str) -> None:
    """Writes the text of `written` into a folder, in which another model may have been."""
    path = os.path.join(folder, FILE)
    if text:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(text)
    elif tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def read_options(folder: str) -> str:
    """Returns the text that `write_options` wrote."""
    path = os.path.join(folder, FILE)
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path) as file:
        return file.read()


def _opened(filepath: _File, mode: str) -> AbstractContextManager[h5py.File]:
    import h5py  # Keras has it, and few models are saved so.

    return contextlib.nullcontext(filepath) if isinstance(filepath, h5py.File) else h5py.File(filepath, mode)


def _write_to_hdf5(filepath: _File, text: str) -> None:
    if text:
        with _opened(filepath, "r+") as file:
            file.create_dataset(FILE, data=text)


def _read_from_hdf5(filepath: _File) -> str:
    with _opened(filepath, "r") as file:
        stored: Nested = file.get(FILE)
        return "" if stored is None else stored.asstr()[()]
