"""Captured gradients equal the gradients of a plain tape, and recomputed layers have the same results."""

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers
from tensorflow_ipu.ops.gradient_capture import (
    GradientCaptureContext,
    GradientCaptureTape,
    capture_upstream_gradients,
    num_gradient_collection_tapes,
)


@pytest.fixture
def x(normal):
    return normal([4, 3])


def test_tape_captures_what_comes_back_and_computes_what_a_tape_does(x):
    with GradientCaptureTape() as tape:
        tape.watch(x)
        y = tf.tanh(capture_upstream_gradients(x * x, tag="square"))
    assert np.allclose(tape.gradient(y, x), 2 * x * (1 - y * y))
    (captured,) = tape.captured_gradients.pop("square")
    assert np.allclose(captured, 1 - y * y)


def test_innermost_context_captures_for_any_tape(x):
    with tf.GradientTape() as tape, GradientCaptureContext() as context:
        tape.watch(x)
        y = capture_upstream_gradients([x, {"twice": 2 * x}], tag="both")
        loss = tf.reduce_sum(3 * y[0]) + tf.reduce_sum(5 * y[1]["twice"])
    assert context.captured_gradients == {}
    assert np.allclose(tape.gradient(loss, x), 13)
    assert [set(np.unique(gradient)) for gradient in context.captured_gradients["both"]] == [{3}, {5}]
    with GradientCaptureTape() as outer:
        outer.watch(x)
        with GradientCaptureContext() as inner:
            assert num_gradient_collection_tapes() == 2
            y = capture_upstream_gradients(x)
    assert num_gradient_collection_tapes() == 0
    outer.gradient(y, x)
    assert (list(inner.captured_gradients), outer.captured_gradients) == ([""], {})


def test_persistent_tape_has_the_gradients_of_the_last_call_and_misuse_is_refused(x, refused):
    with GradientCaptureTape(persistent=True) as tape:
        tape.watch(x)
        y = capture_upstream_gradients(x, "it")
        total, triple = tf.reduce_sum(y), 3 * tf.reduce_sum(y)
    for target, value in ((triple, 3), (total, 1)):
        tape.gradient(target, x)
        assert set(np.unique(tape.captured_gradients["it"])) == {value}
    refused(RuntimeError, "within a `GradientCaptureTape`", capture_upstream_gradients, x)
    with GradientCaptureContext() as context:
        capture_upstream_gradients(x, "it")
        refused(ValueError, "`tag='it'` is that of another call", capture_upstream_gradients, x, "it")
    with pytest.raises(ValueError, match="cannot be set"):
        context.captured_gradients = {}


