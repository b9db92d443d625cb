"""The rendezvous of all workers at worker 0's address, and their connections."""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from tensorflow_ipu._base import environment
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts.identity import Identity

_MAGIC = "tensorflow_ipu workers 3"
_SLICE = 0.2  # Seconds between tries to reach worker 0.
_LONGEST = 1 << 20  # Bytes of a message: 1,000 addresses are 30,000.
_STRANGERS = 16  # How many others may wait besides workers.
_REST = 2.0  # Seconds that an answer may take beyond the limit, since worker 0 began to wait at another time.


def meet(identity: Identity, listener: socket.socket, seconds: float) -> str:
    """Returns, when all workers are there, a secret by which they know each other."""
    deadline = time.monotonic() + seconds
    if identity.worker == 0:
        return _gather(identity, listener, deadline, seconds)
    return _say_hello(identity, deadline, seconds)


class _Addressed(Protocol):
    """Anything with the addresses of all workers."""

    @property
    def addresses(self) -> tuple[str, ...]: ...


def name_of(workers: _Addressed, worker: int) -> str:
    """A worker in words, with its address."""
    return f"worker {worker} ({workers.addresses[worker]})"


def names_of(workers: _Addressed, numbers: Iterable[int]) -> str:
    """Several workers in words, by number."""
    return " and ".join(name_of(workers, worker) for worker in sorted(numbers))


@contextlib.contextmanager
def listening(identity: Identity, everywhere: bool) -> Iterator[socket.socket]:
    """A socket at the worker's address."""
    address = _address_of(identity, everywhere)
    family = socket.AF_INET6 if len(address) == 4 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(2 * identity.workers + _STRANGERS)
        except OSError as exc:
            raise ClusterError(_cannot_listen(identity, exc)) from exc
        listener.setblocking(False)
        yield listener


