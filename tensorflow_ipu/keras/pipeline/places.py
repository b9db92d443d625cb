"""Lists the calls of the layers of a model, also inside nested models, and traces values between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.pipeline.stages import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
from tensorflow_ipu.strategy import IPUStrategyV1

if TYPE_CHECKING:
    from tensorflow_ipu.keras._keras3 import Node
    from tensorflow_ipu.keras.pipeline.stages import Assignment

# The `id` of a node, layer or symbol, after the ids of the places that contain it.
Key = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """A layer of a sequential model, or a call of a layer in a functional model.

    `node` is the call. A nested model has `children`, the places of its `graph`.
    """

    key: Key
    layer: Any
    node: Any
    stage: int | None
    children: list[Place] | None
    graph: Any = None

    @property
    def node_index(self) -> int:
        """The index of the call among the calls of the layer."""
        return internals.calls_of(self.layer).index(self.node)

    def leaves(self) -> Iterator[Place]:
        """Yields the place, or the leaves of a nested model."""
        if self.children is None:
            yield self
        for child in self.children or ():
            yield from child.leaves()


def leaves(places: list[Place]) -> list[Place]:
    """Returns the places, nested models expanded."""
    return [leaf for place in places for leaf in place.leaves()]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a layer in a program.

    `reads` maps the `id` of each input symbol to the key of its value. The keys of outputs begin with `path`.
    """

    node: Node
    stage: int | None
    reads: dict[int, Key]
    path: Key


def nodes_of(model: keras.Model) -> list[Node]:
    """Returns the calls of the layers of a functional model, in execution order."""
    by_depth = internals.calls_by_depth(model)
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def calls_of(model: keras.Model, places: list[Place]) -> tuple[list[Call], list[Key], list[Key]]:
    """Returns the calls, input keys and output keys of a built model, with nested models expanded."""
    inputs = [(id(symbol),) for symbol in internals.functional_of(model).inputs]
    calls: list[Call] = []
    return calls, inputs, _link(model, places, (), inputs, calls)


def too_late(model: keras.Model, places: list[Place]) -> Iterator[tuple[Place, int]]:
    """Yields the places that use a value of a later stage, each with that stage."""
    late_places: list[tuple[Place, int]] = []
    _flow(model, places, [None], late_places)
    yield from late_places


def _passed_symbols(node: Node, graph: keras.Model) -> list[keras.KerasTensor]:
    """Returns the symbols that a call passes to the inputs of a nested model, in the order of the inputs."""
    argument = node.arguments.args[0]
    if isinstance(argument, dict) and not isinstance(internals.input_structure(graph), dict):
        return [argument[symbol.name] for symbol in graph.inputs]
    return tf.nest.flatten(argument)


def _link(model: keras.Model, places: list[Place], path: Key, inputs: list[Key], calls: list[Call]) -> list[Key]:
    """Appends the calls of a model to `calls`, and returns the keys of its outputs for the keys of its inputs.

    A value has one key, and a symbol in each model that it passes through. So a nested model is entered with the keys
    of the symbols that its call passes, and the symbols that the call returns get the keys of the nested outputs:

        outer = keras.Model(x, inner(dense(x)))      `dense` returns symbol s, and its call makes key (s,)
        inner = keras.Model(y, other(y))             y, a symbol of `inner` only, gets key (s,)

    Only calls of layers make keys. The path in a key separates several calls of one nested model.
    """
    graph = internals.functional_of(model)
    by_call = {id(place.layer if place.node is None else place.node): place for place in places}
    keys = {id(symbol): key for symbol, key in zip(graph.inputs, inputs, strict=True)}
    for node in nodes_of(graph):
        place = by_call[id(node.operation if isinstance(model, keras.Sequential) else node)]
        if place.children is None:
            reads = {id(symbol): keys[id(symbol)] for symbol in node.input_tensors}
            calls.append(Call(node, place.stage, reads, path))
            output_keys = [(*path, id(symbol)) for symbol in node.outputs]
        else:
            nested_inputs = [keys[id(symbol)] for symbol in _passed_symbols(node, internals.functional_of(place.graph))]
            output_keys = _link(place.graph, place.children, place.key, nested_inputs, calls)
        keys.update((id(symbol), key) for symbol, key in zip(node.outputs, output_keys, strict=True))
    return [keys[id(symbol)] for symbol in graph.outputs]


