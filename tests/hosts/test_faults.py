"""Errors that other workers raise in time if a worker omits or changes a call; and waits for slow workers.

Errors that end processes are tested in `test_ends.py`.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts
from tensorflow_ipu.ops import cross_replica_ops

WAIT = 2.0  # In seconds.


def name_of(worker: int) -> str:
    return f"worker {worker} ({hosts.join().names[worker]})"


def train(
    replicas: int = 2, steps: int = 2, fails: bool = False, group: int = 0, extra: bool = False, length: int = 2, pack=0
) -> list[float]:
    """Runs a program of `steps` steps, and returns the sum."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = replicas
    config.configure_ipu_system()
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack)
    strategy = ipu.IPUMultiWorkerStrategy(communication_options=options)

    @tf.function(jit_compile=True)
    def train(steps: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([length])
        for _ in tf.range(steps):
            total += cross_replica_ops.cross_replica_sum(tf.ones([length]), group)
        if extra:
            total += cross_replica_ops.cross_replica_mean(tf.ones([length]))
        if fails:
            tf.debugging.assert_equal(steps, 0, message="the data are bad")
        return total

    try:
        return strategy.run(train, args=(tf.constant(steps),)).numpy().tolist()
    finally:
        ipu.IPUMultiWorkerStrategy()  # The packs have the default size.


@pytest.mark.workers(2)
def test_worker_that_ends_early_is_named_and_the_next_run_goes_on():
    if hosts.join().worker == 1:
        assert train(steps=5) == [20.0] * 2
    else:
        with pytest.raises(tf.errors.UnavailableError) as raised:
            train(steps=12)
        assert f"{name_of(1)} ended its run of `train` after 5 collectives" in str(raised.value)
    assert train(steps=3) == [12.0] * 2
    assert train(pack=4) == [8.0] * 2


_GROUPS = "collective 1 of its `train` is `cross_replica_sum` of float32[2] (reduction sum, in groups of 4)"


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": (0, 4)}, _GROUPS),
        ({"length": (3, 4)}, "on this worker it is `cross_replica_sum` of float32[3]"),
        ({"extra": (True, False)}, "its `train` has 1 collective, and `train` on this worker has 2"),
        ({"replicas": (1, 2)}, "has 2 replicas"),
        ({"pack": (4, 0)}, "sends chunks of up to 1048576 bytes, and this worker 4."),
        ({"steps": (4, 2), "fails": (False, True)}, "failed in its run of `train`"),
    ],
)
def test_worker_that_runs_something_else_or_fails_is_named_with_what_differs(options, message):
    worker, fails = hosts.join().worker, "fails" in options
    kind = tf.errors.UnavailableError if fails and worker == 0 else tf.errors.InvalidArgumentError
    with pytest.raises(kind) as raised:
        train(**{name: values[worker] for name, values in options.items()})
    text = str(raised.value)
    if worker == 0:
        assert name_of(1) in text
        assert message in text
    assert (name_of(0) in text) == (worker == 1 and not fails)
    assert ("the data are bad" in text) == fails


@pytest.mark.workers(2)
@pytest.mark.parametrize("is_known", [True, False])
def test_worker_that_misses_a_run_is_told_before_the_limit(is_known):
    """Worker 1 continues with a collective that follows the run. Its program is known or new."""
    strategy: Any = ipu.IPUMultiWorkerStrategy()
    step = tf.function(lambda: cross_replica_ops.cross_replica_sum(1.0), jit_compile=True)
    ones = tf.ones([3 if is_known else 4])
    if is_known:
        strategy.reduce("SUM", ones, axis=None)
    strategy.run(step)
    message = f"{name_of(0)} failed in its run of"  # Worker 1 begins this run later.
    if strategy.cluster.worker == 0:
        message = f"{name_of(1)} did not begin this run of"
    else:
        assert strategy.reduce("SUM", ones, axis=None).numpy().tolist() == [2.0] * len(ones)
    with pytest.raises(tf.errors.UnavailableError) as raised:
        strategy.run(step)
    assert message in raised.value.message
    if strategy.cluster.worker == 0:
        waits = (
            f"it waits for all workers to exchange sum of float32[{len(ones)}] (what is reduced outside of programs)"
        )
        assert waits in raised.value.message
        assert strategy.reduce("SUM", ones, axis=None).numpy().tolist() == [2.0] * len(ones)
    assert float(strategy.run(step)) == 2.0


@pytest.mark.workers(2)
@pytest.mark.parametrize("on_the_host", [True, False])
def test_worker_that_waits_takes_little_processor_time(on_the_host):
    strategy: Any = ipu.IPUMultiWorkerStrategy()
    step = tf.function(lambda: cross_replica_ops.cross_replica_sum(1.0), jit_compile=True)

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
    if strategy.cluster.worker == 0:
        assert time.process_time() - processor < 0.2 * max(time.monotonic() - wall, WAIT)
