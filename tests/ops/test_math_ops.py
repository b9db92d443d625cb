"""Products in parts, sums of segments, histograms and barriers against TensorFlow and NumPy."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu.ops.control_flow_ops import barrier
from tensorflow_ipu.ops.math_ops import segment_sum, serialized_matmul
from tensorflow_ipu.ops.statistics_ops import fixed_width_bins, histogram, histogram_normalize, histogram_update

DIMENSIONS = ["a_columns", "a_rows_b_columns", "b_rows"]


def operands(batch=(), transpose_a=False, transpose_b=False):
    random = np.random.default_rng(0)
    a = random.normal(size=[*batch, *([6, 4] if transpose_a else [4, 6])])
    b = random.normal(size=[*batch, *([8, 6] if transpose_b else [6, 8])])
    return tf.constant(a, tf.float32), tf.constant(b, tf.float32)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_product_and_gradients_are_those_of_matmul(batch):
    def both(product):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            result = product()
            loss = tf.reduce_sum(tf.sin(result))
        return result, *tape.gradient(loss, [a, b])

    for transposed in itertools.product([False, True], repeat=2):
        a, b = operands(batch, *transposed)
        flags = dict(zip(("transpose_a", "transpose_b"), transposed, strict=True))
        expected = both(lambda: tf.matmul(a, b, **flags))  # noqa: B023
        for dimension in DIMENSIONS:
            actual = both(lambda: serialized_matmul(a, b, 2, dimension, **flags))  # noqa: B023
            for result, reference in zip(actual, expected, strict=True):
                np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)


def test_compiled_product_has_the_parts():
    @tf.function(jit_compile=True)
    def program(a, b):
        return [serialized_matmul(a, b, 2, dimension) for dimension in DIMENSIONS]

    for product in program(*operands()):
        np.testing.assert_allclose(product, tf.matmul(*operands()), rtol=1e-5, atol=1e-5)
    hlo = program.experimental_get_compiler_ir(*operands())(stage="hlo")
    assert len(re.findall(r" dot\(", hlo)) == 2 * len(DIMENSIONS)


def test_products_that_cannot_be_are_refused(refused):
    for arguments, message in (
        ((*operands(), 5, "a_columns"), "`serialization_factor=5` must divide .* size 4"),
        ((*operands(), 5, "a_rows_b_columns"), "`serialization_factor=5` must divide .* size 6"),
        ((*operands(), 5, "b_rows"), "`serialization_factor=5` must divide .* size 8"),
        ((*operands(), 0, "b_rows"), "`serialization_factor` must be 1 or more"),
        ((tf.ones([2]), tf.ones([2]), 1, "rows"), r"3 faults:[^$]*'rows'[^$]*`a`[^$]*`b`"),
        ((tf.ones([2, 6]), tf.ones([4, 2]), 1, "b_rows"), "`a` has 6 columns and `b` has 4 rows"),
    ):
        refused(ValueError, message, serialized_matmul, *arguments)


def test_segments_are_summed_up_and_the_gradient_goes_to_each_row(refused):
    data = tf.constant(np.arange(12).reshape(4, 3), tf.float32)
    segments = [0, 0, 1, 3], [2, 2, 2, 2]
    summed = tf.function(lambda: [segment_sum(data, ids, 5) for ids in segments], jit_compile=True)()
    for ids, result in zip(segments, summed, strict=True):
        reference = tf.math.segment_sum(data, ids)
        assert np.array_equal(result, np.pad(reference, [(0, 5 - len(reference)), (0, 0)]))
    data = tf.ones([3, 2])
    with tf.GradientTape() as tape:
        tape.watch(data)
        loss = tf.reduce_sum(segment_sum(data, [0, 1, 1], 2) * [[1.0], [2.0]])
    np.testing.assert_array_equal(tape.gradient(loss, data), [[1, 1], [2, 2], [2, 2]])
    for ids, count, message in (
        ([0, 1], 2, "`segment_ids` has shape"),
        ([0, 1, 1], 0, "`num_segments`"),
        ([[0, 1, 1]], 2, "`segment_ids`"),
    ):
        refused(ValueError, message, segment_sum, data, ids, count)
    program = tf.function(lambda x: segment_sum(x, [0], 1))
    refused(ValueError, "the shape of `data` must be known", program.get_concrete_function, tf.TensorSpec([None]))


VALUES = np.random.default_rng(0).normal(size=200).round(1)
LEVELS = np.array([-1.0, 0.0, 0.5, 2.0])


def counted(values, levels):
    return np.histogram(values, np.concatenate([[-np.inf], levels, [np.inf]]))[0]


def test_counts_are_numpys_in_a_program(strategy):
    @tf.function(jit_compile=True)
    def program(*inputs):
        results = []
        for x in inputs:
            levels = tf.cast(LEVELS, x.dtype)
            counts = histogram(x, levels)
            updated = histogram_update(counts, x[:10], levels, False)
            results.append((counts, histogram(x, levels, True), updated, fixed_width_bins(x, 5)))
        return results

    inputs = [VALUES.astype(dtype) for dtype in (np.float16, np.float32)]
    for values, results in zip(inputs, strategy.run(program, list(map(tf.constant, inputs))), strict=True):
        counts, absolute, updated, bins = results
        assert (counts.dtype, bins.dtype) == (tf.float32, values.dtype)
        levels = LEVELS.astype(values.dtype)
        assert np.array_equal(counts, counted(values, levels))
        assert np.array_equal(absolute, counted(abs(values), levels))
        assert np.array_equal(updated, counted(values, levels) + counted(values[:10], levels))
        np.testing.assert_allclose(bins, np.linspace(np.float32(values.min()), values.max(), 5), rtol=2e-3)
    # A value that equals a level counts as above it.
    assert histogram([-1.0, 0.0, 2.0, float("nan")], LEVELS).numpy().tolist() == [1, 1, 1, 0, 1]
    assert histogram_normalize([1.0, 3.0, 4.0]).numpy().tolist() == [0.125, 0.375, 0.5]


def test_arguments_that_do_not_fit_are_refused(refused):
    for call, kind, message in (
        (lambda: histogram([1, 2], LEVELS), ValueError, "`inputs` must be float16 or float32"),
        (lambda: histogram([1.0], tf.constant([1, 2])), ValueError, "`levels` must be float16 or float32"),
        (lambda: histogram([[1.0]], [LEVELS]), ValueError, r"2 faults:[^$]*`inputs` must be of rank 1[^$]*`levels`"),
        (lambda: histogram([1.0], LEVELS, 1), TypeError, "`absolute_of_input`"),
        (lambda: histogram_update([1.0] * 4, [1.0], LEVELS), ValueError, "one element more than `levels`"),
        (lambda: histogram_update([1.0] * 2, [1.0], tf.constant([1])), ValueError, "`levels` must be float16"),
        (lambda: histogram_update([1] * 5, [1.0], LEVELS), ValueError, "`hist` must be float32"),
        (lambda: fixed_width_bins([1.0], 0), ValueError, "`n_bins=0`"),
        (lambda: fixed_width_bins([1], 2), TypeError, "`inputs` must have floats"),
    ):
        refused(kind, message, call)


X, Y = tf.constant([1.0, 2.0]), tf.constant([3, 4])


def both(for_gradients):
    with tf.GradientTape() as tape:
        tape.watch(X)
        a, b, c = barrier([X * 2, Y, tf.cast(X, tf.float16)], for_gradients)
        loss = tf.reduce_sum(a * a) + tf.reduce_sum(tf.cast(c, tf.float32))
    gradient: Any = tape.gradient(loss, X)
    return a, b, c, gradient


@pytest.mark.parametrize("for_gradients", [False, True])
def test_values_and_gradients_go_through(for_gradients, strategy):
    eager = both(for_gradients)
    assert eager[3].numpy().tolist() == [9, 17]
    program = tf.function(lambda: both(for_gradients), jit_compile=True)
    for actual, expected in zip(strategy.run(program), eager, strict=True):
        assert np.array_equal(actual, expected)
    with programs.tracing_program(programs.Target(1, True)), tf.device("/device:IPU:0"):
        operations = program.get_concrete_function().graph.get_operations()
    assert sum(operation.type == "XlaOptimizationBarrier" for operation in operations) == 1 + for_gradients


def test_arguments_that_make_no_barrier_are_refused(refused):
    for error, message, arguments in (
        (TypeError, "`tensors` must be a list", (X,)),
        (ValueError, "is empty", ([],)),
        (TypeError, "_gradients", ([X], 1)),
    ):
        refused(error, message, barrier, *arguments)
