"""Elements that a reader of an outfeed takes without an operation of TensorFlow."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import _layout, _rows

TYPES = (tf.bool, tf.bfloat16, tf.float16, tf.float32, tf.int8, tf.uint8, tf.int32, tf.uint32, tf.int64)
COUNT = 150  # More than a call takes.
NOTHING = (None, ())  # What a reader takes where there is nothing.


def _number(queue: ipu.IPUOutfeedQueue) -> int:
    assert queue._feed is not None
    return queue._feed.number


def _reader(queue: ipu.IPUOutfeedQueue) -> _rows.RowReader:
    layout = queue._current_layout()
    assert layout is not None
    assert layout.row_reader is not None
    return layout.row_reader


def _taken(queue: ipu.IPUOutfeedQueue, ahead: _rows.PreallocatedOutput, most: int = _rows.MOST) -> Any:
    """What a reader takes that would wait for a microsecond."""
    return _reader(queue).take(_number(queue), 1, most, ahead)


def test_elements_of_all_types_and_ranks_are_those_that_a_dequeue_gives(strategy: ipu.IPUStrategy) -> None:
    iterated, dequeued = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for i in tf.range(COUNT):
            leaves = {type_.name: tf.cast(tf.fill([3, 5], i % 2), type_) for type_ in TYPES}
            element = {
                "leaves": leaves,
                "number": i,
                "rows": (tf.fill([1], 2.5), tf.reshape(tf.range(4) + i, [2, 1, 2])),
            }
            iterated.enqueue(element)
            dequeued.enqueue(element)

    strategy.run(program)
    wanted = tf.nest.flatten(dequeued.dequeue())
    found = list(iterated)
    assert len(found) == COUNT
    tf.nest.assert_same_structure(found[0], iterated.element_spec)
    for at, element in enumerate(found):
        for one, rows in zip(tf.nest.flatten(element), wanted, strict=True):
            assert one.dtype == rows[at].dtype
            assert one.device == rows[at].device
            np.testing.assert_array_equal(one, rows[at])


@pytest.mark.parametrize("of", [1, 2])
def test_stacked_elements_of_all_types_and_ranks_are_those_that_the_operation_gives(replicas: Any, of: int) -> None:
    stacked, by_operation = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for i in tf.range(COUNT):
            leaves = [tf.cast(tf.fill([3, 5], i % 2), type_) for type_ in TYPES]
            own = ipu.ops.replication_ops.replication_index() if of > 1 else 0
            element = (*leaves, i, tf.reshape(tf.range(4) + own, [2, 1, 2]))
            stacked.enqueue(element)
            by_operation.enqueue(element)

    replicas(of).run(program)
    layout = stacked._current_layout()
    assert layout is not None
    for most, rows in ((COUNT - 3, COUNT - 3), (COUNT, 3), (COUNT, 0)):
        found = _reader(stacked).take_stacked(_number(stacked), 1, most)
        assert found is not None
        for one, wanted in zip(found, by_operation._take(layout, most), strict=True):
            assert (one.dtype, one.device, one.shape) == (wanted.dtype, wanted.device, wanted.shape)
            assert one.shape[0] == rows
            np.testing.assert_array_equal(one, wanted)


def test_a_dequeue_needs_no_operation_and_its_result_outlives_the_queue(
    strategy: ipu.IPUStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for i in tf.range(COUNT):
            queue.enqueue(tf.range(100) + i)

    strategy.run(program)
    monkeypatch.setattr(queue, "_take", lambda *_: pytest.fail("An operation of TensorFlow dequeued."))
    taken = queue.dequeue()
    queue.deleter  # noqa: B018  (The access ends it.)
    gc.collect()
    np.testing.assert_array_equal(taken, np.arange(COUNT)[:, None] + np.arange(100))
    assert int(tf.reduce_sum(taken)) == sum(range(100)) * COUNT + 100 * sum(range(COUNT))


def test_a_reader_takes_no_stacked_elements_of_another_layout_and_leaves_them(strategy: ipu.IPUStrategy) -> None:
    queue, other = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue(tf.range(3))
        other.enqueue(1.5)

    strategy.run(program)
    assert _reader(other).take_stacked(_number(queue), 0, 1) is None
    np.testing.assert_array_equal(queue.dequeue(), [[0, 1, 2]])
    number = _number(other)
    reader = _reader(other)
    other.deleter  # noqa: B018  (The access ends it.)
    assert reader.take_stacked(number, 0, 1) is None


def test_an_element_that_was_waited_for_comes_into_tensors_that_were_made_before(strategy: ipu.IPUStrategy) -> None:
    waited, dequeued = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(begin: tf.Tensor) -> None:
        for i in tf.range(begin, begin + 3):
            leaves = [tf.cast(tf.fill([3, 5], i % 2), type_) for type_ in TYPES]
            waited.enqueue({"number": i, "leaves": leaves})
            dequeued.enqueue((i, leaves))

    strategy.run(program, args=(tf.constant(0),))
    assert len(list(waited)) == len(tf.nest.flatten(dequeued.dequeue())[0]) == 3
    ahead = _rows.PreallocatedOutput()
    assert _taken(waited, ahead) == NOTHING
    place = ahead.place
    assert place is not None
    assert _taken(waited, ahead) == NOTHING
    assert ahead.place is place
    strategy.run(program, args=(tf.constant(3),))
    first, others = _taken(waited, ahead, 2)
    assert first is place.element
    assert ahead.place is None
    assert len(others) == 1
    last, others = _taken(waited, ahead, 2)
    assert last is not first
    tf.nest.assert_same_structure(last, waited.element_spec)
    assert (int(first["number"]), int(last["number"]), others) == (3, 5, ())
    number, leaves = dequeued.dequeue()
    assert number.numpy().tolist() == [3, 4, 5]
    for at, element in ((0, first), (2, last)):
        for leaf, rows in zip(element["leaves"], leaves, strict=True):
            assert leaf.dtype == rows.dtype
            np.testing.assert_array_equal(leaf, rows[at])


def test_tensors_that_were_made_for_other_replicas_are_not_used(replicas: Any) -> None:
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue(ipu.ops.replication_ops.replication_index())

    replicas(3).run(program)
    list(queue)
    ahead = _rows.PreallocatedOutput()
    assert _taken(queue, ahead) == NOTHING
    lanes = native.ipu_outfeed_lanes(_number(queue))
    replicas(2).run(program)
    assert (lanes, native.ipu_outfeed_lanes(_number(queue))) == (3, 2)
    stale = ahead.place
    assert stale is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_reader(queue), "_place", lambda number, ahead: stale)  # As if the run had ended during the wait.
        assert _taken(queue, ahead) is None
    assert ahead.place is None
    assert [element.numpy().tolist() for element in queue] == [[0, 1]]


def test_a_large_element_gets_its_tensors_when_it_is_there(strategy: ipu.IPUStrategy) -> None:
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue(tf.range((_rows._MOST_BYTES_AHEAD >> 2) + 1))

    strategy.run(program)
    list(queue)
    ahead = _rows.PreallocatedOutput()
    assert _taken(queue, ahead) == NOTHING
    assert ahead.place is None
    strategy.run(program)
    first, others = _taken(queue, ahead)
    assert not others
    np.testing.assert_array_equal(first, np.arange((_rows._MOST_BYTES_AHEAD >> 2) + 1))


def test_an_element_of_replicas_has_them_side_by_side(replicas: Any) -> None:
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for i in tf.range(2):
            own = tf.cast(ipu.ops.replication_ops.replication_index(), tf.float32)
            queue.enqueue((tf.fill([2], own), i))

    replicas(3).run(program)
    for at, (own, number) in enumerate(queue):
        np.testing.assert_array_equal(own, [[0, 0], [1, 1], [2, 2]])
        np.testing.assert_array_equal(number, [at] * 3)


def test_an_element_outlives_its_queue(strategy: ipu.IPUStrategy) -> None:
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue(tf.range(1000))

    strategy.run(program)
    element = next(iter(queue))
    queue.deleter  # noqa: B018  (The access ends it.)
    gc.collect()
    np.testing.assert_array_equal(element, np.arange(1000))
    assert int(tf.reduce_sum(element)) == 499500


def test_an_iteration_over_a_queue_that_is_gone_says_so(strategy: ipu.IPUStrategy) -> None:
    queue = ipu.IPUOutfeedQueue()
    strategy.run(tf.function(lambda: queue.enqueue(1) and None, jit_compile=True))
    assert [int(one) for one in queue] == [1]
    queue.deleter  # noqa: B018  (The access ends it.)
    with pytest.raises(tf.errors.NotFoundError, match="it was deleted"):
        next(iter(queue))


def test_types_that_dlpack_does_not_have_come_by_the_operation(
    strategy: ipu.IPUStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_layout.RowReader, "serves", lambda types: False)
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for i in tf.range(COUNT):
            queue.enqueue({"number": i, "pair": tf.stack([i, -i])})

    strategy.run(program)
    assert [(int(one["number"]), one["pair"].numpy().tolist()) for one in queue] == [(i, [i, -i]) for i in range(COUNT)]
