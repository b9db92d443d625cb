"""Connectionist temporal classification, compared with TensorFlow's functions and the definition."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops import nn_ops

STEPS, BATCH, CLASSES = 5, 3, 4
LOGITS = tf.constant(np.random.default_rng(0).normal(size=[STEPS, BATCH, CLASSES]) * 2, tf.float32)
LENGTHS = tf.constant([5, 3, 4])
LABELS = tf.constant([[1, 1, 2], [3, 0, 0], [2, 3, 0]])
LABEL_LENGTHS = tf.constant([3, 1, 2])


def probabilities(blank):
    """Returns the probabilities of all label sequences, a dict for each element of the batch, by trying all paths."""
    probs = tf.nn.softmax(LOGITS).numpy().astype(np.float64)
    results = []
    for row, length in enumerate(LENGTHS.numpy()):
        probability = {}
        for path in itertools.product(range(CLASSES), repeat=int(length)):
            labels = tuple(key for key, _ in itertools.groupby(path) if key != blank)
            probability[labels] = probability.get(labels, 0) + np.prod(
                [probs[step, row, label] for step, label in enumerate(path)]
            )
        results.append(probability)
    return results


def loss_and_gradient(function, data):
    with tf.GradientTape() as tape:
        tape.watch(data)
        loss = function(data)
        total = tf.reduce_sum(tf.sin(loss))
    return loss, tape.gradient(total, data)


@pytest.mark.parametrize("blank", [0, -1])
def test_loss_and_gradient_are_those_of_tensorflow(blank):
    labels = LABELS if blank == 0 else tf.maximum(LABELS - 1, 0)
    expected = loss_and_gradient(
        lambda x: tf.nn.ctc_loss(labels, x, LABEL_LENGTHS, LENGTHS, blank_index=blank % CLASSES), LOGITS
    )
    actual = loss_and_gradient(lambda x: nn_ops.ctc_loss_v2(labels, x, LABEL_LENGTHS, LENGTHS, blank), LOGITS)
    for result, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-5)


def with_log_probs(log_probs):
    return nn_ops.ctc_loss_with_log_probs(LABELS, log_probs, LABEL_LENGTHS, LENGTHS, 0)


def test_loss_is_that_of_the_definition_and_of_log_probabilities_that_of_their_logits():
    """A constant that is added to the log probabilities of a step is subtracted from the loss."""
    loss, gradient = loss_and_gradient(lambda x: nn_ops.ctc_loss_v2(LABELS, x, LABEL_LENGTHS, LENGTHS, 0), LOGITS)
    sequences = [tuple(row[:length]) for row, length in zip(LABELS.numpy(), LABEL_LENGTHS.numpy(), strict=True)]
    expected = [-np.log(probability[labels]) for probability, labels in zip(probabilities(0), sequences, strict=True)]
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    shifted = with_log_probs(tf.nn.log_softmax(LOGITS) + 0.5)
    np.testing.assert_allclose(shifted, loss - 0.5 * tf.cast(LENGTHS, tf.float32), rtol=1e-4)
    composed, composed_gradient = loss_and_gradient(lambda x: with_log_probs(tf.nn.log_softmax(x)), LOGITS)
    np.testing.assert_allclose(composed, loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(composed_gradient, gradient, rtol=1e-4, atol=1e-5)


def test_gradient_of_log_probabilities_counts_the_softmax_in():
    """The gradient is that of the logits, as on the machine. A `log_softmax` passes it on unchanged."""

    def program():
        return loss_and_gradient(with_log_probs, tf.nn.log_softmax(LOGITS))

    expected = loss_and_gradient(lambda x: tf.nn.ctc_loss(LABELS, x, LABEL_LENGTHS, LENGTHS, blank_index=0), LOGITS)
    for actual in (tf.function(program, jit_compile=True)(), program()):
        for result, reference in zip(actual, expected, strict=True):
            np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-5)


def test_graphs_of_tensorflow_1_have_the_same_results():
    logits, lengths, labels, label_lengths = (x.numpy() for x in (LOGITS, LENGTHS, LABELS, LABEL_LENGTHS))

    def results():
        x = tf.convert_to_tensor(logits)
        log_probs = tf.nn.log_softmax(x)
        return (
            nn_ops.ctc_beam_search_decoder(x, lengths, 20, 3),
            nn_ops.ctc_beam_search_decoder_with_log_probs(log_probs, lengths, 20, 3),
            nn_ops.ctc_loss_v2(labels, x, label_lengths, lengths, 0),
            nn_ops.ctc_loss_with_log_probs(labels, log_probs, label_lengths, lengths, 0),
        )

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        actual = session.run(results())
    expected = results()
    for result, reference in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-4)
    for from_logits, from_log_probs in zip(*expected[:2], strict=True):
        np.testing.assert_allclose(from_logits, from_log_probs, rtol=1e-5)


@pytest.mark.parametrize("loss", [nn_ops.ctc_loss_v2, nn_ops.ctc_loss_with_log_probs])
def test_half_precision_gives_what_was_asked_for_and_is_refused_for_single_logits(loss, refused):
    half = tf.cast(LOGITS, tf.float16)
    assert loss(LABELS, half, LABEL_LENGTHS, LENGTHS, 0).dtype == tf.float16
    assert loss(LABELS, half, LABEL_LENGTHS, LENGTHS, 0, tf.float32).dtype == tf.float32
    refused(ValueError, "`out_dtype` is float16", loss, LABELS, LOGITS, LABEL_LENGTHS, LENGTHS, 0, out_dtype=tf.float16)


@pytest.mark.parametrize(("blank", "compiled"), [(0, False), (2, False), (-1, True)])
def test_wide_search_finds_the_most_probable_sequences(blank, compiled):
    def search():
        return nn_ops.ctc_beam_search_decoder(LOGITS, LENGTHS, 300, 4, blank)

    scores, lengths, labels = tf.function(search, jit_compile=True)() if compiled else search()
    for row, probability in enumerate(probabilities(blank % CLASSES)):
        best = sorted(probability.items(), key=lambda item: -item[1])[:4]
        np.testing.assert_allclose(scores[row], [np.log(value) for _, value in best], rtol=1e-4)
        for path, (sequence, _) in enumerate(best):
            assert tuple(labels[row, path, : lengths[row, path]].numpy()) == sequence


def test_narrow_search_returns_sequences_it_kept_the_best_first():
    scores, lengths, _ = nn_ops.ctc_beam_search_decoder(LOGITS, LENGTHS, 3, 3)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert (lengths.numpy() <= LENGTHS.numpy()[:, np.newaxis]).all()


def test_classes_and_paths_that_do_not_exist_or_are_not_known_are_refused(refused):
    for blank, paths in ((4, 0), (-5, 4)):
        refused(ValueError, "`top_paths=", nn_ops.ctc_beam_search_decoder, LOGITS, LENGTHS, 3, paths)
        refused(ValueError, "`blank_index=", nn_ops.ctc_beam_search_decoder, LOGITS, LENGTHS, blank_index=blank)
        refused(ValueError, "`blank_index=", nn_ops.ctc_loss_v2, LABELS, LOGITS, LABEL_LENGTHS, LENGTHS, blank)
    loss = tf.function(lambda logits: nn_ops.ctc_loss_v2(LABELS, logits, LABEL_LENGTHS, LENGTHS, 0))
    message, unknown = r"`logits` has the shape \(5, 3, None\).*`tf\.ensure_shape`", tf.TensorSpec([STEPS, BATCH, None])
    refused(ValueError, message, loss.get_concrete_function, unknown)
