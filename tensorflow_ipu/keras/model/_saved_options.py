"""The options and pipeline stages of models in SavedModels and HDF5 files, for which Keras has no hooks."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import tensorflow as tf

from tensorflow_ipu.keras.model import _file_methods
from tensorflow_ipu.programs.diagnostics import tracebacks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import h5py

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras._keras import keras
    from tensorflow_ipu.keras.model.extension import Extension

_WITHOUT_STAGES = (
    "the model is loaded without its pipeline stages ({reason}). Pass its class to `load_model` in `custom_objects`"
)

# What Keras saves a model to: a path; an HDF5 file, or one that h5py reads, that is open.
_File: TypeAlias = "str | os.PathLike[str] | h5py.File | tf.io.gfile.GFile"

# The folder of a SavedModel that TensorFlow leaves to others.
_FOLDER = "assets.extra"


def keeping_options(plain: Callable[..., object]) -> Callable[..., object]:
    """A function of Keras that saves or loads a model in such a format, and handles its options too."""
    in_hdf5 = "hdf5" in plain.__name__

    @functools.wraps(plain)
    def save(model: object, filepath: _File, *args: Nested, **kwargs: Nested) -> object:
        before = _version(filepath)
        result = plain(model, filepath, *args, **kwargs)
        if before is None or before != _version(filepath):  # The user may keep an earlier file.
            extension = _extension_of(model)
            text = "" if extension is None else _file_methods.written(extension.options, extension.stages)
            (_write_to_hdf5 if in_hdf5 else _write_to_folder)(filepath, text)
        return result

    @functools.wraps(plain)
    def load(filepath: _File, *args: Nested, **kwargs: Nested) -> object:
        model = plain(filepath, *args, **kwargs)
        extension = _extension_of(model)
        if extension is not None:
            text = (_read_from_hdf5 if in_hdf5 else _read_from_folder)(filepath)
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


def _write_to_folder(filepath: _File, text: str) -> None:
    folder = os.path.join(str(filepath), _FOLDER)
    path = os.path.join(folder, _file_methods.FILE)
    if text:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(text)
    elif tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)  # Of the model that was in the folder before.


def _read_from_folder(filepath: _File) -> str:
    path = os.path.join(str(filepath), _FOLDER, _file_methods.FILE)
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
            file.create_dataset(_file_methods.FILE, data=text)


def _read_from_hdf5(filepath: _File) -> str:
    with _opened(filepath, "r") as file:
        stored: Nested = file.get(_file_methods.FILE)
        return "" if stored is None else stored.asstr()[()]
