"""The connections over which messages of programs go: made by all or by none, and by workers of the cluster alone."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import Identity, links
from tensorflow_ipu.hosts.rendezvous import Rendezvous

SECONDS = 120.0  # A deadline that nothing here reaches.
SOON = 0.3  # One that is meant to be reached.
TOKEN = "0123456789abcdef" * 2

# What workers run. They import this file.


def summed() -> tuple[float, bool]:
    """A sum over the workers, and whether it went by connections of their own."""
    import tensorflow_ipu as ipu

    strategy = ipu.IPUMultiWorkerStrategy()
    config = ipu.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    program = tf.function(lambda x: ipu.ops.cross_replica_ops.cross_replica_sum(x), jit_compile=True)
    total: Any = strategy.run(program, args=(tf.constant(1.0),))
    threads = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # A thread that ended meanwhile.
            threads.append(path.read_text().strip())
    return float(total), "ipu-links" in threads


# The tests.


class Cluster:
    """Threads that stand for workers, each with a socket that listens."""

    def __init__(self, stack: contextlib.ExitStack, workers: int) -> None:
        self.pool = stack.enter_context(ThreadPoolExecutor(workers))
        self.identities = [
            Identity(one, ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")[:workers]) for one in range(workers)
        ]
        self.listeners = [stack.enter_context(links.listening(one, False)) for one in self.identities]
        self.ports = tuple(links.port_of(listener) for listener in self.listeners)
        self.links = [stack.enter_context(links.Links()) for _ in self.identities]

    def make(self, worker: int, ports: tuple[int, ...] | None = None, seconds: float = SECONDS) -> Future[None]:
        agreed = Rendezvous(TOKEN, ports or self.ports)
        return self.pool.submit(
            self.links[worker].make, self.identities[worker], self.listeners[worker], agreed, seconds
        )


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as held:
        yield held


def owned(descriptors: list[int], stack: contextlib.ExitStack) -> list[socket.socket | None]:
    return [None if one < 0 else stack.enter_context(socket.socket(fileno=one)) for one in descriptors]


def test_each_worker_gets_one_to_each_other_one(stack: contextlib.ExitStack) -> None:
    cluster = Cluster(stack, 3)
    for made in [cluster.make(worker) for worker in (2, 0, 1)]:
        made.result(SECONDS)
    assert all(one.complete for one in cluster.links)
    ends = [owned(one.given_away(), stack) for one in cluster.links]
    for one in range(3):
        assert ends[one][one] is None
        for other in range(3):
            here, there = ends[one][other], ends[other][one]
            if here is None or there is None:
                continue
            here.settimeout(SECONDS)
            there.settimeout(SECONDS)
            here.sendall(bytes([one, other]))
            assert there.recv(2) == bytes([one, other])


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
        strangers.append(stack.enter_context(socket.create_connection(("127.0.0.1", cluster.ports[0]), SECONDS)))
        strangers[-1].sendall(hello)
    for made in [cluster.make(0), cluster.make(1)]:
        made.result(SECONDS)
    assert all(one.complete for one in cluster.links)
    for stranger in strangers:
        with contextlib.suppress(ConnectionResetError):  # It was closed with something unread.
            assert stranger.recv(1) == b""


def test_worker_that_does_not_come_is_told_in_the_log(
    stack: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(stack, 2)
    cluster.make(0, seconds=SOON).result(SECONDS)
    assert not cluster.links[0].complete
    assert "by gRPC, which is slower: worker 1 (127.0.0.1:2) did not come to port" in caplog.text


def test_worker_that_cannot_be_reached_is_told_in_the_log(
    stack: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(stack, 2)
    with socket.socket() as closed:  # A port where nobody listens, and which nobody else gets.
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        cluster.make(1, ports=(port, 1), seconds=SECONDS).result(SECONDS)
    assert not cluster.links[1].complete
    assert f"worker 0 (127.0.0.1:1) cannot be reached at port {port}: " in caplog.text


def test_one_that_asks_for_grpc_has_all_use_it(
    stack: contextlib.ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORFLOW_IPU_TRANSPORT", "grpc")
    with links.listening(Identity(0, ("127.0.0.1:1",)), False) as listener:
        assert links.port_of(listener) == 0
    monkeypatch.delenv("TENSORFLOW_IPU_TRANSPORT")
    cluster = Cluster(stack, 2)
    with caplog.at_level(logging.INFO, "tensorflow_ipu"):
        cluster.make(1, ports=(0, cluster.ports[1])).result(SECONDS)
    assert not cluster.links[1].complete
    assert "by gRPC: worker 0 asks for it" in caplog.text


def test_data_port_is_the_one_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, held_addresses: Any) -> None:
    own = Identity(0, ("127.0.0.1:1", "127.0.0.1:2"))
    port = int(held_addresses(1)[0].rpartition(":")[2])
    monkeypatch.setenv("TENSORFLOW_IPU_DATA_PORT", str(port))
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ClusterError, match=rf"worker 0 .* cannot listen at 127.0.0.1, port {port}, .*DATA_PORT"),
        links.listening(own, False),
    ):
        pass
    with links.listening(own, False) as listener:
        assert links.port_of(listener) == port


def test_programs_use_them_on_all_workers(workers: Any) -> None:
    assert workers.call(summed) == [(2.0, True)] * 2


def test_programs_use_grpc_on_all_workers_where_one_asks_for_it(fresh_workers: Any) -> None:
    pair = fresh_workers(2, started=[0])
    pair.start(1, env={"TENSORFLOW_IPU_TRANSPORT": "grpc"})
    assert pair.call(summed) == [(2.0, False)] * 2


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TENSORFLOW_IPU_TRANSPORT", "rdma"), ("TENSORFLOW_IPU_DATA_PORT", "65536"), ("TENSORFLOW_IPU_DATA_PORT", "http")],
)
def test_malformed_variables_are_refused(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with (
        pytest.raises(ValueError, match=f"`{variable}={value}`"),
        links.listening(Identity(0, ("127.0.0.1:1",)), False),
    ):
        pass
