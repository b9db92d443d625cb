"""Runs on replicas from several threads at once: in turn on one device, side by side on two."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_mean, cross_replica_sum
from tensorflow_ipu.ops.replica_variables import read_groups

DEADLINE = 60.0


def test_runs_of_one_device_come_one_after_the_other(replicas: Any) -> None:
    strategy = replicas(4)
    with strategy.scope():
        shared = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def add(x: Any) -> Any:
        return shared.assign_add(cross_replica_sum(x))

    @tf.function(jit_compile=True)
    def double(x: Any) -> Any:
        return cross_replica_sum(cross_replica_sum(x))

    start = threading.Barrier(4)

    def work(number: int) -> list[float]:
        start.wait(DEADLINE)
        program = add if number % 2 == 0 else double
        return [float(strategy.run(program, (tf.constant(1.0),))) for _ in range(25)]

    with ThreadPoolExecutor(4) as pool:
        results = [future.result(DEADLINE) for future in [pool.submit(work, number) for number in range(4)]]
    assert results[1] == results[3] == [16] * 25
    # Each sum of the one variable was seen once: no two runs were under way at once.
    assert sorted(results[0] + results[2]) == [4 * i for i in range(1, 51)]
    assert shared.numpy() == 200


# The read held the lock of all copies while it waited, the write waited for that lock, and the run for the writer.
def test_the_host_writes_a_variable_while_another_is_read_that_a_run_has(replicas: Any) -> None:
    strategy = replicas(2)
    handed = tf.queue.FIFOQueue(100, [tf.float32], [[]])
    with strategy.scope():
        source: Any = iter(tf.data.Dataset.range(100).map(lambda _: handed.dequeue()))
        run_has, written = tf.Variable(1.0), tf.Variable(1.0)
    strategy.run(tf.function(lambda: written.assign_add(1.0), jit_compile=True))  # From now on there are copies.
    receive = tf.function(lambda: run_has.assign_add(next(source)), jit_compile=True)
    reads = threading.Event()

    def read() -> list[float]:
        reads.set()
        return read_groups(run_has).numpy().tolist()

    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(lambda: strategy.run(receive))
        while native.ipu_infeed_waiting(source._infeed_queue._feed.number) == 0:
            threading.Event().wait(0.001)
        reading = pool.submit(read)
        assert reads.wait(DEADLINE)
        written.assign(5.0)
        for value in (2.0, 3.0):  # One a replica.
            handed.enqueue(value)
        assert run.result(DEADLINE) == 3.0
        assert reading.result(DEADLINE) in ([1.0, 1.0], [3.0, 4.0])


def test_two_devices_run_side_by_side(replicas: Any) -> None:
    first, second = replicas(2, 4), ipu.IPUStrategy("/device:IPU:1")
    handed = tf.queue.FIFOQueue(100, [tf.float32], [[]])
    with first.scope():
        waiting = iter(tf.data.Dataset.range(100).map(lambda _: handed.dequeue()))

    # A run of the first device ends once a run of the second has ended.
    receive = tf.function(lambda: cross_replica_sum(next(waiting)), jit_compile=True)
    compute = tf.function(lambda x: cross_replica_sum(x), jit_compile=True)
    with ThreadPoolExecutor(1) as pool:
        for i in range(10):
            future = pool.submit(lambda: first.run(receive))
            value = second.run(compute, (tf.constant(float(i)),))
            assert value.numpy() == 4 * i
            handed.enqueue_many([[value, value + 1]])
            assert future.result(DEADLINE).numpy() == 8 * i + 1


def test_failure_on_one_device_leaves_the_other_alone(replicas: Any) -> None:
    first, second = replicas(4, 4), ipu.IPUStrategy("/device:IPU:1")
    with second.scope():
        short = iter(tf.data.Dataset.from_tensors(1.0))
    failing = tf.function(lambda: cross_replica_sum(next(short)), jit_compile=True)
    fine = tf.function(lambda x: cross_replica_sum(x), jit_compile=True)

    def fail() -> int:
        for _ in range(20):
            with pytest.raises(tf.errors.OutOfRangeError):
                second.run(failing)
        return 20

    with ThreadPoolExecutor(1) as pool:
        failures = pool.submit(fail)
        results = [float(first.run(fine, (tf.constant(1.0),))) for _ in range(50)]
        assert failures.result(DEADLINE) == 20
    assert results == [4] * 50


# What went wrong: each of many replicas had its products divided among all cores, on which the others computed too.
def test_as_many_replicas_as_cores_compute_on_the_threads_that_they_have(replicas: Any) -> None:
    cores = max(2, os.cpu_count() or 1)
    strategy = replicas(cores)

    @tf.function(jit_compile=True)
    def multiply(x: Any) -> Any:
        for _ in tf.range(200):
            x = cross_replica_mean(tf.nn.tanh(x @ x))
        return x

    x = tf.random.stateless_normal([256, 256], (1, 2))
    strategy.run(multiply, (x,))
    shares: list[float] = []
    while len(shares) < 20 and not any(share > 0.9 for share in shares):  # Others of the process may compute at times.
        before = seconds_of_threads()
        strategy.run(multiply, (x,))
        used = {thread: seconds - before.get(thread, 0.0) for thread, seconds in seconds_of_threads().items()}
        own = sum(seconds for (name, _), seconds in used.items() if name == "ipu-program")
        shares.append(own / sum(used.values()))
    assert max(shares) > 0.9


def seconds_of_threads() -> dict[tuple[str, str], float]:
    """For how long each thread of this process has computed, by its name and number."""
    seconds = {}
    for path in Path("/proc/self/task").iterdir():
        try:
            name, nanoseconds = (path / "comm").read_text().strip(), (path / "schedstat").read_text().split()[0]
        except OSError:  # The thread ended meanwhile.
            continue
        seconds[name, path.name] = int(nanoseconds) / 1e9
    return seconds