def in_a_context_around_repeat(x):
    def body(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(capture_upstream_gradients(x * x, "square") ** 2)
        return x - 0.01 * tape.gradient(y, x)

    with GradientCaptureContext() as context:
        result = ipu.loops.repeat(3, body, [x])
    return result, context.captured_gradients["square"][0]


def in_a_tape_around_a_loop(x):
    with GradientCaptureTape() as tape:
        tape.watch(x)
        _, y = tf.while_loop(
            lambda n, _: n < 3,
            lambda n, y: (n + 1, capture_upstream_gradients(y * y, "square") * 0.5),
            (0, x),
            maximum_iterations=3,
        )
    return tape.gradient(y, x), tape.captured_gradients["square"][0]


def in_a_branch(x):
    with GradientCaptureTape() as tape:
        tape.watch(x)
        y = tf.cond(x[0] > 0, lambda: capture_upstream_gradients(x * x, "square") * 3.0, lambda: x)
    return tape.gradient(y, x), tape.captured_gradients["square"][0]


def by_hand(x):
    """Computes the same with NumPy; the captured gradient is that of the square reached last in the backward pass."""
    y = [x]
    for _ in range(2):
        y.append(0.5 * y[-1] ** 2)
    begin, captured = x, x
    for _ in range(3):
        x, captured = x - 0.04 * x**3, 2 * x**2
    return x, captured, begin * y[1] * y[2], 0.5 * y[1] * y[2], 6 * begin, np.full(2, 3.0)


@pytest.mark.parametrize("compiled", [True, False], ids=["in a program", "on the host"])
def test_gradients_that_go_by_in_loops_and_branches_are_handed_out_around_them(compiled):
    x = tf.constant([1.0, 2.0])

    @tf.function(jit_compile=compiled, autograph=False)
    def traced(x):
        return *in_a_context_around_repeat(x), *in_a_tape_around_a_loop(x), *in_a_branch(x)

    for _ in range(2):  # The second run must not see gradients of the first.
        results = ipu.IPUStrategy().run(traced, [x]) if compiled else traced(x)
        for result, expected in zip(results, by_hand(np.array([1.0, 2.0])), strict=True):
            np.testing.assert_allclose(tf.reshape(result, [-1]), expected, rtol=1e-5)


def test_gradients_that_go_by_while_others_accumulate_are_handed_out():
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable([1.0, 2.0])
    optimizer = ipu.optimizers.GradientAccumulationOptimizerV2(tf.compat.v1.train.GradientDescentOptimizer(0.1), 2)

    def body(factor):
        loss = tf.reduce_sum(capture_upstream_gradients(weights * weights, "square")) * factor
        optimizer.apply_gradients(optimizer.compute_gradients(loss, [weights]))
        return factor + 1.0

    @tf.function(jit_compile=True)
    def program():
        with GradientCaptureContext() as context:
            ipu.loops.repeat(4, body, [tf.constant(1.0)])
        return context.captured_gradients["square"][0]

    np.testing.assert_allclose(strategy.run(program), [4.0, 4.0])


def test_a_branch_in_a_loop_has_its_gradient_and_one_of_unknown_shape_in_a_loop_is_refused(refused):
    @tf.function(autograph=False)
    def function(x):
        with GradientCaptureTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda n, _: n < 2,
                lambda n, y: (n + 1, tf.cond(y > 0, lambda: capture_upstream_gradients(y * y, "it"), lambda: y)),
                (0, x),
                maximum_iterations=2,
            )
        return tape.gradient(y, x)

    assert function(tf.constant(2.0)).numpy() == 32.0  # No gradient is captured outside of the loop.
    traced = tf.function(in_a_context_around_repeat, input_signature=[tf.TensorSpec([None])], autograph=False)
    refused(ValueError, r"gradients of static shape, .* of shape \(None,\); use `tf.ensure_shape`", traced, tf.ones(2))


def test_layers_capture_in_a_program_on_the_ipu(x):
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        hidden = layers.CaptureActivationGradients(keras.layers.Dense(5, activation="tanh"), tag="hidden")
        head = layers.CaptureUpstreamGradients(keras.layers.Dense(2), tag="head")

        @tf.function(jit_compile=True)
        def step(x):
            with GradientCaptureTape() as tape:
                loss = tf.reduce_sum(head(hidden(x)) ** 2)
            gradients = tape.gradient(loss, hidden.trainable_variables + head.trainable_variables)
            return gradients, tape.captured_gradients

        gradients, captured = strategy.run(step, args=(x,))
    (kernel, bias), (head_kernel, head_bias) = (
        [variable.numpy() for variable in layer.trainable_variables] for layer in (hidden, head)
    )
    activity = np.tanh(x @ kernel + bias)
    of_head = 2 * (activity @ head_kernel + head_bias)
    of_hidden = of_head @ head_kernel.T * (1 - activity**2)
    assert sorted(captured) == ["head", "hidden_activation"]
    np.testing.assert_allclose(captured["head"][0], of_head, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(captured["hidden_activation"][0], of_hidden, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients[0], x.numpy().T @ of_hidden, rtol=1e-4, atol=1e-5)


def test_wrapped_layers_compute_what_they_do_and_are_saved(tmp_path, x):
    inputs = keras.Input([3])
    wrappers = []
    for kind, tag in ((layers.CaptureUpstreamGradients, "one_cug"), (layers.CaptureActivationGradients, "other_cag")):
        dense = keras.layers.Dense(2, activation="relu", name=tag.partition("_")[0])
        dense(x)
        wrappers.append(kind(dense))
        assert wrappers[-1].name == wrappers[-1].tag == tag
        assert np.array_equal(wrappers[-1](x), dense(x))
    model = keras.Model(inputs, [layer(inputs) for layer in wrappers])
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded(x), model(x))
    assert [layer.tag for layer in loaded.layers[1:]] == ["one_cug", "other_cag"]


