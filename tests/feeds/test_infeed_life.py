"""The life of queues: start, restart and deletion, traces and compilations, and references between objects."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native


def test_queue_has_elements_from_its_initializer_to_its_deleter(numbers, strategy, take_one):
    queue = ipu.IPUInfeedQueue(numbers(5))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"has no dataset iterator.*Access its `initializer`"):
        strategy.run(tf.function(queue._dequeue, jit_compile=True))
    with pytest.raises(RuntimeError, match=r"not initialized.*Access its `initializer`"):
        take_one(queue)
    with pytest.raises(tf.errors.NotFoundError, match=r"cannot be deleted: it was not initialized"):
        queue.deleter  # noqa: B018
    for _ in range(3):  # Each access restarts the dataset.
        with pytest.raises(TypeError, match="`initializer` is a property.*without brackets"):
            queue.initializer()  # This idiom of TensorFlow 1 once raised that `None` is not callable.
        assert [int(take_one(queue)) for _ in range(3)] == [0, 1, 2]
    assert not queue.deleter
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"was not initialized, or it was deleted"):
        take_one(queue)
    with pytest.raises(tf.errors.NotFoundError, match=r"it was deleted before"):
        queue.deleter  # noqa: B018
    queue.initializer  # noqa: B018
    assert int(take_one(queue)) == 0
    queue.deleter  # noqa: B018


def test_elements_read_ahead_stay_for_the_next_run_and_for_another_program(numbers, infeed_of, echo, take_one):
    queue, outfeed = infeed_of(numbers(300), prefetch_depth=255), ipu.IPUOutfeedQueue()
    for n in (0, 3, 2):
        echo(queue, outfeed, n)
    assert int(take_one(queue)) == 5
    echo(queue, outfeed, 5)
    assert int(take_one(queue)) == 11
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10])


def test_prefetch_depth_is_what_is_kept_ready_of_an_endless_dataset(infeed_of, numbers, until, echo):
    for depth in (1, 3, 20):
        queue = infeed_of(numbers(1000), prefetch_depth=depth)
        until(lambda: native.ipu_infeed_ready(queue._feed.number) == depth)  # noqa: B023
    read = []

    def generate() -> Any:
        while True:
            read.append(None)
            yield 1

    dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32))
    queue: Any = ipu.IPUInfeedQueue(dataset, prefetch_depth=2)
    assert read == []  # No element is read before the initializer.
    queue.initializer  # noqa: B018
    until(lambda: native.ipu_infeed_ready(queue._feed.number) == 2)
    echo(infeed_of(numbers(2000)), ipu.IPUOutfeedQueue(), 2000)  # This gives a reader without bounds time.
    assert native.ipu_infeed_ready(queue._feed.number) == 2
    assert len(read) <= 2 + 3  # The pump and the dataset's buffers hold up to 3 elements more.
    queue.deleter  # noqa: B018


def test_dequeued_tells_whether_a_traced_program_takes_elements(numbers, infeed_of, strategy):
    queue = infeed_of(numbers(3))
    program = tf.function(queue._dequeue, jit_compile=True)
    assert queue.dequeued is False
    with strategy.scope():
        program.get_concrete_function()
    assert queue.dequeued is True
    with pytest.raises(ValueError, match=r"`get_next\(\)` is obsolete"):
        queue.get_next()


def test_queue_of_a_spec_has_no_initializer_and_no_deleter(numbers, infeed_of):
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


@tf.custom_gradient
def doubled(x: Any) -> Any:
    return x * 2, lambda upstream: upstream * 2


def has_ended(number: int) -> bool:
    gc.collect()
    return native.ipu_infeed_ready(number) == -1


# TensorFlow registers such a gradient for ever. The gradient refers to the graph, and the graph to the queue.
@pytest.mark.parametrize("nested", [False, True])
def test_queue_ends_with_a_function_that_has_it_and_gradients_of_its_own(numbers, infeed_of, strategy, nested):
    def number_of_queue() -> int:
        queue = infeed_of(numbers(3).repeat())
        with strategy.scope():
            weight = tf.Variable(1.0)

        def body(total: Any, x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = doubled(weight) * tf.cast(x, tf.float32)
            return total + tape.gradient(loss, weight)

        inner = tf.function(lambda: ipu.loops.repeat(3, body, [0.0], queue), jit_compile=not nested)
        outer = tf.function(lambda: inner(), jit_compile=True)
        assert strategy.run(outer if nested else inner) == 2 * (0 + 1 + 2)
        return queue._feed.number

    assert has_ended(number_of_queue())


def test_queue_ends_with_a_step_that_trains_by_an_optimizer_of_keras(infeed_of, strategy):
    def number_of_queue() -> int:
        queue = infeed_of(tf.data.Dataset.from_tensors(tf.ones([2, 1])).repeat())
        with strategy.scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, activation="silu")])
            optimizer = keras.optimizers.Adam()

        def body(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        strategy.run(tf.function(lambda: ipu.loops.repeat(2, body, [], queue) and None, jit_compile=True))
        return queue._feed.number

    assert has_ended(number_of_queue())


def test_gradients_of_a_function_are_found_as_long_as_a_graph_has_them(infeed_of, numbers):
    """The called function may be deleted by then."""
    queue = infeed_of(numbers(3))  # As long as this queue exists, TensorFlow does not keep gradients for ever.

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


def test_queue_of_another_thread_lives_on_and_ends_with_its_object(numbers, start, infeed_of, take_one):
    queue = start(lambda: infeed_of(numbers(3).repeat())).result(60)
    assert [int(take_one(queue)) for _ in range(3)] == [0, 1, 2]
    number = queue._feed.number
    assert not has_ended(number)
    del queue
    assert has_ended(number)


def counted(body: Any) -> tuple[Any, list[None]]:
    """Returns the body as a compiled function, and a list that grows with each trace."""
    traces: list[None] = []

    def noted(*args: Any) -> Any:
        traces.append(None)
        return body(*args)

    return tf.function(noted, jit_compile=True, autograph=False), traces


# One replica took new elements while another still had old ones, and rows of the outfeed mixed both.
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("deletes", [False, True])
def test_run_that_used_a_queue_takes_nothing_from_its_next_pass(
    count, deletes, replicas, numbers, infeed_of, start, until
):
    strategy = replicas(count)
    opened = tf.queue.FIFOQueue(10, [tf.int32], [[]])
    gate = infeed_of(tf.data.Dataset.range(10).map(lambda _: opened.dequeue()))
    infeed, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(steps):
        for _ in tf.range(steps):
            taken = infeed._dequeue()
            outfeed.enqueue(taken + 0 * gate._dequeue())

    def run(steps):
        opened.enqueue_many([[0] * steps * count])
        return start(lambda: strategy.run(program, (tf.constant(steps),)))

    run(1).result(60)
    running = start(lambda: strategy.run(program, (tf.constant(2),)))
    until(lambda: native.ipu_infeed_waiting(gate._feed.number) == count)
    if deletes:
        infeed.deleter  # noqa: B018
    infeed.initializer  # noqa: B018
    opened.enqueue_many([[0] * count])
    with pytest.raises(tf.errors.CancelledError, match=f"`{infeed._name}` was deleted or restarted while a program"):
        running.result(60)
    outfeed.dequeue()
    run(2).result(60)
    assert outfeed.dequeue().numpy().ravel().tolist() == list(range(2 * count))

    # A run in progress that has not used the queue yet takes only new elements.
    @tf.function(jit_compile=True)
    def gate_first():
        outfeed.enqueue(gate._dequeue() * 0 + infeed._dequeue())

    running = start(lambda: strategy.run(gate_first))
    until(lambda: native.ipu_infeed_waiting(gate._feed.number) == count)
    infeed.initializer  # noqa: B018
    opened.enqueue_many([[0] * count])
    running.result(60)
    assert outfeed.dequeue().numpy().ravel().tolist() == list(range(count))


def test_queues_of_one_spec_share_a_trace(numbers, infeed_of, strategy):
    program, traces = counted(lambda infeed, outfeed: outfeed.enqueue(infeed._dequeue()) and None)
    for begin in range(4):
        infeed, outfeed = infeed_of(numbers(begin, 10)), ipu.IPUOutfeedQueue(buffer_depth=begin + 1)
        strategy.run(program, (infeed, outfeed))
        infeed.initializer  # noqa: B018  (The access restarts it.)
        strategy.run(program, (infeed, outfeed))
        np.testing.assert_array_equal(outfeed.dequeue(), [begin, begin])
    assert len(traces) == 1


def test_passed_queue_of_another_spec_is_traced_anew(infeed_of, strategy):
    program, traces = counted(lambda infeed: infeed._dequeue())
    other_elements = [np.float32([1]), np.int32(1), np.int32([1, 2]), (np.int32([1]),), {"x": np.int32([1])}]
    for element in [np.int32([1]), *other_elements, np.int32([1])]:
        taken = strategy.run(program, (infeed_of(tf.data.Dataset.from_tensors(element)),))
        tf.nest.assert_same_structure(taken, element)
    assert len(traces) == 1 + len(other_elements)
    program, traces = counted(lambda outfeed: outfeed.enqueue(tf.constant(3)) and None)
    for mode in ipu.IPUOutfeedMode:
        outfeed = ipu.IPUOutfeedQueue(mode)
        strategy.run(program, (outfeed,))
        assert int(tf.reshape(outfeed.dequeue(), [])) == 3
    assert len(traces) == 2


def test_queue_outlives_its_program_which_functions_of_the_host_may_run(numbers, infeed_of, strategy):
    infeed, outfeed = infeed_of(numbers(10)), ipu.IPUOutfeedQueue()

    def run_twice() -> weakref.ref[Any]:
        program = tf.function(lambda: outfeed.enqueue(infeed._dequeue()) and None, jit_compile=True, autograph=False)
        strategy.run(program)

        @tf.function
        def on_host() -> None:
            strategy.run(program)
            strategy.run(program)

        on_host()
        return weakref.ref(program)

    for _ in range(2):
        program = run_twice()
        gc.collect()
        assert program() is None
    np.testing.assert_array_equal(outfeed.dequeue(max_elements=3), [0, 1, 2])
    read = tf.function(lambda: outfeed.dequeue() * 10, autograph=False)
    np.testing.assert_array_equal(read(), [30, 40, 50])
    by_spec = tf.function(lambda queue: queue._dequeue(), jit_compile=True, input_signature=[infeed._type_spec])
    assert int(strategy.run(by_spec, (infeed_of(numbers(5, 9)),))) == 5


def test_program_outlives_its_queues_and_the_python_code_of_their_datasets(infeed_of, strategy):
    def program_alone() -> tuple[Any, int, int]:
        def generate() -> Any:
            yield from range(10)

        dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32))
        infeed, outfeed = infeed_of(dataset, prefetch_depth=1), ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program() -> Any:
            x = infeed._dequeue()
            outfeed.enqueue(x)
            return x

        assert outfeed._feed is not None
        return program.get_concrete_function(), infeed._feed.number, outfeed._feed.number

    program, infeed, outfeed = program_alone()
    gc.collect()
    assert [int(strategy.run(program)) for _ in range(10)] == list(range(10))
    assert native.ipu_outfeed_ready(outfeed) == 10  # The elements cannot be read any more, and nothing breaks.
    del program
    assert has_ended(infeed)
    assert native.ipu_outfeed_drop(outfeed) == 0


def test_queues_that_are_gone_leave_nothing_on_the_device(numbers, echo, infeed_of):
    infeed, outfeed = infeed_of(numbers(10)), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 1)
    names = [re.findall(r'ResourceHandle\(name="([^"]+)"', repr(queue._state()))[0] for queue in (infeed, outfeed)]

    def exist() -> list[bool]:
        with tf.device("/device:IPU:0"):
            handles = [tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[4], shared_name=name) for name in names]
            return [bool(tf.raw_ops.VarIsInitializedOp(resource=handle)) for handle in handles]

    assert exist() == [True, True]
    del infeed, outfeed
    gc.collect()
    ipu.IPUOutfeedQueue()  # This cleans up.
    assert exist() == [False, False]


@pytest.mark.parametrize(("way", "ipus"), [("passed twice", 1), ("captured and passed", 1), ("passed twice", 2)])
def test_program_that_gets_a_queue_twice_is_refused_in_words(way, ipus, numbers, infeed_of, replicas):
    # XLA's message was about a duplicate variable.
    strategy, infeed = replicas(ipus), infeed_of(numbers(10))
    dequeue_both = tf.function(lambda a, b: (a._dequeue(), b._dequeue()), jit_compile=True, autograph=False)
    capturing = tf.function(lambda a: (a._dequeue(), infeed._dequeue()), jit_compile=True, autograph=False)
    program, args = (dequeue_both, (infeed, infeed)) if way == "passed twice" else (capturing, (infeed,))
    with pytest.raises(ValueError, match=r"gets the same queue twice.*Pass it once, or only capture it"):
        strategy.run(program, args)
    second_infeed = infeed_of(numbers(50, 60))
    assert [int(x) for x in strategy.run(dequeue_both, (infeed, second_infeed))] == [0, 50]
