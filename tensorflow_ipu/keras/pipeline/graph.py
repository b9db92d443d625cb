"""The layers of a model in the order in which they run, with their pipeline stages."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import keras

from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras._keras_internals import Functional
from tensorflow_ipu.keras.pipeline import places
from tensorflow_ipu.keras.pipeline.assignments import assignment_of, named_stage, read_assignment, restore_stages
from tensorflow_ipu.keras.pipeline.places import Key, Place, places_of, too_late
from tensorflow_ipu.keras.pipeline.stages import NODE_STAGE, ever_entered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.keras._keras_internals import Node
    from tensorflow_ipu.keras.pipeline.assignments import Named
    from tensorflow_ipu.keras.pipeline.stages import Assignment
    from tensorflow_ipu.strategy import IPUStrategyV1


class StageAssignment:
    """Which stage each call of a layer of one model is in."""

    def __init__(self, model: keras.Model, strategy: IPUStrategyV1) -> None:
        """Takes a model and its strategy; nothing is assigned but by `PipelineStage` scopes."""
        self._model = model
        self._strategy = strategy
        self._traced: Functional | None = None
        self._stages: dict[Key, int] = {}  # By the keys of places.
        self.uncut = ""  # Why a subclassed model in another one is a layer of it as a whole, if it is.

    @property
    def is_sequential(self) -> bool:
        """Whether layers, and not their calls, are assigned."""
        return isinstance(self._model, keras.Sequential)

    @property
    def is_subclassed(self) -> bool:
        """Whether a trace of the model's `call`, and not the model, says what its layers are."""
        return not self.is_sequential and not isinstance(self._model, Functional)

    @property
    def has_graph(self) -> bool:
        """Whether it is known what the model's layers are."""
        return not self.is_subclassed or self._traced is not None

    @property
    def graph(self) -> keras.Model:
        """The sequential or functional model of the layers: the model itself, or what its `call` was traced to."""
        if not self.is_subclassed:
            return self._model
        if self._traced is None:
            self.trace(places.symbols_of_built(self._model))
        return self._traced

    def trace(self, symbols: Nested) -> None:
        """Finds the layers of a subclassed model, with the stages of the scopes in its `call`."""
        self._traced = places.trace(self._model, self._strategy, symbols)

    @property
    def is_pipelined(self) -> bool:
        """Whether any layer is in a stage."""
        if self._stages or not self.has_graph:
            return bool(self._stages)
        # Where nobody has named a stage, nested models are not called with symbols to find their layers.
        places = places_of(self.graph, self._own, functools.partial(_inner, traces=ever_entered()))
        return any(leaf.stage is not None for place in places for leaf in place.leaves())

    @property
    def places(self) -> list[Place]:
        """The layers, or their calls, in the order in which they run, with those of nested models in them."""
        return places_of(self.graph, self._own, functools.partial(_inner, traces=True))

    def get(self) -> list[Assignment]:
        """An assignment for each layer, or call of one, in the order in which they run."""
        return [assignment_of(place, self.is_subclassed) for place in self.places]

    def set(self, assignment: object) -> None:
        """Assigns stages; see `set_pipeline_stage_assignment`."""
        before, self._stages = self._stages, read_assignment(self.graph, self.places, assignment, self.is_subclassed)
        try:
            if self.is_sequential:
                _check_sequence(self.places)
            self.check()
        except (ValueError, RuntimeError):
            self._stages = before
            raise

    @contextlib.contextmanager
    def staged(self, stages: Sequence[int]) -> Iterator[None]:
        """A block in which the layers, or their calls, those of nested models among them, are in these stages."""
        before = self._stages
        self._stages = {leaf.key: stage for leaf, stage in zip(self._leaves(), stages, strict=True)}
        try:
            yield
        finally:
            self._stages = before

    def leaf_names(self) -> list[str]:
        """The names of the layers in the order in which they run, those of nested models in their place."""
        return [leaf.layer.name for leaf in self._leaves()]

    def reset(self) -> None:
        """Takes all layers out of their stages."""
        self._stages.clear()
        for place in self.places if self.has_graph else ():
            _clear(place)

    def named(self) -> list[Named]:
        """The names of the layers in the order in which they run, each with its stage: what files hold."""
        return [named_stage(place) for place in self.places]

    def restore(self, named: list[Named]) -> None:
        """Assigns the stages that `named` returned for an equal model."""
        stages: dict[Key, int] = {}
        restore_stages(self.places, named, stages)
        self._stages = stages

    def check(self) -> int:
        """Checks that the stages make a pipeline."""
        places = self.places
        leaves = self._leaves()
        without = [leaf.layer for leaf in leaves if leaf.stage is None]
        if without:
            models = [layer for layer in without if "_ipu_extension" in vars(layer)]
            uncut = [(layer.name, vars(layer)["_ipu_extension"].stages.uncut) for layer in models]
            raise ValueError(
                f"All layers of a pipelined model must have an associated pipeline stage: in model `{self._model.name}`,"
                f" {', '.join(f'`{layer.name}`' for layer in without)} have none. Call them in a `PipelineStage` scope, or"
                " use `set_pipeline_stage_assignment`"
                + "".join(f". `{name}` counts as one layer: {why}" for name, why in uncut if why)
            )
        stages = [leaf.stage for leaf in leaves if leaf.stage is not None]
        empty = sorted(set(range(max(stages) + 1)) - set(stages))
        if empty:
            raise RuntimeError(
                f"All stages in a pipeline must have at least one layer: in model `{self._model.name}`, stage"
                f" {', '.join(map(str, empty))} has none of those up to {max(stages)}"
            )
        for place, before in too_late(self.graph, places):
            raise ValueError(
                f"Layer `{place.layer.name}` in pipeline stage {place.stage} has a dependency from stage {before}: a stage"
                " can only use what the stages before it made"
            )
        return max(stages) + 1

    def _leaves(self) -> list[Place]:
        return [leaf for place in self.places for leaf in place.leaves()]

    def _own(self, model: keras.Operation) -> dict[Key, int]:
        if model is self._model or model is self._traced:
            return self._stages
        extension = vars(model).get("_ipu_extension")
        return extension.stages._stages if extension else {}


