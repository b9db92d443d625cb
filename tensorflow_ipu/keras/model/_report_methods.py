"""What a real machine would make of a model that was made in a strategy's scope, as a method of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu._checks import is_int
from tensorflow_ipu.feeds import IPUInfeedQueue
from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras.data import batches
from tensorflow_ipu.keras.data.elements import Elements
from tensorflow_ipu.keras.model.replica_count import symbols_of

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested
    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.machine import Machine, Report, System

# What the user calls a mode, and what Keras does.
_MODES = {"train": "train", "evaluate": "test", "predict": "predict"}


class ReportMethods:
    """The method that predicts."""

    def ipu_report(
        self,
        batch_size: int | None = None,
        mode: str = "train",
        machine: System | Machine | str | None = None,
        *,
        spec: Nested = None,
        trip_counts: Mapping[str, int] | None = None,
    ) -> Report:
        """Predicts what a real machine would make of `fit`, `evaluate` or `predict`: whether it fits, how long a step takes.

        Nothing is run, and no variable changes. A model that is not built yet is built first, as `fit` would.

        Args:
          batch_size: How many samples each replica takes in a step: what `fit` calls so. It may be omitted where
            `keras.Input` or `spec` tell.
          mode: `"train"`, `"evaluate"` or `"predict"`.
          machine: As for `strategy.report`.
          spec: What the data is: a dataset of batches, or a batch of `tf.TensorSpec`, tensors or arrays as `(x, y)`. None for
            what the model's inputs and its losses tell: labels are int32 for sparse losses, else as the predictions.
          trip_counts: As for `strategy.report`.

        Returns:
          The report, of as many steps as the model runs in an execution.

        Raises:
          ValueError: An argument is out of range; or nothing tells the shapes of the data, or the model was not compiled.
          NotImplementedError: The model is on several IPUs, and no pipeline.
        """
        if mode not in _MODES:
            raise ValueError(f"`mode` must be one of {', '.join(f'`{each}`' for each in _MODES)}, but is {mode!r}")
        if batch_size is not None and (not is_int(batch_size) or batch_size < 1):
            raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
        extension = _extension(self)
        model = extension.model
        if mode != "predict":
            internals.check_compiled(model, "ipu_report")
        batch = _batch(extension, batch_size, mode, spec)
        elements = Elements(tf.data.Dataset.from_tensors(0).map(lambda _: _zeros(batch)))
        with extension.strategy.scope():
            if mode == "predict":
                internals.called_with_symbols(model, symbols_of(elements.spec), training=False)
            else:
                internals.build_for_training(model, elements.spec)
        steps = _steps(extension, mode)
        infeed = IPUInfeedQueue(
            elements.dataset, device_ordinal=extension.ordinal, **extension.options.infeed.changed()
        )
        kind = _MODES[mode]
        program = extension.loop(kind).described(elements, infeed, extension.outfeed(kind), steps)
        report = extension.strategy.report(program, machine=machine, trip_counts=trip_counts)
        data = ", ".join(f"{leaf.dtype.name}{leaf.shape.as_list()}" for leaf in tf.nest.flatten(elements.spec))
        told = f"a batch of a replica is {data}" + ("" if spec is not None else ", as the model and its losses tell")
        return dataclasses.replace(report, assumptions=(*report.assumptions, told))


def _extension(model: object) -> Extension:
    return vars(model)["_ipu_extension"]


def _batch(extension: Extension, batch_size: int | None, mode: str, spec: Nested) -> Nested:
    """A batch of the data: a structure of `tf.TensorSpec` of known shapes."""
    model = extension.model
    if spec is not None:
        given: Any = batches.given_batch(spec, batch_size)
        return keras.utils.unpack_x_y_sample_weight(given)[0] if mode == "predict" else given
    inputs = batches.inputs_of(model, batch_size)
    if mode == "predict":
        return inputs
    with extension.strategy.scope():
        labels = batches.labels_of(model, inputs)
    return (inputs,) if labels is None else (inputs, labels)


def _zeros(batch: Nested) -> Nested:
    return tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), batch)


def _steps(extension: Extension, mode: str) -> int:
    """How many steps a program runs: those of an execution, as whole updates."""
    steps = extension.steps_per_execution
    count = extension.steps_per_update if mode == "train" else 1
    return -(-steps // count) * count
