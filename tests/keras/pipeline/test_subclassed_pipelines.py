"""Pipelines of subclassed models: stages by scopes in `call` or by a list, and what `call` must be like."""

from __future__ import annotations

import contextlib
from typing import Any

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

BATCH = 4


class Bare(keras.Model):
    """Calls a layer twice, a nested model, and an operation of Keras's."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = layers.Activation("tanh", name="shared")
        self.nested = keras.Sequential([layers.Dense(6, name="n0"), layers.Dropout(0.0, name="n1")], name="nested")
        self.last = layers.Dense(3, name="last")

    def stage(self, number: int) -> Any:
        del number
        return contextlib.nullcontext()

    def call(self, x: Any, training: Any = None) -> Any:
        with self.stage(0):
            hidden = self.nested(self.shared(x), training=training)
        with self.stage(1):
            return self.last(keras.ops.multiply(self.shared(hidden), 2.0))


class Staged(Bare):
    def stage(self, number: int) -> Any:
        return PipelineStage(number)


def compiled(kind: Any, jit_compile: Any = "auto") -> Any:
    keras.utils.set_random_seed(2)
    model = kind()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=8, jit_compile=jit_compile)
    return model


def stages_of(assignments: list[Any]) -> list[Any]:
    return [
        stages_of(one.pipeline_stage_assignments) if one.is_nested_model else one.pipeline_stage for one in assignments
    ]


def test_a_subclassed_model_trains_in_stages_as_plain_keras_does(
    features: Any, scoped: Any, assert_same: Any, replicas: Any
) -> None:
    x, y = features[:32], features[:32, :3]
    replicas(2)
    model = scoped(lambda: compiled(Staged))
    model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    assert stages_of(model.get_pipeline_stage_assignment()) == [0, [0, 0], 1, 1, 1]
    plain = compiled(Bare, jit_compile=False)
    plain.fit(x, y, batch_size=4 * BATCH, verbose=0, shuffle=False)
    assert_same(model.get_weights(), plain.get_weights())
    assert_same(model.predict(x, batch_size=BATCH, verbose=0), plain(x))


def test_a_subclassed_model_is_cut_by_a_list(features: Any, scoped: Any, replicas: Any) -> None:
    replicas(2)
    model = scoped(lambda: compiled(Bare))
    model(features)
    assignments = model.get_pipeline_stage_assignment()
    for at, one in enumerate(assignments):
        for leaf in one.pipeline_stage_assignments if one.is_nested_model else [one]:
            leaf.pipeline_stage = int(at > 1)
    model.set_pipeline_stage_assignment(assignments)
    assert stages_of(model.get_pipeline_stage_assignment()) == [0, [0, 0], 1, 1, 1]
    with pytest.raises(ValueError, match="pipelined: .* 2 stages.*`set_pipelining_options`"):
        model.fit(features, features[:, :3], batch_size=6, verbose=0)


def test_a_reset_takes_the_stages_of_scopes_back(features: Any, scoped: Any, replicas: Any) -> None:
    replicas(2)
    model = scoped(lambda: compiled(Staged))
    with pytest.raises(ValueError, match="pipelined: .* 2 stages.*`set_pipelining_options`"):
        model.fit(features, features[:, :3], batch_size=6, verbose=0)
    model.reset_pipeline_stage_assignment()
    assert set(stages_of(model.get_pipeline_stage_assignment())[2:]) == {None}
    model.set_replication_options("LIST")
    model.compile("sgd", "mse", steps_per_execution=4)
    assert model.fit(features, features[:, :3], batch_size=6, verbose=0).history["loss"][0].shape == (2,)


def test_assignments_of_a_subclassed_model_say_what_they_are(scoped: Any) -> None:
    model = scoped(Staged)
    for use in (model.get_pipeline_stage_assignment, lambda: model.set_pipeline_stage_assignment([])):
        with pytest.raises(RuntimeError, match="was not built: .* Build it"):
            use()
    # Keras warns: by itself it would not build the layers.
    with pytest.warns(UserWarning, match="unbuilt state"):
        model.build([None, 6])
    assignments = model.get_pipeline_stage_assignment()
    assert [type(one) for one in assignments] == [
        ModelLayerPipelineStageAssignment,
        NestedModelPipelineStageAssignment,
        *[ModelLayerPipelineStageAssignment] * 3,
    ]
    assert [getattr(one, "node_index", None) for one in assignments] == [0, 0, 1, 0, 0]
    assert [layer.name for layer in assignments[1].inbound_layers] == ["shared"]
    model.set_pipeline_stage_assignment([FunctionalLayerPipelineStageAssignment(model.shared, 0, 0), *assignments[1:]])

    def refused(message: str, one: Any) -> None:
        with pytest.raises(ValueError, match=message):
            model.set_pipeline_stage_assignment([one, *assignments[1:]])

    kind = ModelLayerPipelineStageAssignment
    refused("instances of `ModelLayerPipelineStageAssignment`, but the one at index 0 is 1", 1)
    refused("`spare`, .* has no recorded nodes in the graph", kind(layers.Dense(3, name="spare"), 0, 0))
    refused(r"`shared` has 2 invocation\(s\) in the graph, but .* call 2", kind(model.shared, 2, 0))
    refused("does not match .* call 1 of layer `shared`", kind(model.shared, 1, 0))


def test_calls_that_cannot_be_cut_are_refused(features: Any, scoped: Any, replicas: Any) -> None:
    class Small(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.last = layers.Activation("tanh"), layers.Dense(3)

    class OnTensors(Small):
        def call(self, x: Any) -> Any:
            with PipelineStage(0):
                x = tf.tanh(self.shared(x))
            with PipelineStage(1):
                return self.last(x)

    class InTraining(Small):
        def call(self, x: Any, training: Any = None) -> Any:
            with PipelineStage(0):
                x = self.shared(x)
                x = self.shared(x) if training else x
            with PipelineStage(1):
                return self.last(x)

    replicas(2)
    for kind, message in ((OnTensors, "use layers and `keras.ops`"), (InTraining, "calls other layers in training")):
        model = scoped(lambda: compiled(kind))  # noqa: B023
        model.set_pipelining_options(4)
        with pytest.raises(RuntimeError, match=message):
            model.fit(features, features[:, :3], batch_size=6, verbose=0)
    empty = scoped(lambda: type("Empty", (keras.Model,), {})())
    empty.build([None, 6])
    with pytest.raises(NotImplementedError, match="`call` for the model .* has not been implemented"):
        empty.get_pipeline_stage_assignment()


class Block(keras.Model):
    """A model for another one to call, in two stages."""

    def __init__(self, stage: Any) -> None:
        super().__init__(name="block")
        self.stage = stage
        self.first, self.second = layers.Dense(4, activation="tanh", name="first"), layers.Dense(4, name="second")

    def call(self, x: Any, training: Any = None) -> Any:
        del training
        with self.stage(0):
            hidden = self.first(x)
        with self.stage(1):
            return self.second(hidden)


class Around(keras.Model):
    """Calls such a model, and a layer behind it."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self.stage = stage
        self.block, self.last = Block(stage), layers.Dense(3, name="last")

    def call(self, x: Any, training: Any = None) -> Any:
        hidden = self.block(x, training=training)
        with self.stage(1):
            return self.last(hidden)


