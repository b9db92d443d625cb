"""What is computed again: the same numbers, with twice the work."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras import layers


def block():
    """Layers that draw at random, that keep averages, and that add losses."""
    return keras.Sequential(
        [
            keras.layers.Input([8]),
            keras.layers.Dense(16, activation="tanh", kernel_regularizer="l1"),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(4, activation="tanh", activity_regularizer="l2"),
        ]
    )


def train(model, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x, training=True) ** 2) + tf.add_n(model.losses)
    return loss, tape.gradient(loss, [x, *[variable.value for variable in model.trainable_variables]])


@pytest.mark.parametrize("jit", [None, True])
def test_recomputed_block_trains_as_the_block_does(normal, jit):
    plain = block()
    inner = keras.models.clone_model(plain)
    for variable, value in zip(inner.variables, plain.variables, strict=True):
        variable.assign(value)
    steps = [lambda model=model: train(model, normal([5, 8])) for model in (plain, layers.Recompute(inner))]
    if jit:
        steps = [tf.function(step, jit_compile=True) for step in steps]
    for _ in range(2):  # The second step has the masks and averages that the first one left.
        expected, actual = (step() for step in steps)
        for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(inner.variables, plain.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6)


@pytest.mark.parametrize(("wrap", "count"), [(lambda model: model, 3), (layers.Recompute, 6)])
def test_compiled_backward_pass_computes_again(normal, wrap, count):
    model = wrap(keras.Sequential([keras.layers.Dense(8, activation="tanh") for _ in range(3)]))
    x = normal([5, 8])
    model(x)

    @tf.function(jit_compile=True)
    def program(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    hlo = program.experimental_get_compiler_ir(x)(stage="optimized_hlo")
    assert len(re.findall(r" tanh\(", hlo)) == count


def test_layers_below_know_in_the_backward_pass_whether_they_train(normal):
    seen = []

    class Watch(keras.layers.Layer):
        def call(self, x, training=None):
            seen.append(training)
            return x * x

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.watch = Watch()

        def call(self, x):  # It has no such argument itself.
            return self.watch(x)

    model = layers.Recompute(Outer())
    x = normal([2, 3])
    model(x)
    seen.clear()
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = model(x, training=True)
    assert np.array_equal(tape.gradient(out, x), 2 * x)
    assert seen == [True, True]


def test_structures_and_whole_numbers_pass(normal):
    class Pick(keras.layers.Layer):
        def call(self, inputs):
            return {"sum": inputs["x"] + tf.cast(inputs["n"], tf.float32), "n": inputs["n"] + 1}

    x = normal([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = layers.Recompute(Pick())({"x": x, "n": tf.constant([1, 2])})
    assert out["n"].numpy().tolist() == [2, 3]
    assert tape.gradient(out["sum"], x).numpy().tolist() == [1, 1]


def test_masks_reach_the_layer_and_come_out(normal):
    recurrent = keras.layers.LSTM(3, return_sequences=True)
    x, mask = normal([2, 4, 2]), tf.constant([[True, True, False, False], [True] * 4])
    out = layers.Recompute(recurrent)(x, mask=mask)
    assert np.allclose(out, recurrent(x, mask=mask), atol=1e-6)
    masked = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]]))
    assert layers.Recompute(keras.layers.Activation("tanh"))(masked)._keras_mask.numpy().tolist() == [[False, True]]


def test_what_is_no_layer_is_refused():
    with pytest.raises(ValueError, match="`layer` must be a Keras layer"):
        layers.Recompute(lambda x: x)


@pytest.mark.parametrize("kind", [layers.RecomputationCheckpoint, layers.AssumeEqualAcrossReplicas])
def test_identities_return_structures_and_masks(kind, normal):
    x = {"a": normal([2]), "b": [normal([3]), tf.constant([1])]}
    for one, other in zip(tf.nest.flatten(kind()(x)), tf.nest.flatten(x), strict=True):
        assert np.array_equal(one, other)
    masked = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]]))
    assert kind()(masked)._keras_mask.numpy().tolist() == [[False, True]]


def test_inplace_must_be_a_bool():
    with pytest.raises(TypeError, match="`inplace`"):
        layers.AssumeEqualAcrossReplicas(inplace=1)


def test_checkpoint_marks_its_inputs_for_the_pipeline():
    program = tf.function(layers.RecomputationCheckpoint()).get_concrete_function(tf.TensorSpec([2]))
    marked = [op for op in program.graph.get_operations() if "recomputation_checkpoint" in op.name]
    assert [op.type for op in marked] == ["Identity"]
