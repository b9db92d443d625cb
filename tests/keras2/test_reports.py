"""Tests reports on models of Keras 2: shapes that follow from the model, stages, and other ways to run it."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def model(strategy):
    with strategy.scope():
        layers = [keras.Input([6]), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        digits = keras.Sequential(layers, name="digits")
        digits.compile("adam", SPARSE, ["accuracy"], steps_per_execution=6)
    return digits


def host_bytes(report):
    return sum(row.host_bytes for row in report.operations if row.kind == "infeed") / report.steps


def test_each_mode_is_read_from_what_the_model_tells_and_nothing_is_changed(model):
    initial_weights = model.get_weights()
    train, evaluate, predict = (model.ipu_report(16, mode, "Bow Pod16") for mode in ("train", "evaluate", "predict"))
    assert (train.program, train.system.name, train.steps) == ("train digits", "Bow Pod16", 6)
    assert [host_bytes(report) for report in (train, evaluate, predict)] == [16 * 28, 16 * 28, 16 * 24]
    assert train.flops > evaluate.flops > predict.flops
    assert any("float32[16, 6], int32[16]" in line for line in train.assumptions)
    assert all(map(np.array_equal, model.get_weights(), initial_weights))
    with pytest.raises(ValueError, match="`mode` must be one of"):
        model.ipu_report(16, "test")


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, keras.optimizers.legacy.Adam])
def test_advice_is_that_of_other_traces_with_either_kind_of_optimizer(model, strategy, optimizer):
    with strategy.scope():
        model.compile(optimizer(), "mse")
    report = model.ipu_report(8)
    changes = {
        answer.change.partition(" (")[0]: answer for answer in report.advice(retrace=True) if hasattr(answer, "change")
    }
    assert "micro-batches of 16 in place of 8" in changes
    assert any(change.startswith("2 stages, one an IPU") for change in changes)
    assert report.memory.variables > 0


def test_stages_and_batches_seen_are_reported(model, strategy, features, labels, configure):
    configure(2)
    with strategy.scope():
        subclassed = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])
        subclassed.compile("sgd", SPARSE, steps_per_execution=4)
    with pytest.raises(ValueError, match="the shape of the inputs of model .* is unknown"):
        subclassed.ipu_report(8)
    with strategy.scope():
        subclassed.build([None, 6])
    assert host_bytes(subclassed.ipu_report(8)) == 8 * 28
    subclassed.fit(features[:16], labels[:16], batch_size=2, verbose=0)
    assert host_bytes(subclassed.ipu_report()) == 2 * 28
    model.set_pipeline_stage_assignment([0, 0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    report = model.ipu_report(4)
    assert report.timeline is not None
    assert len(model.ipu_pieces(batch_size=4).costs) == 3


def test_subclassed_models_and_structures_take_a_spec(strategy):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return {"sum": self.dense(x["a"]) + self.dense(x["b"])}

    with strategy.scope():
        model = Own()
        model.compile("sgd", {"sum": lambda y, p: tf.reduce_mean(tf.abs(y - p), -1)})
    inputs = {name: tf.TensorSpec([4, 6]) for name in "ab"}
    report = model.ipu_report(spec=(inputs, {"sum": tf.TensorSpec([4, 3])}))
    assert host_bytes(report) == 4 * (2 * 6 + 3) * 4
    assert model.built
    with pytest.raises(ValueError, match="the shape of the labels of loss .* is unknown"):
        model.ipu_report()
