"""Runs from several threads: in turn on one device, concurrently on two; and counters of runs in progress."""

# The stubs of tensors lack `%`.
# pyright: reportOperatorIssue=false

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import active_runs
from tensorflow_ipu._native.library import native
from tensorflow_ipu.config import reset_ipu_configuration
from tensorflow_ipu.ops import ReplicaGroups
from tensorflow_ipu.ops.all_to_all_op import all_gather, all_to_all
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_mean, cross_replica_sum
from tensorflow_ipu.ops.replica_variables import read_groups
from tensorflow_ipu.ops.replication_ops import replication_index

DEADLINE = 60.0


def test_runs_of_one_device_come_one_after_the_other(replicas):
    strategy = replicas(4)
    with strategy.scope():
        shared = tf.Variable(0.0)
    traces = []

    @tf.function(jit_compile=True)
    def add(x: Any) -> Any:
        traces.append(1)
        return shared.assign_add(cross_replica_sum(x))

    double = tf.function(lambda x: cross_replica_sum(cross_replica_sum(x)), jit_compile=True)
    start = threading.Barrier(4)

    def work(number: int) -> list[float]:
        start.wait(DEADLINE)
        program = add if number % 2 == 0 else double
        return [float(strategy.run(program, (tf.constant(1.0),))) for _ in range(25)]

    with ThreadPoolExecutor(4) as pool:
        results = [future.result(DEADLINE) for future in [pool.submit(work, number) for number in range(4)]]
    assert results[1] == results[3] == [16] * 25
    # Each sum of the variable occurred once, so no two runs overlapped.
    assert sorted(results[0] + results[2]) == [4 * i for i in range(1, 51)]
    assert shared.numpy() == 200
    assert len(traces) == 1  # Two threads requested it at the same time.


# The read held the lock of all copies while it waited, the write waited for that lock, and the run for the writer.
def test_the_host_writes_a_variable_while_another_is_read_that_a_run_has(replicas, tap):
    strategy = replicas(2)
    with strategy.scope():
        source: Any = iter(tap.dataset.map(lambda x: tf.cast(x, tf.float32)))
        run_has, written = tf.Variable(1.0), tf.Variable(1.0)
    strategy.run(tf.function(lambda: written.assign_add(1.0), jit_compile=True))  # From here on, copies exist.
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
        tap.put(2, 3)  # One element per replica.
        assert run.result(DEADLINE) == 3.0
        assert reading.result(DEADLINE) in ([1.0, 1.0], [3.0, 4.0])


def test_two_devices_run_side_by_side(replicas, tap):
    first, second = replicas(2, 4), ipu.IPUStrategy("/device:IPU:1")
    with first.scope():
        waiting = iter(tap.dataset)

    # A run of the first device ends after a run of the second has ended.
    receive = tf.function(lambda: cross_replica_sum(next(waiting)), jit_compile=True)
    compute = tf.function(lambda x: cross_replica_sum(x), jit_compile=True)
    with ThreadPoolExecutor(1) as pool:
        for i in range(10):
            future = pool.submit(lambda: first.run(receive))
            value = int(second.run(compute, (tf.constant(i),)))
            assert value == 4 * i
            tap.put(value, value + 1)
            assert future.result(DEADLINE).numpy() == 8 * i + 1


def test_failure_on_one_device_leaves_the_other_alone(replicas):
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


# The error was: the products of each of many replicas were divided among all cores, which computed for other replicas
# too.
@pytest.mark.skipif(
    tf.__version__.startswith("2.20."), reason="XLA of TensorFlow 2.20 has other threads for products: docs/install.md"
)
def test_as_many_replicas_as_cores_compute_on_the_threads_that_they_have(replicas):
    cores = max(2, os.cpu_count() or 1)
    strategy = replicas(cores)

    @tf.function(jit_compile=True)
    def multiply(x: Any) -> Any:
        for _ in tf.range(50):
            x = cross_replica_mean(tf.nn.tanh(x @ x))
        return x

    x = tf.random.stateless_normal([256, 256], (1, 2))
    strategy.run(multiply, (x,))
    shares: list[float] = []
    while len(shares) < 20 and not any(
        share > 0.9 for share in shares
    ):  # Other threads of the process may compute at times.
        earlier = seconds_of_threads()
        strategy.run(multiply, (x,))
        used = {thread: seconds - earlier.get(thread, 0.0) for thread, seconds in seconds_of_threads().items()}
        program_seconds = sum(seconds for (name, _), seconds in used.items() if name == "ipu-program")
        shares.append(program_seconds / sum(used.values()))
    assert max(shares) > 0.9


