"""The life of an infeed queue: not started, started, restarted, deleted; and where it stands from run to run."""

from __future__ import annotations

import gc
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native


def test_program_of_a_queue_that_was_not_initialized_fails(numbers: Any, strategy: Any) -> None:
    queue = ipu.IPUInfeedQueue(numbers(3))
    program = tf.function(queue._dequeue, jit_compile=True)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"has no dataset iterator.*Access its `initializer`"):
        strategy.run(program)


def test_queue_that_was_not_initialized_is_no_argument_of_a_program(numbers: Any, take_one: Any) -> None:
    queue = ipu.IPUInfeedQueue(numbers(3))
    with pytest.raises(RuntimeError, match=r"not initialized.*Access its `initializer`"):
        take_one(queue)


def test_initializer_restarts_the_dataset_with_each_access(numbers: Any, take_one: Any) -> None:
    queue = ipu.IPUInfeedQueue(numbers(5))
    for _ in range(3):
        assert queue.initializer is None
        assert [int(take_one(queue)) for _ in range(3)] == [0, 1, 2]


def test_deleter_of_a_queue_that_was_not_initialized_fails(numbers: Any) -> None:
    with pytest.raises(tf.errors.NotFoundError, match=r"cannot be deleted: it was not initialized"):
        ipu.IPUInfeedQueue(numbers(3)).deleter  # noqa: B018


def test_deleter_ends_the_queue_and_the_initializer_begins_anew(numbers: Any, infeed_of: Any, take_one: Any) -> None:
    queue = infeed_of(numbers(5))
    assert int(take_one(queue)) == 0
    assert queue.deleter is None
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"was not initialized, or it was deleted"):
        take_one(queue)
    with pytest.raises(tf.errors.NotFoundError, match=r"it was deleted before"):
        queue.deleter  # noqa: B018
    queue.initializer  # noqa: B018
    assert int(take_one(queue)) == 0


def test_position_stays_from_run_to_run(numbers: Any, infeed_of: Any, echo: Any) -> None:
    queue, outfeed = infeed_of(numbers(20)), ipu.IPUOutfeedQueue()
    for n in (0, 3, 1, 7, 9):
        echo(queue, outfeed, n)
    np.testing.assert_array_equal(outfeed.dequeue(), np.arange(20))


def test_elements_read_ahead_stay_for_another_program(numbers: Any, infeed_of: Any, echo: Any, take_one: Any) -> None:
    queue, outfeed = infeed_of(numbers(300), prefetch_depth=255), ipu.IPUOutfeedQueue()
    echo(queue, outfeed, 5)
    assert int(take_one(queue)) == 5
    echo(queue, outfeed, 5)
    assert int(take_one(queue)) == 11
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10])


def test_no_element_is_read_before_the_initializer(infeed_of: Any, take_one: Any) -> None:
    read = []

    def note(x: Any) -> Any:
        read.append(int(x))
        return x

    def noted(x: Any) -> Any:
        return tf.ensure_shape(tf.py_function(note, [x], tf.int32), [])

    queue = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(1).repeat().map(noted))
    assert read == []
    queue.initializer  # noqa: B018
    assert int(take_one(queue)) == 1
    assert read


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_prefetch_depth_is_what_is_kept_ready(depth: int, numbers: Any, infeed_of: Any, until: Any) -> None:
    queue = infeed_of(numbers(1000), prefetch_depth=depth)
    until(lambda: native.ipu_infeed_ready(queue._feed.number) == depth)


def test_endless_dataset_is_not_read_endlessly(infeed_of: Any, numbers: Any, until: Any, echo: Any) -> None:
    read = []

    def generate() -> Any:
        while True:
            read.append(None)
            yield 1

    dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32))
    queue = infeed_of(dataset, prefetch_depth=2)
    until(lambda: native.ipu_infeed_ready(queue._feed.number) == 2)
    echo(infeed_of(numbers(2000)), ipu.IPUOutfeedQueue(), 2000)  # Time in which a reader without bounds gets far.
    assert native.ipu_infeed_ready(queue._feed.number) == 2
    assert len(read) <= 2 + 3  # What is ready, and what the pump and the dataset's own buffers hold.


