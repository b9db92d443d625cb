"""Connectionist temporal classification against TensorFlow's functions and the definition."""

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
    """The probability of each sequence of labels, a dict for each element of the batch, by trying all paths."""
    probs = tf.nn.softmax(LOGITS).numpy().astype(np.float64)
    results = []
    for row, length in enumerate(LENGTHS.numpy()):
        found = {}
        for path in itertools.product(range(CLASSES), repeat=int(length)):
            labels = tuple(key for key, _ in itertools.groupby(path) if key != blank)
            found[labels] = found.get(labels, 0) + np.prod([probs[step, row, label] for step, label in enumerate(path)])
        results.append(found)
    return results


def both(function, data):
    with tf.GradientTape() as tape:
        tape.watch(data)
        loss = function(data)
        total = tf.reduce_sum(tf.sin(loss))
    return loss, tape.gradient(total, data)


@pytest.mark.parametrize("blank", [0, -1])
def test_loss_and_gradient_are_those_of_tensorflow(blank):
    labels = LABELS if blank == 0 else tf.maximum(LABELS - 1, 0)
    expected = both(lambda x: tf.nn.ctc_loss(labels, x, LABEL_LENGTHS, LENGTHS, blank_index=blank % CLASSES), LOGITS)
    ours = both(lambda x: nn_ops.ctc_loss_v2(labels, x, LABEL_LENGTHS, LENGTHS, blank), LOGITS)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def with_log_probs(log_probs):
    return nn_ops.ctc_loss_with_log_probs(LABELS, log_probs, LABEL_LENGTHS, LENGTHS, 0)


def test_loss_is_that_of_the_definition_and_of_log_probabilities_that_of_their_logits():
    """Adding a number to the logarithms of all classes of a step takes it from the loss."""
    loss, gradient = both(lambda x: nn_ops.ctc_loss_v2(LABELS, x, LABEL_LENGTHS, LENGTHS, 0), LOGITS)
    wanted = [tuple(row[:length]) for row, length in zip(LABELS.numpy(), LABEL_LENGTHS.numpy(), strict=True)]
    expected = [-np.log(found[labels]) for found, labels in zip(probabilities(0), wanted, strict=True)]
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    shifted = with_log_probs(tf.nn.log_softmax(LOGITS) + 0.5)
    np.testing.assert_allclose(shifted, loss - 0.5 * tf.cast(LENGTHS, tf.float32), rtol=1e-4)
    behind, of_behind = both(lambda x: with_log_probs(tf.nn.log_softmax(x)), LOGITS)
    np.testing.assert_allclose(behind, loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_behind, gradient, rtol=1e-4, atol=1e-5)


def test_gradient_of_log_probabilities_counts_the_softmax_in():
    """It is that of the logits, as a program for the machine gets it; `log_softmax` passes it on unchanged."""

    def ours():
        return both(with_log_probs, tf.nn.log_softmax(LOGITS))

    expected = both(lambda x: tf.nn.ctc_loss(LABELS, x, LABEL_LENGTHS, LENGTHS, blank_index=0), LOGITS)
    for actual in (tf.function(ours, jit_compile=True)(), ours()):
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


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
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    for left, right in zip(*expected[:2], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)


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
    for row, found in enumerate(probabilities(blank % CLASSES)):
        best = sorted(found.items(), key=lambda item: -item[1])[:4]
        np.testing.assert_allclose(scores[row], [np.log(value) for _, value in best], rtol=1e-4)
        for path, (wanted, _) in enumerate(best):
            assert tuple(labels[row, path, : lengths[row, path]].numpy()) == wanted


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
    words, unknown = r"`logits` has the shape \(5, 3, None\).*`tf\.ensure_shape`", tf.TensorSpec([STEPS, BATCH, None])
    refused(ValueError, words, loss.get_concrete_function, unknown)
