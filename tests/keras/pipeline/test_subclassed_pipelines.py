"""Tests pipelines of subclassed models: stages by scopes in `call` or by a list, and rejected forms of `call`."""

import contextlib

import keras
import pytest
import tensorflow as tf
from keras import layers

from tensorflow_ipu.keras import (
    FunctionalLayerPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    PipelineStage,
)

UNSET = "pipelined: .* 2 stages.*`set_pipelining_options`"


def nowhere(stage):
    """Replaces `PipelineStage` in models that must be plain."""
    del stage
    return contextlib.nullcontext()


class Block(keras.Model):
    """A model in two stages, which another model calls."""

    def __init__(self, stage):
        super().__init__(name="block")
        self.stage = stage
        self.first, self.second = layers.Dense(4, activation="tanh", name="first"), layers.Dense(4, name="second")

    def call(self, x):
        with self.stage(0):
            hidden = self.first(x)
        with self.stage(1):
            return self.second(hidden)


class Whole(keras.Model):
    """Calls a layer twice, nested models, and an operation of Keras."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage
        self.shared, self.block = layers.Activation("tanh", name="shared"), Block(stage)
        self.nested = keras.Sequential([layers.Dense(6, name="n0"), layers.Dropout(0.0, name="n1")], name="nested")
        self.last = layers.Dense(3, name="last")

    def call(self, x, training=None):
        with self.stage(0):
            hidden = self.nested(self.shared(x), training=training)
        hidden = self.block(hidden)
        with self.stage(1):
            return self.last(keras.ops.multiply(self.shared(hidden), 2.0))


STAGES = [0, [0, 0], [0, 1], 1, 1, 1]


def nested_stages_of(assignments):
    return [
        nested_stages_of(assignment.pipeline_stage_assignments)
        if assignment.is_nested_model
        else assignment.pipeline_stage
        for assignment in assignments
    ]


@pytest.fixture
def compiled(scoped, replicas):
    """Returns a function that makes and compiles such a model for two IPUs: `compiled(kind, *args)`."""
    replicas(2)

    def make(kind, *args):
        model = scoped(lambda: kind(*args))
        model.compile("sgd", "mse", steps_per_execution=8)
        return model

    return make


def test_a_subclassed_model_trains_in_stages_as_plain_keras_does(features, trained_pipeline, assert_same):
    x = features[:32]
    model, plain_model = trained_pipeline(lambda: Whole(PipelineStage), x, x[:, :3], 4, plain=lambda: Whole(nowhere))
    assert_same(model.predict(x, batch_size=4, verbose=0), plain_model(x))
    assignments = model.get_pipeline_stage_assignment()
    assert nested_stages_of(assignments) == STAGES
    assert assignments[2].nested_model is model.block
    # The list has the nested model layer by layer, or as a whole.
    assignments[2].pipeline_stage_assignments[1].pipeline_stage = 0
    for block in (assignments[2], ModelLayerPipelineStageAssignment(model.block, 0, 0)):
        model.set_pipeline_stage_assignment([*assignments[:2], block, *assignments[3:]])
        assert nested_stages_of(model.get_pipeline_stage_assignment()) == [0, [0, 0], [0, 0], 1, 1, 1]


def test_a_subclassed_model_is_cut_by_a_list_and_a_reset_takes_stages_back(features, compiled, leaves):
    for stage in (nowhere, PipelineStage):
        model = compiled(Whole, stage)
        if stage is nowhere:
            model(features)
            assignments = model.get_pipeline_stage_assignment()
            for leaf, number in zip(leaves(assignments), keras.tree.flatten(STAGES), strict=True):
                leaf.pipeline_stage = number
            model.set_pipeline_stage_assignment(assignments)
        with pytest.raises(ValueError, match=UNSET):
            model.fit(features, features[:, :3], batch_size=6, verbose=0)
        assert nested_stages_of(model.get_pipeline_stage_assignment()) == STAGES
        model.reset_pipeline_stage_assignment()
        assert {call.pipeline_stage for call in leaves(model.get_pipeline_stage_assignment())} == {None}
    model.set_replication_options("LIST")
    model.compile("sgd", "mse", steps_per_execution=4)
    assert model.fit(features, features[:, :3], batch_size=6, verbose=0).history["loss"][0].shape == (2,)


def test_assignments_of_a_subclassed_model_say_what_they_are(compiled):
    model = compiled(Whole, PipelineStage)
    for use in (model.get_pipeline_stage_assignment, lambda: model.set_pipeline_stage_assignment([])):
        with pytest.raises(RuntimeError, match="was not built: .* Build it"):
            use()
    # Keras warns that it does not build the layers.
    with pytest.warns(UserWarning, match="unbuilt state"):
        model.build([None, 6])
    assignments = model.get_pipeline_stage_assignment()
    kind, nested = ModelLayerPipelineStageAssignment, NestedModelPipelineStageAssignment
    assert [type(assignment) for assignment in assignments] == [kind, nested, nested, kind, kind, kind]
    assert [getattr(assignment, "node_index", None) for assignment in assignments] == [0, 0, 0, 1, 0, 0]
    assert [layer.name for layer in assignments[1].inbound_layers] == ["shared"]
    model.set_pipeline_stage_assignment([FunctionalLayerPipelineStageAssignment(model.shared, 0, 0), *assignments[1:]])
    for message, assignment in (
        ("instances of `ModelLayerPipelineStageAssignment`, but the one at index 0 is 1", 1),
        ("`spare`, .* has no recorded nodes in the graph", kind(layers.Dense(3, name="spare"), 0, 0)),
        (r"`shared` has 2 invocation\(s\) in the graph, but .* call 2", kind(model.shared, 2, 0)),
        ("does not match .* call 1 of layer `shared`", kind(model.shared, 1, 0)),
    ):
        with pytest.raises(ValueError, match=message):
            model.set_pipeline_stage_assignment([assignment, *assignments[1:]])


def test_calls_that_cannot_be_cut_are_refused(features, scoped, compiled):
    class Small(keras.Model):
        def __init__(self):
            super().__init__()
            self.shared, self.last = layers.Activation("tanh"), layers.Dense(3)

    class OnTensors(Small):
        def call(self, x):
            with PipelineStage(0):
                x = tf.tanh(self.shared(x))
            with PipelineStage(1):
                return self.last(x)

    class InTraining(Small):
        def call(self, x, training=None):
            with PipelineStage(0):
                x = self.shared(x)
                x = self.shared(x) if training else x
            with PipelineStage(1):
                return self.last(x)

    for kind, message in ((OnTensors, "use layers and `keras.ops`"), (InTraining, "calls other layers in training")):
        model = compiled(kind)
        model.set_pipelining_options(4)
        with pytest.raises(RuntimeError, match=message):
            model.fit(features, features[:, :3], batch_size=6, verbose=0)
    empty = scoped(lambda: type("Empty", (keras.Model,), {})())
    empty.build([None, 6])
    with pytest.raises(NotImplementedError, match="`call` for the model .* has not been implemented"):
        empty.get_pipeline_stage_assignment()


def test_nested_models_that_cannot_be_cut_are_one_layer_and_say_why(features, compiled):
    class OnTensors(Block):
        def call(self, x):
            return self.second(tf.tanh(self.first(x)))

    def functional():
        inputs = keras.Input([6])
        with PipelineStage(0):
            hidden = layers.Dense(6)(inputs)
        model = keras.Model(inputs, layers.Dense(3)(OnTensors(PipelineStage)(hidden)))
        assignments = model.get_pipeline_stage_assignment()
        assert nested_stages_of(assignments) == [0, None, None]
        assignments[2].pipeline_stage = 1
        with pytest.raises(ValueError, match="`block` has not been assigned"):
            model.set_pipeline_stage_assignment(assignments)
        return model

    message = r"(?s)`block`, `.*` have none\. .*`block` counts as one layer: .*let it use layers"
    with pytest.raises(ValueError, match=message):
        compiled(functional).fit(features, features[:, :3], batch_size=6, verbose=0)
