"""Tests models with pipeline stages: assignment of stages, and training as with gradient accumulation."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tensorflow_ipu import pipelining
from tensorflow_ipu.keras import (
    FunctionalLayerPipelineStageAssignment,
    PipelineStage,
    SequentialLayerPipelineStageAssignment,
)
from tensorflow_ipu.keras.pipeline.stages import current_stage

BATCH, STEPS = 4, 12


def sequential():
    return keras.Sequential([layers.Dense(4, activation="relu"), layers.BatchNormalization(), layers.Dense(3)])


def linear():
    return keras.Sequential([keras.Input([6]), layers.Dense(4, activation="tanh"), layers.Dense(3)])


def functional():
    """Returns a model of two inputs and outputs, a tensor that skips a stage, and a layer called twice in a stage."""
    a, b = keras.Input([4], name="a"), keras.Input([2], name="b")
    with PipelineStage(0):
        hidden = layers.Dense(3, activation="tanh")(a)
        shared = layers.Dense(2)
    with PipelineStage(1):
        twice = layers.add([shared(b), shared(shared(b))])
    with PipelineStage(2):
        joined = layers.concatenate([hidden, twice])
        outputs = [layers.Dense(3, name="p")(joined), layers.Dense(1, name="q")(joined)]
    return keras.Model([a, b], outputs)


def compiled(model, loss="mse", rate=0.1, metrics=("mae",)):
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer=optimizer, loss=loss, metrics=list(metrics), steps_per_execution=STEPS)
    return model


def trained(model, x, y):
    """Returns the history of two epochs, and the weights after them."""
    history = model.fit(x, y, epochs=2, batch_size=BATCH, shuffle=False, verbose=0).history
    return [history, model.get_weights()]


def used(model, x, y):
    options = {"batch_size": BATCH, "verbose": 0}
    return [*trained(model, x, y), model.evaluate(x, y, **options), model.predict(x, **options)]


def accumulating(replicas, make, count, **options):
    """Returns a model without stages whose gradients accumulate on one IPU."""
    with replicas(1).scope():
        keras.utils.set_random_seed(2)
        model = compiled(make(), **options)
    if not isinstance(model, keras.Sequential):
        model.reset_pipeline_stage_assignment()
    model.set_gradient_accumulation_options(count)
    return model


@pytest.fixture
def in_two(replicas):
    """Returns a function that compiles a sequential model with all but its first layer in a second stage."""

    def make(make, ipus=2, **options):
        with replicas(ipus).scope():
            keras.utils.set_random_seed(2)
            model = compiled(make())
            model.set_pipeline_stage_assignment([0, *[1] * (len(model.layers) - 1)])
            model.set_pipelining_options(4, **options)
        return model

    return make


def test_pipelined_sequential_model_trains_as_accumulation_does(features, assert_same, replicas, in_two):
    data = features, features[:, :3]
    expected = trained(accumulating(replicas, sequential, 4), *data)
    interleaved = {
        "pipeline_schedule": pipelining.PipelineSchedule.Interleaved,
        "device_mapping": [1, 0],
        "recomputation_mode": pipelining.RecomputationMode.RecomputeThenBackpropagate,
    }
    for options in ({}, interleaved, {"pipeline_schedule": pipelining.PhasedExecution.Parallel}):
        model = in_two(sequential, **options)
        assert model._ipu_extension.replicas_for(None) == 1
        assert_same(trained(model, *data), expected)
    # Serial phases share an IPU, so every additional IPU is a replica.
    model.set_pipelining_options(4, pipeline_schedule=pipelining.PhasedExecution.Serial)
    assert model._ipu_extension.replicas_for(None) == 2


def test_pipelined_functional_model_trains_as_accumulation_does(features, assert_same, replicas):
    data = [features[:, :4], features[:, 4:]], [features[:, :3], features[:, :1]]
    options = {"loss": ["mse", "mae"], "metrics": [["mae"], ["mse"]], "rate": 0.01}
    expected = used(accumulating(replicas, functional, 6, **options), *data)
    with replicas(4).scope():
        keras.utils.set_random_seed(2)
        model = compiled(functional(), **options)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=6)
    assert_same(used(model, *data), expected)
    traces = model._ipu_extension.traces()
    used(model, *data)
    assert model._ipu_extension.traces() == traces


class Count(keras.callbacks.Callback):
    count = 0

    def on_train_batch_end(self, batch, logs=None):
        assert set(logs or {}) == {"loss", "mae"}
        self.count += 1


def test_pipelines_run_as_replicas_and_report_each_step(features, assert_same, replicas, in_two):
    """Two replicas of two stages: the batches of both make one update."""
    data = {"x": features, "y": features[:, :3], "batch_size": 3, "shuffle": False, "verbose": 0}
    single, count = accumulating(replicas, linear, 8), Count()
    single.steps_per_execution = 8
    single.fit(**data)
    model = in_two(linear, ipus=4)
    model.steps_per_execution = 8
    model.set_asynchronous_callbacks(True)
    model.fit(**data, callbacks=[count])
    assert count.count == 16
    assert_same(model.get_weights(), single.get_weights())
    assert_same(model.predict(features, batch_size=3, verbose=0), model(features))


def test_accumulated_results_are_those_after_the_last_step_and_come_once_an_execution(features, in_two):
    def ones():
        return keras.Sequential([layers.Identity(), layers.Dense(1, kernel_initializer="ones")])

    model = in_two(ones, accumulate_outfeed=True, accumulate_outfeed_dtype=tf.float32)
    model.optimizer.learning_rate = 0.0
    model.set_asynchronous_callbacks(True)  # Accumulated results cannot be reported step by step.
    count = Count()
    data = {"x": features, "y": 0 * features[:, :1], "batch_size": BATCH, "verbose": 0}
    loss = model.fit(**data, shuffle=False, callbacks=[count]).history["loss"][0]
    evaluated = model.evaluate(**data)[0]
    predicted = model.predict(features, batch_size=BATCH, verbose=0)  # Without kept results, no dtype is needed.
    np.testing.assert_allclose(predicted, features.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-5)
    losses = (features.sum(axis=1) ** 2).reshape(STEPS, BATCH).mean(axis=1)
    np.testing.assert_allclose([loss, evaluated], [losses.mean()] * 2, rtol=1e-5)
    assert count.count == 1


# Keras's regularizers L1 and L2 keep a tensor.
def test_losses_of_layers_count_whatever_their_stage(features, trained_pipeline):
    class Extra(layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x**2))
            return x

    def make():
        l1, l2, l1_and_l2 = keras.regularizers.L1(0.1), keras.regularizers.L2(0.1), keras.regularizers.L1L2(0.1, 0.2)
        extra = Extra()
        parts = [
            layers.Dense(4, kernel_regularizer=l1, bias_regularizer=l1_and_l2),
            extra,
            layers.Dense(4, kernel_regularizer="orthogonal_regularizer", activity_regularizer=l1),
            extra,
            layers.Dense(3, kernel_regularizer=l1, bias_regularizer=l2, activity_regularizer="l2"),
        ]
        return keras.Sequential([keras.Input([6]), *parts])

    def prepare(model):
        model.set_pipeline_stage_assignment([0, 0, 1, 1, 1])

    trained_pipeline(make, features[:32], features[:32, :3], 4, prepare=prepare, by_keras=True, epochs=2)


def test_assignments_of_a_functional_model_are_read_changed_and_taken_back(scoped):
    model = scoped(functional)
    assignment = model.get_pipeline_stage_assignment()
    assert {type(call) for call in assignment} == {FunctionalLayerPipelineStageAssignment}
    stages = {(call.layer.name, call.node_index): call.pipeline_stage for call in assignment}
    assert sorted(stages.values()) == [0, 1, 1, 1, 1, 2, 2, 2]
    inbound = [[layer.name for layer in call.inbound_layers] for call in assignment if call.layer.name in "pq"]
    assert inbound == [["concatenate"]] * 2
    for call in assignment:
        call.pipeline_stage = 0 if call.layer.name in "pq" else call.pipeline_stage
    with pytest.raises(ValueError, match="Layer `[pq]` in pipeline stage 0 has a dependency from stage 2"):
        model.set_pipeline_stage_assignment(assignment)
    for call in assignment:
        call.pipeline_stage = min(call.pipeline_stage, 1) if call.layer.name not in "pq" else 1
    model.set_pipeline_stage_assignment(assignment)
    assert {call.pipeline_stage for call in model.get_pipeline_stage_assignment()} == {0, 1}
    lines: list[str] = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert "Layer: p (call 0), pipeline stage: 1" in lines[0]
    model.reset_pipeline_stage_assignment()
    assert {call.pipeline_stage for call in model.get_pipeline_stage_assignment()} == {None}


def test_assignments_and_stage_scopes_that_make_no_sense_are_refused(strategy, scoped):
    model = scoped(sequential)
    foreign = SequentialLayerPipelineStageAssignment(layers.Dense(1, name="other"), 0)
    for assignment, message in (
        ((0, 1, 1), "needs to be a list"),
        ([0, 1], r"length .* \(2\) does not equal the number of layers .* \(3\)"),
        ([0, "a", 1], "the one at index 1 is 'a'"),
        ([0, -1, 1], "has not been assigned a pipeline stage, but -1"),
        ([0, 2, 2], "assigned to pipeline stage 2, however the previous layer is in stage 0"),
        ([0, 1, 0], "assigned to pipeline stage 0, however the previous layer is in stage 1"),
        ([1, 1, 1], "first layer .* needs to be assigned to the pipeline stage 0"),
        ([foreign] * 3, "index 0|has no attribute"),
    ):
        with pytest.raises(ValueError, match=message):
            model.set_pipeline_stage_assignment(assignment)
        assert {call.pipeline_stage for call in model.get_pipeline_stage_assignment()} == {None}
    with pytest.raises(RuntimeError, match="within the scope of an `IPUStrategy`"), PipelineStage(0):
        pass
    with strategy.scope():
        with pytest.raises(ValueError, match="-1 is not a valid pipeline stage"), PipelineStage(-1):
            pass
        with pytest.raises(ValueError, match="2147483648 is not a valid .* must be below 65536"), PipelineStage(2**31):
            pass
        with PipelineStage(1), pytest.raises(RuntimeError, match="in stage 1 already"), PipelineStage(2):
            pass
    assert current_stage() is None


def test_layers_made_in_a_scope_are_in_its_stage_unless_a_call_says_otherwise(scoped):
    def make():
        inputs = keras.Input([6])
        with PipelineStage(0):
            first, second = layers.Dense(6, name="first"), layers.Dense(6, name="again")
        with PipelineStage(1):
            last = layers.Dense(6, name="last")
            hidden = second(again_input := first(inputs))
        return keras.Model(inputs, last(layers.Add(name="bare")([hidden, again_input])))

    stages = {call.layer.name: call.pipeline_stage for call in scoped(make).get_pipeline_stage_assignment()}
    assert stages == {"first": 1, "again": 1, "bare": None, "last": 1}
    assert not hasattr(layers.Dense(6), "_ipu_pipeline_stage")


def test_pipelines_that_cannot_run_are_refused(features, scoped, replicas, in_two):
    data = {"x": features, "y": features[:, :3], "batch_size": BATCH, "verbose": 0}
    model = in_two(sequential)
    model.optimizer.minimize = lambda *_: None
    with pytest.raises(ValueError, match="defines its own `minimize`"):
        model.fit(**data)
    del model.optimizer.minimize
    model.set_pipelining_options()
    with pytest.raises(ValueError, match="pipelined: .* 2 stages.*`set_pipelining_options`"):
        model.fit(**data)
    model.set_pipelining_options(5)
    with pytest.raises(RuntimeError, match="pipelined model .* not divisible by .* \\(5\\).*a multiple of 5"):
        model.fit(**data)
    model.set_pipelining_options(4)
    with pytest.raises(RuntimeError, match="a single batch is not the 4"):
        model.train_on_batch(features[:4], features[:4, :3])

    class Own(keras.Sequential):
        def train_step(self, data):
            raise AssertionError

    overriding = in_two(lambda: Own([layers.Dense(3), layers.Dense(3)]))
    with pytest.raises(RuntimeError, match="`train_step` for the model .* has been overridden"):
        overriding.fit(**data)

    def half():
        inputs = keras.Input([6])
        with PipelineStage(0):
            hidden = layers.Dense(3)(inputs)
        model = compiled(keras.Model(inputs, layers.Dense(3, name="bare")(hidden)))
        model.set_pipelining_options(4)
        return model

    with pytest.raises(ValueError, match="`bare` have none"):
        scoped(half).fit(**data)
    replicas(1)
    with pytest.raises(ValueError, match="has 1 IPUs attached, .* a multiple of 2 IPUs"):
        model.fit(**data)
