"""What becomes of the others when a worker is killed, stopped, late, or there twice: an error that names it, in time."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

SECONDS = 5.0  # That workers wait for each other, where a worker is to be missed.

# What the workers run. They import this file.


def join(timeout):
    from tensorflow_ipu import hosts

    return hosts.join(timeout=timeout).worker


def train(marks, steps, timeout, end_by=None):
    """Runs steps that cross. Worker 1 ends itself after its third run."""
    import tensorflow_ipu as ipu

    strategy = ipu.IPUMultiWorkerStrategy(timeout=timeout)
    worker = strategy.cluster.worker

    @tf.function(jit_compile=True)
    def program(steps):
        total = tf.zeros([])
        for _ in tf.range(steps):
            total += ipu.ops.cross_replica_ops.cross_replica_sum(1.0)
        return total

    for run in range(100):
        total = strategy.run(program, args=(tf.constant(steps),))
        assert float(total) == 2.0 * steps
        Path(marks, f"{worker}.{run}").touch()
        if worker == 1 and run == 2 and end_by is not None:
            os.kill(os.getpid(), end_by)
    return "done"


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def miss_a_run(known):
    """Worker 1 leaves out a run, and goes on to what is exchanged behind it; that is known from before, or new."""
    import tensorflow_ipu as ipu

    strategy = ipu.IPUMultiWorkerStrategy()
    one = tf.ones([3 if known else 4])
    if known:
        strategy.reduce("SUM", one, axis=None)

    @tf.function(jit_compile=True)
    def step():
        return ipu.ops.cross_replica_ops.cross_replica_sum(1.0)

    def failure_of_a_run():
        try:
            strategy.run(step)
        except tf.errors.UnavailableError as exc:
            return exc.message

    strategy.run(step)
    failure = failure_of_a_run() if strategy.cluster.worker == 0 else None
    total = strategy.reduce("SUM", one, axis=None)
    return failure or failure_of_a_run(), total, strategy.run(step)


# What they answer.


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_worker_that_is_killed_is_told_at_once(fresh_workers: Any, tmp_path: Path, number: signal.Signals) -> None:
    workers = fresh_workers(2)
    outcome, killed = workers.outcomes(train, str(tmp_path), 5, 60.0, number)
    assert killed.message == f"the process ended with {-number}"
    assert outcome.kinds[0] == "UnavailableError", outcome
    assert f"worker 1 ({workers.addresses[1]})" in outcome.message
    assert (tmp_path / "0.2").exists()


def test_worker_that_is_stopped_is_told_after_the_limit(fresh_workers: Any, joining: Any, tmp_path: Path) -> None:
    workers = fresh_workers(2)
    workers.call(joining.join_with_limit, SECONDS)
    for worker in range(2):
        workers.send(worker, train, str(tmp_path), 5, SECONDS, signal.SIGSTOP)
    [outcome] = workers.collect(0)
    assert outcome.kinds[0] in ("DeadlineExceededError", "UnavailableError"), outcome
    assert f"worker 1 ({workers.addresses[1]})" in outcome.message


@pytest.mark.parametrize("known", [True, False])
def test_worker_that_misses_a_run_is_told_before_the_limit(workers: Any, known: bool) -> None:
    (waited, *first), (missed, *second) = workers.call(miss_a_run, known)
    assert f"worker 1 ({workers.addresses[1]}) did not begin this run of `step`: it waits for all workers to" in waited
    assert f"exchange sum of float32[{3 if known else 4}] (what is reduced outside of programs)" in waited
    assert f"worker 0 ({workers.addresses[0]}) failed in its run of `step`" in missed  # The one that it begins later.
    for total, of_the_next_run in (first, second):
        assert total.tolist() == [2.0] * (3 if known else 4)
        assert of_the_next_run == 2.0


def test_worker_that_comes_late_is_waited_for(fresh_workers: Any) -> None:
    workers = fresh_workers(2, started=[0])
    workers.send(0, join, 60.0)
    workers.start(1)
    workers.send(1, join, 60.0)
    assert [outcome.value for outcome in workers.collect(0, 1)] == [0, 1]


def test_worker_that_comes_too_late_is_told_and_so_are_the_others(fresh_workers: Any) -> None:
    workers = fresh_workers(2)
    workers.send(0, join, 0.5)
    [missed] = workers.collect(0)
    assert missed.kinds[0] == "ClusterError"
    assert f"worker 1 ({workers.addresses[1]}) did not come within 0.5 s" in missed.message
    workers.send(1, join, 0.5)
    [late] = workers.collect(1)
    assert late.kinds[0] == "ClusterError"
    assert f"worker 0 ({workers.addresses[0]}) could not be reached by worker 1 within 0.5 s" in late.message


def test_worker_that_is_started_twice_is_told_and_the_first_goes_on(fresh_workers: Any, tmp_path: Path) -> None:
    workers = fresh_workers(2)
    workers.call(join, 60.0)
    again = fresh_workers(2, started=[1], env={"TF_CONFIG": workers.tf_config(1)})
    again.send(1, join, 60.0)
    [second] = again.collect(1)
    assert second.kinds[0] == "ClusterError"
    assert "its port is in use on this machine. Most likely this worker was started twice" in second.message
    assert workers.call(train, str(tmp_path), 2, 60.0) == ["done", "done"]


def test_worker_that_is_started_anew_is_told(fresh_workers: Any) -> None:
    workers = fresh_workers(2)
    workers.call(join, 60.0)
    workers.send(1, end)
    workers.collect(1)
    again = fresh_workers(2, started=[1], env={"TF_CONFIG": workers.tf_config(1)})
    again.send(1, join, 60.0)
    [second] = again.collect(1)
    assert second.kinds[0] == "ClusterError"
    assert f"worker 0 ({workers.addresses[0]}) is running already, with all of its cluster" in second.message
