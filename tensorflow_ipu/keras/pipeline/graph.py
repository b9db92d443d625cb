"""Assigns the layers of a model to pipeline stages, and runs the stages as a pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.data.elements import Elements, checked_results
from tensorflow_ipu.keras.pipeline import places
from tensorflow_ipu.keras.pipeline.places import (
    Call,
    Key,
    Place,
    assignment_of,
    calls_of,
    leaves,
    named_stage,
    nodes_of,
    read_assignment,
    restore_stages,
    too_late,
)
from tensorflow_ipu.keras.pipeline.stages import NODE_STAGE, is_any_assigned, note_assignment
from tensorflow_ipu.pipelining.schedule.enums import Results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras._keras3 import Node
    from tensorflow_ipu.keras.options.options import PipeliningOptions
    from tensorflow_ipu.keras.pipeline.places import Named
    from tensorflow_ipu.keras.pipeline.stages import Assignment
    from tensorflow_ipu.strategy import IPUStrategyV1


class StageAssignment:
    """The pipeline stage of each layer of a model, or of each call of a layer."""

    def __init__(self, model: keras.Model, strategy: IPUStrategyV1) -> None:
        self._model = model
        self._strategy = strategy
        self._traced: internals.Functional | None = None
        self._stages: dict[Key, int] = {}  # Stages by the keys of places.
        self.uncut = ""  # Why another model runs this one as a single layer, or "".

    @property
    def is_sequential(self) -> bool:
        """True if layers are assigned to stages, and not their calls."""
        return isinstance(self._model, keras.Sequential)

    @property
    def is_subclassed(self) -> bool:
        """True if the layers are known from a trace of the model's `call` only."""
        return not self.is_sequential and not isinstance(self._model, internals.Functional)

    @property
    def has_graph(self) -> bool:
        """True if the model's layers are known."""
        return not self.is_subclassed or self._traced is not None

    @property
    def graph(self) -> keras.Model:
        """The sequential or functional model of the layers: the model itself, or a trace of its `call`."""
        if not self.is_subclassed:
            return self._model
        if self._traced is None:
            self.trace(places.symbols_of_built(self._model))
        return self._traced

    def trace(self, symbols: Nested) -> None:
        """Finds the layers of a subclassed model, and their stages by the scopes in its `call`."""
        self._traced = places.trace(self._model, self._strategy, symbols)

    @property
    def is_pipelined(self) -> bool:
        """True if any layer is in a stage."""
        if self._stages or not self.has_graph:
            return bool(self._stages)
        # Finding the layers calls nested models with symbols, so it is skipped in processes without any stage.
        return is_any_assigned() and any(leaf.stage is not None for leaf in leaves(self.places))

    @property
    def places(self) -> list[Place]:
        """The layers, or their calls, in execution order, including those inside nested models."""
        return self._places(self.graph, self.graph)

    def get(self) -> list[Assignment]:
        """Returns an assignment of each layer, or of each call of a layer, in execution order."""
        return [assignment_of(place, self.is_subclassed) for place in self.places]

    def set(self, assignment: object) -> None:
        note_assignment()
        original, self._stages = self._stages, read_assignment(self.graph, self.places, assignment, self.is_subclassed)
        try:
            if self.is_sequential:
                _check_sequence(self.places)
            self.check()
        except (ValueError, RuntimeError):
            self._stages = original
            raise

    @contextlib.contextmanager
    def staged(self, stages: Sequence[int]) -> Iterator[None]:
        """Runs the block with other stages, one for each layer or call in execution order, nested models expanded."""
        original = self._stages
        self._stages = {leaf.key: stage for leaf, stage in zip(leaves(self.places), stages, strict=True)}
        try:
            yield
        finally:
            self._stages = original

    def leaf_names(self) -> list[str]:
        """Returns the names of the layers in execution order, nested models expanded."""
        return [leaf.layer.name for leaf in leaves(self.places)]

    def reset(self) -> None:
        self._stages.clear()
        for place in self.places if self.has_graph else ():
            _clear_stages(place)

    def named(self) -> list[Named]:
        """Returns the names of the layers in execution order, each with its stage, for a file."""
        return [named_stage(place) for place in self.places]

    def restore(self, named: list[Named]) -> None:
        """Assigns the stages that `named` returned for a model with the same layers."""
        stages: dict[Key, int] = {}
        restore_stages(self.places, named, stages)
        note_assignment()
        self._stages = stages

    def check(self) -> int:
        """Raises an error if the stages do not form a pipeline. Returns their number."""
        places = self.places
        all_leaves = leaves(places)
        unassigned = [leaf.layer for leaf in all_leaves if leaf.stage is None]
        if unassigned:
            nested = [(layer.name, _assignment_of_model(layer)) for layer in unassigned]
            raise ValueError(
                f"All layers of a pipelined model must have an associated pipeline stage: in model `{self._model.name}`,"
                f" {', '.join(f'`{layer.name}`' for layer in unassigned)} have none. Call them in a `PipelineStage` scope, or"
                " use `set_pipeline_stage_assignment`"
                + "".join(
                    f". `{name}` counts as one layer: {assignment.uncut}"
                    for name, assignment in nested
                    if assignment and assignment.uncut
                )
            )
        stages = [leaf.stage for leaf in all_leaves if leaf.stage is not None]
        empty = sorted(set(range(max(stages) + 1)) - set(stages))
        if empty:
            raise RuntimeError(
                f"All stages in a pipeline must have at least one layer: in model `{self._model.name}`, stage"
                f" {', '.join(map(str, empty))} has none of those up to {max(stages)}"
            )
        for place, later_stage in too_late(self.graph, places):
            raise ValueError(
                f"Layer `{place.layer.name}` in pipeline stage {place.stage} has a dependency from stage {later_stage}: a stage"
                " can only use results of itself and of earlier stages"
            )
        return max(stages) + 1

    def _places(
        self,
        around: keras.Operation,
        model: keras.Model,
        path: Key = (),
        called_in: int | None = None,
        outer: Sequence[tuple[int, Mapping[Key, int]]] = (),
    ) -> list[Place]:
        """Returns the places of `model`, which is the layer `around` itself, or a trace of the `call` of `around`.

        A list assigns stages to layers by `set_pipeline_stage_assignment`. A scope is a `PipelineStage`. A place gets
        the first of these stages that is set:

        1. its stage, or the stage of a model that contains it, in the list of the outermost model
        2. the stage of the scope around a call of a model that contains it, the outermost call first
        3. its stage in the list of a nested model that contains it, the outermost model first
        4. the stage of the scope around its own call
        5. the stage of the scope in which its layer was made

        A layer that Keras makes for an operation, such as `x + y`, has none of these. It gets the last stage of its
        inputs.
        """
        assigned = [*outer, (len(path), self._stages_of(around))]
        calls: list[tuple[Any, Node | None]]
        if isinstance(model, keras.Sequential):
            calls = [(layer, None) for layer in model.layers]
        else:
            calls = [(node.operation, node) for node in nodes_of(model)]
        places: list[Place] = []
        stage_of_symbol: dict[int, int | None] = {}  # The stages of the symbols that calls so far returned.
        for layer, node in calls:
            key = (*path, id(layer if node is None else node))
            by_list = [_listed_stage(stages, key[depth:]) for depth, stages in assigned]
            made_in = None if node is None else vars(layer).get(NODE_STAGE)
            candidates = [by_list[0], called_in, *by_list[1:], getattr(node, NODE_STAGE, None), made_in]
            stage = next((candidate for candidate in candidates if candidate is not None), None)
            if node is not None:
                if stage is None and internals.is_made_by_keras(layer):
                    input_stages = [stage_of_symbol.get(id(symbol)) for symbol in node.input_tensors]
                    stage = max((input_stage for input_stage in input_stages if input_stage is not None), default=None)
                stage_of_symbol.update((id(symbol), stage) for symbol in node.outputs)
            scope = called_in if called_in is not None else getattr(node, NODE_STAGE, None)
            graph = _inner_model(layer, node) if _passes_inputs_only(node) else None
            children = None if graph is None else self._places(layer, graph, key, scope, assigned)
            places.append(Place(key, layer, node, stage, children, graph))
        return places

    def _stages_of(self, model: keras.Operation) -> dict[Key, int]:
        assignment = self if model is self._model or model is self._traced else _assignment_of_model(model)
        return assignment._stages if assignment else {}