def test_a_nested_subclassed_model_is_split_into_stages(
    features: Any, scoped: Any, assert_same: Any, replicas: Any
) -> None:
    x, y = features[:32], features[:32, :3]
    plain = compiled(lambda: Around(lambda _: contextlib.nullcontext()), jit_compile=False)
    plain.fit(x, y, batch_size=4 * BATCH, verbose=0, shuffle=False)
    replicas(2)
    model = scoped(lambda: compiled(lambda: Around(PipelineStage)))
    model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    assert_same(model.get_weights(), plain.get_weights())
    assignments = model.get_pipeline_stage_assignment()
    assert stages_of(assignments) == [[0, 1], 1]
    assert assignments[0].nested_model is model.block
    # As a list has it: the model in it layer by layer, or as one.
    assignments[0].pipeline_stage_assignments[1].pipeline_stage = 0
    model.set_pipeline_stage_assignment(assignments)
    assert stages_of(model.get_pipeline_stage_assignment()) == [[0, 0], 1]
    model.set_pipeline_stage_assignment([ModelLayerPipelineStageAssignment(model.block, 0, 0), assignments[1]])
    assert stages_of(model.get_pipeline_stage_assignment()) == [[0, 0], 1]
    model.reset_pipeline_stage_assignment()
    assert stages_of(model.get_pipeline_stage_assignment()) == [[None, None], None]


def test_nested_models_that_cannot_be_cut_are_one_layer_and_say_why(features: Any, scoped: Any, replicas: Any) -> None:
    class OnTensors(Block):
        def call(self, x: Any, training: Any = None) -> Any:
            del training
            return self.second(tf.tanh(self.first(x)))

    def functional() -> keras.Model:
        inputs = keras.Input([6])
        with PipelineStage(0):
            hidden = layers.Dense(6)(inputs)
        model = keras.Model(inputs, layers.Dense(3)(OnTensors(PipelineStage)(hidden)))
        assignments = model.get_pipeline_stage_assignment()
        assert stages_of(assignments) == [0, None, None]
        assignments[2].pipeline_stage = 1
        with pytest.raises(ValueError, match="`block` has not been assigned"):
            model.set_pipeline_stage_assignment(assignments)
        return model

    model = scoped(functional)
    replicas(2)
    model.compile("sgd", "mse")
    with pytest.raises(
        ValueError, match=r"(?s)`block`, `.*` have none\. .*`block` counts as one layer: .*let it use layers"
    ):
        model.fit(features, features[:, :3], batch_size=6, verbose=0)
