"""What `dequeue` and iteration give, when they give nothing, and how a queue ends."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu import IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import ScopedIPUOutfeedQueue

LAST = IPUOutfeedMode.LAST


@tf.function(jit_compile=True)
def _count(queue: Any, begin: Any, end: Any) -> None:
    i = begin
    while i < end:
        queue.enqueue({"i": i, "row": tf.stack([i, -i])})
        i += 1


@pytest.fixture
def count(strategy: Any) -> Any:
    """`count(queue, a, b)` runs a program that enqueues the numbers from a to b - 1, each with a row [n, -n]."""
    return lambda queue, begin, end: strategy.run(_count, (queue, tf.constant(begin), tf.constant(end)))


def test_dequeue_gives_all_since_the_last_one_in_order_across_runs(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 3)
    count(queue, 3, 5)
    taken = queue.dequeue()
    np.testing.assert_array_equal(taken["i"], range(5))
    np.testing.assert_array_equal(taken["row"], [[i, -i] for i in range(5)])
    count(queue, 7, 8)
    np.testing.assert_array_equal(queue.dequeue()["i"], [7])


def test_dequeue_drains_so_that_the_next_has_no_rows(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 3)
    queue.dequeue()
    taken = queue.dequeue()
    assert (taken["i"].shape, taken["row"].shape) == ((0,), (0, 2))
    assert taken["row"].dtype == tf.int32


def test_dequeue_takes_the_first_elements_where_it_is_to_take_a_few(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 9)
    np.testing.assert_array_equal(queue.dequeue(max_elements=2)["row"], [[0, 0], [1, -1]])
    assert next(iter(queue))["i"] == 2  # The iteration has taken more along with it.
    np.testing.assert_array_equal(queue.dequeue(max_elements=1)["i"], [3])
    count(queue, 9, 12)
    np.testing.assert_array_equal(queue.dequeue(max_elements=6)["i"], range(4, 10))
    np.testing.assert_array_equal(queue.dequeue(max_elements=100)["i"], [10, 11])
    assert queue.dequeue(max_elements=1)["i"].shape == (0,)


def test_function_of_the_host_takes_a_few_elements(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 5)
    take_two = tf.function(lambda: queue.dequeue(max_elements=2)["i"])
    assert [take_two().numpy().tolist() for _ in range(4)] == [[0, 1], [2, 3], [4], []]


@pytest.mark.parametrize(
    ("most", "mode", "error", "says"),
    [
        (0, IPUOutfeedMode.ALL, ValueError, r"`max_elements` must be 1 or more .*but is 0"),
        (2**63, IPUOutfeedMode.ALL, ValueError, r"`max_elements` .* fit in 64 bits"),
        (1.5, IPUOutfeedMode.ALL, TypeError, r"`max_elements` must be an integer or None, but is 1.5"),
        (True, IPUOutfeedMode.ALL, TypeError, r"`max_elements` must be an integer or None, but is True"),
        (1, LAST, ValueError, r"`max_elements` is 1, but a queue of mode `IPUOutfeedMode.LAST` has one element"),
    ],
)
def test_bad_number_of_elements_is_refused(most: Any, mode: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        IPUOutfeedQueue(mode).dequeue(max_elements=most)


def test_one_replica_adds_no_axis(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 4)
    taken = queue.dequeue()
    assert (taken["i"].shape, taken["row"].shape) == ((4,), (4, 2))


def test_run_that_enqueued_nothing_leaves_no_rows(strategy: Any) -> None:
    queue = IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(n: Any) -> None:
        for i in tf.range(n):
            queue.enqueue(i)

    strategy.run(program, (tf.constant(0),))
    assert queue.dequeue().shape == (0,)


def test_queue_that_was_traced_and_never_run_has_no_rows() -> None:
    queue = IPUOutfeedQueue()
    tf.function(lambda: queue.enqueue(tf.zeros([3])) and None, jit_compile=True).get_concrete_function()
    assert queue.dequeue().shape == (0, 3)


def test_dequeue_before_any_enqueue_is_refused_on_the_queues_own_thread() -> None:
    for mode in IPUOutfeedMode:
        with pytest.raises(ValueError, match=r"dequeue an outfeed which has not been enqueued"):
            IPUOutfeedQueue(mode).dequeue()


def test_dequeue_before_any_enqueue_is_empty_on_another_thread(start: Any) -> None:
    queue = IPUOutfeedQueue()
    assert start(queue.dequeue).result(60) == []
    assert start(lambda: queue.dequeue(wait_for_completion=True)).result(60) == []


def test_dequeue_is_of_the_elements_that_came_and_not_of_the_latest_trace(strategy: Any) -> None:
    # It once took the latest trace's shape for what the queue held, and read past the end of the elements.
    queue = IPUOutfeedQueue()
    program = tf.function(lambda x: queue.enqueue(x) and None, jit_compile=True)
    strategy.run(program, (tf.constant([1.0, 2.0]),))
    program.get_concrete_function(tf.TensorSpec([4000], tf.float32))
    np.testing.assert_array_equal(queue.dequeue(), [[1, 2]])
    assert [x.numpy().tolist() for x in queue] == []


@pytest.mark.parametrize(
    "other",
    [tf.zeros([3]), tf.zeros([2], tf.int32), tf.zeros([2, 1]), tf.zeros([]), (tf.zeros([2]),)],
    ids=["longer", "type", "rank", "scalar", "structure"],
)
def test_elements_of_another_kind_are_refused_and_harm_nothing(other: Any, strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    program = tf.function(lambda x: queue.enqueue(x) and None, jit_compile=True)
    strategy.run(program, (tf.constant([1.0, 2.0]),))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"holds elements of another structure, type or shape"):
        strategy.run(program, (other,))
    strategy.run(program, (tf.constant([3.0, 4.0]),))
    np.testing.assert_array_equal(queue.dequeue(), [[1, 2], [3, 4]])


def test_dicts_that_were_filled_in_another_order_are_of_one_kind(strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    for order in ("ab", "ba"):
        element = {key: tf.constant(ord(key)) for key in order}
        strategy.run(tf.function(lambda element: queue.enqueue(element) and None, jit_compile=True), (element,))
    taken = queue.dequeue()
    assert {key: leaf.numpy().tolist() for key, leaf in taken.items()} == {"a": [97, 97], "b": [98, 98]}


def test_last_mode_gives_the_last_element_without_an_axis(count: Any) -> None:
    queue = IPUOutfeedQueue(LAST)
    count(queue, 0, 5)
    count(queue, 5, 9)
    taken = queue.dequeue()
    assert taken["i"].shape == ()
    assert int(taken["i"]) == 8
    np.testing.assert_array_equal(taken["row"], [8, -8])


def test_last_mode_has_nothing_after_a_dequeue_until_the_next_run(count: Any) -> None:
    queue = IPUOutfeedQueue(LAST)
    count(queue, 0, 5)
    queue.dequeue()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"has no value to dequeue.*Run the program first"):
        queue.dequeue()
    count(queue, 5, 7)
    assert int(queue.dequeue()["i"]) == 6


def test_last_mode_has_nothing_before_the_first_run(count: Any) -> None:
    queue = IPUOutfeedQueue(LAST)
    tf.function(lambda: queue.enqueue(1) and None, jit_compile=True).get_concrete_function()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"has no value to dequeue"):
        queue.dequeue()


def test_iteration_gives_an_element_per_enqueue_and_then_ends(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 3)
    elements = [(int(x["i"]), x["row"].numpy().tolist()) for x in queue]
    assert elements == [(0, [0, 0]), (1, [1, -1]), (2, [2, -2])]
    assert list(queue) == []


def test_later_iteration_gives_what_is_new(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 2)
    assert [int(x["i"]) for x in queue] == [0, 1]
    count(queue, 2, 4)
    assert [int(x["i"]) for x in queue] == [2, 3]


def test_iterator_that_has_ended_goes_on_when_there_is_more(count: Any) -> None:
    queue = IPUOutfeedQueue()
    iterator = iter(queue)
    assert iter(iterator) is iterator
    with pytest.raises(StopIteration):
        next(iterator)
    count(queue, 0, 2)
    assert [int(x["i"]) for x in iterator] == [0, 1]


def test_run_within_an_iteration_adds_to_it(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 3)
    seen = []
    for x in queue:
        seen.append(int(x["i"]))
        if seen == [0]:
            count(queue, 3, 5)
    assert seen == [0, 1, 2, 3, 4]


def test_iteration_before_any_enqueue_ends_at_once() -> None:
    with pytest.raises(StopIteration):
        next(iter(IPUOutfeedQueue()))


def test_sum_of_a_queue_is_that_of_its_elements(echo: Any, infeed_of: Any, numbers: Any) -> None:
    queue = IPUOutfeedQueue()
    echo(infeed_of(numbers(10)), queue, 10)
    assert int(sum(queue)) == 45


def test_iteration_of_mode_last_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"only be iterated over if the `outfeed_mode` is set to `IPUOutfeedMode.ALL`"
    ):
        iter(IPUOutfeedQueue(LAST))


def test_iteration_in_a_graph_is_refused() -> None:
    queue = IPUOutfeedQueue()
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match=r"can only be iterated over in eager mode"):
        iter(queue)


def test_deleter_ends_the_queue(count: Any) -> None:
    queue = IPUOutfeedQueue()
    count(queue, 0, 3)
    assert queue.deleter is None
    for access in (lambda: queue.deleter, queue.dequeue, lambda: list(queue)):
        with pytest.raises(tf.errors.NotFoundError, match=r"it was deleted"):
            access()
    with pytest.raises(tf.errors.NotFoundError, match=r"outfeed queue of this program was deleted"):
        count(queue, 0, 3)


def test_scoped_queue_is_deleted_with_its_object(count: Any) -> None:
    queue = ScopedIPUOutfeedQueue()
    assert queue._feed is not None
    number = queue._feed.number
    count(queue, 0, 3)
    np.testing.assert_array_equal(queue.dequeue()["i"], [0, 1, 2])
    count(queue, 0, 2)
    assert native.ipu_outfeed_ready(number) == 2
    del queue
    gc.collect()
    assert native.ipu_outfeed_drop(number) == 0


def test_scoped_queue_takes_a_mode_and_a_device() -> None:
    queue = ScopedIPUOutfeedQueue(LAST, 1)
    assert queue.device == "/device:IPU:1"
    assert queue._mode is LAST


def test_scoped_queue_in_a_graph_is_refused() -> None:
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match=r"can only be created in eager mode"):
        ScopedIPUOutfeedQueue()


def test_program_of_a_scoped_queue_that_is_gone_fails_in_words(strategy: Any) -> None:
    def program_alone() -> Any:
        queue = ScopedIPUOutfeedQueue()
        return tf.function(lambda: queue.enqueue(1) and None, jit_compile=True).get_concrete_function()

    program = program_alone()
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match=r"Keep the queue as long as programs use it"):
        strategy.run(program)
