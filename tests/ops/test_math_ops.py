"""Products in parts against `tf.matmul`, and sums of segments against TensorFlow's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops.math_ops import segment_sum, serialized_matmul

DIMENSIONS = ["a_columns", "a_rows_b_columns", "b_rows"]


def operands(batch=(), transpose_a=False, transpose_b=False):
    random = np.random.default_rng(0)
    a = random.normal(size=[*batch, *([6, 4] if transpose_a else [4, 6])])
    b = random.normal(size=[*batch, *([8, 6] if transpose_b else [6, 8])])
    return tf.constant(a, tf.float32), tf.constant(b, tf.float32)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_product_and_gradients_are_those_of_matmul(dimension, transposed, batch):
    a, b = operands(batch, *transposed)
    flags = dict(zip(("transpose_a", "transpose_b"), transposed, strict=True))

    def both(product):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            result = product()
            loss = tf.reduce_sum(tf.sin(result))
        return result, *tape.gradient(loss, [a, b])

    actual = both(lambda: serialized_matmul(a, b, 2, dimension, **flags))
    for one, other in zip(actual, both(lambda: tf.matmul(a, b, **flags)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_compiled_product_has_the_parts(dimension):
    program = tf.function(lambda a, b: serialized_matmul(a, b, 2, dimension), jit_compile=True)
    np.testing.assert_allclose(program(*operands()), tf.matmul(*operands()), rtol=1e-5, atol=1e-5)
    hlo = program.experimental_get_compiler_ir(*operands())(stage="hlo")
    assert len(re.findall(r" dot\(", hlo)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*operands(), 5, "a_columns"), "`serialization_factor=5` must divide .* size 4"),
        ((*operands(), 5, "a_rows_b_columns"), "`serialization_factor=5` must divide .* size 6"),
        ((*operands(), 5, "b_rows"), "`serialization_factor=5` must divide .* size 8"),
        ((*operands(), 0, "b_rows"), "`serialization_factor` must be 1 or more"),
        ((tf.ones([2]), tf.ones([2]), 1, "rows"), r"3 faults:[^$]*'rows'[^$]*`a`[^$]*`b`"),
        ((tf.ones([2, 6]), tf.ones([4, 2]), 1, "b_rows"), "`a` has 6 columns and `b` has 4 rows"),
    ],
)
def test_products_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        serialized_matmul(*arguments)


@pytest.mark.parametrize("ids", [[0, 0, 1, 3], [2, 2, 2, 2]])
def test_segments_are_summed_up(ids):
    data = tf.constant(np.arange(12).reshape(4, 3), tf.float32)
    result = tf.function(lambda: segment_sum(data, ids, 5), jit_compile=True)()
    known = tf.math.segment_sum(data, ids)
    assert np.array_equal(result, np.pad(known, [(0, 5 - len(known)), (0, 0)]))


def test_gradient_of_a_sum_goes_to_each_row():
    data = tf.ones([3, 2])
    with tf.GradientTape() as tape:
        tape.watch(data)
        loss = tf.reduce_sum(segment_sum(data, [0, 1, 1], 2) * [[1.0], [2.0]])
    gradient: Any = tape.gradient(loss, data)
    assert gradient.numpy().tolist() == [[1, 1], [2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("ids", "count", "message"),
    [([0, 1], 2, "`segment_ids` has shape"), ([0, 1, 1], 0, "`num_segments`"), ([[0, 1, 1]], 2, "`segment_ids`")],
)
def test_segments_that_do_not_fit_are_refused(ids, count, message):
    with pytest.raises(ValueError, match=message):
        segment_sum(tf.ones([3, 2]), ids, count)


def test_segments_of_unknown_shape_are_refused():
    program = tf.function(lambda x: segment_sum(x, [0], 1), input_signature=[tf.TensorSpec([None])])
    with pytest.raises(ValueError, match="the shape of `data` must be known"):
        program.get_concrete_function()
