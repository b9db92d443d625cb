"""Lookups against `tf.gather`."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops.embedding_ops import embedding_lookup

TABLE = tf.constant(np.random.default_rng(0).normal(size=[12, 3]), tf.float32)
IDS = tf.constant([[0, 5, 11, 5], [4, 3, 3, 1]])


@pytest.mark.parametrize(("factor", "compiled"), [(1, False), (12, False), (4, True)])
def test_rows_and_gradients_are_those_of_gather(factor, compiled):
    def both(lookup):
        with tf.GradientTape() as tape:
            tape.watch(TABLE)
            rows = lookup(TABLE, IDS)
            loss = tf.reduce_sum(rows * rows * [1.0, 2.0, 3.0])
        return rows, tf.convert_to_tensor(tape.gradient(loss, TABLE))

    def ours():
        return both(lambda table, ids: embedding_lookup(table, ids, factor))

    rows, gradient = tf.function(ours, jit_compile=True)() if compiled else ours()
    expected_rows, expected_gradient = both(tf.gather)
    assert np.array_equal(rows, expected_rows)
    assert np.allclose(gradient, expected_gradient, atol=1e-6)
    variable = tf.Variable(TABLE)
    with tf.GradientTape() as tape:
        rows = embedding_lookup(variable, IDS, factor, indices_are_sorted=True)
    assert np.array_equal(rows, tf.gather(TABLE, IDS))
    assert tape.gradient(rows, variable) is not None


@pytest.mark.parametrize(("shape", "ids"), [([], 3), ([], [1, 2]), ([2, 2], 3), ([2, 2], [[[1]], [[2]]])])
def test_shapes_are_those_of_gather(shape, ids):
    table = tf.ones([12, *shape], tf.int32)
    for factor in (1, 3):
        assert embedding_lookup(table, ids, factor).shape == tf.gather(table, ids).shape


@pytest.mark.parametrize(("dtype", "id_dtype"), [(tf.float16, tf.int32), (tf.float32, tf.int64), (tf.int32, tf.uint8)])
def test_types_are_kept(dtype, id_dtype):
    table = tf.cast(tf.reshape(tf.range(12), [6, 2]), dtype)
    rows = embedding_lookup(table, tf.cast([5, 0, 2], id_dtype), 3)
    assert rows.dtype == dtype
    assert rows.numpy().tolist() == [[10, 11], [0, 1], [4, 5]]


def test_table_is_used_in_as_many_parts_as_asked_for():
    program = tf.function(lambda ids: embedding_lookup(TABLE, ids, 4), jit_compile=True)
    hlo = program.experimental_get_compiler_ir(IDS)(stage="hlo")
    assert len(re.findall(r" gather\(", hlo)) == 4


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([TABLE, TABLE], IDS), TypeError, "`params` must be one tensor"),
        ((TABLE, [0.5]), TypeError, "`ids` must be integers"),
        ((TABLE, IDS, 1.5), TypeError, "`serialization_factor`"),
        ((TABLE, IDS, 1, 1), TypeError, "`indices_are_sorted`"),
        ((TABLE, IDS, 0), ValueError, "`serialization_factor.*0`"),
        ((TABLE, IDS, 5), ValueError, "`serialization_factor.*5`"),
        ((tf.constant(1.0), IDS), ValueError, "`params` must have rows"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        embedding_lookup(*arguments)
