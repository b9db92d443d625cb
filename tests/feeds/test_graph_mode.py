"""Queues in a `tf.Graph` that a session runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining

Session = tf.compat.v1.Session


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def infeed() -> ipu.IPUInfeedQueue:
    return ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(np.arange(10, dtype=np.int32)))


def program_of(infeed: Any, *outfeeds: Any) -> Any:
    """Builds a program that passes three elements on and returns their sum."""

    @tf.function(jit_compile=True)
    def program() -> Any:
        return ipu.loops.repeat(3, lambda i, x: (i + x, *(outfeed.enqueue(x) for outfeed in outfeeds)), [0], infeed)

    with tf.device("/device:IPU:0"):
        return program()


def test_initializer_is_an_operation_that_can_be_had_once_and_refuses_types_as_it_is_built(infeed):
    assert isinstance(infeed.initializer, tf.Operation)
    with pytest.raises(ValueError, match=r"`initializer` function can only be accessed once in a graph"):
        infeed.initializer  # noqa: B018
    with pytest.raises(tf.errors.FailedPreconditionError, match="Unsupported datatype double on index 0"):
        ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(np.float64(1))).initializer  # noqa: B018


def test_outfeed_says_of_each_graph_whether_that_enqueues(infeed):
    outfeed, single = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()
    for graph in (tf.compat.v1.get_default_graph(), tf.Graph()):
        with graph.as_default():
            assert (outfeed.enqueued, single.enqueued) == (False, False)
            program_of(infeed, outfeed)
            with tf.device("/device:IPU:0"):
                single.enqueue(1)
            assert (outfeed.enqueued, single.enqueued) == (True, True)
    with tf.init_scope():
        assert outfeed.enqueued


@pytest.mark.parametrize("is_eager", [True, False])
def test_initializer_and_deleter_belong_to_the_graph_of_the_queue_wherever_they_are_read(is_eager):
    with tf.Graph().as_default() as queue_graph:
        queue, outfeed = (
            ipu.IPUInfeedQueue(tf.data.Dataset.range(9).map(lambda i: tf.cast(i, tf.int32))),
            ipu.IPUOutfeedQueue(),
        )
        result = program_of(queue, outfeed)

    def read() -> list[Any]:
        assert tf.executing_eagerly() is is_eager
        return [queue.initializer, queue.deleter, outfeed.deleter]

    if is_eager:  # This is the case on any thread that enters no graph.
        with ThreadPoolExecutor() as threads:
            operations = threads.submit(read).result(60)
    else:
        operations = read()
    assert [operation.graph for operation in operations] == [queue_graph] * 3
    with Session(graph=queue_graph) as session:
        session.run(operations[0])
        assert session.run(result) == 0 + 1 + 2
        session.run(operations[1:])
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(result)


def test_program_goes_on_where_it_stopped_until_the_dataset_ends(infeed):
    outfeed = ipu.IPUOutfeedQueue()
    result, initializer = program_of(infeed, outfeed), infeed.initializer
    dequeued = outfeed.dequeue()
    with Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="has no dataset iterator"):
            session.run(result)
        session.run(initializer)
        assert session.run(dequeued).shape == (0,)
        assert session.run(result) == 0 + 1 + 2
        with Session() as second_session:  # The position belongs to the queue, not to the session.
            assert second_session.run(result) == 3 + 4 + 5
        np.testing.assert_array_equal(session.run(dequeued), range(6))
        assert session.run(dequeued).shape == (0,)
        assert session.run(result) == 6 + 7 + 8
        with pytest.raises(tf.errors.OutOfRangeError, match="ended after 10 elements"):
            session.run(result)
        np.testing.assert_array_equal(session.run(dequeued), range(6, 10))


def test_deleter_and_initializer_can_be_run_in_turn(infeed):
    result, initializer, deleter = program_of(infeed), infeed.initializer, infeed.deleter
    with Session() as session:
        with pytest.raises(tf.errors.NotFoundError, match="it was not initialized"):
            session.run(deleter)
        for _ in range(2):
            session.run(initializer)
            assert session.run(result) == 3
            session.run(deleter)
            with pytest.raises(tf.errors.FailedPreconditionError, match="was not initialized, or it was deleted"):
                session.run(result)


# XLA may have reused the memory of the state variable that names the queues to the program.
@pytest.mark.parametrize("count_of_replicas", [1, 2])
def test_queues_serve_the_next_run_after_one_that_failed_midway(count_of_replicas, replicas):
    strategy = replicas(2 * count_of_replicas)
    elements = np.arange(8 * count_of_replicas, dtype=np.float32)
    infeed, outfeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(elements)), ipu.IPUOutfeedQueue()
    count = tf.compat.v1.placeholder(tf.int32, [])

    @tf.function(jit_compile=True)
    def program(count: Any) -> Any:
        stages = [lambda x: x + 1, lambda x: 2 * x]
        pipelining.pipeline(stages, count, infeed_queue=infeed, outfeed_queue=outfeed)
        return count

    with strategy.scope():
        result = strategy.run(program, (count,))
    initializer, dequeued = infeed.initializer, outfeed.dequeue()
    with Session() as session:
        session.run(initializer)
        session.run(result, {count: 4})
        with pytest.raises(tf.errors.FailedPreconditionError, match="must be a multiple of 2"):
            session.run(result, {count: 3})
        session.run(result, {count: 4})
        np.testing.assert_array_equal(np.ravel(session.run(dequeued)), 2 * (elements + 1))


def test_outfeed_is_enqueued_once_before_it_is_dequeued_and_is_for_graphs():
    outfeed = ipu.IPUOutfeedQueue()
    with pytest.raises(ValueError, match="dequeue an outfeed which has not been enqueued"):
        outfeed.dequeue()
    outfeed.enqueue(1)
    with pytest.raises(ValueError, match="can only be enqueued once"):
        outfeed.enqueue(2)
    with tf.Graph().as_default():
        assert isinstance(outfeed.enqueue(3), tf.Operation)
        with pytest.raises(ValueError, match="can only be enqueued once"):
            outfeed.enqueue(4)
    with pytest.raises(RuntimeError, match="can only be created in eager mode"):
        ipu.feeds.ScopedIPUOutfeedQueue()
    with pytest.raises(RuntimeError, match="can only be iterated over in eager mode"):
        iter(ipu.IPUOutfeedQueue())


def test_dequeue_that_was_built_for_other_elements_fails_and_loses_none():
    # It once read the elements by the wrong shape, past their end.
    outfeed = ipu.IPUOutfeedQueue()

    def program_with(value: Any) -> tuple[Any, Any]:
        program = tf.function(lambda: [outfeed.enqueue(value), tf.constant(0)][1], jit_compile=True, autograph=False)
        with tf.device("/device:IPU:0"):
            result = program()
        return result, outfeed.dequeue()

    _, large = program_with(np.ones(5000, np.float32))
    result, small = program_with(np.ones(2, np.float32))
    with Session() as session:
        session.run(result)
        with pytest.raises(tf.errors.FailedPreconditionError, match="structure, type or shape than this dequeue was"):
            session.run(large)
        np.testing.assert_array_equal(session.run(small), [[1, 1]])


def test_structured_int8_elements_keep_their_values_and_are_taken_a_few_at_a_time():
    values = np.array([[-128, 127], [-1, 0], [5, -7]], np.int8)
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(values))
    outfeed = ipu.IPUOutfeedQueue()

    def body(x: Any) -> Any:
        return outfeed.enqueue({"x": x, "rows": (tf.cast(x, tf.int32), [x])})

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        program = ipu.compiler.compile(lambda: ipu.loops.repeat(3, body, [], infeed))
    initializer, two = infeed.initializer, outfeed.dequeue(max_elements=2)
    with Session() as session:
        session.run(initializer)
        session.run(program)
        taken = [session.run(two) for _ in range(3)]
    assert [len(part["x"]) for part in taken] == [2, 1, 0]
    assert {part["x"].dtype for part in taken} == {np.dtype(np.int8)}
    for part in (
        lambda element: element["x"],
        lambda element: element["rows"][0],
        lambda element: element["rows"][1][0],
    ):
        np.testing.assert_array_equal(np.concatenate([part(element) for element in taken]), values)


@pytest.mark.parametrize("initialized", [True, False])
def test_table_of_a_dataset_may_be_initialized_after_the_initializer_ran_or_is_named_by_the_program(initialized):
    entries = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([5, 6]))
    table, begun = tf.lookup.StaticHashTable(entries, 0), threading.Event()

    def note(key: Any) -> Any:
        begun.set()
        return key

    def read(key: Any) -> Any:
        return table.lookup(tf.ensure_shape(tf.numpy_function(note, [key], tf.int64), []))

    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.range(9).map(read))
    program, initializer, deleter = program_of(infeed), infeed.initializer, infeed.deleter
    tables = tf.compat.v1.tables_initializer()
    with Session() as session:
        session.run(initializer)
        if initialized:
            assert begun.wait(60)
            session.run(tables)
            assert [session.run(program) for _ in range(2)] == [5 + 6 + 0, 0]
        else:
            with pytest.raises(tf.errors.FailedPreconditionError, match="Table not initialized"):
                session.run(program)
            session.run(initializer)
        session.run(deleter)  # No program has requested an element, but the pump ends too.


def test_enqueue_on_its_own_runs_in_a_session():
    outfeed = ipu.IPUOutfeedQueue()
    value = tf.compat.v1.placeholder(tf.float32, [2])
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        enqueue = outfeed.enqueue({"twice": 2 * value})
    dequeued = outfeed.dequeue()
    with Session() as session:
        for step in range(3):
            assert session.run(enqueue, {value: [step, 1]}) is None
        np.testing.assert_array_equal(session.run(dequeued)["twice"], [[0, 2], [2, 2], [4, 2]])


def test_deleter_ends_the_outfeed_and_a_closed_session_stops_the_reading_that_it_started(infeed):
    outfeed = ipu.IPUOutfeedQueue()
    result, initializer = program_of(infeed), infeed.initializer
    enqueue, dequeued, deleter = outfeed.enqueue(1), outfeed.dequeue(), outfeed.deleter
    del enqueue
    with Session() as session:
        session.run(initializer)
    with Session() as session:
        with pytest.raises(tf.errors.OpError, match=r"was deleted or restarted|has no dataset iterator"):
            session.run(result)
        session.run(initializer)
        assert session.run(result) == 3
        session.run(deleter)
        for operation in (dequeued, deleter):
            with pytest.raises(tf.errors.NotFoundError, match="it was deleted"):
                session.run(operation)
