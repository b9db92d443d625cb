"""What the others are told of a worker that leaves something out or does not come, in time; and how they wait.

Faults that end processes are in `tests/programs/test_ends_of_workers.py`.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

WAIT = 2.0  # Seconds.

# What the workers run.


def miss_a_run(known: bool) -> Any:
    """Worker 1 leaves out a run, and goes on to what is exchanged behind it; that is known from before, or new."""
    strategy = ipu.IPUMultiWorkerStrategy()
    one = tf.ones([3 if known else 4])
    if known:
        strategy.reduce("SUM", one, axis=None)

    @tf.function(jit_compile=True)
    def step() -> Any:
        return ipu.ops.cross_replica_ops.cross_replica_sum(1.0)

    def failure_of_a_run() -> Any:
        try:
            strategy.run(step)
        except tf.errors.UnavailableError as exc:
            return exc.message

    strategy.run(step)
    failure = failure_of_a_run() if strategy.cluster.worker == 0 else None
    total = strategy.reduce("SUM", one, axis=None)
    return failure or failure_of_a_run(), total, strategy.run(step)


def waited(on_the_host: bool) -> float:
    """The processor time of worker 0 while it waits for worker 1, as a part of the time that it waits."""
    strategy = ipu.IPUMultiWorkerStrategy()
    step = tf.function(lambda: ipu.ops.cross_replica_ops.cross_replica_sum(1.0), jit_compile=True)

    def meet() -> None:
        if on_the_host:
            strategy.reduce("SUM", tf.ones([3]), axis=None)
        else:
            strategy.run(step)

    meet()
    if strategy.cluster.worker == 1:
        time.sleep(WAIT)
    processor, wall = time.process_time(), time.monotonic()
    meet()
    return (time.process_time() - processor) / max(time.monotonic() - wall, WAIT / 2)


@pytest.mark.parametrize("known", [True, False])
def test_worker_that_misses_a_run_is_told_before_the_limit(workers, known):
    (waited, *first), (missed, *second) = workers.call(miss_a_run, known)
    assert f"{workers.names[1]} did not begin this run of `step`: it waits for all workers to" in waited
    assert f"exchange sum of float32[{3 if known else 4}] (what is reduced outside of programs)" in waited
    assert f"{workers.names[0]} failed in its run of `step`" in missed  # The one that it begins later.
    for total, of_the_next_run in (first, second):
        assert total.tolist() == [2.0] * (3 if known else 4)
        assert of_the_next_run == 2.0


@pytest.mark.parametrize("on_the_host", [True, False])
def test_worker_that_waits_takes_little_processor_time(workers, on_the_host):
    assert workers.call(waited, on_the_host)[0] < 0.2
