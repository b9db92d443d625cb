"""Which pipeline stage the layers of a model are in, as users say it: by a scope, or by a list."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from tensorflow_ipu import strategy as strategies
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._tensorflow import patches

if TYPE_CHECKING:
    import keras

# What `get_pipeline_stage_assignment` lists: a layer's stage, or those of the layers of a model.
Assignment: TypeAlias = "_Assignment | _NestedAssignment"

# Where a node of Keras's graph, and a layer, keeps the stage that it was made in.
NODE_STAGE = "_ipu_pipeline_stage"

_thread = threading.local()
_is_any_assigned = False


class PipelineStage:
    """A scope: layers that are called in it, or made in it and called outside of any, are in one stage of a pipeline.

    with strategy.scope():
        inputs = keras.Input([784])
        with PipelineStage(0):
            hidden = keras.layers.Dense(128)(inputs)
        with PipelineStage(1):
            outputs = keras.layers.Dense(10)(hidden)
        model = keras.Model(inputs, outputs)
    """

    def __init__(self, stage: int) -> None:
        """Names a stage by its number, from 0."""
        self._stage = stage

    def __enter__(self) -> PipelineStage:  # noqa: PYI034  (`Self` is of Python 3.11.)
        """Enters the scope.

        Raises:
          ValueError: The stage is no number from 0.
          RuntimeError: This is outside of an `IPUStrategy`'s scope, or in another stage's.
        """
        if not is_int(self._stage) or self._stage < 0:
            raise ValueError(f"{self._stage!r} is not a valid pipeline stage: stages are numbered from 0")
        if self._stage >= environment.MOST_IPUS:
            raise ValueError(
                f"{self._stage} is not a valid pipeline stage: `stage` must be below {environment.MOST_IPUS}"
            )
        if not isinstance(tf.distribute.get_strategy(), strategies.IPUStrategyV1):
            raise RuntimeError(
                "`PipelineStage` may only be used from within the scope of an `IPUStrategy`: enter it first"
            )
        if current_stage() is not None:
            raise RuntimeError(f"Pipeline stages must not be nested: this is in stage {current_stage()} already")
        _thread.noting = contextlib.ExitStack()
        _thread.noting.enter_context(patches.KERAS_CALLS.applied(_noting))
        _thread.noting.enter_context(patches.KERAS_LAYERS.applied(_noting_layer))
        _thread.stage = self._stage
        _thread.entered = entered() + 1
        note_assignment()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leaves the scope."""
        _thread.stage = None
        _thread.noting.close()


def current_stage() -> int | None:
    """The stage of the scope that this thread is in."""
    return getattr(_thread, "stage", None)


def entered() -> int:
    """How many scopes this thread has entered so far."""
    return getattr(_thread, "entered", 0)


def note_assignment() -> None:
    """Notes that a layer or a call may be in a stage, by a scope or by a list."""
    global _is_any_assigned  # noqa: PLW0603
    _is_any_assigned = True


def is_any_assigned() -> bool:
    """Returns False if no layer and no call of this process can be in a stage."""
    return _is_any_assigned


def _noting(plain: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        if current_stage() is not None:
            setattr(self, NODE_STAGE, current_stage())

    return __init__


def _noting_layer(plain: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        from tensorflow_ipu.keras._keras import keras

        plain(self, *args, **kwargs)
        # The layers in a model have stages of their own.
        if current_stage() is not None and not isinstance(self, keras.Model):
            vars(self)[NODE_STAGE] = current_stage()

    return __init__


class _Assignment:
    """A layer, and its `pipeline_stage`, a number or None, which may be set."""

    def __init__(self, layer: keras.layers.Layer, pipeline_stage: int | None = None) -> None:
        """Assigns a stage to a layer by its number."""
        self._layer = layer
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> keras.layers.Layer:
        """The layer."""
        return self._layer

    @property
    def is_nested_model(self) -> bool:
        """False: this is one layer, or a model that is in one stage as a whole."""
        return False


class SequentialLayerPipelineStageAssignment(_Assignment):
    """A layer of a sequential model, and its stage."""

    def __str__(self) -> str:
        return f"Layer: {self._layer.name}, pipeline stage: {self.pipeline_stage}"


class _Call:
    """A call of a layer, or of a nested model."""

    def __init__(self, called: keras.layers.Layer, node_index: int) -> None:
        self._called = called
        self._node_index = node_index

    @property
    def node_index(self) -> int:
        """Which call it is of the layer or nested model, from 0."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[keras.layers.Layer]:
        """A list of the layers whose outputs the call takes."""
        from tensorflow_ipu.keras._keras import internals

        node = internals.calls_of(self._called)[self._node_index]
        return internals.layers_before(node)


class ModelLayerPipelineStageAssignment(_Assignment, _Call):
    """A call of a layer in a model, and its stage."""

    def __init__(self, layer: keras.layers.Layer, node_index: int, pipeline_stage: int | None = None) -> None:
        """Assigns a stage to the call of a layer with the number `node_index`, from 0."""
        _Assignment.__init__(self, layer, pipeline_stage)
        _Call.__init__(self, layer, node_index)

    def __str__(self) -> str:
        return f"Layer: {self._layer.name} (call {self._node_index}), pipeline stage: {self.pipeline_stage}"


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """A call of a layer in a functional model, and its stage."""


class _NestedAssignment:
    """A nested model, and the stages of its layers."""

    def __init__(self, nested_model: keras.Model, pipeline_stage_assignments: list[Assignment]) -> None:
        """Assigns stages to a nested model's layers, by one assignment each in the order in which they run."""
        self._nested_model = nested_model
        self._assignments = pipeline_stage_assignments

    @property
    def nested_model(self) -> keras.Model:
        """The nested model."""
        return self._nested_model

    @property
    def pipeline_stage_assignments(self) -> list[Assignment]:
        """An assignment for each of its layers, or calls of them; their stages may be set."""
        return self._assignments

    @property
    def is_nested_model(self) -> bool:
        """True."""
        return True

    def __str__(self) -> str:
        lines = [line for one in self._assignments for line in str(one).splitlines()]
        return "\n".join([f"Nested model: {self._nested_model.name}", *(f"  {line}" for line in lines)])


class SequentialNestedModelPipelineStageAssignment(_NestedAssignment):
    """A model in a sequential model, and the stages of its layers."""


class NestedModelPipelineStageAssignment(_NestedAssignment, _Call):
    """A call of a model in a model, and the stages of its layers."""

    def __init__(
        self, nested_model: keras.Model, node_index: int, pipeline_stage_assignments: list[Assignment]
    ) -> None:
        """Assigns stages to the layers of call `node_index`, from 0, in the order in which they run."""
        _NestedAssignment.__init__(self, nested_model, pipeline_stage_assignments)
        _Call.__init__(self, nested_model, node_index)


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """A call of a model in a functional model, and the stages of its layers."""