def test_layers_without_activations_and_what_is_no_layer_are_refused(refused):
    for layer in (keras.layers.Flatten(), keras.layers.LSTM(2), keras.layers.Dropout(0.5)):
        assert not layers.CaptureActivationGradients.layer_is_supported(layer)
        refused(ValueError, "has no activation of its own", layers.CaptureActivationGradients, layer)
    for kind in (layers.CaptureUpstreamGradients, layers.CaptureActivationGradients, layers.Recompute):
        refused(ValueError, "`layer` must be a Keras layer", kind, tf.tanh)


def block():
    """Returns layers that draw random values, that update averages, and that add losses."""
    first = keras.layers.Dense(16, activation="tanh", kernel_regularizer="l1")
    random, averages = keras.layers.Dropout(0.5, seed=3), keras.layers.BatchNormalization()
    last = keras.layers.Dense(4, activation="tanh", activity_regularizer="l2")
    return keras.Sequential([keras.layers.Input([8]), first, random, averages, last])


def train(model, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x, training=True) ** 2) + tf.add_n(model.losses)
    return loss, tape.gradient(loss, [x, *[variable.value for variable in model.trainable_variables]])


def test_recomputed_block_trains_as_the_block_does_eagerly_and_compiled(normal, assert_close):
    plain = block()
    inner = keras.models.clone_model(plain)
    inner.set_weights(plain.get_weights())
    steps = [lambda model=model: train(model, normal([5, 8])) for model in (plain, layers.Recompute(inner))]
    # The compiled steps continue with the random states and averages of the eager steps.
    for pair in (steps, [tf.function(step, jit_compile=True) for step in steps]):
        for _ in range(2):
            expected, actual = (step() for step in pair)
            assert_close(actual, expected, 1e-5, 1e-6)
        assert_close(inner.get_weights(), plain.get_weights(), 1e-5, 1e-6)


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
    training_values = []

    class Watch(keras.layers.Layer):
        def call(self, x, training=None):
            training_values.append(training)
            return x * x

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.watch = Watch()

        def call(self, x):  # It has no argument `training` itself.
            return self.watch(x)

    model = layers.Recompute(Outer())
    x = normal([2, 3])
    model(x)
    training_values.clear()
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = model(x, training=True)
    assert np.array_equal(tape.gradient(out, x), 2 * x)
    assert training_values == [True, True]


def test_structures_whole_numbers_and_masks_pass(normal):
    class Pick(keras.layers.Layer):
        def call(self, inputs):
            return {"sum": inputs["x"] + tf.cast(inputs["n"], tf.float32), "n": inputs["n"] + 1}

    x = normal([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = layers.Recompute(Pick())({"x": x, "n": tf.constant([1, 2])})
    assert out["n"].numpy().tolist() == [2, 3]
    assert tape.gradient(out["sum"], x).numpy().tolist() == [1, 1]
    recurrent = keras.layers.LSTM(3, return_sequences=True)
    x, mask = normal([2, 4, 2]), tf.constant([[True, True, False, False], [True] * 4])
    out = layers.Recompute(recurrent)(x, mask=mask)
    assert np.allclose(out, recurrent(x, mask=mask), atol=1e-6)


def test_identities_return_structures_and_masks_come_out(normal, assert_close, refused):
    x = {"a": normal([2]), "b": [normal([3]), tf.constant([1])]}
    identities = [layers.RecomputationCheckpoint(), layers.AssumeEqualAcrossReplicas()]
    for layer in identities:
        assert_close(layer(x), x, 0, 0)
    masked = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]]))
    for layer in (*identities, layers.Recompute(keras.layers.Activation("tanh")), layers.Dropout(0.5)):
        assert layer(masked)._keras_mask.numpy().tolist() == [[False, True]]
    refused(TypeError, "`inplace`", layers.AssumeEqualAcrossReplicas, inplace=1)


def test_checkpoint_marks_its_inputs_for_the_pipeline():
    program = tf.function(layers.RecomputationCheckpoint()).get_concrete_function(tf.TensorSpec([2]))
    marked = [op for op in program.graph.get_operations() if "recomputation_checkpoint" in op.name]
    assert [op.type for op in marked] == ["Identity"]
