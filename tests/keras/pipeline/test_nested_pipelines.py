"""Pipelines through nested models: how the stages of their layers are assigned, and that they train the same."""

from __future__ import annotations

import contextlib

import keras
import pytest
from keras import layers

from tensorflow_ipu.keras import (
    FunctionalNestedModelPipelineStageAssignment,
    PipelineStage,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)

BATCH = 4


def functional():
    """A nested functional model of two inputs and outputs, and a sequential one in it."""
    a, b = keras.Input([6], name="a"), keras.Input([3], name="b")
    small = keras.Sequential([keras.Input([5]), layers.Dense(4, name="s0"), layers.Dense(2, name="s1")], name="small")
    nested = keras.Model([a, b], [small(layers.Dense(5, name="n0")(a)), layers.Dense(2, name="n1")(b)], name="nested")
    inputs = keras.Input([6])
    one, two = nested([inputs, layers.Dense(3, activation="tanh", name="first")(inputs)])
    return keras.Model(inputs, layers.Dense(3, name="last")(layers.add([one, two], name="add")))


STAGES = {"first": 0, "n0": 0, "n1": 2, "s0": 1, "s1": 2, "add": 2, "last": 2}


def sequential():
    inputs = keras.Input([6])
    hidden = layers.Dense(5, activation="tanh", name="n0")(inputs)
    nested = keras.Model(inputs, layers.Dense(4, name="n1")(hidden), name="nested")
    return keras.Sequential([keras.Input([6]), nested, layers.Dense(3, name="last")])


def called_twice():
    """A nested model that is called in two stages, on one IPU, and dicts in and out."""
    inner = keras.Input([6])
    nested = keras.Sequential([inner, layers.Dense(5, name="n0"), layers.Dense(6, name="n1")], name="nested")
    inputs = {"a": keras.Input([4], name="a"), "b": keras.Input([2], name="b")}
    once = nested(layers.concatenate([inputs["a"], inputs["b"]], name="first"))
    again = nested(layers.Activation("tanh", name="middle")(once))
    return keras.Model(inputs, {"p": layers.Dense(3, name="p")(again), "q": layers.Dense(3, name="q")(once)})


@pytest.mark.parametrize(
    ("make", "stages", "ipus"), [(functional, STAGES, 4), (sequential, {"n0": 0, "n1": 1, "last": 1}, 2)]
)
def test_a_pipeline_cut_through_nested_models_trains_as_plain_keras_does(
    make, stages, ipus, features, trained_pipeline, put, stages_of
):
    def prepare(model):
        put(model, stages)
        assert dict(stages_of(model)) == stages

    trained_pipeline(make, features, features[:, :3], 12, ipus=ipus, prepare=prepare, epochs=2)


def test_a_nested_model_called_in_two_stages_trains_and_predicts_as_plain_keras_does(
    features, trained_pipeline, leaves, assert_same
):
    def prepare(model):
        calls = model.get_pipeline_stage_assignment()
        nested = [one for one in calls if one.is_nested_model]
        assert [one.node_index for one in nested] == [0, 1]
        for one in calls:
            if not one.is_nested_model:
                one.pipeline_stage = {"first": 0, "middle": 1, "p": 2, "q": 2}[one.layer.name]
        for one, stage in zip(nested, (0, 2), strict=True):
            for leaf in leaves([one]):
                leaf.pipeline_stage = stage
        model.set_pipeline_stage_assignment(calls)

    x = {"a": features[:, :4], "b": features[:, 4:]}
    y = {"p": features[:, :3], "q": features[:, 3:]}
    model, plain = trained_pipeline(called_twice, x, y, 6, prepare=prepare, device_mapping=[0, 1, 0])
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    assert sorted(predicted) == ["p", "q"]
    assert_same(predicted, plain(x))


def test_scopes_reach_the_layers_of_nested_models(scoped, stages_of):
    def make(around):
        a, inputs = keras.Input([6]), keras.Input([6])
        with PipelineStage(0):
            hidden = layers.Dense(4, name="n0")(a)
        with PipelineStage(1):
            nested = keras.Model(a, layers.Dense(4, name="n1")(hidden))
        with PipelineStage(0) if around else contextlib.nullcontext():
            middle = nested(inputs)
        with PipelineStage(1):
            return keras.Model(inputs, layers.Dense(3, name="last")(middle))

    model = scoped(lambda: make(False))
    assert dict(stages_of(model)) == {"n0": 0, "n1": 1, "last": 1}
    model.reset_pipeline_stage_assignment()
    assert {stage for _, stage in stages_of(model)} == {None}
    assert dict(stages_of(scoped(lambda: make(True)))) == {"n0": 0, "n1": 0, "last": 1}


def test_nested_assignments_say_what_they_are(scoped):
    model = scoped(functional)
    nested = next(one for one in model.get_pipeline_stage_assignment() if one.is_nested_model)
    assert isinstance(nested, FunctionalNestedModelPipelineStageAssignment)
    assert (nested.nested_model.name, nested.node_index) == ("nested", 0)
    assert [layer.name for layer in nested.inbound_layers][1] == "first"
    small = next(one for one in nested.pipeline_stage_assignments if one.is_nested_model)
    assert isinstance(small, FunctionalNestedModelPipelineStageAssignment)
    assert {type(one) for one in small.pipeline_stage_assignments} == {SequentialLayerPipelineStageAssignment}
    lines: list[str] = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert "Nested model: nested" in lines[0]
    assert "    Layer: s0, pipeline stage: None" in lines[0]
    first = scoped(sequential).get_pipeline_stage_assignment()[0]
    assert type(first) is SequentialNestedModelPipelineStageAssignment


def test_nested_assignments_that_do_not_fit_are_refused(scoped, leaves, stages_of):
    model = scoped(functional)
    assignments = model.get_pipeline_stage_assignment()
    at = next(index for index, one in enumerate(assignments) if one.is_nested_model)
    nested = assignments[at]
    kind = FunctionalNestedModelPipelineStageAssignment
    inner = nested.pipeline_stage_assignments
    for message, one, changes in (
        ("nested model `nested` in model .* must be an instance of", assignments[at - 1], {}),
        ("does not match that in which model", kind(nested.nested_model, 1, inner), {}),
        (r"length .* \(1\) .* in model `nested`", kind(nested.nested_model, 0, inner[:1]), {}),
        ("Layer `s1` in pipeline stage 0 has a dependency from stage 1", nested, {"s1": 0}),
        ("Layer `add` in pipeline stage 1 has a dependency from stage 2", nested, {"add": 1}),
    ):
        for leaf in leaves(assignments):
            leaf.pipeline_stage = (STAGES | changes)[leaf.layer.name]
        with pytest.raises(ValueError, match=message):
            model.set_pipeline_stage_assignment([*assignments[:at], one, *assignments[at + 1 :]])
        assert {stage for _, stage in stages_of(model)} == {None}
