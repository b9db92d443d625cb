"""The operations of a pipeline's program in addition to its stages: loop indices, stash buffers, fences."""

import math

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.pipelining import execution
from tensorflow_ipu.pipelining.execution import LoopIndices, Predicate, PredicateKind, Read, Row
from tensorflow_ipu.pipelining.schedule.plan import Buffer, BufferKind

COUNT = 6
WHEN = [
    Predicate(0),
    Predicate(-2),
    Predicate(0, -2, PredicateKind.BOTH),
    Predicate(0, -2, PredicateKind.FIRST_ALONE),
    Predicate(-2, 0, PredicateKind.FIRST_ALONE),
]


def ring(depth):
    return Buffer(BufferKind.ACTIVATIONS, 0, None, 0, depth)


def row(micro_batch, *depths):
    return Row(micro_batch, (Read(ring(depths[0])),), tuple(map(ring, depths[1:])), lambda _: {})


def is_there(when, base):
    first, second = (0 <= base + number < COUNT for number in when[:2])
    return first and (when.kind is PredicateKind.FIRST or second == (when.kind is PredicateKind.BOTH))


def test_turns_are_those_of_each_iteration_before_among_and_behind_the_micro_batches():
    rows = [row(0, 1, 3), row(-2, 5, 3, 1)]

    @tf.function(jit_compile=True)
    def turns(base):
        found = LoopIndices(rows, base, COUNT, WHEN)
        places = [found.places[0, 3], found.places[-2, 3], found.places[-2, 5]]
        return [found.numbers[0], found.numbers[-2], *places, *(found.runs[when] for when in WHEN)]

    for base in range(-3, COUNT + 4):
        expected = [base, base - 2, base % 3, (base - 2) % 3, (base - 2) % 5]
        expected += [int(is_there(when, base)) for when in WHEN]
        assert [int(one) for one in turns(tf.constant(base))] == expected, base


def test_what_is_written_to_a_place_of_a_ring_is_read_there_and_other_places_are_as_before():
    shapes = [2, 3], [], [0], [1 << 7, 1 << 8], [1 << 9, 1 << 8]  # 256 KiB and more are copied by several threads.
    numbers = [np.reshape(np.arange(1, 1 + math.prod(shape)) % 1000, shape) for shape in shapes]
    values = [[number.astype(dtype) for number in numbers] for dtype in (np.float32, np.float16, bool, np.int64)]

    @tf.function(jit_compile=True)
    def written(place, values):
        results = []
        for several in values:
            specs = [tf.TensorSpec(one.shape, one.dtype) for one in several]
            kept, single = execution.empty([(specs, 4), (specs[:1], 1)])
            kept = execution.written_buffer(kept, place, several)
            kept = execution.written_buffer(kept, 1, several)
            results.append([kept, execution.read_buffer(kept, place), execution.read_buffer(kept, 2), single])
        return results

    found = written(tf.constant(3), tf.nest.map_structure(tf.constant, values))
    for several, (rings, there, elsewhere, [single]) in zip(values, found, strict=True):
        np.testing.assert_array_equal(single, np.zeros_like(several[0]), strict=True)
        for value, *read in zip(several, rings, there, elsewhere, strict=True):
            nothing = np.zeros_like(value)
            for one, expected in zip(read, (np.stack([nothing, value, nothing, value]), value, nothing), strict=True):
                np.testing.assert_array_equal(one, expected, strict=True)


def convolutions_in_a_ring(images, weights, place):
    """Returns a convolution of a place of a ring, the gradient of its weights, and a convolution of an empty place."""
    [kept] = execution.empty([([tf.TensorSpec(images.shape, images.dtype)], 3)])
    kept = execution.written_buffer(kept, 2, [images])
    [there], [nothing] = execution.read_buffer(kept, place), execution.read_buffer(kept, 0)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        found = tf.nn.conv2d(there, weights, 1, "SAME")
    return [found, tape.gradient(found, weights), tf.nn.conv2d(nothing, weights, 1, "SAME")]


IMAGES, WEIGHTS = (
    np.random.default_rng(1).standard_normal(shape, np.float32) for shape in ([8, 34, 34, 16], [3, 3, 16, 4])
)


