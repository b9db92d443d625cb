"""Assigns pipeline stages to the layers of models as users do: by scopes, and by lists of assignments."""

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

# An element of `get_pipeline_stage_assignment`: the stage of a layer, or the stages of the layers of a model.
Assignment: TypeAlias = "_Assignment | _NestedAssignment"

# The attribute of a Keras node, or of a layer, that holds the stage of the scope in which it was made.
NODE_STAGE = "_ipu_pipeline_stage"

_thread = threading.local()
_is_any_assigned = False


class PipelineStage:
    """A scope that sets the pipeline stage of the layers that are called in it.

    A layer that is made in the scope, but called outside of all such scopes, gets the stage too.

    with strategy.scope():
        inputs = keras.Input([784])
        with PipelineStage(0):
            hidden = keras.layers.Dense(128)(inputs)
        with PipelineStage(1):
            outputs = keras.layers.Dense(10)(hidden)
        model = keras.Model(inputs, outputs)
    """

    def __init__(self, stage: int) -> None:
        """Creates the scope of the stage with this number, from 0."""
        self._stage = stage

    def __enter__(self) -> PipelineStage:  # noqa: PYI034  (`Self` is of Python 3.11.)
        """Enters the scope.

        Raises:
          ValueError: The stage is not an integer from 0.
          RuntimeError: The scope is not in the scope of an `IPUStrategy`, or is in the scope of another stage.
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
        _thread.patches = contextlib.ExitStack()
        _thread.patches.enter_context(patches.KERAS_CALLS.applied(_recording_node_stage))
        _thread.patches.enter_context(patches.KERAS_LAYERS.applied(_recording_layer_stage))
        _thread.stage = self._stage
        _thread.entered = entered() + 1
        note_assignment()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leaves the scope."""
        _thread.stage = None
        _thread.patches.close()


def current_stage() -> int | None:
    """Returns the stage of this thread's scope, or None."""
    return getattr(_thread, "stage", None)


def entered() -> int:
    """Returns the number of scopes that this thread has entered."""
    return getattr(_thread, "entered", 0)


def note_assignment() -> None:
    """Records that a layer or call of this process may be in a stage."""
    global _is_any_assigned  # noqa: PLW0603
    _is_any_assigned = True


def is_any_assigned() -> bool:
    """Returns False if no layer or call of this process can be in a stage."""
    return _is_any_assigned


def _recording_node_stage(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if current_stage() is not None:
            setattr(self, NODE_STAGE, current_stage())

    return __init__


def _recording_layer_stage(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        from tensorflow_ipu.keras._keras import keras

        original(self, *args, **kwargs)
        # A model gets no stage, as its layers have stages.
        if current_stage() is not None and not isinstance(self, keras.Model):
            vars(self)[NODE_STAGE] = current_stage()

    return __init__


class _Assignment:
    """A layer and its `pipeline_stage`, an int or None, which may be set."""

    def __init__(self, layer: keras.layers.Layer, pipeline_stage: int | None = None) -> None:
        """Assigns the stage with this number to a layer."""
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
        """The index of the call among the calls of the layer or nested model."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[keras.layers.Layer]:
        """The layers whose outputs are inputs of the call."""
        from tensorflow_ipu.keras._keras import internals

        node = internals.calls_of(self._called)[self._node_index]
        return internals.layers_before(node)


class ModelLayerPipelineStageAssignment(_Assignment, _Call):
    """A call of a layer in a model, and its stage."""

    def __init__(self, layer: keras.layers.Layer, node_index: int, pipeline_stage: int | None = None) -> None:
        """Assigns a stage to call `node_index`, from 0, of a layer."""
        _Assignment.__init__(self, layer, pipeline_stage)
        _Call.__init__(self, layer, node_index)

    def __str__(self) -> str:
        return f"Layer: {self._layer.name} (call {self._node_index}), pipeline stage: {self.pipeline_stage}"


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """A call of a layer in a functional model, and its stage."""


class _NestedAssignment:
    """A nested model, and the stages of its layers."""

    def __init__(self, nested_model: keras.Model, pipeline_stage_assignments: list[Assignment]) -> None:
        """Assigns stages to the layers of a nested model, by one assignment for each in execution order."""
        self._nested_model = nested_model
        self._assignments = pipeline_stage_assignments

    @property
    def nested_model(self) -> keras.Model:
        """The nested model."""
        return self._nested_model

    @property
    def pipeline_stage_assignments(self) -> list[Assignment]:
        """The assignments of its layers, or of their calls. Their stages may be set."""
        return self._assignments

    @property
    def is_nested_model(self) -> bool:
        """True: this is a nested model."""
        return True

    def __str__(self) -> str:
        lines = [line for assignment in self._assignments for line in str(assignment).splitlines()]
        return "\n".join([f"Nested model: {self._nested_model.name}", *(f"  {line}" for line in lines)])


class SequentialNestedModelPipelineStageAssignment(_NestedAssignment):
    """A model in a sequential model, and the stages of its layers."""


class NestedModelPipelineStageAssignment(_NestedAssignment, _Call):
    """A call of a model in a model, and the stages of its layers."""

    def __init__(
        self, nested_model: keras.Model, node_index: int, pipeline_stage_assignments: list[Assignment]
    ) -> None:
        """Assigns stages to the layers of call `node_index`, from 0, in execution order."""
        _NestedAssignment.__init__(self, nested_model, pipeline_stage_assignments)
        _Call.__init__(self, nested_model, node_index)


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """A call of a model in a functional model, and the stages of its layers."""
