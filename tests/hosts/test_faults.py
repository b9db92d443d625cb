"""What joins a cluster; and what becomes of the others when a worker is killed, stopped, late, or there twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts

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

    for run in range(10):
        total = strategy.run(program, args=(tf.constant(steps),))
        assert float(total) == 2.0 * steps
        Path(marks, f"{worker}.{run}").touch()
        if worker == 1 and run == 2 and end_by is not None:
            os.kill(os.getpid(), end_by)
    return "done"


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


def test_worker_that_is_killed_is_told_at_once_and_so_is_who_is_started_in_its_place(fresh_workers, tmp_path):
    workers = fresh_workers(2)
    outcome, killed = workers.outcomes(train, str(tmp_path), 5, 60.0, signal.SIGKILL)
    assert killed.message == f"the process ended with {-signal.SIGKILL}"
    assert outcome.kinds[0] == "UnavailableError", outcome
    assert f"{workers.names[1]}" in outcome.message
    assert (tmp_path / "0.2").exists()
    again = fresh_workers(2, started=[1], env={"TF_CONFIG": workers.tf_config(1)})
    again.send(1, join, 60.0)
    [second] = again.collect(1)
    assert second.kinds[0] == "ClusterError"
    assert f"{workers.names[0]} is running already, with all of its cluster" in second.message


def test_worker_that_is_stopped_is_told_after_the_limit(fresh_workers, joining, tmp_path):
    workers = fresh_workers(2)
    workers.call(joining.join_with_limit, SECONDS)
    for worker in range(2):
        workers.send(worker, train, str(tmp_path), 5, SECONDS, signal.SIGSTOP)
    [outcome] = workers.collect(0)
    assert outcome.kinds[0] in ("DeadlineExceededError", "UnavailableError"), outcome
    assert f"{workers.names[1]}" in outcome.message


@pytest.mark.parametrize("known", [True, False])
def test_worker_that_misses_a_run_is_told_before_the_limit(workers, known):
    (waited, *first), (missed, *second) = workers.call(miss_a_run, known)
    assert f"{workers.names[1]} did not begin this run of `step`: it waits for all workers to" in waited
    assert f"exchange sum of float32[{3 if known else 4}] (what is reduced outside of programs)" in waited
    assert f"{workers.names[0]} failed in its run of `step`" in missed  # The one that it begins later.
    for total, of_the_next_run in (first, second):
        assert total.tolist() == [2.0] * (3 if known else 4)
        assert of_the_next_run == 2.0


def listening() -> list[str]:
    """The addresses, as the system writes them, on which this worker's port is open."""
    cluster = hosts.join()
    port = int(cluster.addresses[cluster.worker].rpartition(":")[2])
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def joined_again() -> Any:
    first = hosts.join()
    again = hosts.join()
    config = json.loads(os.environ["TF_CONFIG"])
    try:
        hosts.join(hosts.Identity(1 - first.worker, tuple(config["cluster"]["worker"])))
    except ValueError as exc:
        return first is again is hosts.joined(), str(exc)


def sum_of_a_tensor_from_before() -> Any:
    value = tf.constant(2.0) * 1.0
    strategy = ipu.IPUMultiWorkerStrategy()
    return strategy.reduce("SUM", value, axis=None)


# TensorFlow's runtime took no cluster once it had started.
def test_worker_that_comes_late_is_waited_for_with_tensors_from_before_and_one_that_is_started_twice_is_told(
    fresh_workers, tmp_path
):
    env = {"TENSORFLOW_IPU_LISTEN": "all"}
    workers = fresh_workers(2, env=env, started=[0])
    workers.send(0, join, 0.5)
    [missed] = workers.collect(0)
    assert missed.kinds[0] == "ClusterError"
    assert f"{workers.names[1]} did not come within 0.5 s" in missed.message
    workers.send(0, sum_of_a_tensor_from_before)
    workers.start(1)
    workers.send(1, sum_of_a_tensor_from_before)
    assert [outcome.value for outcome in workers.collect(0, 1)] == [4.0, 4.0]
    for found in workers.call(listening):
        assert found in (["00000000"], ["0" * 32])
    again = fresh_workers(2, started=[1], env={**env, "TF_CONFIG": workers.tf_config(1)})
    again.send(1, join, 60.0)
    [second] = again.collect(1)
    assert second.kinds[0] == "ClusterError"
    assert "its port is in use on this machine. Most likely this worker was started twice" in second.message
    assert workers.call(train, str(tmp_path), 2, 60.0) == ["done", "done"]  # The first goes on.


def test_worker_listens_on_the_own_address_alone_and_joins_once(workers):
    mapped = "0000000000000000FFFF00000100007F"  # 127.0.0.1 on a socket of IPv6.
    for found in workers.call(listening):
        assert found in (["0100007F"], [mapped])
    for worker, (same, refused) in enumerate(workers.call(joined_again)):
        assert same
        assert refused.startswith(f"this process is worker {worker} of {', '.join(workers.addresses)} already")
