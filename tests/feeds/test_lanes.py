"""Queues of several replicas: a lane each, elements dealt out in turn, rows put together of one element a replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import ops


def lane_of(queue: Any, lane: int, lanes: int) -> Any:
    """The queue as replica `lane` of `lanes` gets it. It does not keep the queue alive."""
    with tf.device(queue.device):
        state = ops.ipu_feed_state(initial=tf.constant([queue._feed.number, lane, lanes, 0], tf.int64))
    return queue._type_spec._from_components([state])


@pytest.fixture
def replicas(echo: Any, start: Any) -> Any:
    """`replicas(infeed, outfeed, n, lanes)` passes on `n` elements a lane, on a thread each; returns their futures."""

    def run(infeed: Any, outfeed: Any, n: int, lanes: int) -> list[Any]:
        pairs = [(lane_of(infeed, lane, lanes), lane_of(outfeed, lane, lanes)) for lane in range(lanes)]
        return [start(lambda pair=pair: echo(*pair, n)) for pair in pairs]

    return run


@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_element_t_times_r_plus_i_goes_to_replica_i_of_r(
    lanes: int, numbers: Any, infeed_of: Any, replicas: Any
) -> None:
    infeed, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()
    for begin in (0, 5):  # The second run goes on where the first one stopped.
        for run in replicas(infeed, outfeed, 5, lanes):
            run.result(60)
        rows = np.arange(begin * lanes, (begin + 5) * lanes).reshape(5, lanes)
        np.testing.assert_array_equal(outfeed.dequeue(), rows)


def test_incomplete_last_row_is_dropped(numbers: Any, infeed_of: Any, replicas: Any) -> None:
    infeed, outfeed = infeed_of(numbers(11)), ipu.IPUOutfeedQueue()
    for run in replicas(infeed, outfeed, 5, 4):
        with pytest.raises(tf.errors.OutOfRangeError, match="ended after 11 elements"):
            run.result(60)
    np.testing.assert_array_equal(outfeed.dequeue(), [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_replica_axis_comes_after_that_of_the_rows(infeed_of: Any, replicas: Any) -> None:
    values = np.arange(6 * 2 * 3, dtype=np.float32).reshape(6, 2, 3)
    dataset = tf.data.Dataset.from_tensor_slices({"x": values, "y": np.arange(6, dtype=np.int32)})
    infeed, outfeed = infeed_of(dataset), ipu.IPUOutfeedQueue()
    for run in replicas(infeed, outfeed, 3, 2):
        run.result(60)
    taken = outfeed.dequeue()
    np.testing.assert_array_equal(taken["x"], values.reshape(3, 2, 2, 3))
    np.testing.assert_array_equal(taken["y"], [[0, 1], [2, 3], [4, 5]])


def test_iteration_gives_a_row_of_all_replicas(numbers: Any, infeed_of: Any, replicas: Any) -> None:
    infeed, outfeed = infeed_of(numbers(6)), ipu.IPUOutfeedQueue()
    for run in replicas(infeed, outfeed, 3, 2):
        run.result(60)
    assert [row.numpy().tolist() for row in outfeed] == [[0, 1], [2, 3], [4, 5]]


def test_last_mode_gives_the_last_row(numbers: Any, infeed_of: Any, replicas: Any) -> None:
    infeed, outfeed = infeed_of(numbers(6)), ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
    for run in replicas(infeed, outfeed, 3, 2):
        run.result(60)
    np.testing.assert_array_equal(outfeed.dequeue(), [4, 5])
    with pytest.raises(tf.errors.FailedPreconditionError, match="has no value to dequeue"):
        outfeed.dequeue()


def test_row_is_there_once_all_replicas_have_enqueued(numbers: Any, infeed_of: Any, echo: Any) -> None:
    infeed, outfeed = infeed_of(numbers(12)), ipu.IPUOutfeedQueue()
    first, second = (lane_of(outfeed, lane, 2) for lane in range(2))
    echo(infeed, first, 3)
    assert outfeed.dequeue().shape[0] == 0
    echo(infeed, second, 1)
    np.testing.assert_array_equal(outfeed.dequeue(), [[0, 3]])
    echo(infeed, second, 4)
    np.testing.assert_array_equal(outfeed.dequeue(), [[1, 4], [2, 5]])
    echo(infeed, first, 2)
    np.testing.assert_array_equal(outfeed.dequeue(), [[8, 6], [9, 7]])


def test_replica_that_runs_ahead_finds_its_own_elements(numbers: Any, infeed_of: Any, echo: Any, start: Any) -> None:
    infeed, outfeeds = infeed_of(numbers(100), prefetch_depth=2), [ipu.IPUOutfeedQueue() for _ in range(2)]
    ahead = start(lambda: echo(lane_of(infeed, 0, 2), outfeeds[0], 20))
    start(lambda: echo(lane_of(infeed, 1, 2), outfeeds[1], 20)).result(60)
    ahead.result(60)
    for lane, outfeed in enumerate(outfeeds):
        np.testing.assert_array_equal(outfeed.dequeue(), np.arange(lane, 40, 2))


def test_infeed_of_a_program_of_other_replicas_is_refused(
    numbers: Any, infeed_of: Any, echo: Any, replicas: Any
) -> None:
    infeed, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()
    for run in replicas(infeed, outfeed, 2, 2):
        run.result(60)
    with pytest.raises(tf.errors.FailedPreconditionError, match="feeds a program of 2 replicas; a program of 1 cannot"):
        echo(infeed, ipu.IPUOutfeedQueue(), 1)


def test_outfeed_serves_a_program_of_other_replicas_once_it_is_read(
    numbers: Any, infeed_of: Any, echo: Any, replicas: Any
) -> None:
    infeed, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()
    for run in replicas(infeed, outfeed, 2, 2):
        run.result(60)
    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match=r"of 2 replicas; a program of 1 cannot add to them\. Dequeue them first",
    ):
        echo(infeed_of(numbers(100)), outfeed, 1)
    np.testing.assert_array_equal(outfeed.dequeue(), [[0, 1], [2, 3]])  # They keep the shape of who enqueued them.
    echo(infeed_of(numbers(100)), outfeed, 2)
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1])
