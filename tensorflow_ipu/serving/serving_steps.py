"""Checks of the steps of a served model: signatures, results, names of outputs and the folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from tensorflow_ipu._base.types import Nested


def signature(argument: str, step: object, passed: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    """Returns the signature that is passed for a step, or the `input_signature` of the step, a `tf.function`."""
    declared = getattr(step, "input_signature", None) if passed is None else passed
    if passed is None and not declared:
        raise ValueError(
            f"the signature of `{argument}` cannot be inferred: set `{argument}_signature` to a list of `tf.TensorSpec`, or"
            " make it a `tf.function` with an `input_signature`"
        )
    return check_signature(f"{argument}_signature", declared)


def check_signature(argument: str, signature: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    """Returns a signature as a list of specs after checking it."""
    if not isinstance(signature, (list, tuple)):
        raise TypeError(f"`{argument}` must be a list or tuple of `tf.TensorSpec`, but is {signature!r}")
    if not signature:
        raise ValueError(f"`{argument}` must not be empty")
    for index, spec in enumerate(signature):
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(f"`{argument}[{index}]` must be a `tf.TensorSpec`, but is {spec!r}")
    return list(signature)


def checked(source: str, returned: Nested, specs: Sequence[tf.TensorSpec] | None) -> list[tf.Tensor]:
    """Returns the tensors that a step returned, with the static shapes of the specs of the next step."""
    values = tf.nest.flatten(returned)
    for index, value in enumerate(values):
        if not tf.is_tensor(value):
            raise ValueError(f"{source} returns {value!r} at position {index}, which is no tensor")
    if specs is None:
        return values
    if len(values) != len(specs):
        raise ValueError(f"{source} returns {len(values)} values, but the next step takes {len(specs)}")
    for index, (value, spec) in enumerate(zip(values, specs, strict=True)):
        if not spec.shape.is_compatible_with(value.shape) or spec.dtype != value.dtype:
            raise ValueError(
                f"{source} returns a tensor of shape {value.shape} and type {value.dtype.name} at position {index}, but"
                f" the next step takes shape {spec.shape} and type {spec.dtype.name}"
            )
    return [tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True)]


def names(output_names: str | list[str] | None) -> list[str] | None:
    """Returns the names of outputs as a list, or None."""
    if output_names is None:
        return None
    names = [output_names] if isinstance(output_names, str) else output_names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`output_names` must be a string or a list of strings, but is {output_names!r}")
    return names


def named(results: Sequence[tf.Tensor], names: list[str] | None) -> dict[str, tf.Tensor]:
    """Returns the outputs of a request by name. Without `names`, they are `output_0`, `output_1` and so on."""
    names = [f"output_{index}" for index in range(len(results))] if names is None else names
    if len(names) != len(results):
        raise ValueError(f"`output_names` has {len(names)} names, but there are {len(results)} outputs")
    return dict(zip(names, results, strict=True))


def prepared_folder(export_dir: str | os.PathLike[str], purge: bool) -> Path:
    """Returns the folder to export to. Deletes its contents if `purge` is True, or else raises an error if it is not empty."""
    folder = Path(export_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not purge:
            raise ValueError(
                f"`export_dir` is `{folder}`, which is not empty: choose an empty folder, or set `purge_export_dir=True` to"
                " delete its contents"
            )
        (shutil.rmtree if folder.is_dir() else os.unlink)(folder)
    return folder
