"""Identifies the worker of this process by the environment variables of MPI's launchers."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base import environment

# The variables of each launcher: rank and number of processes, then the same two among the processes of the host.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI, Cray, Slurm's PMI-2.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclasses.dataclass(frozen=True)
class Identity:
    """The number of a worker, and the number of workers, as started by MPI.

    Attributes:
      worker: The number of the worker, from 0: its MPI rank.
      workers: The number of workers.
      local_worker: The number of the worker among the workers of its host.
      local_workers: The number of workers of its host; None if the launcher does not set it.
    """

    worker: int
    workers: int
    local_worker: int = 0
    local_workers: int | None = None


def identity(environ: Mapping[str, str] | None = None) -> Identity | None:
    """Returns the identity of this process, or None if MPI has not started it. Does not initialize MPI.

    Args:
      environ: The environment variables. None: the variables of the process.

    Raises:
      ValueError: A launcher's variables are malformed.
    """
    if environ is None:
        mpi4py: Any = sys.modules.get("mpi4py.MPI")
        if mpi4py is not None and mpi4py.Is_initialized() and not mpi4py.Is_finalized() and mpi4py.COMM_WORLD.size > 1:
            launched = identity(os.environ) or Identity(0, 1)
            return dataclasses.replace(launched, worker=mpi4py.COMM_WORLD.rank, workers=mpi4py.COMM_WORLD.size)
        environ = os.environ
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if rank in environ and size in environ:
            worker, workers = _number(rank, environ), _number(size, environ)
            if worker >= workers:
                raise ValueError(
                    f"`{rank}={worker}` must be below `{size}={workers}`: unset both, or start by `mpiexec`"
                )
            locally = _number(local_rank, environ) if local_rank in environ else 0
            return Identity(worker, workers, locally, _number(local_size, environ) if local_size in environ else None)
    return None


def _number(name: str, environ: Mapping[str, str]) -> int:
    if not environ[name].isdecimal():
        raise ValueError(
            f"`{name}={environ[name]}` must be an integer from 0: unset it, or start this process by `mpiexec`"
        )
    return int(environ[name])


def check_resolver(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None, this_worker: Identity | None
) -> None:
    """Checks that a resolver agrees with MPI on the number of workers and the number of this worker.

    Args:
      cluster_resolver: The resolver. None: one for `TF_CONFIG`, or no check if that is unset.
      this_worker: The identity of this process; None if MPI has not started it.

    Raises:
      ValueError: The resolver disagrees with MPI, or is malformed.
      TypeError: `cluster_resolver` is not a resolver.
    """
    kinds = tf.distribute.cluster_resolver
    resolver: Any = cluster_resolver
    if resolver is None:
        text = environment.tf_config()
        if text is None:
            return
        environment.json_object(environment.TF_CONFIG_VARIABLE, text, _EXAMPLE)
        resolver = kinds.TFConfigClusterResolver()
    if not isinstance(resolver, kinds.ClusterResolver):
        raise TypeError(f"`cluster_resolver` must be a `ClusterResolver` of TensorFlow, but is {resolver!r}")
    is_config = isinstance(resolver, kinds.TFConfigClusterResolver)
    source = f"`{environment.TF_CONFIG_VARIABLE}`" if is_config else f"`cluster_resolver` ({type(resolver).__name__})"
    try:
        jobs = resolver.cluster_spec().as_dict()
        chiefs, plain_workers = len(jobs.get("chief", ())), len(jobs.get("worker", ()))
        # Slurm's resolver finds its task when `cluster_spec` is called.
        job, task = resolver.task_type, resolver.task_id
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise ValueError(f"{source} is malformed: {exc}; write it as in `{_EXAMPLE}`, or remove it") from exc
    workers = chiefs + plain_workers
    if workers == 0 or job == "evaluator":  # An evaluator is not part of the cluster.
        return
    if workers > 1 and (this_worker is None or this_worker.workers == 1):
        raise ValueError(
            f"{source} names {workers} workers, but MPI has not started this process: run `mpiexec -n {workers} python"
            f" {sys.argv[0] or 'SCRIPT'}`, or unset it to use one worker"
        )
    if this_worker is None:
        return
    worker = (task if isinstance(task, int) else 0) + (chiefs if job == "worker" else 0)
    if (worker, workers) != (this_worker.worker, this_worker.workers):
        raise ValueError(
            f"in {source}, this process is worker {worker} of {workers}, but in MPI it is worker {this_worker.worker}"
            f" of {this_worker.workers}: remove the former, because MPI's launcher numbers the workers"
        )