def _assignment_of_model(layer: keras.Operation) -> StageAssignment | None:
    """Returns the stages of a model made in a scope, or None for other layers."""
    extension = vars(layer).get("_ipu_extension")
    return None if extension is None else extension.stages


def _passes_inputs_only(node: Node | None) -> bool:
    """Returns True if a call passes inputs only. Other arguments of a model, such as masks, are not passed to layers."""
    if node is None:
        return True
    keywords = tf.nest.flatten(node.arguments.kwargs)
    return len(node.arguments.args) == 1 and all(value is None for value in keywords)


def _listed_stage(stages: Mapping[Key, int], key: Key) -> int | None:
    """Returns the stage that a list assigns to a place, or to a model that contains it."""
    return next((stages[key[:end]] for end in range(len(key), 0, -1) if key[:end] in stages), None)


def _inner_model(layer: keras.Operation, node: Node | None) -> keras.Model | None:
    """Returns the model whose layers replace a call of a layer, or None if the layer stays whole.

    A sequential or functional model is returned itself, and any other model as a trace of its `call`.
    """
    kind = keras.Sequential if isinstance(layer, keras.Sequential) else internals.Functional
    if isinstance(layer, kind):
        return layer if type(layer).call is kind.call else None
    if not isinstance(layer, keras.Model):
        return None
    stages = _assignment_of_model(layer)
    # The weights of the model itself have regularizers, which belong to a call of the model as a whole.
    if stages is None or internals.has_own_weights(layer):
        return None
    if node is None and not layer.built:
        return None
    try:
        symbols = places.symbols_of_built(layer) if node is None else node.arguments.args[0]
        if not stages.has_graph and not stages.uncut:
            stages.trace(symbols)
    except (RuntimeError, NotImplementedError) as exc:
        stages.uncut = str(exc)  # This is not an error yet, as the model may be in one stage.
        return None
    if not stages.has_graph:
        return None
    shapes = [
        [tuple(symbol.shape[1:]) for symbol in tf.nest.flatten(structure)]
        for structure in (symbols, stages.graph.inputs)
    ]
    return stages.graph if shapes[0] == shapes[1] else None


