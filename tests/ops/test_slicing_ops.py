"""Copies of rows, lookups, and slices at places that the run knows, against NumPy and TensorFlow."""

import re

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tensorflow_ipu.ops.dynamic_ops import dynamic_slice, dynamic_update, nop
from tensorflow_ipu.ops.embedding_ops import embedding_lookup
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


def test_program_computes_the_same_in_each_type(strategy):
    given = [(SRC.astype(dtype), DST.astype(dtype)) for dtype in (np.float16, np.float32, np.int32)]

    def slices(src, dst, counts, sources, places):
        copies = [sequence_slice(dst, src, counts, sources, places, zero) for zero in (False, True)]
        unpacked = sequence_slice_unpack(src, counts, sources, 6)
        return (*copies, unpacked, sequence_slice_pack(dst, src, counts, places, False))

    program = tf.function(lambda *runs: [slices(src, dst, *runs) for src, dst in given], jit_compile=True)
    begins = [0, 2, 2]
    for (src, dst), results in zip(given, strategy.run(program, list(map(tf.constant, RUNS.values()))), strict=True):
        expected = [
            copied(dst, src, *RUNS.values(), False),
            copied(dst, src, *RUNS.values(), True),
            copied(np.zeros([6, 3], src.dtype), src, RUNS["num_elems"], RUNS["src_offsets"], begins, True),
            copied(dst, src, RUNS["num_elems"], begins, RUNS["dst_offsets"], False),
        ]
        for one, other in zip(results, expected, strict=True):
            assert one.dtype == src.dtype
            assert np.array_equal(one, other)


def test_gradients_are_those_of_finite_differences():
    @tf.function
    def loss(dst, src):
        found = [sequence_slice_unpack(src, RUNS["num_elems"], RUNS["src_offsets"], 4)]
        for zero_unused in (False, True):
            found.append(sequence_slice(dst, src, *RUNS.values(), zero_unused))
            found.append(sequence_slice_pack(dst, src, RUNS["num_elems"], RUNS["dst_offsets"], zero_unused))
        return tf.add_n([tf.reduce_sum(each**2) for each in found])

    theoretical, numerical = tf.test.compute_gradient(loss, [tf.constant(DST), tf.constant(SRC)], delta=0.25)
    for one, other in zip(theoretical, numerical, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-2)


def test_arguments_that_do_not_go_together_are_refused(refused):
    for change, kind, message in (
        ({"num_elems": [1, 2]}, ValueError, "`src_offsets`"),
        ({"num_elems": [], "src_offsets": [], "dst_offsets": []}, ValueError, "at least 1 sequence"),
        ({"num_elems": [1.5, 2.0, 1.0]}, TypeError, "`num_elems` must have integers"),
        ({"src": SRC[:, :2]}, ValueError, "`src` has shape"),
        ({"src": SRC[:, 0], "dst": SRC[0]}, ValueError, r"2 faults:[^$]*`dst` must be of rank 2[^$]*`src`"),
        ({"src": SRC.astype(np.int32)}, TypeError, "they must be of one type"),
        ({"zero_unused": 1}, TypeError, "`zero_unused` must be True or False"),
    ):
        refused(kind, message, sequence_slice, **{"dst": DST, "src": SRC, **RUNS, "zero_unused": False, **change})
    for total, error in ((0, ValueError), (2.0, TypeError)):
        refused(error, "`total_elements", sequence_slice_unpack, SRC, [1], [0], total)


def test_gradient_of_what_is_copied_is_a_tensor(strategy):
    def gradient(src):
        with tf.GradientTape() as tape:
            tape.watch(src)
            loss = tf.reduce_sum(sequence_slice_unpack(src, tf.constant([1, 2]), tf.constant([0, 2]), 3) ** 2)
        return tape.gradient(loss, src)

    found = strategy.run(tf.function(gradient, jit_compile=True), (tf.reshape(tf.range(8.0), [4, 2]),))
    assert found.numpy().tolist() == [[0, 2], [0, 0], [8, 10], [12, 14]]


TABLE = tf.constant(np.random.default_rng(0).normal(size=[12, 3]), tf.float32)
IDS = tf.constant([[0, 5, 11, 5], [4, 3, 3, 1]])


def test_rows_and_gradients_are_those_of_gather_by_as_many_parts_as_asked_for():
    def both(lookup):
        with tf.GradientTape() as tape:
            tape.watch(TABLE)
            rows = lookup(TABLE, IDS)
            loss = tf.reduce_sum(rows * rows * [1.0, 2.0, 3.0])
        return rows, tf.convert_to_tensor(tape.gradient(loss, TABLE))

    variable = tf.Variable(TABLE)
    expected_rows, expected_gradient = both(tf.gather)
    compiled = tf.function(lambda: both(lambda table, ids: embedding_lookup(table, ids, 4)), jit_compile=True)()
    eager = [both(lambda table, ids, factor=factor: embedding_lookup(table, ids, factor)) for factor in (1, 12)]
    for rows, gradient in (compiled, *eager):
        assert np.array_equal(rows, expected_rows)
        assert np.allclose(gradient, expected_gradient, atol=1e-6)
    for factor in (1, 4):
        with tf.GradientTape() as tape:
            rows = embedding_lookup(variable, IDS, factor, indices_are_sorted=True)
        assert np.array_equal(rows, expected_rows)
        assert tape.gradient(rows, variable) is not None
    program = tf.function(lambda ids: embedding_lookup(TABLE, ids, 4), jit_compile=True)
    hlo = program.experimental_get_compiler_ir(IDS)(stage="hlo")
    assert len(re.findall(r" gather\(", hlo)) == 4


