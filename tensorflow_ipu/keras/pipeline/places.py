"""The calls of a model's layers, also of those in nested models, and which values flow between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import keras

from tensorflow_ipu._base.types import Nested
from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras._keras_internals import Functional
from tensorflow_ipu.keras.pipeline.stages import NODE_STAGE
from tensorflow_ipu.strategy import IPUStrategyV1

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras._keras_internals import Functional, Node
    from tensorflow_ipu.strategy import IPUStrategyV1

Key = tuple[int, ...]
# What a nested model was assigned by itself, by the keys of its own places.
Own: TypeAlias = "Callable[[keras.Operation], Mapping[Key, int]]"
# The sequential or functional model of the layers that a call of a layer runs; None for what runs as a whole.
Inner: TypeAlias = "Callable[[keras.Operation, Node | None], keras.Model | None]"


@dataclasses.dataclass(frozen=True)
class Place:
    """A layer of a sequential model, or a call of one in a functional model."""

    key: Key
    layer: Any
    node: Any
    stage: int | None
    children: list[Place] | None
    graph: Any = None

    @property
    def node_index(self) -> int:
        """Which call of the layer it is."""
        return internals.calls_of(self.layer).index(self.node)

    def leaves(self) -> Iterator[Place]:
        """The place, or those in the nested model."""
        if self.children is None:
            yield self
        for child in self.children or ():
            yield from child.leaves()


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a layer in a program."""

    node: Node
    stage: int | None
    reads: dict[int, Key]
    path: Key


def places_of(model: keras.Model, own: Own, inner: Inner) -> list[Place]:
    """The places of a sequential or functional model, in the order in which they run."""
    return _places(model, model, (own, inner), (), None, [])


def nodes_of(model: keras.Model) -> list[Node]:
    """The calls of a functional model's layers, in the order in which they run."""
    by_depth = internals.calls_by_depth(model)
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def graph_of(model: keras.Model) -> Functional:
    """The functional model: that which a sequential one keeps, or the model itself."""
    return internals.functional_of(model)


def calls_of(model: keras.Model, places: list[Place]) -> tuple[list[Call], list[Key], list[Key]]:
    """The calls of a built model, with each call of a nested model expanded to the calls in it."""
    inputs = [(id(symbol),) for symbol in graph_of(model).inputs]
    calls: list[Call] = []
    return calls, inputs, _link(model, places, (), inputs, calls)


def too_late(model: keras.Model, places: list[Place]) -> Iterator[tuple[Place, int]]:
    """The places that use what a later stage makes, each with that stage."""
    found: list[tuple[Place, int]] = []
    _flow(model, places, [None], found)
    yield from found


def _hands_on_inputs_alone(node: Node | None) -> bool:
    """Whether a call of a model has no arguments that its layers, one by one, would not get: masks and the like."""
    if node is None:
        return True
    further = keras.tree.flatten(node.arguments.kwargs)
    return len(node.arguments.args) == 1 and all(value is None for value in further)


def _places(
    around: keras.Operation,
    model: keras.Model,
    asked: tuple[Own, Inner],
    path: Key,
    called_in: int | None,
    outer: list[tuple[int, Mapping[Key, int]]],
) -> list[Place]:
    """The places of the model that another one around them is, or runs."""
    own, inner = asked
    assigned = [*outer, (len(path), own(around))]
    calls = [] if isinstance(model, keras.Sequential) else nodes_of(model)
    nodes: Sequence[Node | None] = [None] * len(model.layers) if isinstance(model, keras.Sequential) else calls
    layers = model.layers if isinstance(model, keras.Sequential) else [node.operation for node in calls]
    places = []
    for layer, node in zip(layers, nodes, strict=True):
        key = (*path, id(layer if node is None else node))
        by_list = [_listed(stages, key[depth:]) for depth, stages in assigned]
        # The outermost model's list comes first, then the scope of a nested model's call, and then what it has itself: by
        # its list, by the scope of a call, by the scope that a layer was made in.
        made_in = None if node is None else vars(layer).get(NODE_STAGE)
        known = [by_list[0], called_in, *by_list[1:], getattr(node, NODE_STAGE, None), made_in]
        stage = next((one for one in known if one is not None), None)
        scope = called_in if called_in is not None else getattr(node, NODE_STAGE, None)
        graph = inner(layer, node) if _hands_on_inputs_alone(node) else None
        children = None if graph is None else _places(layer, graph, asked, key, scope, assigned)
        places.append(Place(key, layer, node, stage, children, graph))
    return places


def _listed(stages: Mapping[Key, int], key: Key) -> int | None:
    """The stage that a list has for a place, or for the model around it as a whole."""
    return next((stages[key[:end]] for end in range(len(key), 0, -1) if key[:end] in stages), None)


def _entering(node: Node, graph: keras.Model) -> list[keras.KerasTensor]:
    """What a call hands to the inputs of a nested model, in their order."""
    given = node.arguments.args[0]
    if isinstance(given, dict) and not isinstance(internals.input_structure(graph), dict):
        return [given[symbol.name] for symbol in graph.inputs]
    return keras.tree.flatten(given)