def _check_sequence(places: list[Place]) -> None:
    """Raises an error unless the stages of a sequential model begin at 0 and rise by 0 or 1 from layer to layer."""
    last: int | None = None
    for place in places:
        stages = [leaf.stage for leaf in place.leaves() if leaf.stage is not None]
        first = min(stages, default=last or 0)
        if last is None and first != 0:
            raise ValueError(
                f"The first layer in a pipelined sequential model needs to be assigned to the pipeline stage 0, but layer"
                f" `{place.layer.name}` is assigned to stage {first}"
            )
        if last is not None and first not in (last, last + 1):
            raise ValueError(
                f"Layer `{place.layer.name}` has been assigned to pipeline stage {first}, however the previous layer is in"
                f" stage {last}: it can be in that stage, or in the next"
            )
        last = max(stages, default=last or 0)


def _clear_stages(place: Place) -> None:
    if place.node is not None:
        if hasattr(place.node, NODE_STAGE):
            delattr(place.node, NODE_STAGE)
        vars(place.layer).pop(NODE_STAGE, None)
    assignment = _assignment_of_model(place.layer)
    if place.children is not None and assignment:
        assignment._stages.clear()
    for child in place.children or ():
        _clear_stages(child)


class PipelinedModel:
    """Runs the stages of a model on micro-batches."""

    def __init__(
        self,
        model: keras.Model,
        assignment: StageAssignment,
        mode: str,
        *,
        micro_batches: int | None,
        accumulate_outfeed: bool,
        options: PipeliningOptions,
    ) -> None:
        self._model = model
        self._mode = mode
        self._micro_batches = micro_batches
        self._accumulate = accumulate_outfeed
        self._options = options
        self._stages = assignment.check()
        self._graph = internals.functional_of(assignment.graph)
        self._flow = calls_of(assignment.graph, assignment.places)
        self.log_names: list[str] = []  # The names of results in training, after the loss.

    def run(self, elements: Elements, infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, steps: int) -> None:
        trace = _Trace(self._model, self._graph, self._flow, self._mode, elements)
        count = self._micro_batches or steps
        trains = self._mode == "train"
        with internals.casting_gradients(self._model.optimizer) if trains else contextlib.nullcontext():
            pipelining.pipeline(
                [trace.stage(number, self._stages) for number in range(self._stages)],
                gradient_accumulation_count=count,
                repeat_count=steps // count,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                device_mapping=self._options.device_mapping,
                # Metrics accumulate values themselves, so the last result is used and not the sum of results.
                accumulate_outfeed=Results.LAST if self._accumulate else False,
                **({"optimizer_function": self._optimizer} if trains else {}),
                **self._options.arguments(),
            )
        self.log_names = trace.log_names

    def _optimizer(self, loss: tf.Tensor, *logs: tf.Tensor) -> pipelining.OptimizerFunctionOutput:
        del logs
        return pipelining.OptimizerFunctionOutput(
            self._model.optimizer, loss, variables=list(self._model.trainable_variables)
        )


