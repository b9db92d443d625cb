"""The layers of a model in the order in which they run, with their pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras.src.models.functional import Functional

from tensorflow_ipu.keras._stages import (
    NODE_STAGE,
    FunctionalLayerPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
)


class StageAssignment:
    """Which stage each call of a layer of one model is in."""

    def __init__(self, model: Any) -> None:
        """Takes a model; nothing is assigned but by `PipelineStage` scopes."""
        self._model = model
        # A node, or of a sequential model a layer: its stage. By number; the model keeps them.
        self._stages: dict[int, int] = {}

    @property
    def is_sequential(self) -> bool:
        """Whether layers, and not their calls, are assigned."""
        return isinstance(self._model, keras.Sequential)

    @property
    def has_graph(self) -> bool:
        """Whether the model says what its layers are."""
        return self.is_sequential or isinstance(self._model, Functional)

    @property
    def is_pipelined(self) -> bool:
        """Whether any layer is in a stage."""
        if self._stages or self.is_sequential or not self.has_graph:
            return bool(self._stages)
        return any(self.stage_of(node) is not None for node in nodes_of(self._model))

    def get(self) -> list[Any]:
        """An assignment for each layer, or call of one, in the order in which they run.

        Raises:
          RuntimeError: The model is neither sequential nor functional.
        """
        self._check_graph("get")
        if self.is_sequential:
            return [
                SequentialLayerPipelineStageAssignment(layer, self._stages.get(id(layer)))
                for layer in self._model.layers
            ]
        return [
            FunctionalLayerPipelineStageAssignment(
                node.operation, node.operation._inbound_nodes.index(node), self.stage_of(node)
            )
            for node in nodes_of(self._model)
        ]

    def set(self, assignment: Any) -> None:
        """Assigns stages; see `set_pipeline_stage_assignment`.

        Raises:
          RuntimeError: The model is neither sequential nor functional.
          ValueError: The list does not fit the model, or the stages do not fit together.
        """
        self._check_graph("set")
        if not isinstance(assignment, list):
            raise ValueError(f"`pipeline_stage_assignment` needs to be a list, but is {assignment!r}")
        places = self._model.layers if self.is_sequential else nodes_of(self._model)
        if len(assignment) != len(places):
            what = "layers" if self.is_sequential else "calls of layers"
            raise ValueError(
                f"The length of the provided `pipeline_stage_assignment` ({len(assignment)}) does not equal the number of"
                f" {what} in model `{self._model.name}` ({len(places)})"
            )
        read = _sequential_stage if self.is_sequential else _functional_stage
        stages = [read(index, one, place) for index, (one, place) in enumerate(zip(assignment, places, strict=True))]
        before, self._stages = self._stages, {id(place): stage for place, stage in zip(places, stages, strict=True)}
        try:
            self.check()
        except (ValueError, RuntimeError):
            self._stages = before
            raise

    def reset(self) -> None:
        """Takes all layers out of their stages."""
        self._stages.clear()
        for node in nodes_of(self._model) if not self.is_sequential and self.has_graph else ():
            vars(node).pop(NODE_STAGE, None)

    def stage_of(self, node: Any) -> int | None:
        """The stage of a node of Keras's graph."""
        if self.is_sequential:
            return self._stages.get(id(node.operation))
        return self._stages.get(id(node), getattr(node, NODE_STAGE, None))

    def check(self) -> int:
        """Checks that the stages make a pipeline.

        Returns:
          How many there are.

        Raises:
          ValueError: A layer has no stage, or depends on one of a later stage.
          RuntimeError: A stage has no layer.
        """
        assignments = self.get()
        without = [one.layer.name for one in assignments if one.pipeline_stage is None]
        if without:
            raise ValueError(
                f"All layers of a pipelined model must have an associated pipeline stage: in model `{self._model.name}`,"
                f" {', '.join(f'`{name}`' for name in without)} have none. Call them in a `PipelineStage` scope, or use"
                " `set_pipeline_stage_assignment`"
            )
        stages = [one.pipeline_stage for one in assignments]
        empty = sorted(set(range(max(stages) + 1)) - set(stages))
        if empty:
            raise RuntimeError(
                f"All stages in a pipeline must have at least one layer: in model `{self._model.name}`, stage"
                f" {', '.join(map(str, empty))} has none of those up to {max(stages)}"
            )
        if self.is_sequential:
            later = [(stages[at - 1], stages[at], assignments[at].layer) for at in range(1, len(stages))]
        else:
            later = [
                (
                    self.stage_of(tensor._keras_history.operation._inbound_nodes[tensor._keras_history.node_index]),
                    mine,
                    one.layer,
                )
                for one, mine, node in zip(assignments, stages, nodes_of(self._model), strict=True)
                for tensor in node.input_tensors
            ]
        for before, mine, layer in later:
            if before is not None and before > mine:
                raise ValueError(
                    f"Layer `{layer.name}` in pipeline stage {mine} has a dependency from stage {before}: a stage can only"
                    " use what the stages before it made"
                )
        return max(stages) + 1

    def _check_graph(self, what: str) -> None:
        if not self.has_graph:
            raise RuntimeError(
                f"Cannot {what} pipeline stage assignments for model `{self._model.name}`, which is neither sequential nor"
                " functional: only these say what their layers are"
            )


def nodes_of(model: Any) -> list[Any]:
    """The calls of a functional model's layers, in the order in which they run."""
    by_depth = model._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def _check_stage(stage: Any, name: str) -> int:
    if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
        raise ValueError(
            f"Layer `{name}` has not been assigned a pipeline stage, but {stage!r}: stages are numbered from 0"
        )
    return stage


def _sequential_stage(index: int, one: Any, layer: Any) -> int:
    if isinstance(one, SequentialLayerPipelineStageAssignment):
        if one.layer is not layer:
            raise ValueError(
                f"The provided assignment at index {index} of `pipeline_stage_assignment` is for layer `{one.layer.name}`, but"
                f" the layer there is `{layer.name}`: take the list of `get_pipeline_stage_assignment`"
            )
        return _check_stage(one.pipeline_stage, layer.name)
    if isinstance(one, int):
        return _check_stage(one, layer.name)
    raise ValueError(
        "All elements of `pipeline_stage_assignment` must be numbers of stages, or instances of"
        f" `SequentialLayerPipelineStageAssignment`, but the one at index {index} is {one!r}"
    )


def _functional_stage(index: int, one: Any, node: Any) -> int:
    if not isinstance(one, FunctionalLayerPipelineStageAssignment):
        raise ValueError(
            "All elements of `pipeline_stage_assignment` must be instances of `FunctionalLayerPipelineStageAssignment`, but"
            f" the one at index {index} is {one!r}"
        )
    name = node.operation.name
    if one.layer is not node.operation or one.node_index != node.operation._inbound_nodes.index(node):
        raise ValueError(
            f"The order of `pipeline_stage_assignment` does not match that in which the model runs: at index {index} it has"
            f" call {one.node_index} of layer `{one.layer.name}`, and the model runs `{name}` there. Take the list of"
            " `get_pipeline_stage_assignment`, and set the stages in it"
        )
    return _check_stage(one.pipeline_stage, name)


def summary(assignments: Sequence[Any], line_length: int | None) -> str:
    """A table of layers and stages."""
    width = line_length or max([40, *(len(str(one)) for one in assignments)])
    rule = "_" * width
    return "\n".join([rule, *(str(one)[:width] for one in assignments), rule])
