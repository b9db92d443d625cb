"""Tests logs of models with pipeline stages against plain Keras, for all kinds of metrics and outfeed modes."""

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import PipelineStage

BATCH, BATCHES, CLASSES = 2, 16, 3


class Confusion(keras.metrics.Metric):
    """A weighted confusion matrix, which is not the mean of the matrices of its steps."""

    def __init__(self):
        super().__init__(name="confusion")
        self.counts = self.add_variable((CLASSES, CLASSES), "zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        true: Any = keras.ops.reshape(keras.ops.one_hot(keras.ops.cast(y_true, "int32"), CLASSES), (-1, CLASSES))
        found = keras.ops.one_hot(keras.ops.argmax(y_pred, axis=-1), CLASSES)
        if sample_weight is not None:
            true = true * keras.ops.reshape(sample_weight, (-1, 1))
        self.counts.assign_add(keras.ops.matmul(keras.ops.transpose(true), found))

    def result(self):
        return keras.ops.convert_to_tensor(self.counts)


class Latest(keras.metrics.Metric):
    """The largest error of the last batch, which forgets earlier batches."""

    def __init__(self):
        super().__init__(name="latest")
        self.error = self.add_variable((), "zeros", name="error")

    def update_state(self, y_true, y_pred, sample_weight=None):
        del sample_weight
        self.error.assign(keras.ops.max(keras.ops.abs(y_true - y_pred)))

    def result(self):
        return keras.ops.convert_to_tensor(self.error)


def two_stage_model(**options):
    """Returns a model of two outputs, metrics of all kinds and constant weights, in two stages in a strategy's scope."""
    x = keras.Input([6])
    with stage(0):
        hidden = layers.Dense(4, activation="tanh")(x)
    with stage(1):
        size = layers.Dense(1, name="size")(hidden)
        kind = layers.Dense(CLASSES, activation="softmax", name="kind")(hidden)
    model = keras.Model(x, {"size": size, "kind": kind})
    model.compile(
        keras.optimizers.SGD(0.0),
        {"size": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"size": 0.5, "kind": 2.0},
        metrics={"size": ["mae", keras.metrics.RootMeanSquaredError(), Latest()], "kind": ["accuracy", Confusion()]},
        weighted_metrics={"size": ["mae"], "kind": ["accuracy", Confusion()]},
        **options,
    )
    return model


def stage(number):
    in_scope = isinstance(tf.distribute.get_strategy(), ipu.IPUStrategyV1)
    return PipelineStage(number) if in_scope else contextlib.nullcontext()


def data(share=slice(None)):
    """Returns the data of a replica: all batches, or its share."""
    rng = np.random.default_rng(3)

    def batched(*shape):
        return rng.normal(size=(BATCHES, BATCH, *shape)).astype(np.float32)

    x, size = batched(6), batched(1)
    kind = rng.integers(0, CLASSES, (BATCHES, BATCH)).astype(np.int32)
    weights = {name: rng.uniform(0.1, 2, (BATCHES, BATCH)).astype(np.float32) for name in ("size", "kind")}

    def flat(array):
        return array[share].reshape(-1, *array.shape[2:])

    return {
        "x": flat(x),
        "y": {"size": flat(size), "kind": flat(kind)},
        "sample_weight": {name: flat(array) for name, array in weights.items()},
    }


def logged(model, arguments, fits=True):
    """Returns the last logs of `fit` and `evaluate`."""
    options = {"batch_size": BATCH, "verbose": 0}
    validation = (arguments["x"], arguments["y"], arguments["sample_weight"])
    logs = {f"val_{name}": value for name, value in model.evaluate(**arguments, **options, return_dict=True).items()}
    if fits:
        more = {"shuffle": False, "validation_data": validation, "validation_batch_size": BATCH, "epochs": 2}
        history = model.fit(**arguments, **options, **more).history
        assert {name: values[-1] for name, values in history.items() if name.startswith("val_")}.keys() == logs.keys()
        logs = {name: values[-1] for name, values in history.items()}
    return logs


@pytest.fixture(scope="module")
def expected():
    """Returns results of plain Keras: weights, logs on all data and on the share of each replica, predictions."""
    keras.utils.set_random_seed(4)
    model = two_stage_model(jit_compile=False)
    shares = {"all": slice(None), "first": slice(0, None, 2), "second": slice(1, None, 2)}
    logs = {name: logged(model, data(share)) for name, share in shares.items()}
    predicted = model.predict(data()["x"], batch_size=BATCH, verbose=0)
    return {"weights": model.get_weights(), "predicted": predicted, **logs}


def assert_logs(logs, expected_logs):
    for name, value in logs.items():
        np.testing.assert_allclose(value, expected_logs[name], rtol=2e-5, atol=1e-6, err_msg=name)


def pipelined(expected, steps, **options):
    model = two_stage_model()
    model.set_weights(expected["weights"])
    model.steps_per_execution = steps
    model.set_pipelining_options(4, **options)
    return model


@pytest.mark.parametrize(("accumulate", "executions"), [(True, (16, 4)), (False, (8,))])
def test_logs_are_those_of_plain_keras_for_all_metrics(accumulate, executions, expected, replicas):
    with replicas(2).scope():
        model = pipelined(expected, 16, accumulate_outfeed=accumulate)
        for steps in executions:
            model.steps_per_execution = steps
            fits = accumulate and steps == 4
            logs = logged(model, data(), fits)
            assert not fits or logs.keys() == expected["all"].keys()
            assert_logs(logs, expected["all"])
        if accumulate:
            predicted = model.predict(data()["x"], batch_size=BATCH, verbose=0)
            assert_logs(predicted, expected["predicted"])


@pytest.mark.parametrize("accumulate", [True, False])
def test_logs_of_replicas_are_those_of_their_shares_of_the_data(accumulate, expected, replicas):
    with replicas(4).scope():
        model = pipelined(expected, 4, accumulate_outfeed=accumulate)
        model.set_replication_options("LIST")
        logs = logged(model, data(), fits=accumulate)
    for replica, share in enumerate(("first", "second")):
        assert_logs({name: value[replica] for name, value in logs.items()}, expected[share])
