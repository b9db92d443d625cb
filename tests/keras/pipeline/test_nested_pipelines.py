"""Tests pipelines through nested models: stages, training, files and balanced stages."""

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tensorflow_ipu import pipelining
from tensorflow_ipu.keras import (
    FunctionalNestedModelPipelineStageAssignment,
    PipelineStage,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)

BATCH = 4


def functional():
    """Returns a nested functional model of two inputs and outputs, with a sequential model inside."""
    a, b = keras.Input([6], name="a"), keras.Input([3], name="b")
    small = keras.Sequential([keras.Input([5]), layers.Dense(4, name="s0"), layers.Dense(2, name="s1")], name="small")
    nested = keras.Model([a, b], [small(layers.Dense(5, name="n0")(a)), layers.Dense(2, name="n1")(b)], name="nested")
    inputs = keras.Input([6])
    first, second = nested([inputs, layers.Dense(3, activation="tanh", name="first")(inputs)])
    return keras.Model(inputs, layers.Dense(3, name="last")(layers.add([first, second], name="add")))


STAGES = {"first": 0, "n0": 0, "n1": 2, "s0": 1, "s1": 2, "add": 2, "last": 2}


def sequential():
    inner = keras.Input([6])
    hidden = layers.Dense(5, activation="tanh", name="n0")(inner)
    nested = keras.Model(inner, layers.Dense(6, name="n1")(hidden), name="nested")
    return keras.Sequential([keras.Input([6]), layers.Dense(6, name="first"), nested, layers.Dense(3, name="last")])


CUT = {"shared": 0, "first": 0, "n0": 0, "n1": 1, "last": 1}


def called_twice():
    """Returns a nested model that is called in two stages on one IPU, with dicts as inputs and outputs."""
    inner = keras.Input([6])
    nested = keras.Sequential([inner, layers.Dense(5, name="n0"), layers.Dense(6, name="n1")], name="nested")
    inputs = {"a": keras.Input([4], name="a"), "b": keras.Input([2], name="b")}
    once = nested(layers.concatenate([inputs["a"], inputs["b"]], name="first"))
    twice = nested(layers.Activation("tanh", name="middle")(once))
    return keras.Model(inputs, {"p": layers.Dense(3, name="p")(twice), "q": layers.Dense(3, name="q")(once)})


@pytest.mark.parametrize(("make", "stages", "ipus"), [(functional, STAGES, 4), (sequential, CUT, 2)])
def test_a_pipeline_cut_through_nested_models_trains_as_plain_keras_does(
    make, stages, ipus, features, trained_pipeline, put, stages_of
):
    def prepare(model):
        put(model, stages)
        assert dict(stages_of(model)).items() <= stages.items()

    trained_pipeline(make, features, features[:, :3], 12, ipus=ipus, prepare=prepare, epochs=2)


def test_a_nested_model_called_in_two_stages_trains_and_predicts_as_plain_keras_does(
    features, trained_pipeline, leaves, assert_same
):
    def prepare(model):
        calls = model.get_pipeline_stage_assignment()
        nested = [call for call in calls if call.is_nested_model]
        assert [call.node_index for call in nested] == [0, 1]
        for call in calls:
            if not call.is_nested_model:
                call.pipeline_stage = {"first": 0, "middle": 1, "p": 2, "q": 2}[call.layer.name]
        for call, stage in zip(nested, (0, 2), strict=True):
            for leaf in leaves([call]):
                leaf.pipeline_stage = stage
        model.set_pipeline_stage_assignment(calls)

    x = {"a": features[:, :4], "b": features[:, 4:]}
    y = {"p": features[:, :3], "q": features[:, 3:]}
    model, plain_model = trained_pipeline(called_twice, x, y, 6, prepare=prepare, device_mapping=[0, 1, 0])
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    assert sorted(predicted) == ["p", "q"]
    assert_same(predicted, plain_model(x))


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
    nested = next(assignment for assignment in model.get_pipeline_stage_assignment() if assignment.is_nested_model)
    assert isinstance(nested, FunctionalNestedModelPipelineStageAssignment)
    assert (nested.nested_model.name, nested.node_index) == ("nested", 0)
    assert [layer.name for layer in nested.inbound_layers][1] == "first"
    small = next(assignment for assignment in nested.pipeline_stage_assignments if assignment.is_nested_model)
    assert isinstance(small, FunctionalNestedModelPipelineStageAssignment)
    assert {type(assignment) for assignment in small.pipeline_stage_assignments} == {
        SequentialLayerPipelineStageAssignment
    }
    lines: list[str] = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert "Nested model: nested" in lines[0]
    assert "    Layer: s0, pipeline stage: None" in lines[0]
    nested = scoped(sequential).get_pipeline_stage_assignment()[1]
    assert type(nested) is SequentialNestedModelPipelineStageAssignment