def _link(model: keras.Model, places: list[Place], path: Key, inputs: list[Key], calls: list[Call]) -> list[Key]:
    graph = graph_of(model)
    by_call = {id(place.layer if place.node is None else place.node): place for place in places}
    keys = {id(symbol): key for symbol, key in zip(graph.inputs, inputs, strict=True)}
    for node in nodes_of(graph):
        place = by_call[id(node.operation if isinstance(model, keras.Sequential) else node)]
        if place.children is None:
            reads = {id(symbol): keys[id(symbol)] for symbol in node.input_tensors}
            calls.append(Call(node, place.stage, reads, path))
            made = [(*path, id(symbol)) for symbol in node.outputs]
        else:
            entering = [keys[id(symbol)] for symbol in _entering(node, graph_of(place.graph))]
            made = _link(place.graph, place.children, place.key, entering, calls)
        keys.update((id(symbol), key) for symbol, key in zip(node.outputs, made, strict=True))
    return [keys[id(symbol)] for symbol in graph.outputs]


def _flow(
    model: keras.Model, places: list[Place], arriving: list[int | None], late: list[tuple[Place, int]]
) -> list[int | None]:
    """The stages that a model's outputs are made in, if its inputs are made in those that arrive."""
    stages: dict[int, int | None] = {}
    if not isinstance(model, keras.Sequential):
        # A sequential model around it has one value, and no nodes before it is built.
        arriving = arriving * len(model.inputs) if len(arriving) == 1 else arriving
        stages = {id(symbol): stage for symbol, stage in zip(model.inputs, arriving, strict=True)}
    before = arriving
    for place in places:
        if place.node is not None:
            symbols = place.node.input_tensors
            if place.children is not None and not isinstance(place.graph, keras.Sequential):
                symbols = _entering(place.node, place.graph)
            before = [stages[id(symbol)] for symbol in symbols]
        if place.children is not None:
            made = _flow(place.graph, place.children, before, late)
        else:
            known = [stage for stage in before if stage is not None]
            if known and place.stage is not None and max(known) > place.stage:
                late.append((place, max(known)))
            made = [place.stage] * (1 if place.node is None else len(place.node.outputs))
        if place.node is None:
            before = made
        else:
            stages.update((id(symbol), stage) for symbol, stage in zip(place.node.outputs, made, strict=True))
    return before if isinstance(model, keras.Sequential) else [stages[id(symbol)] for symbol in model.outputs]


def trace(model: keras.Model, strategy: IPUStrategyV1, symbols: Nested) -> Functional:
    """Calls a model with symbols, and notes what it does with them."""
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
                del internals.calls_of(layer)[counts.get(id(layer), 0) :]
            if _calls(graph) != _calls(training):
                raise RuntimeError(
                    f"the function `call` for the model {model.name} calls other layers in training, and a pipeline has the"
                    " same in all its programs: leave the difference to layers, as `keras.layers.Dropout` does"
                )
    return graph


def symbols_of_built(model: keras.Model) -> Nested:
    """What a model was built for, as symbols."""
    shapes = internals.built_shapes(model)
    if not shapes:
        raise RuntimeError(
            f"Cannot tell the layers of model `{model.name}`, which is neither sequential nor functional and was not built:"
            " its layers are known once it was called. Build it with `build(input_shape)`, call it on a batch, or fit it"
        )
    return _symbols(next(iter(shapes.values())), model.input_dtype)


def _symbols(shape: Nested, dtype: str) -> Nested:
    if isinstance(shape, dict):
        return {name: _symbols(part, dtype) for name, part in shape.items()}
    if all(size is None or isinstance(size, int) for size in shape):
        return keras.KerasTensor(tuple(shape), dtype)
    return type(shape)(_symbols(part, dtype) for part in shape)


def _trace(model: keras.Model, symbols: Nested, training: bool | None) -> Functional:
    # Of any batch size: the number of examples is the data's.
    inputs = keras.tree.map_structure(lambda symbol: keras.Input(symbol.shape[1:], dtype=symbol.dtype), symbols)
    named = {"training": training} if internals.takes_training(model) else {}
    internals.forget_losses(model)
    try:
        graph = Functional(inputs, model.call(inputs, **named), name=f"{model.name}_calls")
    except (TypeError, ValueError, NotImplementedError, AttributeError) as exc:
        raise RuntimeError(
            f"the function `call` for the model {model.name} cannot be cut into pipeline stages: {exc}. It is called with"
            " symbols, as functional models are made: let it use layers and `keras.ops` on its one argument, and not"
            " TensorFlow's functions"
        ) from exc
    if internals.added_losses(model):
        internals.forget_losses(model)
        raise RuntimeError(
            f"the function `call` for the model {model.name} adds a loss to the model, which no pipeline stage has: let a"
            " layer add it"
        )
    return graph


def _calls(graph: Functional) -> list[int | str]:
    operations = [node.operation for node in nodes_of(graph)]
    return [
        id(operation) if isinstance(operation, keras.layers.Layer) else type(operation).__name__
        for operation in operations
    ]


def symbols_of(spec: Nested) -> Nested:
    """The inputs of a model for data of this spec, as symbols."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    return keras.tree.map_structure(
        lambda leaf: keras.KerasTensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype)), x
    )