def _address_of(identity: Identity, everywhere: bool) -> tuple[Any, ...]:
    """The address where this worker listens, as sockets take it."""
    host, port = split(identity.address)
    try:
        found = socket.getaddrinfo(None if everywhere else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise ClusterError(
            f"the address of {name_of(identity, identity.worker)}, this process, is not known: {exc}"
        ) from exc
    return found[0][4]


def _cannot_listen(identity: Identity, exc: OSError) -> str:
    who = f"{name_of(identity, identity.worker)}, this process, cannot listen: "
    if exc.errno == errno.EADDRINUSE:
        return (
            f"{who}its port is in use on this machine. Most likely this worker was started twice, or a former run has not"
            " ended; else give it another port"
        )
    if exc.errno == errno.EADDRNOTAVAIL:
        return (
            f"{who}its address is not one of this machine's. Start the worker where its address is, or correct its number;"
            f" where the address is that of a proxy in front of this machine, set `{environment.LISTEN_VARIABLE}=all`"
        )
    return f"{who}{exc}"


def split(address: str) -> tuple[str, int]:
    """The host and the port of an address; the host of `[::1]:2222` is `::1`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Caller(NamedTuple):
    connection: socket.socket
    process: str


def _gather(identity: Identity, listener: socket.socket, deadline: float, seconds: float) -> str:
    """Worker 0: waits for all others, then lets them go on."""
    callers: dict[int, _Caller] = {}
    failed: str | None = None
    token = secrets.token_hex(16)
    try:
        with contextlib.closing(first_words(listener, deadline)) as words:
            for connection, text in words:
                failed = _note_caller(identity, connection, text, callers)
                if failed or len(callers) == identity.workers - 1:
                    break
            else:
                missing = names_of(identity, set(range(1, identity.workers)) - callers.keys())
                failed = f"{missing} did not come within {seconds:g} s: start all workers, or wait longer"
        answer = {"error": failed} if failed else {"go": token}
        for caller in callers.values():
            _send(caller.connection, answer)
    finally:
        for caller in callers.values():
            caller.connection.close()
    if failed is not None:
        raise ClusterError(failed)
    return token


def first_words(listener: socket.socket, end: float, size: int | None = None) -> Generator[tuple[socket.socket, bytes]]:
    """Each new connection with its first line, or first `size` bytes, until `end`; closes the others."""
    unread: dict[socket.socket, bytes] = {}
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    connection: Any = key.fileobj
                    if connection is not listener:
                        if _read(connection, unread, size):
                            selector.unregister(connection)
                            yield connection, unread.pop(connection)
                        continue
                    with contextlib.suppress(OSError):  # It may have gone again.
                        accepted, _ = listener.accept()
                        accepted.setblocking(False)
                        unread[accepted] = b""
                        selector.register(accepted, selectors.EVENT_READ)
    finally:
        for connection in unread:
            connection.close()


def _read(connection: socket.socket, unread: dict[socket.socket, bytes], size: int | None) -> bool:
    """Reads what there is; returns whether the first words are complete, or the connection has ended."""
    try:
        part = connection.recv(65536 if size is None else size - len(unread[connection]))
    except BlockingIOError:
        return False
    except OSError:
        part = b""
    unread[connection] += part
    read = len(unread[connection])
    return not part or (read >= size if size is not None else b"\n" in part or read >= _LONGEST)


def _note_caller(identity: Identity, connection: socket.socket, text: bytes, callers: dict[int, _Caller]) -> str | None:
    """Adds a worker, or answers why not; returns an error of the whole cluster."""
    hello = _said(text)
    if hello is None:  # Not a worker: somebody scans ports.
        connection.close()
        return None
    worker, addresses, process = hello["worker"], hello["addresses"], hello["process"]
    if addresses != list(identity.addresses):
        failed = (
            f"worker {worker} ({process}) was told of the workers {', '.join(map(str, addresses))}, and worker 0 of"
            f" {', '.join(identity.addresses)}: give all workers the same list"
        )
        _send(connection, {"error": failed})
        connection.close()
        return failed
    if worker in callers:
        first = callers[worker]
        _send(
            connection,
            {
                "error": f"{name_of(identity, worker)} was started twice: as {first.process}, which is in the cluster, and as"
                f" {process}, which is not. Give each worker a number of its own"
            },
        )
        connection.close()
        return None
    callers[worker] = _Caller(connection, process)
    return None


def _said(text: bytes) -> dict[str, Any] | None:
    """The hello of a worker; None for other texts."""
    try:
        hello = json.loads(text)
    except ValueError:
        return None
    if (
        not isinstance(hello, dict)
        or hello.get("magic") != _MAGIC
        or not {"worker", "addresses", "process"} <= hello.keys()
    ):
        return None
    return hello


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    # Who is gone meanwhile is missed when workers connect.
    with contextlib.suppress(OSError):
        connection.settimeout(_REST)
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _say_hello(identity: Identity, deadline: float, seconds: float) -> str:
    """Another worker: calls worker 0 until it answers, and waits for the answer."""
    hello = {
        "magic": _MAGIC,
        "worker": identity.worker,
        "addresses": list(identity.addresses),
        "process": f"process {os.getpid()} on {socket.gethostname()}",
    }
    chief = name_of(identity, 0)
    reason = "it was not there"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(split(identity.addresses[0]), timeout=_SLICE * 5) as connection:
                # Where the system gave this end that very port, and joined the two.
                if connection.getsockname() == connection.getpeername():
                    raise OSError("nobody listens there")
                connection.sendall(json.dumps(hello).encode() + b"\n")
                text = _answer(connection, deadline + _REST)
        except OSError as exc:
            reason = str(exc)
            text = b""
        if not text:
            time.sleep(max(0.0, min(_SLICE, deadline - time.monotonic())))
            continue
        try:
            answer = json.loads(text)
        except ValueError as exc:
            raise ClusterError(
                f"something else than {chief} answers at its address: give the worker another port"
            ) from exc
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer["go"]
    raise ClusterError(
        f"{chief} could not be reached by worker {identity.worker} within {seconds:g} s: {reason}. Start all workers, or wait"
        " longer"
    )


def _answer(connection: socket.socket, deadline: float) -> bytes:
    """The line that worker 0 answers; empty where it hung up or is silent."""
    text = b""
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            return b""
        connection.settimeout(min(left, 1.0))
        try:
            part = connection.recv(65536)
        except TimeoutError:
            continue
        if not part:
            return b""
        text += part
    return text


def refusal(identity: Identity) -> str:
    """The answer to workers that call later."""
    error = (
        f"{name_of(identity, identity.worker)} is running already, with all of its cluster: a worker was started twice, or"
        " has been started anew. End all workers, and start them together"
    )
    return json.dumps({"error": error}) + "\n"


# The first bytes of a connection: the name of this protocol, the token, the number of the worker.
_HELLO = struct.Struct("!8s32sI")
_LINK_MAGIC = b"ipulink2"
# The least time for connections: all workers are there by now, but their machines may be busy.
_SECONDS = 10.0


def connect(identity: Identity, listener: socket.socket, token: str, seconds: float) -> dict[int, socket.socket]:
    """Connects this worker with all others; those with higher numbers connect to it."""
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
    try:
        address = split(identity.addresses[worker])
        connection = socket.create_connection(address, timeout=max(0.001, end - time.monotonic()))
        connection.sendall(_HELLO.pack(_LINK_MAGIC, token.encode(), identity.worker))
    except OSError as exc:
        raise ClusterError(
            f"{name_of(identity, worker)} cannot be reached by worker {identity.worker}: {exc}. Have firewalls let workers"
            " reach each other's addresses"
        ) from exc
    return connection


def _accepted(
    identity: Identity, listener: socket.socket, token: str, end: float
) -> Iterator[tuple[int, socket.socket]]:
    missing = set(range(identity.worker + 1, identity.workers))
    if not missing:
        return
    with contextlib.closing(first_words(listener, end, _HELLO.size)) as words:
        for connection, hello in words:
            worker = _worker_of(hello, token)
            if worker not in missing:  # Not a worker: somebody scans ports.
                connection.close()
                continue
            missing.discard(worker)
            yield worker, connection
            if not missing:
                return
    raise ClusterError(
        f"{names_of(identity, missing)} did not connect to {name_of(identity, identity.worker)}: have"
        " firewalls let workers reach each other's addresses"
    )


def _worker_of(hello: bytes, token: str) -> int | None:
    """The number of a worker of this cluster; None for anybody else."""
    if len(hello) != _HELLO.size:
        return None
    magic, secret, worker = _HELLO.unpack(hello)
    return worker if magic == _LINK_MAGIC and hmac.compare_digest(secret, token.encode()) else None
