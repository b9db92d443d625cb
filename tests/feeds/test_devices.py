"""Queues on other devices than the first."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration


def configure(devices: int) -> None:
    config = ipu.IPUConfig()
    config.auto_select_ipus = [1] * devices
    config.configure_ipu_system()


@tf.function(jit_compile=True)
def _program(infeed: Any, outfeed: Any) -> None:
    for _ in tf.range(3):
        outfeed.enqueue(infeed._dequeue())


def test_queues_serve_the_second_device(numbers: Any, infeed_of: Any) -> None:
    configure(2)
    strategy = ipu.IPUStrategy("/device:IPU:1")
    with strategy.scope():
        infeed, outfeed = infeed_of(numbers(10)), ipu.IPUOutfeedQueue()
        iterator = iter(numbers(5, 9))
    strategy.run(_program, (infeed, outfeed))
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2])
    take = tf.function(lambda: next(iterator), jit_compile=True, autograph=False)
    assert int(strategy.run(take)) == 5


def test_both_devices_run_at_once_with_queues_of_their_own(
    tap: Any, numbers: Any, infeed_of: Any, start: Any, until_waiting: Any
) -> None:
    configure(2)
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
def test_queue_of_another_device_is_refused_in_words(passed: bool, numbers: Any, infeed_of: Any, strategy: Any) -> None:
    # The program once failed with a message on the name of an inner variable.
    configure(2)
    infeed, outfeed = infeed_of(numbers(10), device_ordinal=1), ipu.IPUOutfeedQueue(device_ordinal=1)
    for queue, use in ((infeed, lambda queue: queue._dequeue()), (outfeed, lambda queue: queue.enqueue(1) and None)):
        program = tf.function(use if passed else lambda: use(queue), jit_compile=True, autograph=False)  # noqa: B023
        words = r"runs on `/device:IPU:0`, but .* serves `/device:IPU:1`: make the queue inside `strategy.scope\(\)`"
        with pytest.raises(ValueError, match=words):
            strategy.run(program, (queue,) if passed else ())


def test_queue_may_be_made_before_its_device_is_configured(numbers: Any, infeed_of: Any) -> None:
    infeed, outfeed = infeed_of(numbers(10), device_ordinal=1), ipu.IPUOutfeedQueue(device_ordinal=1)
    configure(2)
    ipu.IPUStrategy("/device:IPU:1").run(_program, (infeed, outfeed))
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2])


def test_queue_of_a_device_that_is_gone_can_be_read_and_goes_quietly(numbers: Any, infeed_of: Any) -> None:
    # Its end once failed on the device that was no more, in the collector, where nobody can handle it.
    configure(2)
    infeed, outfeed = infeed_of(numbers(10), device_ordinal=1), ipu.IPUOutfeedQueue(device_ordinal=1)
    ipu.IPUStrategy("/device:IPU:1").run(_program, (infeed, outfeed))
    reset_ipu_configuration()
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2])
    del infeed, outfeed
    gc.collect()
