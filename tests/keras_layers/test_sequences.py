"""Layers of connectionist temporal classification, and attention between padded sequences, against their definitions."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras import layers
from tensorflow_ipu.keras._keras import keras

LABELS = tf.constant([[1, 2, 0], [3, 3, 1]])
LABEL_LENGTH = tf.constant([2, 3])
LENGTH = tf.constant([6, 5])


@pytest.fixture
def logits(normal):
    return 2 * normal([6, 2, 4])


def test_loss_is_that_of_tensorflow(logits):
    expected = tf.nn.ctc_loss(LABELS, logits, LABEL_LENGTH, LENGTH, blank_index=0)
    of_logits = layers.CTCLoss(from_logits=True)(LABELS, logits, LABEL_LENGTH, LENGTH)
    of_probabilities = layers.CTCLoss()(LABELS, tf.nn.log_softmax(logits), LABEL_LENGTH, LENGTH)
    assert np.allclose(of_logits, expected, atol=1e-5)
    assert np.allclose(of_probabilities, expected, atol=1e-5)


def test_inference_finds_the_paths_of_tensorflow_and_predictions_are_the_best_one_with_blanks(logits):
    # TensorFlow's blank is the last class.
    paths, expected = tf.nn.ctc_beam_search_decoder(logits, LENGTH, 50, 3)
    scores, lengths, labels = layers.CTCInferenceLayer(-1, 50, 3, from_logits=True)(logits, LENGTH)
    assert np.allclose(scores, expected, atol=1e-5)
    for path in range(3):
        expected_labels = tf.sparse.to_dense(paths[path], -1).numpy()
        for row in range(2):
            path_labels = labels[row, path, : lengths[row, path]].numpy().tolist()
            assert path_labels == [label for label in expected_labels[row] if label >= 0]
    _, lengths, labels = layers.CTCInferenceLayer(from_logits=True)(logits, LENGTH)
    best = layers.CTCPredictionsLayer()(tf.nn.log_softmax(logits), LENGTH)
    assert best.shape == [2, 6]
    for row in range(2):
        length = int(lengths[row, 0])
        assert best[row, :length].numpy().tolist() == labels[row, 0, :length].numpy().tolist()
        assert set(best[row, length:].numpy()) <= {0}


def test_model_of_the_loss_compiles_trains_and_is_saved(tmp_path, logits):
    shapes = {"labels": [3], "label_length": [], "length": []}
    inputs = {name: keras.Input(shape, dtype="int32", name=name) for name, shape in shapes.items()}
    inputs["data"] = keras.Input(batch_shape=[6, 2, 4], name="data")
    dense = keras.layers.Dense(4)(inputs["data"])
    loss = layers.CTCLoss(from_logits=True)(inputs["labels"], dense, inputs["label_length"], inputs["length"])
    model = keras.Model(inputs, loss)
    batch = {"labels": LABELS, "label_length": LABEL_LENGTH, "length": LENGTH, "data": logits}

    @tf.function(jit_compile=True)
    def step():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(batch))
        gradients: Any = tape.gradient(total, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.01 * gradient)
        return total

    losses = [float(step()) for _ in range(5)]
    assert losses[-1] < 0.9 * losses[0]
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    assert np.allclose(loaded(batch), model(batch), atol=1e-5)


def test_configuration_recreates_the_layer_and_bad_arguments_are_refused(logits, refused):
    for kind in (layers.CTCInferenceLayer, layers.CTCPredictionsLayer):
        layer = kind(1, 5, 2, True, name="mine")
        assert kind.from_config(layer.get_config()).get_config() == layer.get_config()
    for paths in (0, 6):
        refused(ValueError, "`top_paths=", layers.CTCInferenceLayer, beam_width=5, top_paths=paths)
    loss, arguments = layers.CTCLoss(4), (LABELS, logits, LABEL_LENGTH, LENGTH)
    refused(ValueError, "`blank_index=4` is out of range", loss, *arguments)


LENGTHS, OTHER_LENGTHS = tf.constant([[3], [5], [1]]), tf.constant([[4], [0], [2]])
MASK = tf.constant([[True, True], [True, False], [False, True]])
OPTIONS = {"num_attention_heads": 2, "attention_head_size": 4, "use_scale": True}
OPTIONS |= {"qkv_activation": "tanh", "output_activation": "relu"}
OPTIONS |= {"embedding_bias_initializer": keras.initializers.RandomNormal(seed=4), "output_bias_initializer": "normal"}


@pytest.fixture
def inputs(normal):
    return [normal([3, 5]), LENGTHS, normal([3, 4], seed=1), OTHER_LENGTHS]


def make(**options):
    return layers.EffectiveTransformer(6, 3, **{**OPTIONS, **options})


def by_definition(layer, inputs, mask=None):
    """Computes the output and the context with NumPy, head by head and sequence by sequence."""
    sequences, lengths, to_sequences, to_lengths = (np.asarray(tensor) for tensor in inputs)
    context = np.zeros([3, 5, 2, 4])

    def embed(dense, sequence, length):
        kernel, bias = dense.get_weights()
        out = np.tanh(sequence[:, None] @ kernel + bias)
        out[length[0] :] = 0
        return out.reshape(len(sequence), 2, 4)

    for i in range(3):
        query = embed(layer._query, sequences[i], lengths[i])
        key, value = (embed(dense, to_sequences[i], to_lengths[i]) for dense in (layer._key, layer._value))
        for head in range(2):
            scores = query[:, head] @ key[:, head].T * layer.scale.numpy()
            share = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            context[i, :, head] = share @ value[:, head] * (1 if mask is None else float(mask[i, head]))
    kernel, bias = layer._output.get_weights()
    output = np.maximum(context.reshape(3, -1) @ kernel + bias, 0)
    if layer._norm is not None:
        output = (output - output.mean(1, keepdims=True)) / np.sqrt(output.var(1, keepdims=True) + 1e-3)
    return output, context


@pytest.mark.parametrize("norm", [False, True])
def test_output_and_context_are_those_of_the_definition(inputs, assert_close, norm):
    layer = make(layer_norm_output=norm)
    for mask in (None, MASK):
        arguments = inputs if mask is None else [*inputs, mask]
        layer(arguments)
        assert layer.scale is not None
        layer.scale.assign([0.5])
        assert_close(layer(arguments), by_definition(layer, inputs, mask), 1e-4, 1e-4)


def test_layer_on_the_ipu_and_with_other_packs_computes_what_it_does_eagerly(eager, on_ipu, inputs, assert_close):
    layer, packed = make(), layers.EffectiveTransformer(6, 8, sequences_per_iter=8, **OPTIONS)
    for transformer in (layer, packed):
        transformer(inputs)
    packed.set_weights(layer.get_weights())
    assert_close(layer(inputs), packed(inputs), 0, 0)
    assert_close(on_ipu(make, inputs, layer.get_weights()), eager(layer, inputs), 1e-4, 1e-5)


def test_elements_are_dropped_in_training_and_layers_for_queries_keys_and_values_start_apart(inputs):
    for name in ("attention_dropout_prob", "output_dropout_prob"):
        layer = make(layer_norm_output=False, **{name: 0.5})
        still = layer(inputs, training=False)
        assert np.array_equal(layer(inputs, training=False)[0], still[0])
        assert not np.array_equal(layer(inputs, training=True)[0], still[0])
        kernels = [dense.get_weights()[0].tobytes() for dense in (layer._query, layer._key, layer._value)]
        assert len(set(kernels)) == 3


def test_model_is_saved_and_loaded(tmp_path, inputs):
    symbols = [keras.Input(tensor.shape[1:], dtype=tensor.dtype.name) for tensor in inputs]
    model = keras.Model(symbols, make()(symbols))
    assert [output.shape for output in model.outputs] == [(None, 6), (None, 5, 2, 4)]
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    for actual, expected in zip(loaded(inputs), model(inputs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert loaded.layers[-1].get_config() == model.layers[-1].get_config()


def test_sizes_and_inputs_that_do_not_go_together_are_refused(inputs, refused):
    with pytest.raises(ValueError, match="`sequences_per_iter=4` must be at most `max_batch_size`, which is 3"):
        make(sequences_per_iter=4)
    for name in ("num_attention_heads", "attention_head_size", "sequences_per_iter"):
        refused(ValueError, f"`{name}` must be 1 or more", make, **{name: 0})
    layer = make()
    layer(inputs)
    sequences, lengths, to_sequences, to_lengths = inputs
    for wrong, message in [
        (inputs[:3], "`inputs` must be a list of four or five"),
        ([sequences[0], lengths, to_sequences, to_lengths], "must have rank 2"),
        ([sequences, lengths, to_sequences[:2], to_lengths], "as many `from_sequences` as `to_sequences`"),
        ([sequences, lengths[:2], to_sequences, to_lengths], "`from_sequence_lengths` must have a length for each"),
        ([*inputs, tf.ones([3, 3], tf.bool)], "`q_mask` must have shape"),
        ([sequences, lengths, tf.cast(to_sequences, tf.float16), to_lengths], "must have the same type"),
    ]:
        refused(ValueError, message, layer.call, wrong)