def test_shapes_are_those_of_gather_and_types_are_kept():
    for shape, ids in (([], 3), ([], [1, 2]), ([2, 2], 3), ([2, 2], [[[1]], [[2]]])):
        table = tf.ones([12, *shape], tf.int32)
        for factor in (1, 3):
            assert embedding_lookup(table, ids, factor).shape == tf.gather(table, ids).shape
    for dtype, id_dtype in ((tf.float16, tf.int32), (tf.float32, tf.int64), (tf.int32, tf.uint8)):
        table = tf.cast(tf.reshape(tf.range(12), [6, 2]), dtype)
        rows = embedding_lookup(table, tf.cast([5, 0, 2], id_dtype), 3)
        assert rows.dtype == dtype
        assert rows.numpy().tolist() == [[10, 11], [0, 1], [4, 5]]


def test_arguments_that_cannot_be_are_refused(refused):
    for arguments, kind, message in (
        (([TABLE, TABLE], IDS), TypeError, "`params` must be one tensor"),
        ((TABLE, [0.5]), TypeError, "`ids` must be integers"),
        ((TABLE, IDS, 1.5), TypeError, "`serialization_factor`"),
        ((TABLE, IDS, 1, 1), TypeError, "`indices_are_sorted`"),
        ((TABLE, IDS, 0), ValueError, "`serialization_factor.*0`"),
        ((TABLE, IDS, 5), ValueError, "`serialization_factor.*5`"),
        ((tf.constant(1.0), IDS), ValueError, "`params` must have rows"),
    ):
        refused(kind, message, embedding_lookup, *arguments)
    halves = tf.ones([1, 6], tf.float16)
    for call, kind, message in (
        (
            lambda: dynamic_slice(X, 2, 0, 1),
            ValueError,
            r"`dim` must be a dimension of `input`, whose shape is \(4, 6\)",
        ),
        (lambda: dynamic_slice(X, True, 0, 1), TypeError, "`dim` must be an int"),
        (
            lambda: dynamic_slice(X, 0, 0, 5),
            ValueError,
            "`size` must be from 1 to 4, the size of dimension 0 of `input`",
        ),
        (lambda: dynamic_slice(X, 0, 0, tf.constant(1)), TypeError, "`size` must be an int"),
        (lambda: dynamic_slice(X, 0, 0.5, 1), TypeError, "`start` must be an integer, but is of type float32"),
        (lambda: dynamic_slice(X, 0, 0, 2, step=0), ValueError, "`step=0` must be 1 or more"),
        (
            lambda: dynamic_update(X, X[:2], 0, 0, 1),
            ValueError,
            r"`src` must have the shape .*\(1, 6\), but has \(2, 6\)",
        ),
        (lambda: dynamic_update(X, halves, 0, 0, 1), TypeError, "float32 and float16; use `tf.cast`"),
    ):
        refused(kind, message, call)


X = tf.reshape(tf.range(24.0), [4, 6])


def _slices(start, dtype):
    """A part of columns, an update of rows, and their gradients."""
    x, new = tf.cast(X, dtype), tf.fill([2, 6], tf.cast(-1, dtype))
    with tf.GradientTape() as tape:
        tape.watch([x, new])
        part = dynamic_slice(x, -1, start, 4, step=3)
        changed = dynamic_update(x, new, 0, start, 2)
        loss = tf.reduce_sum(part * part) + tf.reduce_sum(changed * changed)
    return [part, changed, *tape.gradient(loss, [x, new])]


def test_slices_and_updates_are_those_of_numpy_with_their_gradients(strategy):
    dtypes = tf.float32, tf.float16
    program = tf.function(lambda start: [_slices(start, dtype) for dtype in dtypes], jit_compile=True)
    for start in (-1, 0, 1, 2, 3, 9):
        at = min(max(start, 0), 2)
        x = X.numpy()
        part, changed = x[:, at : at + 4 : 3], x.copy()
        changed[at : at + 2] = -1
        gradient = 2 * changed
        gradient[at : at + 2] = 0
        gradient[:, at : at + 4 : 3] += 2 * part
        expected = [part, changed, gradient, np.full([2, 6], -2)]
        eagerly = [_slices(tf.constant(start, tf.int64), dtype) for dtype in dtypes]
        for found, dtype in zip((*strategy.run(program, [tf.constant(start)]), *eagerly), dtypes * 2, strict=True):
            for one, other in zip(found, expected, strict=True):
                assert one.dtype == dtype
                np.testing.assert_array_equal(one, other)


def test_place_of_a_slice_compiles_nothing_anew(strategy, compilations):
    program = tf.function(lambda start: dynamic_slice(X, 0, start, 1), jit_compile=True)
    strategy.run(program, [tf.constant(0)])
    with compilations() as names:
        assert strategy.run(program, [tf.constant(3)]).numpy().tolist() == [X[3].numpy().tolist()]
    assert names == []


def test_nop_stays_in_the_program_and_changes_nothing(strategy, compiled_text):
    program = tf.function(lambda x: nop(x * 2.0) * 3.0, jit_compile=True)
    assert strategy.run(program, [tf.constant(1.0)]).numpy() == 6.0
    # Without it, XLA makes one product of the two.
    assert compiled_text(strategy, program, tf.constant(1.0)).count(" multiply(") == 2
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = nop(X * 2.0)
    assert np.unique(tape.gradient(y, X)) == 2
