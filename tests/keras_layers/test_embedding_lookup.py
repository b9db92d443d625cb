"""Embeddings: masks, lengths, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras import layers

WORDS = tf.constant([[1, 2, 0], [3, 0, 0]])


def test_zero_stands_for_padding_if_so_wished():
    out = layers.Embedding(4, 2, mask_zero=True)(WORDS)
    assert out._keras_mask.numpy().tolist() == (WORDS.numpy() != 0).tolist()
    assert not hasattr(layers.Embedding(4, 2)(WORDS), "_keras_mask")


def test_masked_words_do_not_reach_the_recurrent_layer_behind():
    table, recurrent = layers.Embedding(4, 2, mask_zero=True), layers.PopnnLSTM(3)
    padded = recurrent(table(WORDS))
    assert np.allclose(padded[1], recurrent(table(tf.constant([[3]])))[0], atol=1e-6)


def test_other_numbers_are_taken_for_whole_ones():
    layer = layers.Embedding(4, 2)
    assert np.array_equal(layer(WORDS), layer(tf.cast(WORDS, tf.float32)))
    assert np.array_equal(layer(WORDS), layer(tf.cast(WORDS, tf.int64)))


def test_promise_that_words_ascend_changes_nothing():
    layer = layers.Embedding(4, 2)
    assert np.array_equal(layer(tf.constant([0, 1, 3]), inputs_are_sorted=True), layer(tf.constant([0, 1, 3])))


@pytest.mark.parametrize("length", [3, [3], (None,)])
def test_inputs_of_the_length_pass(length):
    assert layers.Embedding(4, 2, input_length=length)(WORDS).shape == [2, 3, 2]


@pytest.mark.parametrize("length", [4, [3, 1]])
def test_inputs_of_another_length_are_refused(length):
    with pytest.raises(ValueError, match="`input_length`"):
        layers.Embedding(4, 2, input_length=length)(WORDS)


@pytest.mark.parametrize("factor", [0, 3])
def test_factor_that_makes_no_equal_parts_is_refused(factor):
    with pytest.raises(ValueError, match="`serialization_factor"):
        layers.Embedding(4, 2, serialization_factor=factor)


def test_table_can_be_given():
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert np.array_equal(layers.Embedding(4, 2, weights=[table])(WORDS), table[WORDS.numpy()])


def test_losses_of_table_and_results_count():
    layer = layers.Embedding(4, 2, embeddings_regularizer="l2", activity_regularizer="l2")
    layer(WORDS)
    assert len(layer.losses) == 2