def seconds_of_threads() -> dict[tuple[str, str], float]:
    """Returns the computing time of each thread of this process, by its name and number."""
    seconds = {}
    for path in Path("/proc/self/task").iterdir():
        try:
            name, nanoseconds = (path / "comm").read_text().strip(), (path / "schedstat").read_text().split()[0]
        except OSError:  # The thread has ended.
            continue
        seconds[name, path.name] = int(nanoseconds) / 1e9
    return seconds


def test_run_under_way_is_active_and_keeps_the_configuration(strategy, configure, tap):
    configure(1)
    with strategy.scope():
        iterator = iter(tap.dataset)
    program = tf.function(lambda iterator: next(iterator))
    assert not active_runs.active()
    assert active_runs.wait_until_idle(0.0)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(strategy.run, program, (iterator,))
        try:
            while not active_runs.active() and not running.done():
                pass
            assert active_runs.active()
            assert not active_runs.wait_until_idle(0.001)
            reset = pool.submit(reset_ipu_configuration)
            assert not reset.done()
        finally:
            tap.put(0)
        running.result(DEADLINE)
        reset.result(DEADLINE)
    assert not active_runs.active()
    assert active_runs.wait_until_idle()


COUNT = 16


def mixed(x: Any, steps: Any) -> Any:
    """Computes with loops in branches in loops of equal structure. In each, several collectives are in flight."""
    for step in tf.range(steps):
        parts = [cross_replica_sum(x * (part + 1)) for part in range(4)]  # No collective needs the result of another.
        if step % 2 == 0:
            for _ in tf.range(2):
                x = cross_replica_sum(x, 4) % 1000 + replication_index()
        else:
            for _ in tf.range(2):
                x = tf.reduce_sum(all_gather(x, ReplicaGroups(4, orthogonal=True)), 0) % 1000 + replication_index()
        if tf.reduce_sum(parts[0]) % 2 == 0:
            x += cross_replica_sum(replication_index()) + parts[1] % 7
        else:
            x += cross_replica_sum(2 * replication_index()) + parts[2] % 7
        while tf.reduce_sum(cross_replica_sum(x)) % 7 > 2:
            x += 1
        x = (x + parts[3] + all_to_all(x, 0, 0, COUNT)) % 1000
    return x


def mixed_by_hand(rows: np.ndarray, steps: int) -> np.ndarray:
    """Computes the same on the rows of a matrix, without replicas."""
    indices = np.arange(COUNT)[:, None]
    for step in range(steps):
        total = rows.sum(0)
        for _ in range(2):
            if step % 2 == 0:
                rows = np.repeat(rows.reshape(4, 4, -1).sum(1), 4, 0) % 1000 + indices
            else:
                rows = np.tile(rows.reshape(4, 4, -1).sum(0), (4, 1)) % 1000 + indices
        rows = rows + 120 + 2 * total % 7 if total.sum() % 2 == 0 else rows + 240 + 3 * total % 7
        while rows.sum() % 7 > 2:
            rows = rows + 1
        rows = (rows + 4 * total + rows.T) % 1000  # Each replica has an element for each replica.
    return rows


def test_many_runs_of_sixteen_replicas_end_and_are_right(replicas):
    strategy = replicas(COUNT)
    runs, size = 20, COUNT
    rows = np.random.default_rng(0).integers(0, 1000, (runs, COUNT, size)).astype(np.int32)
    with strategy.scope():
        iterator = iter(tf.data.Dataset.from_tensor_slices(rows.reshape(-1, size)))
        queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(iterator: Any, steps: Any) -> None:
        queue.enqueue(mixed(next(iterator), steps))

    end = time.monotonic() + DEADLINE
    for run in range(runs):
        strategy.run(program, (iterator, tf.constant(run % 5)))
        assert time.monotonic() < end, f"{run} runs took more than {DEADLINE} s"
    results = queue.dequeue()
    for run in range(runs):
        np.testing.assert_array_equal(results[run], mixed_by_hand(rows[run], run % 5))
