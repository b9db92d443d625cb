"""Exports a model as a SavedModel that TensorFlow runs on a CPU, without this package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu._checks import is_int
from tensorflow_ipu.keras import _keras_internals as internals

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow import functions
    from tensorflow_ipu._types import Nested


def export(
    model: keras.Model,
    export_dir: str | os.PathLike[str],
    batch_size: int | None,
    output_names: str | list[str] | None,
    preprocessing_step: Callable[..., Nested] | None,
    preprocessing_step_signature: Sequence[tf.TensorSpec] | None,
    postprocessing_step: Callable[..., Nested] | None,
    postprocessing_step_signature: Sequence[tf.TensorSpec] | None,
    purge_export_dir: bool,
) -> functions.Function:
    """See `export_for_ipu_serving` of the model, which has the same arguments."""
    names = _names(output_names)
    inputs = _input_specs(model, batch_size)
    takes = (
        inputs
        if preprocessing_step is None
        else _signature("preprocessing_step", preprocessing_step, preprocessing_step_signature)
    )
    if postprocessing_step is not None and postprocessing_step_signature is not None:
        _check_signature("postprocessing_step_signature", postprocessing_step_signature)

    def serve(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        values: Nested = arguments
        if preprocessing_step is not None:
            values = _checked("`preprocessing_step`", preprocessing_step(*values), inputs)
        results = _checked("the model", _called(model, values), postprocessing_step_signature)
        if postprocessing_step is not None:
            results = _checked("`postprocessing_step`", postprocessing_step(*results), None)
        return _named(results, names)

    folder = _prepare(export_dir, purge_export_dir)
    archive: Any = keras.export.ExportArchive()
    archive.track(model)
    # Traced outside of any scope, so that the graph names no IPU.
    served = archive.add_endpoint("serve", serve, input_signature=takes)
    archive.write_out(str(folder), verbose=False)
    return served


def _called(model: keras.Model, values: Sequence[tf.Tensor]) -> Nested:
    structure = internals.input_structure(model)
    if structure is not None:
        return model(tf.nest.pack_sequence_as(structure, list(values)), training=False)
    arguments = values[0] if len(values) == 1 else list(values)
    return model(arguments, training=False) if internals.takes_training(model) else model(arguments)


def _input_specs(model: keras.Model, batch_size: int | None) -> list[tf.TensorSpec]:
    """The specs of the model's flat inputs, with static shapes.

    Raises:
      RuntimeError: The model has not said what its inputs are.
      ValueError: A dimension is not known.
    """
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


def _signature(argument: str, step: object, given: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    if given is not None:
        return _check_signature(f"{argument}_signature", given)
    declared = getattr(step, "input_signature", None)
    if not declared:
        raise ValueError(
            f"the inputs of `{argument}` cannot be told from it: set `{argument}_signature` to a list of `tf.TensorSpec`, or"
            " make it a `tf.function` with an `input_signature`"
        )
    return _check_signature(f"{argument}_signature", declared)


def _check_signature(argument: str, given: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"`{argument}` must be a list or tuple of `tf.TensorSpec`, but is {given!r}")
    if not given:
        raise ValueError(f"`{argument}` must not be empty")
    for at, spec in enumerate(given):
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(f"`{argument}[{at}]` must be a `tf.TensorSpec`, but is {spec!r}")
    return list(given)


def _checked(source: str, returned: Nested, specs: Sequence[tf.TensorSpec] | None) -> list[tf.Tensor]:
    """The tensors that a step returned, with the shapes that the next one takes."""
    values = tf.nest.flatten(returned)
    for at, value in enumerate(values):
        if not tf.is_tensor(value):
            raise ValueError(f"{source} returns {value!r} at position {at}, which is no tensor")
    if specs is None:
        return values
    if len(values) != len(specs):
        raise ValueError(f"{source} returns {len(values)} values, and what comes after it takes {len(specs)}")
    for at, (value, spec) in enumerate(zip(values, specs, strict=True)):
        if not spec.shape.is_compatible_with(value.shape) or spec.dtype != value.dtype:
            raise ValueError(
                f"{source} returns a tensor of shape {value.shape} and type {value.dtype.name} at position {at}, and what"
                f" comes after it takes shape {spec.shape} and type {spec.dtype.name}"
            )
    return [tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True)]


def _names(output_names: str | list[str] | None) -> list[str] | None:
    if output_names is None:
        return None
    names = [output_names] if isinstance(output_names, str) else output_names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`output_names` must be a string or a list of strings, but is {output_names!r}")
    return names


def _named(results: Sequence[tf.Tensor], names: list[str] | None) -> dict[str, tf.Tensor]:
    if names is None:
        names = [f"output_{at}" for at in range(len(results))]
    if len(names) != len(results):
        raise ValueError(f"`output_names` has {len(names)} names, and there are {len(results)} outputs")
    return dict(zip(names, results, strict=True))


def _prepare(export_dir: str | os.PathLike[str], purge: bool) -> Path:
    folder = Path(export_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not purge:
            raise ValueError(
                f"`export_dir` is `{folder}`, which is not empty: give an empty folder, or set `purge_export_dir=True` to"
                " delete what it has"
            )
        _remove(folder)
    return folder


def _remove(folder: Path) -> None:
    remove: Callable[[Path], object] = shutil.rmtree if folder.is_dir() else Path.unlink
    remove(folder)
