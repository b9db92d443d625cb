"""The rendezvous of workers and their connections: who is missing, there twice or wrong is told. Threads stand for them."""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tensorflow_ipu import hosts
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import Identity, join
from tensorflow_ipu.hosts import rendezvous as links
from tensorflow_ipu.hosts.rendezvous import listening, meet, refusal

SECONDS = 120.0  # A deadline that nothing here reaches.
SOON = 0.3  # One that is meant to be reached.


@pytest.fixture
def addresses(held_addresses: Callable[[int], list[str]]) -> list[str]:
    return held_addresses(3)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def rendezvous(addresses: list[str], worker: int, seconds: float = SECONDS) -> str:
    identity = Identity(worker, tuple(addresses))
    with listening(identity, False) as listener:
        return meet(identity, listener, seconds)


def start(pool: ThreadPoolExecutor, addresses: list[str], worker: int, seconds: float = SECONDS) -> Future[str]:
    return pool.submit(rendezvous, addresses, worker, seconds)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_go_on_once_all_are_there(pool, addresses, order):
    agreed = [one.result(SECONDS) for one in [start(pool, addresses, worker) for worker in order]]
    assert agreed[0] == agreed[1] == agreed[2]
    assert len(agreed[0]) == 32


def test_who_is_missing_is_told_to_those_who_came(pool, addresses, monkeypatch):
    module = importlib.import_module("tensorflow_ipu.hosts.rendezvous")
    now = [0.0]

    def note(*caller: Any) -> str | None:
        noted = module_note(*caller)
        now[0] = 70.0  # The limit of worker 0 is over as soon as worker 2 has come.
        return noted

    module_note = module._note_caller
    monkeypatch.setattr(module, "_note_caller", note)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    there = [start(pool, addresses, 0, 60.0), start(pool, addresses, 2)]
    for one in there:
        with pytest.raises(ClusterError) as raised:
            one.result(SECONDS)
        assert str(raised.value).startswith(f"worker 1 ({addresses[1]}) did not come within 60 s")


def test_worker_without_a_chief_names_it(addresses):
    words = rf"worker 0 \({addresses[0]}\) could not be reached by worker 1 within 0.3 s"
    with pytest.raises(ClusterError, match=words):
        rendezvous(addresses, 1, SOON)


# Worker 1 took its own hello for the answer. A port among those that the system gives to who connects is such a one.
def test_connection_with_itself_is_not_worker_0(addresses, monkeypatch):
    def itself(address: tuple[str, int], timeout: float) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # The port is free at once.
        connection.settimeout(timeout)
        connection.bind(address)
        connection.connect(address)
        return connection

    monkeypatch.setattr(socket, "create_connection", itself)
    with pytest.raises(ClusterError, match=r"could not be reached by worker 1 within 0.3 s: nobody listens there"):
        rendezvous(addresses, 1, SOON)


def call(addresses: list[str]) -> socket.socket:
    """Calls worker 0, once it listens."""
    host, port = addresses[0].split(":")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)), SECONDS)
    raise TimeoutError


def hello(addresses: list[str], worker: int, process: str) -> socket.socket:
    """What a worker says, by a process that is not this one."""
    said = {"magic": "tensorflow_ipu workers 3", "worker": worker, "process": process, "addresses": addresses}
    connection = call(addresses)
    connection.sendall(json.dumps(said).encode() + b"\n")
    return connection


def test_worker_that_is_there_twice_is_told_and_the_first_goes_on(pool, addresses):
    chief = start(pool, addresses, 0)
    with hello(addresses, 1, "process 6 on a") as first, hello(addresses, 1, "process 7 on b") as second:
        answer = second.makefile().readline()
        assert f"worker 1 ({addresses[1]}) was started twice" in answer
        assert "as process 6 on a, which is in the cluster, and as process 7 on b, which is not" in answer
        start(pool, addresses, 2).result(SECONDS)
        assert json.loads(first.makefile().readline())["go"] == chief.result(SECONDS)


