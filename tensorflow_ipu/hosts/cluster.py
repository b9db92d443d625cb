"""Joins the cluster of this process's workers through MPI, once per process."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_number
from tensorflow_ipu._native.library import native
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import mpi
from tensorflow_ipu.hosts.identity import Identity, check_resolver, identity


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The cluster of workers that includes this process.

    Attributes:
      worker: The number of this worker, from 0: its MPI rank. Worker 0 is the chief.
      workers: The number of workers.
      names: The process and the host of each worker, such as `process 4711 on host-a`.
      timeout: The seconds that workers wait for each other.
    """

    worker: int
    workers: int
    names: tuple[str, ...]
    timeout: float

    @property
    def is_chief(self) -> bool:
        """True for worker 0, which writes files that only one worker should write."""
        return self.worker == 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host name of each worker."""
        return tuple(name.partition(" on ")[2] for name in self.names)


_joining = threading.Lock()
_joined: Cluster | None = None
# The thread that initializes MPI, and the list for its answer. MPI is initialized once, so a later `join` waits for the
# same thread.
_opening: tuple[threading.Thread, list[bytes]] | None = None


def joined() -> Cluster | None:
    """Returns the cluster that this process has joined, or None."""
    return _joined


def join(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    timeout: float | None = None,
    communicator: mpi.Communicator | None = None,
) -> Cluster:
    """Joins the processes that MPI has started. Waits until all of them have called this function.

    A process joins once: further calls return the same cluster. A process that MPI has not started is the only worker.

    Args:
      cluster_resolver: A resolver that must agree with MPI on the number of workers and the number of this worker.
        None: `TF_CONFIG` must agree, if it is set.
      timeout: The seconds to wait for workers, here and later. None: the environment variable `TENSORFLOW_IPU_TIMEOUT`,
        or 60 if that is unset.
      communicator: The communicator of mpi4py whose processes are the workers. None: all processes.

    Raises:
      ClusterError: A worker did not join in time, or no MPI library was found.
      ValueError: An argument or an environment variable is malformed, `TF_CONFIG` or the resolver disagrees with MPI,
        or this process has joined as another worker.
      TypeError: An argument has a wrong type.
    """
    global _joined  # noqa: PLW0603  (A process joins one cluster.)
    this_worker = identity() if communicator is None else mpi.identity_of(communicator)
    if communicator is None and _joined is not None:
        this_worker = Identity(_joined.worker, _joined.workers)
    check_resolver(cluster_resolver, this_worker)
    seconds = _checked_timeout(timeout)
    if this_worker is None or (communicator is None and this_worker.workers == 1):
        return Cluster(0, 1, (_process_name(),), seconds)
    worker, workers = this_worker.worker, this_worker.workers
    with _joining:
        if _joined is None:
            handle = 0 if communicator is None else communicator.handle
            names = (_process_name(),) if workers == 1 else _join(this_worker, seconds, handle)
            _joined = Cluster(worker, workers, names, seconds)
        elif (worker, workers) != (_joined.worker, _joined.workers):
            raise ValueError(
                f"this process is worker {_joined.worker} of {_joined.workers} already, and cannot be worker"
                f" {worker} of {workers}: a process joins one cluster"
            )
        return _joined


def _join(this_worker: Identity, seconds: float, handle: int) -> tuple[str, ...]:
    """Joins the processes of the communicator with this handle (0: all processes), and returns their names."""
    # Rank 0 can name the missing workers, so it has to time out first. The other ranks wait two seconds longer.
    deadline = time.monotonic() + seconds + (2.0 if this_worker.worker else 0.0)
    library, *rank_and_size = _open(this_worker, handle, seconds, deadline).split("\n")
    if rank_and_size != [str(this_worker.worker), str(this_worker.workers)]:
        raise ClusterError(
            f"this process was started as worker {this_worker.worker} of {this_worker.workers}, but in the MPI library"
            f" `{library}` it is {rank_and_size[0]} of {rank_and_size[1]}: start it by the `mpiexec` of that library;"
            " with Slurm, by `srun --mpi=pmi2` or `srun --mpi=pmix`"
        )
    while True:
        # The wait is split, so that Ctrl-C can end it.
        answer = native.ipu_join_workers(0.05, seconds).decode()
        if answer[0] == "!":
            raise ClusterError(f"the workers could not join: {answer[1:]}")
        if answer[0] != "?":
            return tuple(answer.split("\n"))
        if time.monotonic() >= deadline:
            ranks = answer[1:].split()
            unlisted = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
            raise ClusterError(_missing_message(", ".join(ranks[:8]) + unlisted, this_worker, seconds))


def _open(this_worker: Identity, handle: int, seconds: float, deadline: float) -> str:
    """Initializes MPI on a thread, because `MPI_Init_thread` waits without a limit until all workers have called it.

    Returns:
      The MPI library, the rank and the number of processes, one per line.
    """
    global _opening  # noqa: PLW0603  (`_joining` guards it.)
    if _opening is None:
        answers: list[bytes] = []
        candidates = "\n".join(f"{interface} {path}" for interface, path in mpi.libraries())
        arguments = candidates.encode(), handle, _process_name().encode()
        thread = threading.Thread(
            target=lambda: answers.append(native.ipu_open_workers(*arguments)), name="ipu-mpi-init", daemon=True
        )
        _opening = thread, answers
        thread.start()
    thread, answers = _opening
    while thread.is_alive():
        if time.monotonic() >= deadline:
            rank = str(1 - this_worker.worker) if this_worker.workers == 2 else ""
            raise ClusterError(_missing_message(rank, this_worker, seconds))
        thread.join(0.05)  # The wait is split, so that Ctrl-C can end it.
    _opening = None
    answer = answers[0].decode()
    if answer[0] == "!":
        raise ClusterError(answer[1:] or mpi.describe_missing_library(this_worker))
    return answer


def _process_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _missing_message(ranks: str, this_worker: Identity, seconds: float) -> str:
    missing = f"worker {ranks}" if ranks else f"a worker, of {this_worker.workers},"
    return (
        f"{missing} did not join within {seconds:g} s: make sure that all workers create an"
        " `IPUMultiWorkerStrategy` or call `popdist.init()`, or increase the `timeout`"
    )


def _checked_timeout(timeout: float | None) -> float:
    if timeout is None:
        return environment.worker_timeout()
    if not is_number(timeout):
        raise TypeError(f"`timeout` must be a number of seconds, but is {timeout!r}")
    if not 0 < timeout <= environment.MOST_SECONDS:
        raise ValueError(f"`timeout` must be above 0 and at most {environment.MOST_SECONDS} s, but is {timeout:g}")
    return float(timeout)