# With a copy of 1 MiB for each convolution, the steps of a pipeline took 5 % longer.
def test_kernels_of_the_host_take_what_is_in_a_ring_without_a_copy(compiled_text, refused):
    strategy = ipu.IPUStrategy()
    program = tf.function(convolutions_in_a_ring, jit_compile=True)
    values = (tf.constant(IMAGES), tf.constant(WEIGHTS), tf.constant(2))
    found, gradient, nothing = strategy.run(program, values)  # First: a run gives the device its compiler.
    text = compiled_text(strategy, program, *values)
    assert text.count('custom_call_target="ipu_host_kernel"') == text.count("in_stashes = array<i64: 0>") == 3
    assert "dynamic-slice(" not in text
    with tf.GradientTape() as tape:
        tape.watch(values[1])
        expected = tf.nn.conv2d(IMAGES, values[1], 1, "SAME")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, tape.gradient(expected, values[1]), rtol=1e-4, atol=1e-2)
    assert not nothing.numpy().any()
    refused(tf.errors.InternalError, "slot 3 of a stash buffer", strategy.run, program, (*values[:2], tf.constant(3)))


@pytest.mark.parametrize("writes", [False, True])
def test_a_place_that_a_ring_does_not_have_is_an_error_and_no_memory_of_others(writes, refused):
    @tf.function(jit_compile=True)
    def used(place):
        [kept] = execution.empty([([tf.TensorSpec([2], tf.float32)], 4)])
        return execution.written_buffer(kept, place, [tf.ones([2])]) if writes else execution.read_buffer(kept, place)

    for place in (-1, 4):
        refused(tf.errors.InternalError, f"slot {place} of a stash buffer", used, tf.constant(place))


def test_a_fence_and_a_barrier_pass_values_on():
    @tf.function(jit_compile=True)
    def passed(zero, x):
        behind, [fenced] = execution.fence([x * 2], zero)
        [barred] = ops.ipu_barrier([x * 3])
        return [tf.convert_to_tensor(behind), fenced, barred]

    behind, fenced, barred = passed(tf.constant(0), tf.constant([1.0, -2.0]))
    assert int(behind) == 0
    np.testing.assert_array_equal(fenced, [2, -4])
    np.testing.assert_array_equal(barred, [3, -6])


def test_a_part_that_is_skipped_leaves_what_was_there_and_any_other_changes_values_variables_and_constants():
    total = tf.Variable([1.0, 1.0])
    step = tf.Variable(2.0)

    def program(runs, zero, x):
        def body(behind, given, old):
            total.assign_add(given[0] * step * tf.cast(1 + behind, tf.float32))
            return [old[0] + tf.reshape(x, tf.shape(old[0])), tf.constant([7, 7])]

        behind, results = execution.run_once(runs, zero, [x], [tf.zeros([2]), tf.constant([1, 2])], body)
        return [behind, *results]

    asked = tf.function(program, jit_compile=True)
    known = tf.function(lambda _, zero, x: program(tf.constant(True), zero, x), jit_compile=True)  # To XLA.
    for function, runs, sums in ((asked, False, [1, 1]), (asked, True, [7, 9]), (known, True, [13, 17])):
        behind, added, constant = function(tf.constant(runs), tf.constant(0), tf.constant([3.0, 4.0]))
        assert int(behind) == 0
        np.testing.assert_array_equal(added, [3, 4] if runs else [0, 0])
        np.testing.assert_array_equal(constant, [7, 7] if runs else [1, 2])
        np.testing.assert_array_equal(total, sums)


def test_what_is_computed_in_a_part_that_is_skipped_is_not_computed_ahead(compiled_text):
    def program(runs, zero, x):
        return execution.run_once(runs, zero, [x], [x], lambda _, given, old: [tf.tanh(given[0])])[1]

    function = tf.function(program, jit_compile=True)
    text = compiled_text(ipu.IPUStrategy(), function, tf.constant(False), tf.constant(0), tf.ones([64]))
    [entry] = [part for part in text.split("\n\n") if part.lstrip().startswith("ENTRY")]
    assert "while(" in text
    assert "tanh" not in entry


# XLA takes some 10 ms to compile a kernel, and the stages of a pipeline share their kernels.
def test_parts_that_may_be_skipped_rings_and_orders_need_no_code_of_their_own(compiled_text):
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        orders = [tf.Variable([number, 0, 1, 0], dtype=tf.int64) for number in (-1, 1, 2)]

    def program(base, x):
        ops.ipu_join_orders([order.handle for order in orders])
        token = execution.opaque_zero()
        [kept] = execution.empty([([tf.TensorSpec(x.shape, x.dtype)], 3)])
        turns = LoopIndices([row(0, 3)], base, COUNT, WHEN)
        place = turns.places[0, 3]
        for when in WHEN:
            token, [*kept] = execution.run_once(
                turns.runs[when],
                token,
                [x],
                kept,
                lambda behind, given, old: execution.written_buffer(old, place, given, behind),
            )
        return execution.read_buffer(kept, place, token)

    function = tf.function(program, jit_compile=True)
    text = compiled_text(strategy, function, tf.constant(0), tf.ones([64]))
    assert "ipu_join_orders" in text
    assert text.count(" while(") == len(WHEN)
    assert "fusion(" not in text