def test_workers_that_know_of_other_workers_are_told(pool, addresses):
    chief = start(pool, addresses, 0)
    other = start(pool, [*addresses[:2], "127.0.0.1:1"], 1)
    for one in (chief, other):
        with pytest.raises(ClusterError, match="127.0.0.1:1, and worker 0 of .*: give all workers the same list"):
            one.result(SECONDS)


def test_who_is_no_worker_is_left_aside(pool, addresses):
    chief = start(pool, addresses[:2], 0)
    for said in (b"GET / HTTP/1.1\n", b"[]\n", b"\xff\xfe\n", b""):
        with call(addresses) as stranger:
            stranger.sendall(said)
    start(pool, addresses[:2], 1).result(SECONDS)
    chief.result(SECONDS)


@pytest.mark.parametrize("answered", ["by the cluster", "by something else"])
def test_worker_that_comes_when_another_answers_is_told(addresses, answered):
    host, port = addresses[0].split(":")
    chief = Identity(0, tuple(addresses))
    text, message = {
        "by the cluster": (refusal(chief), "is running already, with all of its cluster: a worker was started twice"),
        "by something else": ("220 mail\n", "something else than worker 0 .* answers at its address"),
    }[answered]
    with socket.create_server((host, int(port))) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(text.encode())
                connection.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClusterError, match=message):
            rendezvous(addresses, 1)
        thread.join()


def test_address_that_cannot_be_listened_on_is_told(addresses):
    host, port = addresses[1].split(":")
    message = rf"worker 1 \({addresses[1]}\), this process, cannot listen: its port is in use"
    with socket.create_server((host, int(port))), pytest.raises(ClusterError, match=message):
        rendezvous(addresses, 1)
    with pytest.raises(ClusterError, match="its address is not one of this machine's"):
        rendezvous(["127.0.0.1:2222", "192.0.2.1:2222"], 1)
    message = r"the address of worker 0 \(nowhere.invalid:2222\), this process, is not known"
    with pytest.raises(ClusterError, match=message):
        rendezvous(["nowhere.invalid:2222", "127.0.0.1:2222"], 0)


def test_one_worker_joins_nobody(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    alone = join(timeout=3)
    assert (alone.worker, alone.workers, alone.addresses, alone.timeout, alone.is_chief) == (0, 1, (), 3.0, True)
    assert join(Identity(0, ("a:1",))).addresses == ("a:1",)
    assert hosts.joined() is None


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"timeout": 0}, ValueError, "`timeout` is 0, and must be above 0"),
        ({"timeout": "60"}, TypeError, "`timeout` must be a number of seconds, but is '60'"),
        ({"listen": "here"}, ValueError, '`listen` must be "address" or "all", but is \'here\''),
    ],
)
def test_bad_arguments_are_refused(more, kind, message):
    with pytest.raises(kind, match=message):
        join(Identity(0, ("a:1", "b:2")), **more)


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


def test_each_worker_gets_one_to_each_other_one(stack):
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


def test_strangers_are_turned_away(stack):
    cluster = Cluster(stack, 2)
    strangers = []
    hellos = [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(40),
        links._HELLO.pack(links._LINK_MAGIC, b"f" * 32, 1),  # The wrong token.
        links._HELLO.pack(links._LINK_MAGIC, TOKEN.encode(), 7),  # No worker has this number.
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


def test_worker_that_does_not_come_or_cannot_be_reached_is_told(stack, monkeypatch):
    monkeypatch.setattr(links, "_SECONDS", SOON)
    cluster = Cluster(stack, 2)
    with pytest.raises(ClusterError, match=rf"worker 1 \({cluster.addresses[1]}\) did not connect to worker 0"):
        cluster.connect(0, seconds=SOON).result(SECONDS)
    with socket.socket() as closed:  # A port where nobody listens, and which nobody else gets.
        closed.bind(("127.0.0.1", 0))
        cluster.addresses = (f"127.0.0.1:{closed.getsockname()[1]}", cluster.addresses[1])
        with pytest.raises(ClusterError, match=rf"worker 0 \({cluster.addresses[0]}\) cannot be reached by worker 1: "):
            cluster.connect(1).result(SECONDS)
