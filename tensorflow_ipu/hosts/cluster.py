"""The cluster that this process is a worker of, joined once."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import signal
import threading
import time
from collections.abc import Iterator

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_number
from tensorflow_ipu._native.library import native
from tensorflow_ipu._tensorflow import coordination, devices
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import links
from tensorflow_ipu.hosts.identity import Identity, identity
from tensorflow_ipu.hosts.rendezvous import address_of, meet, name_of

# Of `struct sigaction`, which no system has larger.
_BYTES = 1024


@contextlib.contextmanager
def termination_kept() -> Iterator[None]:
    """A block behind which SIGTERM does what it did before.

    TensorFlow's coordination service takes the signal as a notice of preemption: from then on it ends nothing, and a handler
    of Python's that was there is called no more. Nobody asks for that notice here, and the process of a worker is to end
    when it is told to. What waits for such notices, as `tf.distribute.experimental.PreemptionCheckpointHandler` does, sets a
    handler of its own.

    By the C library: Python's `signal` works on the main thread alone, and knows no handlers but Python's.
    """
    action = ctypes.create_string_buffer(_BYTES)
    library = ctypes.CDLL(None)
    number = int(signal.SIGTERM)
    library.sigaction(number, None, action)
    try:
        yield
    finally:
        library.sigaction(number, action, None)


# The least time that TensorFlow's own registration gets, behind a wait that took nearly all.
_REGISTRATION = 10.0


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that this process is one of.

    Attributes:
      worker: Which of them it is, from 0. Worker 0 is the chief.
      workers: How many there are.
      addresses: Of each of them, `host:port`.
      device: The full name of the CPU of this worker, on which its collectives of TensorFlow run.
      timeout: Seconds that workers wait for each other.
    """

    worker: int
    workers: int
    addresses: tuple[str, ...]
    device: str
    timeout: float

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which writes what is written once."""
        return self.worker == 0


_joining = threading.Lock()
_joined: Cluster | None = None


def joined() -> Cluster | None:
    """The cluster that this process has joined, of two workers or more; None where it works alone."""
    return _joined


def join(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | Identity | None = None,
    timeout: float | None = None,
    listen: str | None = None,
) -> Cluster:
    """Joins the cluster that this process is a worker of, and returns when all workers have joined.

    A process joins once: further calls return what the first one did. The cluster is TensorFlow's: gRPC in clear text.

    Args:
      cluster_resolver: Who knows the cluster, or the identity itself. None: the environment variable `TF_CONFIG`; where
        that is unset, the process is alone.
      timeout: Seconds to wait for workers, here and later. None: the environment variable `TENSORFLOW_IPU_TIMEOUT`,
        60 where that is unset.
      listen: `"address"` for a server on the worker's own address alone, `"all"` for one on all interfaces. None: the
        environment variable `TENSORFLOW_IPU_LISTEN`, the own address where that is unset.

    Raises:
      ClusterError: A worker did not come, or was started twice; a port is in use; or TensorFlow's runtime had started
        before, which takes no cluster then.
      ValueError: An argument or a variable is malformed; or this process has joined as another worker.
      TypeError: An argument is of a wrong type.
    """
    global _joined  # noqa: PLW0603  (A process has one runtime of TensorFlow.)
    own = cluster_resolver if isinstance(cluster_resolver, Identity) else identity(cluster_resolver)
    seconds = _checked_timeout(timeout)
    everywhere = _checked_listen(listen) == "all"
    if own is None or own.workers == 1:
        addresses = () if own is None else own.addresses
        return Cluster(0, 1, addresses, devices.full_name("/device:CPU:0"), seconds)
    with _joining:
        if _joined is not None:
            if (own.worker, own.addresses) != (_joined.worker, _joined.addresses):
                raise ValueError(
                    f"this process is worker {_joined.worker} of {', '.join(_joined.addresses)} already, and cannot be worker"
                    f" {own.worker} of {', '.join(own.addresses)}: a process joins one cluster"
                )
            return _joined
        with links.Links() as connections:
            joined = _join(own, seconds, everywhere, connections)
            links.connect(joined, connections)
        _joined = joined
        return _joined


def _join(own: Identity, seconds: float, everywhere: bool, connections: links.Links) -> Cluster:
    if devices.are_in_use() or coordination.is_joined():
        raise ClusterError(
            f"{name_of(own, own.worker)}, this process, cannot join the cluster any more: TensorFlow's runtime has started, by"
            " a tensor, a variable or a list of devices that was asked for, and takes no cluster from then on. Make the"
            " strategy first of all"
        )
    end = time.monotonic() + seconds
    with links.listening(own, everywhere) as listener:
        agreed = meet(own, seconds, everywhere, links.port_of(listener))
        connections.make(own, listener, agreed, seconds)
    try:
        with termination_kept(), contextlib.nullcontext() if everywhere else _on_own_address(own):
            coordination.join(own.addresses, own.worker, max(_REGISTRATION, end - time.monotonic()), seconds)
    except tf.errors.OpError as exc:
        raise ClusterError(
            f"{name_of(own, own.worker)}, this process, could not join the cluster: {exc.message}"
        ) from exc
    return Cluster(own.worker, own.workers, own.addresses, devices.full_name("/device:CPU:0"), seconds)


@contextlib.contextmanager
def _on_own_address(own: Identity) -> Iterator[None]:
    """A block that starts TensorFlow's server, which would listen on all interfaces, on the worker's address alone."""
    host, port = address_of(own, everywhere=False)[:2]
    way_out = f"Set `{environment.LISTEN_VARIABLE}=all` if it may, where no stranger can reach this machine"
    if not native.ipu_bind_alone(str(host).encode(), str(port).encode()):
        raise ClusterError(
            f"TensorFlow's server would listen on all interfaces, and not on {own.address} alone. {way_out}"
        )
    try:
        yield
    finally:
        bound = native.ipu_bind_as_before()
    if not bound:
        raise ClusterError(f"TensorFlow's server does not listen on {own.address} alone. {way_out}")


def _checked_timeout(timeout: float | None) -> float:
    if timeout is None:
        return environment.worker_timeout()
    if not is_number(timeout):
        raise TypeError(f"`timeout` must be a number of seconds, but is {timeout!r}")
    if not 0 < timeout <= environment.MOST_SECONDS:
        raise ValueError(f"`timeout` is {timeout:g}, and must be above 0 and at most {environment.MOST_SECONDS} s")
    return float(timeout)


def _checked_listen(listen: str | None) -> str:
    if listen is None:
        return environment.worker_listens()
    if listen not in environment.LISTEN:
        raise ValueError(f'`listen` must be "address" or "all", but is {listen!r}')
    return listen
