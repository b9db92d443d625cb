"""The worker that this process is, by its environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import Faults, as_int

_VARIABLE = environment.TF_CONFIG_VARIABLE
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
# In the order in which their tasks are workers.
_JOBS = ("chief", "worker")


@dataclasses.dataclass(frozen=True)
class Identity:
    """Which worker of a cluster a process is.

    Attributes:
      worker: Its number, from 0. Worker 0 is the chief.
      addresses: For each worker, in order, where it listens: `host:port`.
    """

    worker: int
    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks the attributes."""
        faults = Faults()
        addresses = _checked_addresses("addresses", self.addresses, faults)
        worker = as_int(self.worker)
        if worker is None:
            faults.add(TypeError, f"`worker` must be the number of a worker, but is {self.worker!r}")
        elif addresses and not 0 <= worker < len(addresses):
            faults.add(ValueError, f"`worker` is {worker}, and there are {len(addresses)} workers, from 0 on")
        faults.raise_any()
        object.__setattr__(self, "addresses", tuple(addresses))

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self.addresses)

    @property
    def address(self) -> str:
        """Where this worker listens."""
        return self.addresses[self.worker]


def identity(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    environ: Mapping[str, str] | None = None,
) -> Identity | None:
    """Says which worker this process is.

    Args:
      cluster_resolver: A resolver that knows the cluster, such as TensorFlow's `SlurmClusterResolver`. None: `TF_CONFIG`.
      environ: The environment variables; None for those of the process.

    Returns:
      The identity; None where nothing names other processes, or the process is an evaluator, which works alone.

    Raises:
      ValueError: The cluster is malformed; all faults are told at once.
      TypeError: `cluster_resolver` is none.
    """
    if cluster_resolver is None:
        config = _parsed(environment.tf_config(environ))
        if config is None:
            return None
        _check_protocol(f"`{_VARIABLE}`", config.get("rpc_layer"))
        task = config.get("task", {})
        return _of_jobs(f"`{_VARIABLE}`", config.get("cluster", {}), task.get("type"), task.get("index"))
    if not isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver):
        raise TypeError(
            "`cluster_resolver` must be a `tf.distribute.cluster_resolver.ClusterResolver`, but is"
            f" {cluster_resolver!r}"
        )
    if isinstance(cluster_resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver):
        _parsed(environment.tf_config(environ))  # It reads the same, and says less of its faults.
    kind = f"`cluster_resolver` ({type(cluster_resolver).__name__})"
    # Slurm's says which task it is once it has been asked for the cluster.
    cluster: Any = cluster_resolver.cluster_spec()
    task_type, task = cluster_resolver.task_type, cluster_resolver.task_id
    _check_protocol(kind, cluster_resolver.rpc_layer)
    return _of_jobs(kind, cluster.as_dict() if cluster is not None else {}, task_type, task)


def _parsed(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    config = environment.json_object(_VARIABLE, text, _EXAMPLE)
    for name in ("cluster", "task"):
        part = config.get(name, {})
        if not isinstance(part, dict):
            raise ValueError(
                f"`{name}` of `{_VARIABLE}` must be an object, but is {part!r}; write it as in `{_EXAMPLE}`"
            )
    return config


def _check_protocol(source: str, protocol: str | None) -> None:
    if protocol not in (None, "", "grpc"):
        raise ValueError(
            f"{source} asks for the protocol {protocol!r}, and workers speak `grpc`: leave out `rpc_layer`"
        )


def _of_jobs(source: str, cluster: Mapping[str, Any], task_type: object, task: object) -> Identity | None:
    """The identity of a task of a cluster, with the chief as worker 0, before the tasks of `worker`."""
    if not cluster:
        return None
    faults = Faults()
    jobs: dict[str, list[str]] = {}
    for job in cluster:
        if job in (*_JOBS, "evaluator"):
            jobs[job] = _checked_addresses(f"{source}, job `{job}`", _tasks(cluster[job]), faults)
        elif job == "ps":
            faults.add(
                ValueError, f"{source} has parameter servers (`ps`), and workers meet without them: leave them out"
            )
        else:
            faults.add(ValueError, f"{source} has the job {job!r}; there are `chief` and `worker`")
    for job, most in (("chief", 1), ("evaluator", 1)):
        if len(jobs.get(job, ())) > most:
            faults.add(ValueError, f"{source} has {len(jobs[job])} tasks in the job `{job}`, which has one at most")
    if task_type == "evaluator":
        faults.raise_any()
        return None
    index = _checked_task(source, jobs, task_type, task, faults)
    addresses = [address for job in _JOBS for address in jobs.get(job, ())]
    faults.raise_any()
    assert index is not None
    before = len(jobs.get("chief", ())) if task_type == "worker" else 0
    try:
        return Identity(before + index, tuple(addresses))
    except ValueError as exc:
        raise ValueError(f"{source}: {exc}") from exc


def _checked_task(
    source: str, jobs: Mapping[str, Sequence[str]], task_type: object, task: object, faults: Faults
) -> int | None:
    ways = (
        f'write `"task": {{"type": "worker", "index": 0}}` as in `{_EXAMPLE}`'
        if _VARIABLE in source
        else ("give it its `task_type` and `task_id`")
    )
    if task_type is None or task is None:
        faults.add(ValueError, f"{source} does not say which task of the cluster this process is: {ways}")
        return None
    if task_type not in _JOBS or task_type not in jobs:
        known = ", ".join(f"`{job}`" for job in jobs) or "none"
        faults.add(
            ValueError,
            f"{source} says that this process is a task of {task_type!r}, and the cluster's jobs are {known}",
        )
        return None
    index = as_int(int(task) if isinstance(task, str) and task.isdecimal() else task)
    if index is None or not 0 <= index < len(jobs[task_type]):
        faults.add(
            ValueError,
            f"{source} says that this process is task {task!r} of `{task_type}`, which has {len(jobs[task_type])}, from 0 on",
        )
        return None
    return index


def _tasks(tasks: object) -> object:
    """The addresses of a job; a map from its tasks to them may have gaps."""
    if isinstance(tasks, Mapping):
        return [tasks[task] for task in sorted(tasks, key=int)]
    return [tasks] if isinstance(tasks, str) else tasks


def _checked_addresses(what: str, addresses: object, faults: Faults) -> list[str]:
    if isinstance(addresses, str) or not isinstance(addresses, Sequence):
        faults.add(TypeError, f"{what}: there must be a list of addresses `host:port`, but there is {addresses!r}")
        return []
    if not addresses:
        faults.add(ValueError, f"{what}: there is no address")
    for address in addresses:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdecimal() or not 0 < int(port[:6]) < 65536:
            faults.add(ValueError, f"{what}: {address!r} is no address `host:port` with a port from 1 to 65535")
    twice = sorted({str(one) for one in addresses if list(addresses).count(one) > 1})
    if twice:
        faults.add(ValueError, f"{what}: {', '.join(twice)} is there twice; each worker has an address of its own")
    return list(addresses)