def test_dequeued_tells_whether_a_traced_program_takes_elements(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue = infeed_of(numbers(3))
    program = tf.function(queue._dequeue, jit_compile=True)
    assert queue.dequeued is False
    with strategy.scope():
        program.get_concrete_function()
    assert queue.dequeued is True


def test_get_next_is_obsolete(numbers: Any) -> None:
    with pytest.raises(ValueError, match=r"`get_next\(\)` is obsolete"):
        ipu.IPUInfeedQueue(numbers(3)).get_next()


def test_queue_of_a_spec_has_no_initializer_and_no_deleter(numbers: Any, infeed_of: Any) -> None:
    queue = infeed_of(numbers(3))

    @tf.function
    def trace(queue: Any) -> None:
        assert queue.prefetch_depth is None
        assert queue.device == "/device:IPU:0"
        with pytest.raises(RuntimeError, match=r"created from a spec is initialized already"):
            queue.initializer  # noqa: B018
        with pytest.raises(RuntimeError, match=r"created from a spec cannot be deleted"):
            queue.deleter  # noqa: B018

    trace(queue)


def test_queue_ends_with_its_object(numbers: Any, infeed_of: Any) -> None:
    queue = infeed_of(numbers(3).repeat())
    number = queue._feed.number
    assert native.ipu_infeed_ready(number) >= 0
    del queue
    gc.collect()
    assert native.ipu_infeed_ready(number) == -1


@tf.custom_gradient
def doubled(x: Any) -> Any:
    return x * 2, lambda upstream: upstream * 2


# TensorFlow registers such a gradient for ever, and it has the graph, which has the queue.
@pytest.mark.parametrize("nested", [False, True])
def test_queue_ends_with_a_function_that_has_it_in_its_closure_and_gradients_of_its_own(
    numbers: Any, infeed_of: Any, strategy: ipu.IPUStrategy, nested: bool
) -> None:
    def number_of_queue() -> int:
        queue = infeed_of(numbers(3).repeat())
        with strategy.scope():
            weight = tf.Variable(1.0)

        def body(total: Any, x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = doubled(weight) * tf.cast(x, tf.float32)
            return total + tape.gradient(loss, weight)

        @tf.function(jit_compile=not nested)
        def inner() -> Any:
            return ipu.loops.repeat(3, body, [0.0], queue)

        @tf.function(jit_compile=True)
        def outer() -> Any:
            return inner()

        assert strategy.run(outer if nested else inner) == 2 * (0 + 1 + 2)
        return queue._feed.number

    number = number_of_queue()
    gc.collect()
    assert native.ipu_infeed_ready(number) == -1


def test_queue_ends_with_a_step_that_trains_by_an_optimizer_of_keras(infeed_of: Any, strategy: ipu.IPUStrategy) -> None:
    def number_of_queue() -> int:
        queue = infeed_of(tf.data.Dataset.from_tensors(tf.ones([2, 1])).repeat())
        with strategy.scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, activation="silu")])
            optimizer = keras.optimizers.Adam()

        def body(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )

        @tf.function(jit_compile=True)
        def train() -> None:
            ipu.loops.repeat(2, body, [], queue)

        strategy.run(train)
        return queue._feed.number

    number = number_of_queue()
    gc.collect()
    assert native.ipu_infeed_ready(number) == -1


def test_gradients_of_a_function_are_found_as_long_as_a_graph_has_them(infeed_of: Any, numbers: Any) -> None:
    """The function that was called may be gone by then."""
    queue = infeed_of(numbers(3))  # As long as there is one, TensorFlow does not keep them for ever.

    def call() -> Any:
        return tf.function(lambda x: tf.while_loop(lambda y: y < 10.0, lambda y: [doubled(y)], [x])[0])

    @tf.function
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call()(x)
        gc.collect()
        return tape.gradient(y, x)

    assert gradient(tf.constant(1.0)) == 2.0**4
    assert queue is not None


def test_queue_of_a_dataset_from_another_thread_lives_on(
    numbers: Any, start: Any, infeed_of: Any, take_one: Any
) -> None:
    queue = start(lambda: infeed_of(numbers(3))).result(60)
    assert [int(take_one(queue)) for _ in range(3)] == [0, 1, 2]
