"""`TF_POPLAR_FLAGS`: programs whose data does not pass between host and device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

ALL = "--use_synthetic_data"
INFEED = "--synthetic_data_categories=infeed"
OUTFEED = "--synthetic_data_categories=outfeed"


def run(infeed: Any, outfeed: Any) -> Any:
    """Runs a program, traced now, that passes on three elements and returns their sum."""

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
def test_synthetic_feeds_carry_nothing(
    flags: str, total: float, rows: int, queues: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_POPLAR_FLAGS", flags)
    infeed, outfeed = queues
    assert run(infeed, outfeed) == total
    taken = outfeed.dequeue()
    assert taken.shape == (rows, 2)
    assert len(list(outfeed)) == 0


@pytest.mark.parametrize("flags", [OUTFEED, ALL])
def test_synthetic_outfeed_of_mode_last_has_no_value(flags: str, queues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_POPLAR_FLAGS", flags)
    outfeed = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
    run(queues[0], outfeed)
    with pytest.raises(tf.errors.FailedPreconditionError, match="has no value to dequeue"):
        outfeed.dequeue()


def test_synthetic_infeed_takes_nothing_from_the_dataset(queues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    infeed, outfeed = queues
    monkeypatch.setenv("TF_POPLAR_FLAGS", INFEED)
    run(infeed, outfeed)
    infeed.deleter  # noqa: B018
    assert run(infeed, outfeed) == 0  # It needs no initialized queue, nor any element.


def test_flags_count_when_a_program_is_traced(queues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    infeed, _ = queues
    program = tf.function(lambda: tf.reduce_sum(infeed._dequeue()), jit_compile=True, autograph=False)
    strategy = ipu.IPUStrategy()
    assert float(strategy.run(program)) == 2
    monkeypatch.setenv("TF_POPLAR_FLAGS", ALL)
    assert float(strategy.run(program)) == 2
    assert float(strategy.run(tf.function(program.python_function, jit_compile=True, autograph=False))) == 0


def test_synthetic_outfeed_that_is_an_argument_gives_empty_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue knew of no element, and so `dequeue` said that nothing enqueues to it."""
    monkeypatch.setenv("TF_POPLAR_FLAGS", ALL)
    outfeed = ipu.IPUOutfeedQueue()
    program = tf.function(lambda queue: queue.enqueue({"x": tf.ones([2])}) and None, jit_compile=True, autograph=False)
    ipu.IPUStrategy().run(program, (outfeed,))
    assert outfeed.dequeue()["x"].shape == (0, 2)