def _flow(
    model: keras.Model, places: list[Place], model_inputs: list[int | None], late: list[tuple[Place, int]]
) -> list[int | None]:
    """Returns the stages of a model's outputs, from the stages of its inputs.

    Appends the places that use a value of a later stage to `late`, each with that stage.
    """
    stages: dict[int, int | None] = {}
    if not isinstance(model, keras.Sequential):
        # A sequential model passes one value, and has no nodes before it is built.
        model_inputs = model_inputs * len(model.inputs) if len(model_inputs) == 1 else model_inputs
        stages = {id(symbol): stage for symbol, stage in zip(model.inputs, model_inputs, strict=True)}
    input_stages = model_inputs
    for place in places:
        if place.node is not None:
            symbols = place.node.input_tensors
            if place.children is not None and not isinstance(place.graph, keras.Sequential):
                symbols = _passed_symbols(place.node, place.graph)
            input_stages = [stages[id(symbol)] for symbol in symbols]
        if place.children is not None:
            output_stages = _flow(place.graph, place.children, input_stages, late)
        else:
            known_stages = [stage for stage in input_stages if stage is not None]
            if known_stages and place.stage is not None and max(known_stages) > place.stage:
                late.append((place, max(known_stages)))
            output_stages = [place.stage] * (1 if place.node is None else len(place.node.outputs))
        if place.node is None:
            input_stages = output_stages
        else:
            stages.update((id(symbol), stage) for symbol, stage in zip(place.node.outputs, output_stages, strict=True))
    return input_stages if isinstance(model, keras.Sequential) else [stages[id(symbol)] for symbol in model.outputs]


def trace(model: keras.Model, strategy: IPUStrategyV1, symbols: Nested) -> internals.Functional:
    """Returns a functional model of the layers that a model's `call` runs, by calling it with symbols."""
    if type(model).call in (keras.Model.call, keras.layers.Layer.call):
        raise NotImplementedError(f"the function `call` for the model {model.name} has not been implemented")
    with strategy.scope():
        if not all(layer.built for layer in internals.all_layers(model)):
            internals.called_with_symbols(model, symbols, training=False)
        graph = _trace(model, symbols, None)
        if internals.takes_training(model):
            counts = {id(layer): len(internals.calls_of(layer)) for layer in internals.all_layers(model)}
            training = _trace(model, symbols, True)
            for layer in internals.all_layers(model):
                internals.forget_calls(layer, counts.get(id(layer), 0))
            if _calls(graph) != _calls(training):
                raise RuntimeError(
                    f"the function `call` for the model {model.name} calls other layers in training, but a pipeline has the"
                    " same layers in all its programs: move the difference into a layer, like `keras.layers.Dropout`"
                )
    return graph


def symbols_of_built(model: keras.Model) -> Nested:
    """Returns symbols of the inputs that a model was built for."""
    shapes = internals.built_shapes(model)
    if not shapes:
        raise RuntimeError(
            f"Cannot determine the layers of model `{model.name}`, which is neither sequential nor functional and was not"
            " built: its layers are known after a call. Build it with `build(input_shape)`, call it on a batch, or fit it"
        )
    return _symbols(next(iter(shapes.values())), internals.input_dtype(model))


def _symbols(shape: Nested, dtype: str | None) -> Nested:
    if isinstance(shape, dict):
        return {name: _symbols(part, dtype) for name, part in shape.items()}
    if all(size is None or isinstance(size, int) for size in shape):
        return internals.symbol(shape, dtype)
    return type(shape)(_symbols(part, dtype) for part in shape)


def _trace(model: keras.Model, symbols: Nested, training: bool | None) -> internals.Functional:
    # The batch size is left open, as the data determines it.
    inputs = tf.nest.map_structure(lambda symbol: keras.Input(symbol.shape[1:], dtype=symbol.dtype), symbols)
    named = {"training": training} if internals.takes_training(model) else {}
    internals.forget_losses(model)
    try:
        graph = internals.Functional(inputs, model.call(inputs, **named), name=f"{model.name}_calls")
    except (TypeError, ValueError, NotImplementedError, AttributeError) as exc:
        raise RuntimeError(
            f"the function `call` for the model {model.name} cannot be cut into pipeline stages: {exc}. It is called with"
            " symbols, as in a functional model: let it use layers and `keras.ops` on its single argument, and not"
            " TensorFlow's functions"
        ) from exc
    if internals.added_losses(model):
        internals.forget_losses(model)
        raise RuntimeError(
            f"the function `call` for the model {model.name} adds a loss to the model, which belongs to no pipeline stage:"
            " add it in a layer"
        )
    return graph


