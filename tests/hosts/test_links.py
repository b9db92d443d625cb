"""The connections over which workers exchange everything: one for each two, and for workers of the cluster alone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import Identity, links

SECONDS = 120.0  # A deadline that nothing here reaches.
SOON = 0.3  # One that is meant to be reached.
TOKEN = "0123456789abcdef" * 2


class Cluster:
    """Threads that stand for workers, each with a socket that listens."""

    def __init__(self, stack: contextlib.ExitStack, workers: int) -> None:
        self.pool = stack.enter_context(ThreadPoolExecutor(workers))
        self.listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(workers)]
        for listener in self.listeners:
            listener.setblocking(False)
        self.addresses = tuple(f"127.0.0.1:{listener.getsockname()[1]}" for listener in self.listeners)

    def connect(self, worker: int, seconds: float = SECONDS) -> Future[dict[int, socket.socket]]:
        identity = Identity(worker, self.addresses)
        return self.pool.submit(links.connect, identity, self.listeners[worker], TOKEN, seconds)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as held:
        yield held


def test_each_worker_gets_one_to_each_other_one(stack: contextlib.ExitStack) -> None:
    cluster = Cluster(stack, 3)
    made = {worker: cluster.connect(worker) for worker in (2, 0, 1)}
    ends = [made[worker].result(SECONDS) for worker in range(3)]
    for end in (end for of_worker in ends for end in of_worker.values()):
        stack.enter_context(end).settimeout(SECONDS)
    for one in range(3):
        assert sorted(ends[one]) == [other for other in range(3) if other != one]
        for other, here in ends[one].items():
            here.sendall(bytes([one, other]))
            assert ends[other][one].recv(2) == bytes([one, other])


def test_strangers_are_turned_away(stack: contextlib.ExitStack) -> None:
    cluster = Cluster(stack, 2)
    strangers = []
    hellos = [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(40),
        links._HELLO.pack(links._MAGIC, b"f" * 32, 1),  # The wrong token.
        links._HELLO.pack(links._MAGIC, TOKEN.encode(), 7),  # No worker has this number.
        b"",  # It says nothing, and stays.
    ]
    for hello in hellos:
        strangers.append(stack.enter_context(socket.create_connection(cluster.listeners[0].getsockname(), SECONDS)))
        strangers[-1].sendall(hello)
    for made in [cluster.connect(0), cluster.connect(1)]:
        for end in made.result(SECONDS).values():
            end.close()
    for stranger in strangers:
        with contextlib.suppress(ConnectionResetError):  # It was closed with something unread.
            assert stranger.recv(1) == b""


def test_worker_that_does_not_come_is_told(stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_SECONDS", SOON)
    cluster = Cluster(stack, 2)
    with pytest.raises(ClusterError, match=rf"worker 1 \({cluster.addresses[1]}\) did not connect to worker 0"):
        cluster.connect(0, seconds=SOON).result(SECONDS)


def test_worker_that_cannot_be_reached_is_told(stack: contextlib.ExitStack) -> None:
    cluster = Cluster(stack, 2)
    with socket.socket() as closed:  # A port where nobody listens, and which nobody else gets.
        closed.bind(("127.0.0.1", 0))
        cluster.addresses = (f"127.0.0.1:{closed.getsockname()[1]}", cluster.addresses[1])
        with pytest.raises(ClusterError, match=rf"worker 0 \({cluster.addresses[0]}\) cannot be reached by worker 1: "):
            cluster.connect(1).result(SECONDS)