def _inner(layer: keras.Operation, node: Node | None, *, traces: bool) -> keras.Model | None:
    """The model that a call of a layer expands to: the layer itself, or what its `call` was traced to."""
    kind = keras.Sequential if isinstance(layer, keras.Sequential) else Functional
    if isinstance(layer, kind):
        return layer if type(layer).call is kind.call else None
    if not isinstance(layer, keras.Model):
        return None
    extension = vars(layer).get("_ipu_extension")
    # Weights of its own have their regularizers at its own call.
    if extension is None or internals.has_own_weights(layer):
        return None
    stages: StageAssignment = extension.stages
    if node is None and not layer.built:
        return None
    try:
        symbols = places.symbols_of_built(layer) if node is None else node.arguments.args[0]
        if traces and not stages.has_graph and not stages.uncut:
            stages.trace(symbols)
    except (RuntimeError, NotImplementedError) as exc:
        stages.uncut = str(exc)  # No fault yet: it may be in one stage.
        return None
    if not stages.has_graph:
        return None
    shapes = [[tuple(one.shape[1:]) for one in keras.tree.flatten(some)] for some in (symbols, stages.graph.inputs)]
    return stages.graph if shapes[0] == shapes[1] else None


def _check_sequence(places: list[Place]) -> None:
    """Checks that the stages of a sequential model's layers count up from 0."""
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
                f"Layer `{place.layer.name}` has been assigned to pipeline stage {first}, however the layer before it is in"
                f" stage {last}: it can be in that stage, or in the next"
            )
        last = max(stages, default=last or 0)


def _clear(place: Place) -> None:
    if place.node is not None:
        vars(place.node).pop(NODE_STAGE, None)
        vars(place.layer).pop(NODE_STAGE, None)
    extension = vars(place.layer).get("_ipu_extension")
    if place.children is not None and extension:
        extension.stages._stages.clear()
    for child in place.children or ():
        _clear(child)
