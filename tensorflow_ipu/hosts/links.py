"""Connections between workers, one for each two of them, over which everything goes that they exchange.

A worker connects to those with lower numbers, and those with higher ones connect to it. Who connects says the secret on
which the workers agreed at their rendezvous, and its number.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts.identity import Identity
from tensorflow_ipu.hosts.rendezvous import name_of, names_of, read_part, split, take_in

# What a connection begins with: the name of this protocol, the token, the number of the worker.
_HELLO = struct.Struct("!8s32sI")
_MAGIC = b"ipulink2"
# The least time for connections: all workers are there by now, but their machines may be busy.
_SECONDS = 10.0


def connect(identity: Identity, listener: socket.socket, token: str, seconds: float) -> dict[int, socket.socket]:
    """Connects this worker with all others; the result has a connection for each of them."""
    end = time.monotonic() + max(seconds, _SECONDS)
    with contextlib.ExitStack() as opened:
        found: dict[int, socket.socket] = {}
        for worker in range(identity.worker):
            found[worker] = opened.enter_context(_called(identity, worker, token, end))
        for worker, connection in _accepted(identity, listener, token, end):
            found[worker] = opened.enter_context(connection)
        for connection in found.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # No message waits for another one.
        opened.pop_all()
        return found


def _called(identity: Identity, worker: int, token: str, end: float) -> socket.socket:
    """A connection to a worker that listens."""
    try:
        address = split(identity.addresses[worker])
        connection = socket.create_connection(address, timeout=max(0.001, end - time.monotonic()))
        connection.sendall(_HELLO.pack(_MAGIC, token.encode(), identity.worker))
    except OSError as exc:
        raise ClusterError(
            f"{name_of(identity, worker)} cannot be reached by worker {identity.worker}: {exc}. Have firewalls let workers"
            " reach each other's addresses"
        ) from exc
    return connection


def _accepted(
    identity: Identity, listener: socket.socket, token: str, end: float
) -> Iterator[tuple[int, socket.socket]]:
    """Waits for those with higher numbers."""
    missing = set(range(identity.worker + 1, identity.workers))
    unread: dict[socket.socket, bytes] = {}
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while missing:
                left = end - time.monotonic()
                if left <= 0:
                    raise ClusterError(
                        f"{names_of(identity, missing)} did not connect to {name_of(identity, identity.worker)}: have"
                        " firewalls let workers reach each other's addresses"
                    )
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
                    yield worker, connection
    finally:
        for connection in unread:
            connection.close()


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