class _Trace:
    """Creates the functions of the stages, which must be traced in order.

    The trace of a stage determines which values the next stage needs. Functions take and return flat lists. An example
    with values a, b and c, a loss that a layer added, and one target:

        stage 0   (x, y)               -> (a, b, loss, y)
        stage 1   (a, b, loss, y)      -> (a, c, loss + its own, y)
        stage 2   (a, c, loss, y)      -> (total loss, *metrics)
    """

    def __init__(
        self,
        model: keras.Model,
        graph: internals.Functional,
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
        self._passed_keys: list[Key] = []  # The keys of the values that the next stage gets.
        self._losses: list[tf.Tensor] = []  # Losses that layers added so far.
        self._passes_losses = False  # True if the next stage gets their sum.
        self._targets: Nested = None  # The structure of targets and sample weights. Stages pass them on.
        self._batch_size: int | None = None
        self.log_names: list[str] = []

    def stage(self, number: int, stages: int) -> Callable[..., Nested]:
        """Returns the function of stage `number`."""

        def run(*tensors: tf.Tensor) -> Nested:
            values, targets = self._begin(tensors) if number == 0 else self._continue(tensors)
            for call in self._calls:
                if call.stage == number:
                    node = call.node
                    inputs = {
                        id(symbol): _as_declared(values[call.reads[id(symbol)]], symbol)
                        for symbol in node.input_tensors
                    }
                    arguments, named = node.arguments.fill_in(inputs)
                    outputs = internals.bound_operation(node.operation, self._mode == "train")(*arguments, **named)
                    self._collect_losses(call)
                    for symbol, value in zip(node.outputs, tf.nest.flatten(outputs), strict=True):
                        values[(*call.path, id(symbol))] = value
            if number == stages - 1:
                return checked_results(self._model, self._end(values, targets))
            later = [call for call in self._calls if call.stage is not None and call.stage > number]
            needed = {key for call in later for key in call.reads.values()} | set(self._outputs)
            self._passed_keys = sorted(needed & values.keys())
            self._passes_losses = bool(self._losses)
            losses = [tf.add_n(self._losses)] if self._losses else []
            return (*(values[key] for key in self._passed_keys), *losses, *targets)

        run.__name__ = f"stage_{number}_of_{self._model.name}"
        return internals.converting(run)

    def _collect_losses(self, call: Call) -> None:
        """Collects the losses that a call of a layer added. The first call also collects the layer's weight losses."""
        layer = call.node.operation
        if self._mode == "predict" or not isinstance(layer, keras.layers.Layer):
            return
        losses = [loss for part in internals.all_layers(layer) for loss in internals.added_losses(part)]
        if call is next(other_call for other_call in self._calls if other_call.node.operation is layer):
            losses += internals.weight_losses(layer)
        internals.forget_losses(layer)
        self._losses += [tf.reduce_sum(tf.cast(loss, keras.backend.floatx())) for loss in losses]

    def _begin(self, tensors: tuple[tf.Tensor, ...]) -> tuple[dict[Key, tf.Tensor], list[tf.Tensor]]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(self._elements.of_parts(tensors))
        inputs = internals.standard_inputs(self._graph, x)
        self._batch_size = inputs[0].shape[0]
        self._losses = []
        values = dict(zip(self._inputs, inputs, strict=True))
        self._targets = (y, weights) if self._mode != "predict" else (None, None)
        return values, [part for part in tf.nest.flatten(self._targets) if part is not None]

    def _continue(self, tensors: tuple[tf.Tensor, ...]) -> tuple[dict[Key, tf.Tensor], list[tf.Tensor]]:
        count = len(self._passed_keys)
        remaining = list(tensors[count:])
        self._losses = [remaining.pop(0)] if self._passes_losses else []
        return dict(zip(self._passed_keys, tensors[:count], strict=True)), remaining

    def _end(self, values: dict[Key, tf.Tensor], targets: list[tf.Tensor]) -> Nested:
        model = self._model
        outputs = [values[key] for key in self._outputs]
        predicted = tf.nest.pack_sequence_as(internals.output_structure(self._graph), outputs)
        if isinstance(predicted, (list, tuple)) and len(predicted) == 1:
            predicted = predicted[0]
        if self._mode == "predict":
            return predicted
        remaining_targets = iter(targets)
        filled = [None if part is None else next(remaining_targets) for part in tf.nest.flatten(self._targets)]
        y, weights = tf.nest.pack_sequence_as(self._targets, filled)
        training = self._mode == "train"
        loss = internals.total_loss(model, y, predicted, weights, training, self._losses)
        internals.note_loss(model, loss, self._batch_size)
        logs = model.compute_metrics(None, y, predicted, sample_weight=weights)
        if not training:
            return logs
        self.log_names = list(logs)
        return (internals.scaled_loss(model.optimizer, loss), *logs.values())


def _as_declared(value: tf.Tensor, symbol: keras.KerasTensor) -> tf.Tensor:
    """Returns a value in the rank that the input of a nested model declares, with or without a last axis of 1."""
    rank = len(symbol.shape)
    if len(value.shape) == rank + 1 and value.shape[-1] == 1:
        return tf.squeeze(value, axis=-1)
    if len(value.shape) == rank - 1 and symbol.shape[-1] == 1:
        return tf.expand_dims(value, axis=-1)
    return value
