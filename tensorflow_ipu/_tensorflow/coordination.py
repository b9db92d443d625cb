"""TensorFlow's cluster of processes: its server, the coordination service, and what it keeps for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.core.protobuf import cluster_pb2, tensorflow_server_pb2
from tensorflow.python.eager import context

_JOB = "worker"
_LEADER = f"/job:{_JOB}/replica:0/task:0"


def is_joined() -> bool:
    """Whether the runtime of this process is a task of a cluster already, by whatever means.

    Stands on `Context._collective_ops_server_def`. When it is gone: False; TensorFlow then refuses in its own words.
    """
    running: Any = context.context()
    return running._collective_ops_server_def is not None


def join(addresses: Sequence[str], task: int, connect_seconds: float, heartbeat_seconds: float) -> None:
    """Starts TensorFlow's runtime as a task of a cluster of workers, and waits until all of them have joined.

    Stands on `Context.configure_collective_ops`, `configure_coordination_service` and `enable_collective_ops`, which
    `tf.distribute.MultiWorkerMirroredStrategy` calls with the same arguments. When they are gone: make such a strategy,
    which has no say in the limits of time.
    """
    running: Any = context.context()
    messages: Any = coordination_config_pb2
    own = f"/job:{_JOB}/task:{task}"
    running.configure_collective_ops(
        collective_leader=_LEADER, scoped_allocator_enabled_ops=("CollectiveReduce",), device_filters=(own,)
    )
    running.configure_coordination_service(
        service_type="standalone",
        service_leader=_LEADER,
        cluster_register_timeout_in_ms=int(connect_seconds * 1000),
        heartbeat_timeout_in_ms=int(heartbeat_seconds * 1000),
        coordinated_jobs=[messages.CoordinatedJob(name=_JOB, num_tasks=len(addresses))],
    )
    config = running.config
    config.experimental.collective_group_leader = _LEADER
    config.device_filters[:] = [own]
    cluster = cluster_pb2.ClusterDef()
    job = cluster.job.add(name=_JOB)
    for number, address in enumerate(addresses):
        job.tasks[number] = address
    server = tensorflow_server_pb2.ServerDef(
        cluster=cluster, default_session_config=config, job_name=_JOB, task_index=task, protocol="grpc"
    )
    running.enable_collective_ops(server)
    running.ensure_initialized()


def set_value(key: str, value: str) -> None:
    """Keeps a value for all tasks, once: a key that has one is refused.

    Stands on `Context.set_config_key_value`, the coordination service's. When it is gone: there is no other.
    """
    running: Any = context.context()
    running.set_config_key_value(key, value)


def get_value(key: str, seconds: float) -> str:
    """Waits for the value of a key, and returns it; stands on `Context.get_config_key_value`, see `set_value`."""
    running: Any = context.context()
    return running.get_config_key_value(key, timeout_in_ms=max(1, int(seconds * 1000)))


def drop_value(key: str) -> None:
    """Forgets the value of a key; stands on `Context.delete_config_key_value`, see `set_value`."""
    running: Any = context.context()
    running.delete_config_key_value(key)


def wait_for_all(barrier: str, seconds: float) -> None:
    """Waits until all tasks wait at the barrier of this name, which is used once.

    Stands on `Context.wait_at_barrier`. When it is gone: values, one a task.
    """
    running: Any = context.context()
    running.wait_at_barrier(barrier, int(seconds * 1000))
