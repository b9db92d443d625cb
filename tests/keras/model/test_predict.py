"""Tests `predict` for examples that do not fill batches, executions or replicas, against plain Keras."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tensorflow_ipu.keras import PipelineStage


def two_by_two(stage=PipelineStage):
    """Returns a model of two inputs and outputs, whose moving averages differ from the averages of the examples."""
    keras.utils.set_random_seed(3)
    a, b = keras.Input([6], name="a"), keras.Input([2], name="b")
    with stage(0):
        hidden = layers.BatchNormalization(moving_mean_initializer="ones")(layers.Dense(4, activation="relu")(a))
    with stage(1):
        joined = layers.concatenate([hidden, layers.Dense(3)(b)])
        outputs = [layers.Dense(3, name="p")(joined), layers.BatchNormalization(name="q")(layers.Dense(1)(joined))]
    return keras.Model([a, b], outputs)


def check(model, plain_model, x):
    """Compares predictions of several forms of data: 45 examples are 6 batches of 8; a repeated dataset has 13."""
    batches = tf.data.Dataset.from_tensor_slices((x,)).batch(8)
    for data, more in (
        (x, {"batch_size": 8}),
        (tuple(map(tf.constant, x)), {"batch_size": 11}),
        (x, {"batch_size": 8, "steps": 3}),
        (batches, {}),
        (batches.repeat(3).take(13), {}),  # Batches before the last one are partial.
        (batches.repeat(), {"steps": 7}),
    ):
        results, expected = (predictor.predict(data, verbose=0, **more) for predictor in (model, plain_model))
        for result, expected_result in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, expected_result, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pipelined", [False, True])
def test_each_example_has_a_prediction_whatever_is_padded(pipelined, features, replicas):
    x = (features[:45], features[:45, 4:])
    plain_model = two_by_two(contextlib.nullcontext)
    with replicas(4 if pipelined else 2).scope():
        model = two_by_two(PipelineStage if pipelined else contextlib.nullcontext)
    model.compile(steps_per_execution=2)
    check(model, plain_model, x)
    assert model._ipu_extension.traces() == {"predict": 2}  # Of 8 and of 11 rows.


def test_callbacks_hear_of_examples_alone_and_a_prediction_without_rows_cannot_be_cut(features, scoped, replicas):
    class Record(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.rows = []

        def on_predict_batch_end(self, batch, logs=None):
            self.rows.append(len((logs or {})["outputs"]))

    replicas(2)
    model = scoped(lambda: keras.Sequential([keras.Input([6]), layers.Dense(2)]))
    model.compile(steps_per_execution=2)
    for asynchronous, expected in ((False, [20]), (True, [8, 8, 4])):
        model.set_asynchronous_callbacks(asynchronous)
        record = Record()
        assert model.predict(features[:20], batch_size=8, verbose=0, callbacks=[record]).shape == (20, 2)
        assert record.rows == expected
    model = scoped(lambda: keras.Sequential([keras.Input([6]), layers.Lambda(lambda x: tf.reduce_sum(x, 0))]))
    with pytest.raises(
        ValueError, match=r"a prediction has the shape \(12,\) for 2 batches of 8 examples.*pass full batches"
    ):
        model.predict(features[:20], batch_size=8, verbose=0)
    with pytest.raises(ValueError, match=r"a shape \(None, 6\) which is not fully defined"):
        model.predict(tf.data.Dataset.from_tensor_slices(features).batch(7).map(lambda x: x + 1), verbose=0)
