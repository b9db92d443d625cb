"""Connections between workers, one for each two of them, over which the messages of programs go.

A worker connects to those with lower numbers, and those with higher ones connect to it. Who connects says the secret on
which the workers agreed as they met, and its number.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import exchange
from tensorflow_ipu.hosts.identity import Identity
from tensorflow_ipu.hosts.rendezvous import Rendezvous, address_of, name_of, names_of, read_part, split, take_in

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from tensorflow_ipu.hosts.cluster import Cluster

_logger = logging.getLogger(__name__)

# What a connection begins with: the name of this protocol, the token, the number of the worker.
_HELLO = struct.Struct("!8s32sI")
_MAGIC = b"ipulink1"
# How long to wait for connections, at most: all workers are there by now, and what a firewall swallows comes never.
_SECONDS = 10.0
# How many others may wait besides workers, until they are turned away.
_STRANGERS = 16


@contextlib.contextmanager
def listening(identity: Identity, everywhere: bool) -> Iterator[socket.socket | None]:
    """A socket where workers with higher numbers connect; None where messages go by TensorFlow's server."""
    if environment.transport() != "sockets":
        yield None
        return
    port = environment.data_port()
    address = address_of(identity, everywhere)
    with socket.socket(socket.AF_INET6 if len(address) == 4 else socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], port, *address[2:]))
            listener.listen(identity.workers + _STRANGERS)
        except OSError as exc:
            raise ClusterError(
                f"{name_of(identity, identity.worker)}, this process, cannot listen at {address[0]}, port {port}, for the"
                f" messages of programs: {exc}. `{environment.DATA_PORT_VARIABLE}` names another port, and"
                f" `{environment.TRANSPORT_VARIABLE}=grpc` does without"
            ) from exc
        listener.setblocking(False)
        yield listener


def port_of(listener: socket.socket | None) -> int:
    """Where it listens; 0 for None."""
    return 0 if listener is None else listener.getsockname()[1]


class Links:
    """The connections of this worker. As a context it ends with those closed that nobody took over. Not thread-safe.

    Attributes:
      complete: Whether there is one to each other worker.
    """

    def __init__(self) -> None:
        """None yet."""
        self.complete = False
        self._sockets: dict[int, socket.socket] = {}
        self._workers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._sockets.values():
            connection.close()

    def make(self, identity: Identity, listener: socket.socket | None, agreed: Rendezvous, seconds: float) -> None:
        """Connects this worker with all others, if it can; else a warning in the log says why."""
        self._workers = identity.workers
        without = [worker for worker, port in enumerate(agreed.ports) if port == 0]
        if listener is None or without:
            _logger.info("messages of programs go by gRPC: worker %s asks for it", without[0])
            return
        end = time.monotonic() + min(seconds, _SECONDS)
        try:
            for worker in range(identity.worker):
                self._sockets[worker] = _called(identity, worker, agreed, end)
            self._accept(identity, listener, agreed.token, end)
        except _NoLinkError as exc:
            _logger.warning("messages of programs go by gRPC, which is slower: %s", exc)
            return
        for connection in self._sockets.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # No message waits for another one.
        self.complete = True

    def given_away(self) -> list[int]:
        """The descriptors of the connections, by worker, and -1 for this one; they are the caller's to close."""
        return [self._sockets[one].detach() if one in self._sockets else -1 for one in range(self._workers)]

    def _accept(self, identity: Identity, listener: socket.socket, token: str, end: float) -> None:
        """Waits for those with higher numbers."""
        missing = set(range(identity.worker + 1, identity.workers))
        unread: dict[socket.socket, bytes] = {}
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(listener, selectors.EVENT_READ)
                while missing:
                    left = end - time.monotonic()
                    if left <= 0:
                        names = names_of(identity, missing)
                        raise _NoLinkError(f"{names} did not come to port {port_of(listener)} of this worker")
                    for key, _ in selector.select(left):
                        connection: Any = key.fileobj
                        if connection is listener:
                            take_in(listener, selector, unread)
                            continue
                        if _read(connection, unread):
                            continue
                        selector.unregister(connection)
                        worker = _worker_of(unread.pop(connection), token)
                        if worker not in missing:  # Somebody else, who looks which ports are open.
                            connection.close()
                            continue
                        missing.discard(worker)
                        self._sockets[worker] = connection
        finally:
            for connection in unread:
                connection.close()


class _NoLinkError(Exception):
    """A worker cannot be reached, in words."""


def _called(identity: Identity, worker: int, agreed: Rendezvous, end: float) -> socket.socket:
    """A connection to a worker that listens."""
    host, _ = split(identity.addresses[worker])
    try:
        connection = socket.create_connection((host, agreed.ports[worker]), timeout=max(0.001, end - time.monotonic()))
        connection.sendall(_HELLO.pack(_MAGIC, agreed.token.encode(), identity.worker))
    except OSError as exc:
        raise _NoLinkError(
            f"{name_of(identity, worker)} cannot be reached at port {agreed.ports[worker]}: {exc}. Have firewalls let it"
            f" pass; `{environment.DATA_PORT_VARIABLE}` makes it another one"
        ) from exc
    return connection


def _read(connection: socket.socket, unread: dict[socket.socket, bytes]) -> bool:
    """Reads what there is of who connects, and returns whether more is to come."""
    part = read_part(connection, unread, _HELLO.size - len(unread[connection]))
    return part is None or (bool(part) and len(unread[connection]) < _HELLO.size)


def _worker_of(hello: bytes, token: str) -> int | None:
    """The number of a worker of this cluster; None for anybody else."""
    if len(hello) != _HELLO.size:
        return None
    magic, said, worker = _HELLO.unpack(hello)
    return worker if magic == _MAGIC and hmac.compare_digest(said, token.encode()) else None


_connected = False

# Of the one collective of TensorFlow's that runs here. Keys are a cluster's; strategies of TensorFlow's count from 1.
_KEY = 0x69707501


def connect(cluster: Cluster, links: Links) -> None:
    """Tells the kernels who the other workers are, and how to reach them.

    All workers have to call this, since they meet in a collective of TensorFlow's: only after that does its runtime know
    the devices of all.
    """
    global _connected  # noqa: PLW0603  (As the kernels are: a process is connected or not.)
    keys = exchange.CollectiveKeys(_KEY, _KEY, cluster.workers)

    def shared() -> tf.Tensor:
        return exchange.reduce_at(cluster, keys, tf.constant(int(links.complete)), False, "who has all connections")

    # In a graph: an operation that is called by itself is not told of TensorFlow's coordination service, by which workers
    # learn who is missing. From here on the kernels know it.
    linked = tf.function(shared, autograph=False).get_concrete_function()()
    with tf.device(cluster.device):
        tasks = [_task(cluster.device, worker) for worker in range(cluster.workers)]
        ops.ipu_connect_workers(
            worker=cluster.worker,
            tasks=tasks,
            addresses=list(cluster.addresses),
            limit=float(cluster.timeout),
            sockets=links.given_away() if int(linked) == cluster.workers else [],
        )
    _connected = True


def is_connected() -> bool:
    """Whether programs of this process cross to other workers."""
    return _connected


def _task(device: str, worker: int) -> str:
    spec = tf.DeviceSpec.from_string(device)
    return tf.DeviceSpec(job=spec.job, replica=spec.replica, task=worker).to_string()
