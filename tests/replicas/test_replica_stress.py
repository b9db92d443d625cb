"""Sixteen replicas on few processors, with collectives in flight in loops and branches: no run hangs, all are right."""

# The stubs of tensors lack `%`.
# pyright: reportOperatorIssue=false

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import ReplicaGroups
from tensorflow_ipu.ops.all_to_all_op import all_gather, all_to_all
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.replication_ops import replication_index

COUNT = 16
DEADLINE = 90.0


def mixed(x: Any, steps: Any) -> Any:
    """Loops in branches in loops, of equal structure, several collectives in flight in each."""
    for step in tf.range(steps):
        parts = [cross_replica_sum(x * (part + 1)) for part in range(4)]  # None needs another's result.
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
    """The same on the rows of a matrix, without any replica."""
    own = np.arange(COUNT)[:, None]
    for step in range(steps):
        total = rows.sum(0)
        for _ in range(2):
            if step % 2 == 0:
                rows = np.repeat(rows.reshape(4, 4, -1).sum(1), 4, 0) % 1000 + own
            else:
                rows = np.tile(rows.reshape(4, 4, -1).sum(0), (4, 1)) % 1000 + own
        rows = rows + 120 + 2 * total % 7 if total.sum() % 2 == 0 else rows + 240 + 3 * total % 7
        while rows.sum() % 7 > 2:
            rows = rows + 1
        rows = (rows + 4 * total + rows.T) % 1000  # Each replica has an element for each.
    return rows


def test_many_runs_of_sixteen_replicas_end_and_are_right(replicas: Any) -> None:
    strategy = replicas(COUNT)
    runs, size = 120, COUNT
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


def test_runs_that_fail_among_runs_that_do_not(replicas: Any, within: Any) -> None:
    strategy = replicas(COUNT)

    @tf.function(jit_compile=True)
    def program(x: Any, fails: Any) -> Any:
        for _ in tf.range(5):
            x = cross_replica_sum(x) % 1000
        if replication_index() == fails:
            x += cross_replica_sum(x, name="alone")
        return x

    def work() -> None:
        expected = 1
        for _ in range(5):
            expected = 16 * expected % 1000
        for run in range(20):
            fails = run % 20
            if fails >= COUNT:
                assert strategy.run(program, (tf.constant(1), tf.constant(fails))).numpy() == expected
                continue
            with pytest.raises(tf.errors.FailedPreconditionError, match="the collective"):
                strategy.run(program, (tf.constant(1), tf.constant(fails)))

    within(DEADLINE, work)
