"""Recurrent layers in the style of TensorFlow 1, compared with Keras layers of the same weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import rnn_ops

TIME, BATCH, SIZE, UNITS = 5, 3, 2, 4
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=[TIME, BATCH, SIZE]).astype(np.float32)
STATES = [RANDOM.normal(size=[BATCH, UNITS]).astype(np.float32) for _ in range(2)]
LENGTHS = [5, 2, 3]
ATTENTION = RANDOM.uniform(size=[TIME, BATCH]).astype(np.float32)


def in_order(values, count):
    """Reorders the gates along the last dimension, from the SDK's order to the order of Keras."""
    parts = np.split(np.asarray(values), count, axis=-1)
    return np.concatenate([parts[index] for index in (1, 0, 2, 3)[:count]], axis=-1)


def keras_twin(layer, **options):
    """Returns a Keras layer with the weights of `layer`."""
    kind, gates = (keras.layers.LSTM, 4) if isinstance(layer, rnn_ops.PopnnLSTM) else (keras.layers.GRU, 3)
    twin = kind(UNITS, return_sequences=True, return_state=True, **options)
    twin.build([BATCH, TIME, SIZE])
    biases = np.asarray(layer.biases)
    flat = biases.reshape(-1) if biases.ndim == 2 else biases.transpose(1, 0, 2).reshape(2, -1)
    twin.set_weights([in_order(weights, gates) for weights in (layer.kernel[:SIZE], layer.kernel[SIZE:], flat)])
    return twin