def _calls(graph: internals.Functional) -> list[int | str]:
    operations = [node.operation for node in nodes_of(graph)]
    return [
        id(operation) if isinstance(operation, keras.layers.Layer) else type(operation).__name__
        for operation in operations
    ]


def symbols_of(spec: Nested) -> Nested:
    """Returns symbols of the inputs of a model for data of this spec."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    return tf.nest.map_structure(lambda leaf: internals.symbol(leaf.shape, leaf.dtype), x)


def assignment_of(place: Place, subclassed: bool = False) -> Assignment:
    """Returns the assignment of a place, as listed by `get_pipeline_stage_assignment`."""
    if place.children is None:
        if place.node is None:
            return SequentialLayerPipelineStageAssignment(place.layer, place.stage)
        return _layer_kind(subclassed)(place.layer, place.node_index, place.stage)
    children = [assignment_of(child) for child in place.children]
    if place.node is None:
        return SequentialNestedModelPipelineStageAssignment(place.layer, children)
    return _nested_kind(subclassed)(place.layer, place.node_index, children)


def _layer_kind(subclassed: bool) -> type[ModelLayerPipelineStageAssignment]:
    return ModelLayerPipelineStageAssignment if subclassed else FunctionalLayerPipelineStageAssignment


def _nested_kind(subclassed: bool) -> type[NestedModelPipelineStageAssignment]:
    return NestedModelPipelineStageAssignment if subclassed else FunctionalNestedModelPipelineStageAssignment


def read_assignment(
    model: keras.Model, places: list[Place], assignment: object, subclassed: bool = False
) -> dict[Key, int]:
    """Returns the stages of places by key, as set by a list of assignments."""
    if not isinstance(assignment, list):
        raise ValueError(f"`pipeline_stage_assignment` needs to be a list, but is {assignment!r}")
    sequential = isinstance(model, keras.Sequential)
    if len(assignment) != len(places):
        what = "layers" if sequential else "calls of layers"
        raise ValueError(
            f"The length of the provided `pipeline_stage_assignment` ({len(assignment)}) does not equal the number of"
            f" {what} in model `{model.name}` ({len(places)})"
        )
    stages: dict[Key, int] = {}
    for index, (entry, place) in enumerate(zip(assignment, places, strict=True)):
        kinds = (SequentialLayerPipelineStageAssignment, _layer_kind(subclassed))
        as_whole = isinstance(entry, int) or (place.graph is not place.layer and isinstance(entry, kinds))
        if place.children is not None and not as_whole:
            stages |= read_assignment(place.graph, place.children, _nested_list(index, entry, place, model, subclassed))
        else:
            stage = (
                _sequential_stage(index, entry, place.layer)
                if sequential
                else _functional_stage(index, entry, place.node, _layer_kind(subclassed))
            )
            stages |= {leaf.key: stage for leaf in place.leaves()}
    return stages


def _nested_list(index: int, entry: object, place: Place, model: keras.Model, subclassed: bool) -> object:
    kind = SequentialNestedModelPipelineStageAssignment if place.node is None else _nested_kind(subclassed)
    if not isinstance(entry, kind):
        raise ValueError(
            f"The pipeline stage assignment for nested model `{place.layer.name}` in model `{model.name}`, at index {index} of"
            f" `pipeline_stage_assignment`, must be an instance of `{kind.__name__}`, but is {entry!r}"
        )
    called = None if place.node is None else place.node_index
    if entry.nested_model is not place.layer or getattr(entry, "node_index", None) != called:
        raise ValueError(
            f"The order of `pipeline_stage_assignment` does not match that in which model `{model.name}` runs: at index"
            f" {index} it has nested model `{entry.nested_model.name}`, but the model runs `{place.layer.name}` there, or"
            " another call of it. Take the list of `get_pipeline_stage_assignment`, and set the stages in it"
        )
    return entry.pipeline_stage_assignments


def _check_stage(stage: object, name: str) -> int:
    if not is_int(stage) or stage < 0:
        raise ValueError(
            f"Layer `{name}` has not been assigned a pipeline stage, but {stage!r}: stages are numbered from 0"
        )
    if stage >= environment.MOST_IPUS:
        raise ValueError(
            f"Layer `{name}` is assigned to pipeline stage {stage}: numbers of stages must be below"
            f" {environment.MOST_IPUS}"
        )
    return stage


def _sequential_stage(index: int, entry: object, layer: keras.layers.Layer) -> int:
    if isinstance(entry, SequentialLayerPipelineStageAssignment):
        if entry.layer is not layer:
            raise ValueError(
                f"The provided assignment at index {index} of `pipeline_stage_assignment` is for layer `{entry.layer.name}`,"
                f" but the layer there is `{layer.name}`: take the list of `get_pipeline_stage_assignment`"
            )
        return _check_stage(entry.pipeline_stage, layer.name)
    if isinstance(entry, int):
        return _check_stage(entry, layer.name)
    raise ValueError(
        "All elements of `pipeline_stage_assignment` must be numbers of stages, or instances of"
        f" `SequentialLayerPipelineStageAssignment`, but the one at index {index} is {entry!r}"
    )


def _functional_stage(index: int, entry: object, node: Node, kind: type[ModelLayerPipelineStageAssignment]) -> int:
    if not isinstance(entry, kind):
        raise ValueError(
            f"All elements of `pipeline_stage_assignment` must be instances of `{kind.__name__}`, but the one at index"
            f" {index} is {entry!r}"
        )
    name = node.operation.name
    calls = len(internals.calls_of(entry.layer))
    if not calls:
        raise ValueError(
            f"Layer `{entry.layer.name}`, at index {index} of `pipeline_stage_assignment`, has no recorded nodes in the graph:"
            " the model does not call it"
        )
    if entry.node_index >= calls:
        raise ValueError(
            f"Layer `{entry.layer.name}` has {calls} invocation(s) in the graph, but at index {index} the"
            f" `pipeline_stage_assignment` is for call {entry.node_index}, where the first is call 0"
        )
    if entry.layer is not node.operation or entry.node_index != internals.calls_of(node.operation).index(node):
        raise ValueError(
            f"The order of `pipeline_stage_assignment` does not match that in which the model runs: at index {index} it has"
            f" call {entry.node_index} of layer `{entry.layer.name}`, and the model runs `{name}` there. Take the list of"
            " `get_pipeline_stage_assignment`, and set the stages in it"
        )
    return _check_stage(entry.pipeline_stage, name)


def summary(assignments: Sequence[Assignment], line_length: int | None) -> str:
    """Returns a table of layers and stages."""
    lines = [line for assignment in assignments for line in str(assignment).splitlines()]
    width = line_length or max([40, *map(len, lines)])
    rule = "_" * width
    return "\n".join([rule, *(line[:width] for line in lines), rule])


# The name of a layer and its stage, or of a model and a list of such pairs. Pairs are lists in JSON.
Named: TypeAlias = "str | int | list[Named] | None"


def named_stage(place: Place) -> list[Named]:
    """Returns the name of a layer and its stage, or of a nested model and a list of such pairs."""
    return [
        place.layer.name,
        place.stage if place.children is None else [named_stage(child) for child in place.children],
    ]


def restore_stages(places: list[Place], named: object, stages: dict[Key, int]) -> None:
    """Adds the stages that `named_stage` returned for a model with the same layers to `stages`."""
    if not isinstance(named, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in named):
        raise ValueError(
            f"pipeline stages should be a list of pairs of a layer's name and its stage, but are `{named!r}`"
        )
    names = [place.layer.name for place in places]
    if names != [name for name, _ in named]:
        raise ValueError(
            f"the file has pipeline stages of the layers {[name for name, _ in named]}, and the model has the layers {names}"
        )
    for place, (_, stage) in zip(places, named, strict=True):
        if place.children is not None and isinstance(stage, list):
            restore_stages(place.children, stage, stages)
        elif type(stage) is int and stage >= 0:
            stages[place.key] = stage
        elif stage is not None:
            raise ValueError(
                f"the pipeline stage of layer `{place.layer.name}` should be a number from 0, but is `{stage!r}`"
            )
