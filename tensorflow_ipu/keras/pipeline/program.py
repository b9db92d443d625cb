"""The stages of a Keras model as a program: layers by stage, with the loss and the metrics in the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras.data.elements import Elements
from tensorflow_ipu.keras.pipeline.graph import StageAssignment
from tensorflow_ipu.keras.pipeline.places import Call, Key, calls_of, graph_of
from tensorflow_ipu.pipelining import parts

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras._keras_internals import Functional


class PipelinedModel:
    """Runs a model's stages over micro-batches."""

    def __init__(
        self,
        model: keras.Model,
        assignment: StageAssignment,
        mode: str,
        *,
        micro_batches: int | None,
        device_mapping: list[int] | None,
        accumulate_outfeed: bool,
        options: Mapping[str, Any],
    ) -> None:
        """Plans a pipeline."""
        self._model = model
        self._mode = mode
        self._micro_batches = micro_batches
        self._mapping = device_mapping
        self._accumulate = accumulate_outfeed
        self._options = dict(options)
        self._stages = assignment.check()
        self._graph = graph_of(assignment.graph)
        self._flow = calls_of(assignment.graph, assignment.places)

    def run(self, elements: Elements, infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, steps: int) -> None:
        """Puts the pipeline into the program that is being traced."""
        trace = _Trace(self._model, self._graph, self._flow, self._mode, elements)
        count = self._micro_batches or steps
        training = {"optimizer_function": self._optimizer} if self._mode == "train" else {}
        pipelining.pipeline(
            [trace.stage(number, self._stages) for number in range(self._stages)],
            gradient_accumulation_count=count,
            repeat_count=steps // count,
            infeed_queue=infeed,
            outfeed_queue=outfeed,
            device_mapping=self._mapping,
            # A metric gathers values itself, and a sum of what it says step by step would be of no use.
            accumulate_outfeed=parts.Results.LAST if self._accumulate else False,
            **training,
            **self._options,
        )

    def _optimizer(self, loss: tf.Tensor, *logs: tf.Tensor) -> pipelining.OptimizerFunctionOutput:
        del logs
        return pipelining.OptimizerFunctionOutput(
            self._model.optimizer, loss, variables=list(self._model.trainable_variables)
        )


class _Trace:
    """The functions of the stages, which learn of each other what they hand on as they are traced one after the other."""

    def __init__(
        self,
        model: keras.Model,
        graph: Functional,
        flow: tuple[list[Call], list[Key], list[Key]],
        mode: str,
        elements: Elements,
    ) -> None:
        self._model = model
        self._graph = graph
        self._calls: list[Call]
        self._calls, self._inputs, self._outputs = flow
        self._mode = mode
        self._elements = elements
        self._handed: list[Key] = []  # The values that the next stage gets.
        self._losses: list[tf.Tensor] = []  # Those that layers made so far, besides that of the model's outputs.
        self._hands_losses = False  # Whether the next stage gets their sum.
        self._targets: Nested = None  # The structure of targets and weights, which travel to the last stage.
        self._batch_size: int | None = None

    def stage(self, number: int, stages: int) -> Callable[..., Nested]:
        """The function of a stage."""

        def run(*tensors: tf.Tensor) -> Nested:
            values, targets = self._begin(tensors) if number == 0 else self._continue(tensors)
            for call in self._calls:
                if call.stage == number:
                    node = call.node
                    taken = {
                        id(symbol): _as_declared(values[call.reads[id(symbol)]], symbol)
                        for symbol in node.input_tensors
                    }
                    arguments, named = node.arguments.fill_in(taken)
                    outputs = internals.bound_operation(node.operation, self._mode == "train")(*arguments, **named)
                    self._collect_losses(call)
                    for symbol, value in zip(node.outputs, keras.tree.flatten(outputs), strict=True):
                        values[(*call.path, id(symbol))] = value
            if number == stages - 1:
                return self._end(values, targets)
            later = [call for call in self._calls if call.stage is not None and call.stage > number]
            wanted = {key for call in later for key in call.reads.values()} | set(self._outputs)
            self._handed = sorted(wanted & values.keys())
            self._hands_losses = bool(self._losses)
            losses = [tf.add_n(self._losses)] if self._losses else []
            return (*(values[key] for key in self._handed), *losses, *targets)

        run.__name__ = f"stage_{number}_of_{self._model.name}"
        return run

    def _collect_losses(self, call: Call) -> None:
        """Notes the losses of a call: those that its layer added, and with the layer's first call those of its weights."""
        layer = call.node.operation
        if self._mode == "predict" or not isinstance(layer, keras.layers.Layer):
            return
        found = [loss for part in internals.all_layers(layer) for loss in internals.added_losses(part)]
        if call is next(one for one in self._calls if one.node.operation is layer):
            found += internals.weight_losses(layer)
        internals.forget_losses(layer)
        self._losses += [tf.reduce_sum(tf.cast(loss, keras.config.floatx())) for loss in found]

    def _begin(self, tensors: tuple[tf.Tensor, ...]) -> tuple[dict[Key, tf.Tensor], list[tf.Tensor]]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(self._elements.of_parts(tensors))
        inputs = internals.standard_inputs(self._graph, x)
        self._batch_size = inputs[0].shape[0]
        self._losses = []
        values = dict(zip(self._inputs, inputs, strict=True))
        self._targets = (y, weights) if self._mode != "predict" else (None, None)
        return values, [part for part in tf.nest.flatten(self._targets) if part is not None]

    def _continue(self, tensors: tuple[tf.Tensor, ...]) -> tuple[dict[Key, tf.Tensor], list[tf.Tensor]]:
        count = len(self._handed)
        rest = list(tensors[count:])
        self._losses = [rest.pop(0)] if self._hands_losses else []
        return dict(zip(self._handed, tensors[:count], strict=True)), rest

    def _end(self, values: dict[Key, tf.Tensor], targets: list[tf.Tensor]) -> Nested:
        model = self._model
        outputs = [values[key] for key in self._outputs]
        predicted = tf.nest.pack_sequence_as(internals.output_structure(self._graph), outputs)
        if isinstance(predicted, (list, tuple)) and len(predicted) == 1:
            predicted = predicted[0]
        if self._mode == "predict":
            return predicted
        left = iter(targets)
        filled = [None if part is None else next(left) for part in tf.nest.flatten(self._targets)]
        y, weights = tf.nest.pack_sequence_as(self._targets, filled)
        training = self._mode == "train"
        with internals.with_losses(model, self._losses):
            loss = internals.total_loss(model, y, predicted, weights, training)
        internals.note_loss(model, loss, self._batch_size)
        logs = model.compute_metrics(None, y, predicted, sample_weight=weights)
        if not training:
            return logs
        names = sorted(logs)
        model._ipu_extension.log_names = names
        return (model.optimizer.scale_loss(loss), *(logs[name] for name in names))


def _as_declared(value: tf.Tensor, symbol: keras.KerasTensor) -> tf.Tensor:
    """A value in the rank that a nested model's input declares, as Keras has it: with or without a last axis of 1."""
    rank = len(symbol.shape)
    if len(value.shape) == rank + 1 and value.shape[-1] == 1:
        return tf.squeeze(value, axis=-1)
    if len(value.shape) == rank - 1 and symbol.shape[-1] == 1:
        return tf.expand_dims(value, axis=-1)
    return value
