"""The cluster that this process joins once."""

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
    """The workers that this process is one of.

    Attributes:
      worker: The number of this worker, from 0: its MPI rank. Worker 0 is the chief.
      workers: The number of workers.
      names: The process and the host of each worker, in words: `process 4711 on host-a`.
      timeout: The time in seconds that workers wait for each other.
    """

    worker: int
    workers: int
    names: tuple[str, ...]
    timeout: float

    @property
    def is_chief(self) -> bool:
        """True for worker 0, which writes what is written once."""
        return self.worker == 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The name of each worker's host."""
        return tuple(name.partition(" on ")[2] for name in self.names)


_joining = threading.Lock()
_joined: Cluster | None = None
# A call that opens the MPI library: the thread, and its answer in words. It is made once, as MPI is initialized once.
_opening: tuple[threading.Thread, list[bytes]] | None = None


def joined() -> Cluster | None:
    """Returns the cluster that this process has joined; None if it has joined none."""
    return _joined


def join(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    timeout: float | None = None,
    communicator: mpi.Communicator | None = None,
) -> Cluster:
    """Joins the processes that MPI has started, and returns when all of them have called this.

    A process joins once: further calls return what the first one did. Without a launcher of MPI, a process is alone.

    Args:
      cluster_resolver: A resolver that has to agree with MPI about this worker and their number. None: `TF_CONFIG`, if set,
        has to.
      timeout: The time in seconds to wait for workers, here and later. None: the environment variable
        `TENSORFLOW_IPU_TIMEOUT`, or 60 if that is unset.
      communicator: The communicator of mpi4py whose processes are the workers. None: all processes.

    Raises:
      ClusterError: A worker did not join in time, or there is no MPI library.
      ValueError: An argument or a variable is malformed, `TF_CONFIG` or the resolver disagrees with MPI, or this process has
        joined as another worker.
      TypeError: An argument is of a wrong type.
    """
    global _joined  # noqa: PLW0603  (A process joins one cluster.)
    own = identity() if communicator is None else mpi.identity_of(communicator)
    if communicator is None and _joined is not None:
        own = Identity(_joined.worker, _joined.workers)
    check_resolver(cluster_resolver, own)
    seconds = _checked_timeout(timeout)
    if own is None or (communicator is None and own.workers == 1):
        return Cluster(0, 1, (_own_name(),), seconds)
    with _joining:
        if _joined is None:
            alone = own.workers == 1
            names = (_own_name(),) if alone else _join(own, seconds, 0 if communicator is None else communicator.handle)
            _joined = Cluster(own.worker, own.workers, names, seconds)
        elif (own.worker, own.workers) != (_joined.worker, _joined.workers):
            raise ValueError(
                f"this process is worker {_joined.worker} of {_joined.workers} already, and cannot be worker"
                f" {own.worker} of {own.workers}: a process joins one cluster"
            )
        return _joined


def _join(own: Identity, seconds: float, handle: int) -> tuple[str, ...]:
    """Joins the processes of the communicator that has this handle, or all if it is 0, and returns their names."""
    # Rank 0 knows who is missing, so the others wait a little longer for its end.
    deadline = time.monotonic() + seconds + (2.0 if own.worker else 0.0)
    library, *numbers = _open(own, handle, seconds, deadline).split("\n")
    if numbers != [str(own.worker), str(own.workers)]:
        raise ClusterError(
            f"this process was started as worker {own.worker} of {own.workers}, and for the MPI library `{library}` it is"
            f" {numbers[0]} of {numbers[1]}: start it by the `mpiexec` of that library; with Slurm, by `srun --mpi=pmi2` or"
            " `srun --mpi=pmix`"
        )
    while True:
        # In parts, so that Ctrl-C ends it.
        answer = native.ipu_join_workers(0.05, seconds).decode()
        if answer[0] == "!":
            raise ClusterError(f"the workers could not join: {answer[1:]}")
        if answer[0] != "?":
            return tuple(answer.split("\n"))
        if time.monotonic() >= deadline:
            ranks = answer[1:].split()
            more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
            raise ClusterError(_describe_missing(", ".join(ranks[:8]) + more, own, seconds))


def _open(own: Identity, handle: int, seconds: float, deadline: float) -> str:
    """Initializes MPI on a thread, since `MPI_Init_thread` waits without a limit until all workers have called it."""
    global _opening  # noqa: PLW0603  (`_joining` guards it.)
    if _opening is None:
        answers: list[bytes] = []
        candidates = "\n".join(f"{interface} {path}" for interface, path in mpi.libraries())
        arguments = candidates.encode(), handle, _own_name().encode()
        thread = threading.Thread(
            target=lambda: answers.append(native.ipu_open_workers(*arguments)), name="ipu-mpi-init", daemon=True
        )
        _opening = thread, answers
        thread.start()
    thread, answers = _opening
    while thread.is_alive():
        if time.monotonic() >= deadline:
            raise ClusterError(_describe_missing(str(1 - own.worker) if own.workers == 2 else "", own, seconds))
        thread.join(0.05)  # In parts, so that Ctrl-C ends it.
    _opening = None
    answer = answers[0].decode()
    if answer[0] == "!":
        raise ClusterError(answer[1:] or mpi.describe_missing_library(own))
    return answer


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _describe_missing(ranks: str, own: Identity, seconds: float) -> str:
    missing = f"worker {ranks}" if ranks else f"a worker, of {own.workers},"
    return (
        f"{missing} did not join within {seconds:g} s: have all workers create an"
        " `IPUMultiWorkerStrategy` or call `popdist.init()`, or raise the `timeout`"
    )


def _checked_timeout(timeout: float | None) -> float:
    if timeout is None:
        return environment.worker_timeout()
    if not is_number(timeout):
        raise TypeError(f"`timeout` must be a number of seconds, but is {timeout!r}")
    if not 0 < timeout <= environment.MOST_SECONDS:
        raise ValueError(f"`timeout` is {timeout:g}, and must be above 0 and at most {environment.MOST_SECONDS} s")
    return float(timeout)
