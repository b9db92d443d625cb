"""Memory stays flat however long programs run."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu

MEBIBYTE = 2**20


def test_hundred_thousand_iterations_leave_no_memory_behind(
    infeed_of: Any, numbers: Any, echo: Any, check_growth: Any
) -> None:
    infeed, outfeed = infeed_of(numbers(1000).repeat()), ipu.IPUOutfeedQueue()

    def run_and_read() -> None:
        echo(infeed, outfeed, 100_000)
        taken = outfeed.dequeue()
        assert taken.shape == (100_000,)
        assert int(taken[-1]) == 999

    run_and_read()
    run_and_read()
    check_growth(run_and_read, 5 * MEBIBYTE)


def test_large_elements_leave_no_memory_behind(infeed_of: Any, echo: Any, check_growth: Any) -> None:
    block = np.zeros(MEBIBYTE // 4, np.float32)
    infeed, outfeed = infeed_of(tf.data.Dataset.from_tensors(block).repeat()), ipu.IPUOutfeedQueue()

    def run_and_read() -> None:
        for _ in range(4):
            echo(infeed, outfeed, 16)
            assert outfeed.dequeue().shape == (16, MEBIBYTE // 4)

    run_and_read()
    run_and_read()
    check_growth(run_and_read, 5 * MEBIBYTE)


def test_last_mode_holds_one_element(infeed_of: Any, echo: Any, check_growth: Any) -> None:
    block = np.zeros(MEBIBYTE // 4, np.float32)
    infeed = infeed_of(tf.data.Dataset.from_tensors(block).repeat())
    outfeed = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
    echo(infeed, outfeed, 100)
    check_growth(lambda: echo(infeed, outfeed, 200), 5 * MEBIBYTE)


def test_runs_and_queues_leave_no_memory_behind(infeed_of: Any, numbers: Any, echo: Any, check_growth: Any) -> None:
    dataset = numbers(10)

    def come_and_go() -> None:
        for _ in range(100):
            infeed, outfeed = infeed_of(dataset), ipu.IPUOutfeedQueue()
            echo(infeed, outfeed, 10)
            outfeed.dequeue()

    come_and_go()
    come_and_go()
    check_growth(come_and_go, 5 * MEBIBYTE)
