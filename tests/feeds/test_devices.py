"""Queues on other devices than the first; and `TF_POPLAR_FLAGS`, by which no data passes between host and device."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration


@tf.function(jit_compile=True)
def _program(infeed: Any, outfeed: Any) -> None:
    for _ in tf.range(3):
        outfeed.enqueue(infeed._dequeue())


@pytest.mark.parametrize("configured_first", [True, False])
def test_queues_serve_the_second_device_and_go_quietly_after_it(configured_first, numbers, infeed_of, configure):
    if configured_first:
        configure(1, 1)
    infeed, outfeed = infeed_of(numbers(10), device_ordinal=1), ipu.IPUOutfeedQueue(device_ordinal=1)
    if not configured_first:
        configure(1, 1)
    strategy = ipu.IPUStrategy("/device:IPU:1")
    with strategy.scope():
        iterator = iter(numbers(5, 9))
    take = tf.function(lambda: next(iterator), jit_compile=True, autograph=False)
    assert int(strategy.run(take)) == 5
    strategy.run(_program, (infeed, outfeed))
    # The end of a queue once failed on a deleted device, in the garbage collector, where no caller can handle the
    # error.
    reset_ipu_configuration()
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2])
    del infeed, outfeed
    gc.collect()


def test_both_devices_run_at_once_with_queues_of_their_own(tap, numbers, infeed_of, start, until_waiting, configure):
    configure(1, 1)
    waiting, outfeed = infeed_of(tap.dataset, device_ordinal=0), ipu.IPUOutfeedQueue(device_ordinal=0)
    first = start(lambda: ipu.IPUStrategy().run(_program, (waiting, outfeed)))
    until_waiting(waiting)
    second = ipu.IPUOutfeedQueue(device_ordinal=1)
    ipu.IPUStrategy("/device:IPU:1").run(_program, (infeed_of(numbers(3), device_ordinal=1), second))
    np.testing.assert_array_equal(second.dequeue(), [0, 1, 2])
    tap.put(7, 8, 9)
    first.result(60)
    np.testing.assert_array_equal(outfeed.dequeue(), [7, 8, 9])


@pytest.mark.parametrize("passed", [True, False], ids=["passed", "captured"])
def test_queue_of_another_device_is_refused_in_words(passed, numbers, infeed_of, strategy, configure):
    # The program once failed with a message about the name of an inner variable.
    configure(1, 1)
    infeed, outfeed = infeed_of(numbers(10), device_ordinal=1), ipu.IPUOutfeedQueue(device_ordinal=1)
    for queue, use in ((infeed, lambda queue: queue._dequeue()), (outfeed, lambda queue: queue.enqueue(1) and None)):
        program = tf.function(use if passed else lambda: use(queue), jit_compile=True, autograph=False)  # noqa: B023
        message = (
            r"runs on `/device:IPU:0`, but .* belongs to `/device:IPU:1`: make the queue inside `strategy.scope\(\)`"
        )
        with pytest.raises(ValueError, match=message):
            strategy.run(program, (queue,) if passed else ())


ALL = "--use_synthetic_data"
INFEED = "--synthetic_data_categories=infeed"
OUTFEED = "--synthetic_data_categories=outfeed"


def run(infeed: Any, outfeed: Any) -> Any:
    """Traces and runs a program that passes on three elements and returns their sum."""

    @tf.function(jit_compile=True)
    def program() -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(3):
            x = infeed._dequeue()
            outfeed.enqueue(x)
            total += tf.reduce_sum(x)
        return total

    return float(ipu.IPUStrategy().run(program))


@pytest.fixture
def queues(infeed_of: Any) -> tuple[Any, Any]:
    return infeed_of(tf.data.Dataset.from_tensors(np.ones(2, np.float32)).repeat()), ipu.IPUOutfeedQueue()


@pytest.mark.parametrize(
    ("flags", "total", "rows"), [("", 6, 3), (INFEED, 0, 3), (OUTFEED, 6, 0), (ALL, 0, 0), (f"{INFEED},outfeed", 0, 0)]
)
def test_synthetic_feeds_carry_nothing(flags, total, rows, queues, monkeypatch):
    monkeypatch.setenv("TF_POPLAR_FLAGS", flags)
    infeed, outfeed = queues
    assert run(infeed, outfeed) == total
    assert outfeed.dequeue().shape == (rows, 2)
    assert len(list(outfeed)) == 0
    if total == 0:
        infeed.deleter  # noqa: B018
        assert run(infeed, outfeed) == 0  # The program needs no initialized queue, and no element.
    elif rows == 0:
        last = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
        run(infeed, last)
        with pytest.raises(tf.errors.FailedPreconditionError, match="has no value to dequeue"):
            last.dequeue()


def test_flags_count_when_a_program_is_traced(queues, monkeypatch):
    infeed, _ = queues
    program = tf.function(lambda: tf.reduce_sum(infeed._dequeue()), jit_compile=True, autograph=False)
    strategy = ipu.IPUStrategy()
    assert float(strategy.run(program)) == 2
    monkeypatch.setenv("TF_POPLAR_FLAGS", ALL)
    assert float(strategy.run(program)) == 2
    assert float(strategy.run(tf.function(program.python_function, jit_compile=True, autograph=False))) == 0


def test_synthetic_outfeed_that_is_an_argument_gives_empty_results(monkeypatch):
    """The queue had no layout, so `dequeue` raised an error that nothing enqueues to it."""
    monkeypatch.setenv("TF_POPLAR_FLAGS", ALL)
    outfeed = ipu.IPUOutfeedQueue()
    program = tf.function(lambda queue: queue.enqueue({"x": tf.ones([2])}) and None, jit_compile=True, autograph=False)
    ipu.IPUStrategy().run(program, (outfeed,))
    assert outfeed.dequeue()["x"].shape == (0, 2)
