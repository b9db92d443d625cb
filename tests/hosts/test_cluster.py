"""What joins a cluster: where it listens, once a process, as one worker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts


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
def test_tensors_may_be_there_before_the_strategy(fresh_workers: Any) -> None:
    assert fresh_workers(2).call(sum_of_a_tensor_from_before) == [4.0, 4.0]


def test_worker_listens_on_the_own_address_alone(workers: Any) -> None:
    mapped = "0000000000000000FFFF00000100007F"  # 127.0.0.1 on a socket of IPv6.
    for found in workers.call(listening):
        assert found in (["0100007F"], [mapped])


def test_worker_listens_on_all_interfaces_where_it_is_told_to(fresh_workers: Any) -> None:
    for found in fresh_workers(2, env={"TENSORFLOW_IPU_LISTEN": "all"}).call(listening):
        assert found in (["00000000"], ["0" * 32])


def test_process_joins_once(workers: Any) -> None:
    for worker, (same, refused) in enumerate(workers.call(joined_again)):
        assert same
        assert refused.startswith(f"this process is worker {worker} of {', '.join(workers.addresses)} already")
