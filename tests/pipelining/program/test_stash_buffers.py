"""The operations that a pipeline's program is made of besides its stages: loop indices, stash buffers, fences."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.pipelining.program import memory
from tensorflow_ipu.pipelining.program.memory import LoopIndices, Predicate, PredicateKind
from tensorflow_ipu.pipelining.program.operations import Operation, Read
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


def operation(micro_batch, *depths):
    return Operation(micro_batch, (Read(ring(depths[0])),), tuple(map(ring, depths[1:])), lambda _: {})


def is_there(when, base):
    first, second = (0 <= base + number < COUNT for number in when[:2])
    return first and (when.wanted is PredicateKind.FIRST or second == (when.wanted is PredicateKind.BOTH))


def test_turns_are_those_of_each_iteration_before_among_and_behind_the_micro_batches():
    operations = [operation(0, 1, 3), operation(-2, 5, 3, 1)]

    @tf.function(jit_compile=True)
    def turns(base):
        found = LoopIndices(operations, base, COUNT, WHEN)
        places = [found.place(0, ring(3)), found.place(-2, ring(3)), found.place(-2, ring(5))]
        return [found.number(0), found.number(-2), *places, *(found.runs(when) for when in WHEN)]

    for base in range(-3, COUNT + 4):
        expected = [base, base - 2, base % 3, (base - 2) % 3, (base - 2) % 5]
        expected += [int(is_there(when, base)) for when in WHEN]
        assert [int(one) for one in turns(tf.constant(base))] == expected, base


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bool, tf.int64])
def test_what_is_written_to_a_place_of_a_ring_is_read_there_and_other_places_are_as_before(dtype):
    specs = [tf.TensorSpec([2, 3], dtype), tf.TensorSpec([], dtype), tf.TensorSpec([0], dtype)]

    @tf.function(jit_compile=True)
    def written(place):
        kept, single = memory.empty([(specs, 4), (specs[:1], 1)])
        values = [tf.cast(tf.ones(one.shape), dtype) for one in specs]
        kept = memory.written_buffer(kept, place, values)
        kept = memory.written_buffer(kept, 1, values)
        return [*kept, *memory.read_buffer(kept, place), *memory.read_buffer(kept, 2), *single]

    first, second, nothing, *rest = (one.numpy() for one in written(tf.constant(3)))
    assert (first.shape, second.shape, nothing.shape) == ((4, 2, 3), (4,), (4, 0))
    np.testing.assert_array_equal(first.astype(int), np.array([0, 1, 0, 1])[:, None, None] * np.ones([2, 3], int))
    np.testing.assert_array_equal(second.astype(int), [0, 1, 0, 1])
    assert [one.shape for one in rest] == [(2, 3), (), (0,)] * 2 + [(2, 3)]
    assert [int(one.sum()) for one in rest] == [6, 1, 0, 0, 0, 0, 0]
    assert all(one.dtype == dtype.as_numpy_dtype for one in (first, second, *rest))


@pytest.mark.parametrize("rows", [1 << 7, 1 << 9])  # Those of 256 KiB and more are copied by several threads.
def test_large_tensors_are_written_and_read_in_their_places_too(rows):
    @tf.function(jit_compile=True)
    def written(place, value):
        [kept] = memory.empty([([tf.TensorSpec(value.shape, value.dtype)], 3)])
        kept = memory.written_buffer(kept, place, [value])
        return [*kept, *memory.read_buffer(kept, place), *memory.read_buffer(kept, 0)]

    value = np.arange(rows << 8, dtype=np.float32).reshape(rows, 1 << 8)
    ring, there, before = written(tf.constant(2), tf.constant(value))
    np.testing.assert_array_equal(ring, [0 * value, 0 * value, value])
    np.testing.assert_array_equal(there, value)
    assert not before.numpy().any()


def convolutions_in_a_ring(images, weights, place):
    """A convolution of what is in a place of a ring, and the gradient of its weights; and of another place."""
    [kept] = memory.empty([([tf.TensorSpec(images.shape, images.dtype)], 3)])
    kept = memory.written_buffer(kept, 2, [images])
    [there], [nothing] = memory.read_buffer(kept, place), memory.read_buffer(kept, 0)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        found = tf.nn.conv2d(there, weights, 1, "SAME")
    return [found, tape.gradient(found, weights), tf.nn.conv2d(nothing, weights, 1, "SAME")]


IMAGES, WEIGHTS = (
    np.random.default_rng(1).standard_normal(shape, np.float32) for shape in ([8, 34, 34, 16], [3, 3, 16, 4])
)


# A copy of 1 MiB for each convolution in a pipeline took its steps a twentieth more time.
def test_kernels_of_the_host_take_what_is_in_a_ring_without_a_copy(compiled_text):
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
    with pytest.raises(tf.errors.InternalError, match="slot 3 of a stash buffer"):
        strategy.run(program, (*values[:2], tf.constant(3)))


@pytest.mark.parametrize("writes", [False, True])
def test_a_place_that_a_ring_does_not_have_is_an_error_and_no_memory_of_others(writes):
    @tf.function(jit_compile=True)
    def used(place):
        [kept] = memory.empty([([tf.TensorSpec([2], tf.float32)], 4)])
        return memory.written_buffer(kept, place, [tf.ones([2])]) if writes else memory.read_buffer(kept, place)

    for place in (-1, 4):
        with pytest.raises(tf.errors.InternalError, match=f"slot {place} of a stash buffer"):
            used(tf.constant(place))


def test_a_fence_and_a_barrier_pass_values_on():
    @tf.function(jit_compile=True)
    def passed(zero, x):
        behind, [fenced] = memory.TokenThreading(zero).fence([x * 2], zero)
        [barred] = ops.ipu_barrier([x * 3])
        return [tf.convert_to_tensor(behind), fenced, barred]

    behind, fenced, barred = passed(tf.constant(0), tf.constant([1.0, -2.0]))
    assert int(behind) == 0
    np.testing.assert_array_equal(fenced, [2, -4])
    np.testing.assert_array_equal(barred, [3, -6])


@pytest.mark.parametrize("runs", [False, True, None])
def test_a_part_that_is_skipped_leaves_what_was_there_and_any_other_changes_values_variables_and_constants(runs):
    total = tf.Variable([1.0, 1.0])
    step = tf.Variable(2.0)

    @tf.function(jit_compile=True)
    def program(asked, zero, x):
        def body(behind, given, old):
            total.assign_add(given[0] * step * tf.cast(1 + behind, tf.float32))
            return [old[0] + tf.reshape(x, tf.shape(old[0])), tf.constant([7, 7])]

        when = tf.constant(True) if runs is None else asked  # None: in any case, which XLA may know.
        behind, results = memory.run_once(when, zero, [x], [tf.zeros([2]), tf.constant([1, 2])], body)
        return [behind, *results]

    behind, added, constant = program(tf.constant(bool(runs)), tf.constant(0), tf.constant([3.0, 4.0]))
    assert int(behind) == 0
    np.testing.assert_array_equal(added, [0, 0] if runs is False else [3, 4])
    np.testing.assert_array_equal(constant, [1, 2] if runs is False else [7, 7])
    np.testing.assert_array_equal(total, [1, 1] if runs is False else [7, 9])


def test_what_is_computed_in_a_part_that_is_skipped_is_not_computed_ahead(compiled_text):
    def program(runs, zero, x):
        return memory.run_once(runs, zero, [x], [x], lambda _, given, old: [tf.tanh(given[0])])[1]

    function = tf.function(program, jit_compile=True)
    text = compiled_text(ipu.IPUStrategy(), function, tf.constant(False), tf.constant(0), tf.ones([64]))
    [entry] = [part for part in text.split("\n\n") if part.lstrip().startswith("ENTRY")]
    assert "while(" in text
    assert "tanh" not in entry


# Each kernel takes XLA some 10 ms to compile, and the stages of a pipeline share what they compute with.
def test_parts_that_may_be_skipped_rings_and_orders_need_no_code_of_their_own(compiled_text):
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        orders = [tf.Variable([number, 0, 1, 0], dtype=tf.int64) for number in (-1, 1, 2)]

    def program(base, x):
        ops.ipu_join_orders([order.handle for order in orders])
        token = memory.opaque_zero()
        [kept] = memory.empty([([tf.TensorSpec(x.shape, x.dtype)], 3)])
        turns = LoopIndices([operation(0, 3)], base, COUNT, WHEN)
        place = turns.place(0, ring(3))
        for when in WHEN:
            token, [*kept] = memory.run_once(
                turns.runs(when),
                token,
                [x],
                kept,
                lambda behind, given, old: memory.written_buffer(old, place, given, behind),
            )
        return memory.read_buffer(kept, place, token)

    function = tf.function(program, jit_compile=True)
    text = compiled_text(strategy, function, tf.constant(0), tf.ones([64]))
    assert "ipu_join_orders" in text
    assert text.count(" while(") == len(WHEN)
    assert "fusion(" not in text
