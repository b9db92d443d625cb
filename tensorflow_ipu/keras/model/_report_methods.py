"""What a real machine would make of a model that was made in a strategy's scope, as a method of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu import machine as machine_model
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.tensors import dtype_for, tf_variable
from tensorflow_ipu.feeds import IPUInfeedQueue
from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras.data import batches
from tensorflow_ipu.keras.data.elements import Elements
from tensorflow_ipu.keras.model.advice import Retracing, pieces_of
from tensorflow_ipu.keras.pipeline.places import symbols_of
from tensorflow_ipu.optimizers import update_memory
from tensorflow_ipu.optimizers.parts import accumulators_of, bytes_of

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.machine import Machine, NotAsked, Report, Suggestion, System
    from tensorflow_ipu.pipelining.parts import Pieces

# What the user calls a mode, and what Keras does.
_MODES = {"train": "train", "evaluate": "test", "predict": "predict"}
# Whose batches tell of a mode's, the best first; those of `predict` have no labels.
_SEEN = {
    "train": ("train", "test", "predict"),
    "evaluate": ("test", "train", "predict"),
    "predict": ("predict", "train", "test"),
}


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
          batch_size: How many samples each replica takes in a step: what `fit` calls so. None for the size that the model
            saw last, or that `keras.Input` or `spec` tell.
          mode: `"train"`, `"evaluate"` or `"predict"`.
          machine: As for `strategy.report`.
          spec: What the data is: a dataset of batches, or a batch of `tf.TensorSpec`, tensors or arrays as `(x, y)`. None for
            batches as the model saw them last, in this mode or else in another; of a model that saw none, for what its
            inputs and its losses tell: labels are int32 for sparse losses, else as the predictions.
          trip_counts: As for `strategy.report`.

        Returns:
          The report, of as many steps as the model runs in an execution.

        Raises:
          ValueError: An argument is out of range; or nothing tells the shapes of the data, or the model was not compiled.
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
        asked = _Request(extension, mode, batch, machine, trip_counts)
        report = asked.report()
        data = ", ".join(f"{leaf.dtype.name}{leaf.shape.as_list()}" for leaf in _parts(batch))
        source = ", as the last one that the model saw" if extension.seen else ", as the model and its losses tell"
        told = f"a batch of a replica is {data}" + ("" if spec is not None else source)
        return dataclasses.replace(report, assumptions=(*report.assumptions, told))

    def ipu_pieces(self, machine: System | Machine | str | None = None, batch_size: int | None = None) -> Pieces:
        """The layers of the model with what each takes in training, as `pipelining.balance` asks for them.

        Args:
          machine: As for `strategy.report`.
          batch_size: The samples of a micro-batch, as for `ipu_report`.

        Raises:
          ValueError: The model was not compiled, or has fewer than two layers; or nothing tells `batch_size`.
        """
        extension = _extension(self)
        internals.check_compiled(extension.model, "ipu_pieces")
        asked = _Request(extension, "train", _batch(extension, batch_size, "train", None), machine, None)
        return pieces_of(extension, machine, asked.program)


class _Request:
    """What a report was asked for, so that more like it can be made for its advice."""

    def __init__(
        self,
        extension: Extension,
        mode: str,
        batch: Nested,
        machine: System | Machine | str | None,
        trip_counts: Mapping[str, int] | None,
    ) -> None:
        self._extension = extension
        self._mode = mode
        self._batch = batch
        self._machine = machine
        self._trip_counts = trip_counts

    def program(self, scale: float = 1.0) -> Callable[[], None]:
        """The program, of so many times the micro-batch; the model is built."""
        extension, kind = self._extension, _MODES[self._mode]
        batch = tf.nest.map_structure(lambda leaf: _scaled(leaf, scale), self._batch)
        elements = Elements(tf.data.Dataset.from_tensors(0).map(lambda _: _zeros(batch)))
        with extension.strategy.scope():
            if self._mode == "predict":
                internals.called_with_symbols(extension.model, symbols_of(elements.spec), training=False)
            else:
                internals.build_for_training(extension.model, elements.spec)
        options = extension.options.infeed.changed()
        infeed = IPUInfeedQueue(elements.dataset, device_ordinal=extension.ordinal, **options)
        steps = _steps(extension, self._mode)
        return extension.loop(kind).described(elements, infeed, extension.outfeed(kind), steps)

    def report(self) -> Report:
        """Its report."""
        made = self._report()
        return dataclasses.replace(made, asks=self._advising(made))

    def _report(self, scale: float = 1.0) -> Report:
        program = self.program(scale)
        return self._extension.strategy.report(
            program, machine=self._machine, trip_counts=self._trip_counts, kept=self._kept()
        )

    def _other(self, scale: float, steps: int) -> Report:
        """The report of so many times the micro-batch, with so many steps an update."""
        if self._mode != "train":
            return self._report(scale)
        with self._extension.updating_after(steps):
            return self._report(scale)

    def _kept(self) -> machine_model.Kept:
        """What the model's optimizer keeps, where the options of accumulation place it."""
        model, options = self._extension.model, self._extension.options.accumulation
        if self._mode != "train" or model.optimizer is None:
            return machine_model.Kept()
        memory = update_memory(model.optimizer, ())
        state = memory.state_on_chip + memory.state_off_chip
        if options.offload_weight_update_variables and options.plan is not None:
            parts = self._extension.strategy.extended.ipus if options.replicated_optimizer_state_sharding else 1
            memory = dataclasses.replace(memory, state_on_chip=0, state_off_chip=-(-state // parts))
        sums = 0
        if options.plan is not None:
            weights = [tf_variable(weight) for weight in model.trainable_variables]
            sums = sum(
                (weight.shape.num_elements() or 0) * dtype_for(options.plan.dtype, weight).size for weight in weights
            )
        return machine_model.Kept(
            state=state,
            on_chip=memory.state_on_chip,
            off_chip=memory.state_off_chip,
            accumulated=sum(map(bytes_of, accumulators_of(model.optimizer))),
            carried=sums,
            steps_per_update=self._extension.steps_per_update,
        )

    def _advising(self, plain: Report) -> Callable[[Report, bool], Iterator[Suggestion | NotAsked]]:
        """Gives advice on the report, some of which takes another trace of the model."""
        extension, training = self._extension, self._mode == "train"
        steps = extension.steps_per_update if training else 1

        def advise(report: Report, retrace: bool) -> Iterator[Suggestion | NotAsked]:
            if plain.asks is not None:
                found = plain.asks(report, retrace)
                yield from (one for one in found if not (isinstance(one, machine_model.NotAsked) and one.of_models))
            if report.timeline is None:
                yield from machine_model.advice_on_state(report, report.steps // steps)
            yield from Retracing(
                report=report,
                samples=_parts(self._batch)[0].shape[0],
                steps=steps,
                training=training,
                stages=extension.stages.check() if extension.stages.is_pipelined else 1,
                other=self._other,
                pieces=lambda: pieces_of(extension, self._machine, self.program),
            ).advice(retrace)

        return advise


def _parts(batch: Nested) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]


def _scaled(leaf: tf.TensorSpec | None, scale: float) -> tf.TensorSpec | None:
    if leaf is None:
        return None
    shape: list[Any] = leaf.shape.as_list()
    return tf.TensorSpec([round(shape[0] * scale), *shape[1:]], leaf.dtype)


def _extension(model: object) -> Extension:
    return vars(model)["_ipu_extension"]


def _batch(extension: Extension, batch_size: int | None, mode: str, spec: Nested) -> Nested:
    """A batch of the data: a structure of `tf.TensorSpec` of known shapes, and None where data is missing."""
    model = extension.model
    if spec is not None:
        given: Any = batches.given_batch(spec, batch_size)
        return keras.utils.unpack_x_y_sample_weight(given)[0] if mode == "predict" else given
    kind = next((kind for kind in _SEEN[mode] if kind in extension.seen), None)
    if kind is None:
        inputs = batches.inputs_of(model, batch_size)
    else:
        seen = batches.seen_batch(extension.seen[kind], batch_size)
        if mode != "predict" and kind != "predict":
            return seen
        inputs = keras.utils.unpack_x_y_sample_weight(seen)[0]
    if mode == "predict":
        return inputs
    with extension.strategy.scope():
        labels = batches.labels_of(model, inputs)
    return (inputs,) if labels is None else (inputs, labels)


def _zeros(batch: Nested) -> Nested:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else tf.zeros(leaf.shape, leaf.dtype), batch)


def _steps(extension: Extension, mode: str) -> int:
    """How many steps a program runs: those of an execution, as whole updates."""
    steps = extension.steps_per_execution
    count = extension.steps_per_update if mode == "train" else 1
    return -(-steps // count) * count
