"""The steps of a served model: signatures, results, names of outputs, the folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from tensorflow_ipu._base.types import Nested


def signature(argument: str, step: object, passed: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    """Returns the signature of a step, as passed or as the step, a `tf.function`, declares it."""
    declared = getattr(step, "input_signature", None) if passed is None else passed
    if passed is None and not declared:
        raise ValueError(
            f"the inputs of `{argument}` cannot be told from it: set `{argument}_signature` to a list of `tf.TensorSpec`, or"
            " make it a `tf.function` with an `input_signature`"
        )
    return check_signature(f"{argument}_signature", declared)


def check_signature(argument: str, signature: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    """Returns a signature as a list."""
    if not isinstance(signature, (list, tuple)):
        raise TypeError(f"`{argument}` must be a list or tuple of `tf.TensorSpec`, but is {signature!r}")
    if not signature:
        raise ValueError(f"`{argument}` must not be empty")
    for at, spec in enumerate(signature):
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(f"`{argument}[{at}]` must be a `tf.TensorSpec`, but is {spec!r}")
    return list(signature)


def checked(source: str, returned: Nested, specs: Sequence[tf.TensorSpec] | None) -> list[tf.Tensor]:
    """Returns the tensors that a step returned, with the shapes that the next one takes."""
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


def names(output_names: str | list[str] | None) -> list[str] | None:
    """Returns the names of outputs as a list."""
    if output_names is None:
        return None
    names = [output_names] if isinstance(output_names, str) else output_names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`output_names` must be a string or a list of strings, but is {output_names!r}")
    return names


def named(results: Sequence[tf.Tensor], names: list[str] | None) -> dict[str, tf.Tensor]:
    """Returns the outputs of a request by their names; `output_0` and so on without names."""
    names = [f"output_{at}" for at in range(len(results))] if names is None else names
    if len(names) != len(results):
        raise ValueError(f"`output_names` has {len(names)} names, and there are {len(results)} outputs")
    return dict(zip(names, results, strict=True))


def prepared_folder(export_dir: str | os.PathLike[str], purge: bool) -> Path:
    """Empties and returns the folder to export to."""
    folder = Path(export_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not purge:
            raise ValueError(
                f"`export_dir` is `{folder}`, which is not empty: give an empty folder, or set `purge_export_dir=True` to"
                " delete what it has"
            )
        (shutil.rmtree if folder.is_dir() else os.unlink)(folder)
    return folder
