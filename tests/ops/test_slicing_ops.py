"""Copies of runs of rows against a loop in NumPy, and gradients against finite differences."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tensorflow_ipu.ops.slicing_ops import sequence_slice, sequence_slice_pack, sequence_slice_unpack

SRC = np.arange(18, dtype=np.float32).reshape(6, 3) + 1
DST = -SRC[:5]
RUNS = {"num_elems": [2, 0, 3], "src_offsets": [4, 1, 0], "dst_offsets": [0, 3, 1]}


def copied(dst, src, num_elems, src_offsets, dst_offsets, zero_unused):
    result = np.zeros_like(dst) if zero_unused else dst.copy()
    for count, source, place in zip(num_elems, src_offsets, dst_offsets, strict=True):
        for j in range(count):
            if 0 <= source + j < len(src) and 0 <= place + j < len(dst):
                result[place + j] = src[source + j]
    return result


OFFSETS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=4)


@hypothesis.given(OFFSETS, st.booleans())
@hypothesis.settings(max_examples=15)
def test_rows_are_those_of_a_loop_over_the_runs(runs, zero_unused):
    columns = [list(column) for column in zip(*runs, strict=True)]
    expected = copied(DST, SRC, *columns, zero_unused)
    assert np.array_equal(sequence_slice(DST, SRC, *columns, zero_unused), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_program_computes_the_same_in_each_type(dtype, strategy):
    src, dst = SRC.astype(dtype), DST.astype(dtype)

    @tf.function(jit_compile=True)
    def program(counts, sources, places):
        copies = [sequence_slice(dst, src, counts, sources, places, zero) for zero in (False, True)]
        unpacked = sequence_slice_unpack(src, counts, sources, 6)
        return (*copies, unpacked, sequence_slice_pack(dst, src, counts, places, False))

    results = [each.numpy() for each in strategy.run(program, [tf.constant(each) for each in RUNS.values()])]
    assert {each.dtype for each in results} == {np.dtype(dtype)}
    begins = [0, 2, 2]
    expected = [
        copied(dst, src, *RUNS.values(), False),
        copied(dst, src, *RUNS.values(), True),
        copied(np.zeros([6, 3], dtype), src, RUNS["num_elems"], RUNS["src_offsets"], begins, True),
        copied(dst, src, RUNS["num_elems"], begins, RUNS["dst_offsets"], False),
    ]
    for one, other in zip(results, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("zero_unused", [False, True])
def test_gradients_are_those_of_finite_differences(zero_unused):
    def loss(dst, src):
        first = sequence_slice(dst, src, *RUNS.values(), zero_unused)
        second = sequence_slice_pack(dst, src, RUNS["num_elems"], RUNS["dst_offsets"], zero_unused)
        third = sequence_slice_unpack(src, RUNS["num_elems"], RUNS["src_offsets"], 4)
        return tf.reduce_sum(first**2) + tf.reduce_sum(second**2) + tf.reduce_sum(third**2)

    theoretical, numerical = tf.test.compute_gradient(loss, [tf.constant(DST), tf.constant(SRC)], delta=0.25)
    for one, other in zip(theoretical, numerical, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-2)
    assert np.any(theoretical[0]) != zero_unused


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"num_elems": [1, 2]}, ValueError, "`src_offsets`"),
        ({"num_elems": [], "src_offsets": [], "dst_offsets": []}, ValueError, "1 run or more"),
        ({"num_elems": [1.5, 2.0, 1.0]}, TypeError, "`num_elems` must have integers"),
        ({"src": SRC[:, :2]}, ValueError, "`src` has shape"),
        ({"src": SRC[:, 0], "dst": SRC[0]}, ValueError, r"2 faults:[^$]*`dst` must be of rank 2[^$]*`src`"),
        ({"src": SRC.astype(np.int32)}, TypeError, "they must be of one type"),
        ({"zero_unused": 1}, TypeError, "`zero_unused` must be True or False"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(change, kind, message):
    with pytest.raises(kind, match=message):
        sequence_slice(**{"dst": DST, "src": SRC, **RUNS, "zero_unused": False, **change})


@pytest.mark.parametrize(("total", "kind"), [(0, ValueError), (2.0, TypeError)])
def test_number_of_rows_that_cannot_be_is_refused(total, kind):
    with pytest.raises(kind, match="`total_elements"):
        sequence_slice_unpack(SRC, [1], [0], total)


def test_gradient_of_what_is_copied_is_a_tensor(strategy):
    def gradient(src):
        with tf.GradientTape() as tape:
            tape.watch(src)
            loss = tf.reduce_sum(sequence_slice_unpack(src, tf.constant([1, 2]), tf.constant([0, 2]), 3) ** 2)
        return tape.gradient(loss, src)

    found = strategy.run(tf.function(gradient, jit_compile=True), (tf.reshape(tf.range(8.0), [4, 2]),))
    assert found.numpy().tolist() == [[0, 2], [0, 0], [8, 10], [12, 14]]
