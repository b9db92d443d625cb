"""Pipeline stages as users list them: an assignment for each layer, or for each call of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import keras

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras.pipeline.places import Key, Place
from tensorflow_ipu.keras.pipeline.stages import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)

if TYPE_CHECKING:
    from tensorflow_ipu.keras._keras_internals import Node
    from tensorflow_ipu.keras.pipeline.stages import Assignment


def assignment_of(place: Place, subclassed: bool = False) -> Assignment:
    """The assignment of a layer or a call of one: what `get_pipeline_stage_assignment` lists."""
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
    """The stages that a list of assignments says of a model's places."""
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
    for index, (one, place) in enumerate(zip(assignment, places, strict=True)):
        kinds = (SequentialLayerPipelineStageAssignment, _layer_kind(subclassed))
        as_whole = isinstance(one, int) or (place.graph is not place.layer and isinstance(one, kinds))
        if place.children is not None and not as_whole:
            stages |= read_assignment(place.graph, place.children, _nested_list(index, one, place, model, subclassed))
        else:
            stage = (
                _sequential_stage(index, one, place.layer)
                if sequential
                else _functional_stage(index, one, place.node, _layer_kind(subclassed))
            )
            stages |= {leaf.key: stage for leaf in place.leaves()}
    return stages


def _nested_list(index: int, one: object, place: Place, model: keras.Model, subclassed: bool) -> object:
    kind = SequentialNestedModelPipelineStageAssignment if place.node is None else _nested_kind(subclassed)
    if not isinstance(one, kind):
        raise ValueError(
            f"The pipeline stage assignment for nested model `{place.layer.name}` in model `{model.name}`, at index {index} of"
            f" `pipeline_stage_assignment`, must be an instance of `{kind.__name__}`, but is {one!r}"
        )
    called = None if place.node is None else place.node_index
    if one.nested_model is not place.layer or getattr(one, "node_index", None) != called:
        raise ValueError(
            f"The order of `pipeline_stage_assignment` does not match that in which model `{model.name}` runs: at index"
            f" {index} it has nested model `{one.nested_model.name}`, and the model runs `{place.layer.name}` there, or"
            " another call of it. Take the list of `get_pipeline_stage_assignment`, and set the stages in it"
        )
    return one.pipeline_stage_assignments


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


def _sequential_stage(index: int, one: object, layer: keras.layers.Layer) -> int:
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


def _functional_stage(index: int, one: object, node: Node, kind: type[ModelLayerPipelineStageAssignment]) -> int:
    if not isinstance(one, kind):
        raise ValueError(
            f"All elements of `pipeline_stage_assignment` must be instances of `{kind.__name__}`, but the one at index"
            f" {index} is {one!r}"
        )
    name = node.operation.name
    calls = len(internals.calls_of(one.layer))
    if not calls:
        raise ValueError(
            f"Layer `{one.layer.name}`, at index {index} of `pipeline_stage_assignment`, has no recorded nodes in the graph:"
            " the model does not call it"
        )
    if one.node_index >= calls:
        raise ValueError(
            f"Layer `{one.layer.name}` has {calls} invocation(s) in the graph, but at index {index} the"
            f" `pipeline_stage_assignment` is for call {one.node_index}, where the first is call 0"
        )
    if one.layer is not node.operation or one.node_index != internals.calls_of(node.operation).index(node):
        raise ValueError(
            f"The order of `pipeline_stage_assignment` does not match that in which the model runs: at index {index} it has"
            f" call {one.node_index} of layer `{one.layer.name}`, and the model runs `{name}` there. Take the list of"
            " `get_pipeline_stage_assignment`, and set the stages in it"
        )
    return _check_stage(one.pipeline_stage, name)


def summary(assignments: Sequence[Assignment], line_length: int | None) -> str:
    """A table of layers and stages."""
    lines = [line for one in assignments for line in str(one).splitlines()]
    width = line_length or max([40, *map(len, lines)])
    rule = "_" * width
    return "\n".join([rule, *(line[:width] for line in lines), rule])


# A layer's name, and its stage or, of a model, those of its layers: what JSON has lists for.
Named: TypeAlias = "str | int | list[Named] | None"


def named_stage(place: Place) -> list[Named]:
    """A layer's name with its stage, or a nested model's name with those of its layers."""
    return [
        place.layer.name,
        place.stage if place.children is None else [named_stage(child) for child in place.children],
    ]


def restore_stages(places: list[Place], named: object, stages: dict[Key, int]) -> None:
    """Reads stages that `named_stage` told of an equal model."""
    if not isinstance(named, list) or any(not isinstance(one, list) or len(one) != 2 for one in named):
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