@pytest.mark.parametrize(
    ("kind", "options"),
    [(rnn_ops.PopnnLSTM, {}), (rnn_ops.PopnnGRU, {"reset_after": False}), (rnn_ops.PopnnGRU, {"reset_after": True})],
)
def test_outputs_states_and_gradients_are_keras(kind, options, strategy):
    lstm = kind is rnn_ops.PopnnLSTM
    with strategy.scope():
        initializer = tf.random_normal_initializer(seed=1)
        layer = kind(UNITS, bias_initializer=initializer, recurrent_activation="sigmoid", **options)

    @tf.function(jit_compile=True)
    def program(x, states):
        states = rnn_ops.LSTMStateTuple(*states) if lstm else states[0]
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs, last = layer(x, states)
            loss = tf.reduce_sum(tf.sin(outputs))
        return outputs, tf.nest.flatten(last), tape.gradient(loss, [x, *layer.trainable_variables])

    args = (tf.constant(X), list(map(tf.constant, STATES)))
    outputs, last, (x_gradient, kernel_gradient, bias_gradient) = strategy.run(program, args)
    twin = keras_twin(layer, **options)
    x = tf.constant(X.transpose(1, 0, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        expected, *expected_last = twin(x, initial_state=STATES[::-1] if lstm else STATES[:1])
        loss = tf.reduce_sum(tf.sin(expected))
    gradients = tape.gradient(loss, [x, *(weight.value for weight in twin.weights)])
    np.testing.assert_allclose(outputs, tf.transpose(expected, [1, 0, 2]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last, expected_last[::-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(x_gradient, tf.transpose(gradients[0], [1, 0, 2]), rtol=1e-3, atol=1e-5)
    kernel_gradients = np.concatenate([gradients[1], gradients[2]])
    np.testing.assert_allclose(in_order(kernel_gradient, 4 if lstm else 3), kernel_gradients, rtol=1e-3, atol=1e-5)
    assert bias_gradient.shape == layer.canonical_bias_shapes


def test_sequences_end_where_their_lengths_say(strategy):
    with strategy.scope():
        layers = [kind(UNITS) for kind in (rnn_ops.PopnnDynamicLSTM, rnn_ops.PopnnDynamicGRU)]
    program = tf.function(lambda x: [layer(x, LENGTHS) for layer in layers], jit_compile=True)
    for layer, options, (outputs, last) in zip(
        layers, ({}, {"reset_after": False}), strategy.run(program, (tf.constant(X),)), strict=True
    ):
        twin = keras_twin(layer, **options)
        for row, length in enumerate(LENGTHS):
            expected, *expected_last = twin(X.transpose(1, 0, 2)[row : row + 1, :length])
            np.testing.assert_allclose(outputs[:length, row], expected[0], rtol=1e-4, atol=1e-5)
            assert not np.any(outputs[length:, row])
            for state, reference in zip(tf.nest.flatten(last), expected_last[::-1], strict=True):
                np.testing.assert_allclose(state[row], reference[0], rtol=1e-4, atol=1e-5)


def attended(layer):
    """Computes the definition of the layer in NumPy."""
    kernel, biases = np.asarray(layer.kernel), np.asarray(layer.biases)
    outputs, state = np.zeros([TIME, BATCH, UNITS]), STATES[0]
    for time in range(TIME):
        gates = np.concatenate([X[time], state], 1) @ kernel[:, : 2 * UNITS] + biases[:2].reshape(-1)
        reset, update = np.split(1 / (1 + np.exp(-gates)), 2, axis=1)
        candidate = np.tanh(np.concatenate([X[time], reset * state], 1) @ kernel[:, 2 * UNITS :] + biases[2])
        update *= 1 - ATTENTION[time][:, np.newaxis]
        is_within = (time < np.array(LENGTHS))[:, np.newaxis]
        new_state = update * state + (1 - update) * candidate
        state = np.where(is_within, new_state, state)
        outputs[time] = np.where(is_within, new_state, 0)
    return outputs


def test_attention_keeps_less_of_the_state():
    layer = rnn_ops.PopnnAUGRU(UNITS)
    outputs, last = layer(X, LENGTHS, ATTENTION, STATES[0])
    np.testing.assert_allclose(outputs, attended(layer), rtol=1e-4, atol=1e-5)
    assert layer.biases.numpy()[:, 0].tolist() == [1, 1, 0]
    shapes = {variable.name.rpartition("/")[2]: variable.shape.as_list() for variable in layer.variables}
    assert shapes == {"kernel:0": [SIZE + UNITS, 3 * UNITS], "bias_r_u:0": [2, UNITS], "bias_c:0": [1, UNITS]}
    turned, _ = layer(X.transpose(1, 0, 2), LENGTHS, ATTENTION.T, STATES[0], time_major=False)
    np.testing.assert_array_equal(turned, outputs)
    np.testing.assert_array_equal(last[0], outputs[-1, 0])


def test_variables_have_the_names_and_shapes_of_the_sdk_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first, second = (rnn_ops.PopnnLSTM(UNITS, tf.float16, return_state=False) for _ in range(2))
        x = tf.constant(X, tf.float16)
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            [result] = ipu.compiler.compile(lambda x: second(first(x)), [x])
        names = [(variable.op.name, variable.shape.as_list()) for variable in tf.compat.v1.trainable_variables()]
        assert names == [
            ("popnn_lstm/kernel", [SIZE + UNITS, 4 * UNITS]), ("popnn_lstm/biases", [4, UNITS]),
            ("popnn_lstm_1/kernel", [2 * UNITS, 4 * UNITS]), ("popnn_lstm_1/biases", [4, UNITS]),
        ]  # fmt: skip
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(result).dtype == np.float16
    assert (first.num_layers, first.num_units, first.input_size, first.saveable) == (1, UNITS, SIZE, False)
    assert first.state_shape(3) == ([3, UNITS], [3, UNITS])
    assert rnn_ops.PopnnGRU(UNITS).state_shape(3) == [3, UNITS]


def test_half_precision_and_hard_gates_are_computed():
    layer = rnn_ops.PopnnGRU(UNITS, tf.float16, activation=tf.nn.relu, recurrent_activation="hard_sigmoid")
    outputs, last = layer(X.astype(np.float16))
    hard = {"activation": "relu", "recurrent_activation": lambda x: tf.clip_by_value(0.2 * x + 0.5, 0, 1)}
    twin = keras_twin(layer, reset_after=False, **hard)
    expected, *_ = twin(X.transpose(1, 0, 2))
    assert outputs.dtype == last.dtype == tf.float16
    np.testing.assert_allclose(outputs, tf.transpose(expected, [1, 0, 2]), rtol=2e-2, atol=2e-3)


def test_arguments_that_cannot_be_are_refused(refused):
    for call, kind, message in (
        (lambda: rnn_ops.PopnnLSTM(0, tf.int32, activation="elu"), ValueError, "(?s)3 faults:.*=0`.*`dtype`.*'elu'"),
        (lambda: rnn_ops.PopnnLSTM(2)(X, [1, 2]), ValueError, "must be an `LSTMStateTuple`"),
        (lambda: rnn_ops.PopnnGRU(2)(X[0]), ValueError, "must be"),
        (lambda: rnn_ops.PopnnGRU(2, reset_after=1), TypeError, "`reset_after`"),
        (lambda: rnn_ops.PopnnGRU(2).input_size, ValueError, "before the layer is built"),
    ):
        refused(kind, message, call)
