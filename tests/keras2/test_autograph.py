"""Tests that models of Keras 2 may use Python's control flow on tensors, which Keras 2 rewrites by AutoGraph."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu
from tensorflow_ipu.precision import precision_report

layers = keras.layers


class Branch(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(3)

    def call(self, inputs):
        made = self.inner(inputs)
        if tf.reduce_sum(made) > 0:
            made = made * 2.0
        return made


def squared(labels, predicted):
    if len(tf.shape(predicted)) == 2:
        return tf.reduce_mean((tf.one_hot(labels, 3, dtype=predicted.dtype) - predicted) ** 2, axis=-1)
    return predicted


def above(labels, predicted):
    count = tf.zeros([])
    for row in predicted:
        if tf.reduce_max(row) > 0.5:
            count += 1.0
    return count / len(predicted)


class Steps(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        if tf.reduce_sum(data[0]) < 0:
            logs["loss"] = -logs["loss"]
        return logs

    def test_step(self, data):
        logs, count = super().test_step(data), 0
        for i in tf.range(3):
            count += i
        return {**logs, "count": count}

    def predict_step(self, data):
        predicted = super().predict_step(data)
        return -predicted if tf.reduce_sum(predicted) > 0 else predicted


def model_of(kind, stages=False):
    stage_scope = ipu.keras.PipelineStage if stages else lambda _: contextlib.nullcontext()
    inputs = keras.Input([6])
    with stage_scope(0):
        hidden = Branch()(inputs)
    with stage_scope(1):
        model = kind(inputs, ipu.keras.layers.Recompute(Branch())(hidden))
    model.compile(keras.optimizers.legacy.SGD(0.1), squared, metrics=[above], jit_compile=True)
    return model


def use(model, x, y):
    history = model.fit(x, y, batch_size=8, verbose=0, shuffle=False, validation_data=(x, y)).history
    single = [model.train_on_batch(x[:8], y[:8]), model.test_on_batch(x[:8], y[:8]), model.predict_on_batch(x[:8])]
    return [history, model.evaluate(x, y, batch_size=8, verbose=0), model.predict(x, batch_size=8, verbose=0), single]


@pytest.mark.parametrize("kind", [keras.Model, Steps])
def test_layers_losses_metrics_and_steps_branch_by_tensors_as_in_plain_keras(
    kind, features, labels, in_scope_and_plain, same
):
    results, expected = in_scope_and_plain(lambda: use(model_of(kind), features, labels))
    same(results, expected, rtol=1e-5)


def test_they_do_in_pipelines_where_gradients_accumulate_and_where_a_report_reads_them(
    features, labels, configure, same
):
    def train(stages):
        keras.backend.clear_session()
        keras.utils.set_random_seed(11)
        configure(2 if stages else 1)
        with ipu.IPUStrategy().scope():
            model = model_of(keras.Model, stages)
            model.steps_per_execution = 8
        if stages:
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=8)
        else:
            model.set_gradient_accumulation_options(8)
        history = model.fit(features, labels, batch_size=6, epochs=2, verbose=0, shuffle=False).history
        assert model.ipu_report(6).step_seconds > 0
        assert precision_report(model, (features[:6], labels[:6])).rows
        other_results = [model.evaluate(features, labels, 6, verbose=0), model.predict(features, 6, verbose=0)]
        return [list(history.values()), other_results]

    pipelined, accumulated = train(True), train(False)
    same(pipelined, accumulated, rtol=1e-5)
    assert np.ptp(pipelined[1][1]) > 0