def test_nested_assignments_that_do_not_fit_are_refused(scoped, leaves, stages_of):
    model = scoped(functional)
    assignments = model.get_pipeline_stage_assignment()
    nested_index = next(index for index, assignment in enumerate(assignments) if assignment.is_nested_model)
    nested = assignments[nested_index]
    kind = FunctionalNestedModelPipelineStageAssignment
    inner = nested.pipeline_stage_assignments
    for message, replacement, changes in (
        ("nested model `nested` in model .* must be an instance of", assignments[nested_index - 1], {}),
        ("does not match that in which model", kind(nested.nested_model, 1, inner), {}),
        (r"length .* \(1\) .* in model `nested`", kind(nested.nested_model, 0, inner[:1]), {}),
        ("Layer `s1` in pipeline stage 0 has a dependency from stage 1", nested, {"s1": 0}),
        ("Layer `add` in pipeline stage 1 has a dependency from stage 2", nested, {"add": 1}),
    ):
        for leaf in leaves(assignments):
            leaf.pipeline_stage = (STAGES | changes)[leaf.layer.name]
        with pytest.raises(ValueError, match=message):
            model.set_pipeline_stage_assignment(
                [*assignments[:nested_index], replacement, *assignments[nested_index + 1 :]]
            )
        assert {stage for _, stage in stages_of(model)} == {None}


def cut_functional():
    """Returns a layer called in two stages, and a nested model that is cut into stages."""
    inputs, inner = keras.Input([6]), keras.Input([6])
    shared = layers.Activation("tanh", name="shared")
    nested = keras.Sequential([layers.Dense(5, name="n0"), layers.Dense(6, name="n1")], name="nested")
    wrapped = keras.Model(inner, nested(inner), name="wrapped")
    with PipelineStage(0):
        hidden = shared(layers.Dense(6, name="first")(inputs))
    middle = wrapped(hidden)
    with PipelineStage(1):
        return keras.Model(inputs, layers.Dense(3, name="last")(shared(middle)))


@pytest.mark.parametrize("make", [cut_functional, sequential])
def test_a_file_keeps_the_stages(make, put, scoped, stages_of, tmp_path):
    def use():
        model, file = make(), tmp_path / "model.keras"
        put(model, CUT)
        model.set_pipelining_options(4, device_mapping=[1, 0])
        model.save(file)
        loaded: Any = keras.models.load_model(file)
        assert stages_of(loaded) == stages_of(model)
        assert {stage for _, stage in stages_of(loaded)} == {0, 1}
        assert loaded._ipu_extension.options == model._ipu_extension.options
        loaded.reset_pipeline_stage_assignment()
        loaded.save(file)
        assert {stage for _, stage in stages_of(keras.models.load_model(file))} == {None}

    scoped(use)


def test_a_loaded_pipeline_trains_on_and_plain_keras_reads_the_file(
    features, put, replicas, run_script, tmp_path, assert_same
):
    file = tmp_path / "model.keras"

    def use(model):
        history = model.fit(features[:32], features[:32, :3], batch_size=4, verbose=0, shuffle=False).history
        return [history, model.get_weights()]

    with replicas(2).scope():
        keras.utils.set_random_seed(4)
        model = cut_functional()
        put(model, CUT)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=8)
        model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
        use(model)
        model.save(file)
        loaded: Any = keras.models.load_model(file)
    expected = model(features)
    assert_same(use(loaded), use(model))
    done = run_script(
        """
        import sys
        import keras, numpy as np

        model = keras.models.load_model(sys.argv[1])
        assert "tensorflow_ipu" not in sys.modules
        x = np.random.default_rng(5).normal(size=[48, 6]).astype(np.float32)
        print(model.predict(x, verbose=0).tolist())
        model.fit(x, x[:, :3], verbose=0)
        """,
        str(file),
    )
    assert_same(np.array(eval(done.stdout)), expected)  # The output of the script above.


def test_a_functional_model_is_balanced_and_takes_the_proposal(scoped):
    def make():
        x = inputs = keras.Input([64])
        for number in range(2):
            x = keras.layers.Dense(64, activation="relu", name=f"small_{number}")(x)
        parts = [keras.layers.Dense(1024, name=name)(x) for name in ("up", "side")]
        x = keras.layers.Add(name="join")(parts)
        for number in range(2):
            x = keras.layers.Dense(1024, activation="relu", name=f"large_{number}")(x)
        functional_model = keras.Model(inputs, keras.layers.Dense(4, name="head")(x), name="net")
        functional_model.compile("adam", "mse")
        return functional_model

    model = scoped(make)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=12)
    weights = model.get_weights()
    proposal = pipelining.balance(model, 3, "GC200", batch_size=16)
    assert proposal.cost.plan.micro_batches == 12
    assert set(proposal.names) >= {"small_0", "large_1", "head"}
    of = dict(zip(proposal.names, proposal.stages, strict=True))
    assert of["small_0"] == 0
    assert of["large_0"] != of["large_1"]  # Each takes longer than the rest of the model.
    assert of["head"] == 2
    assert "large_1" in str(proposal)
    assert proposal.costs[2].state_bytes > 0
    # The model is unchanged until the proposed stages are assigned.
    assert {weight.pipeline_stage for weight in model.get_pipeline_stage_assignment()} == {None}
    for weight, initial_weight in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(weight, initial_weight)
    model.set_pipeline_stage_assignment(proposal.assignment)
    stages = [weight.pipeline_stage for weight in proposal.assignment]
    assert [weight.pipeline_stage for weight in model.get_pipeline_stage_assignment()] == stages


def test_a_sequential_model_is_balanced(scoped):
    def make():
        sequential_model = keras.Sequential([keras.Input([8]), *(keras.layers.Dense(8) for _ in range(4))])
        sequential_model.compile("sgd", "mse")
        return sequential_model

    model = scoped(make)
    proposal = pipelining.balance(model, 2, "Bow", batch_size=4, micro_batches=8)
    model.set_pipeline_stage_assignment(proposal.assignment)
    assert [assignment.pipeline_stage for assignment in model.get_pipeline_stage_assignment()] == list(proposal.stages)
