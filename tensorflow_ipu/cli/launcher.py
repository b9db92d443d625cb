"""Starts the processes of a cluster, shows what they write, and ends them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, BinaryIO

from tensorflow_ipu._base import environment, progress

# What a process writes without a line's end is not kept for ever.
_LONGEST = 1 << 16


class Lines:
    """Writes one output of one process in whole lines, each as it was last overwritten."""

    def __init__(self, prefix: str, target: BinaryIO | None, last: deque[str]) -> None:
        """Takes the prefix of lines, their target, if they are shown, and the deque of the last ones."""
        self._prefix = prefix.encode()
        self._target = target
        self._last = last
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes what the process wrote, and writes complete lines."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            whole.append(self._rest)
            self._rest = b""
        self._write(whole)

    def close(self) -> None:
        """Writes an incomplete last line."""
        if self._rest:
            self._write([self._rest])
            self._rest = b""

    def _write(self, lines: list[bytes]) -> None:
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
        self._last.extend(line.decode(errors="replace") for line in shown)
        if shown and self._target is not None:
            # In one piece, so that no other process's line comes in between.
            with progress.hidden():
                self._target.write(b"".join(self._prefix + line + b"\n" for line in shown))
                self._target.flush()


# Seconds for the others to write what they saw when one failed, to end after SIGTERM, and to end after Ctrl-C.
_TO_WRITE = 2.0
_TO_END = 5.0
_TO_INTERRUPT = 10.0
# How many lines of a process that failed are shown once more.
_SHOWN = 20
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OF_SIGNAL = 128  # What a shell adds to the number of a signal that ended a process.


class Child:
    """One process and its output."""

    def __init__(
        self,
        worker: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        shows: bool = True,
        passed: Sequence[int] = (),
    ) -> None:
        """Starts it in a group of its own: Ctrl-C reaches it through the launcher alone. It inherits the files `passed`."""
        self.worker = worker
        self.last: deque[str] = deque(maxlen=_SHOWN)
        self.since = time.monotonic()
        self.seconds = 0.0
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=passed,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  (The launcher has no other threads.)
        )
        prefix = f"[{worker}] "
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.outputs: dict[IO[bytes], Lines] = {
            self.process.stdout: Lines(prefix, sys.stdout.buffer if shows else None, self.last),
            self.process.stderr: Lines(prefix, sys.stderr.buffer if shows else None, self.last),
        }

    @property
    def code(self) -> int | None:
        """Its exit status, as a shell has it; None while it runs."""
        code = self.process.returncode
        return _OF_SIGNAL - code if code is not None and code < 0 else code

    def send(self, number: int) -> None:
        """Sends a signal to it and to all processes that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def has_ended(self) -> bool:
        """Whether it has ended; then ends what it had started."""
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Ends it, and what it started, at once."""
        if self.process.returncode is None:
            self.send(signal.SIGKILL)  # Before it is waited for: its number is its own until then.
            self.process.wait()
            self.seconds = time.monotonic() - self.since
            self._await_group()

    def _await_group(self) -> None:
        """Waits for the processes that it had started, now the launcher's own children."""
        # `killpg` returns before its receivers end. A process that changed its user cannot be ended, so there is a limit.
        limit = time.monotonic() + _TO_END
        with suppress(ChildProcessError):  # No more of them.
            while time.monotonic() < limit:
                if os.waitpid(-self.process.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.001)

    def fate(self) -> str:
        """The way it ended, as the end of a sentence."""
        code = self.process.returncode
        if code < 0:
            return f"was ended by {_name(-code)} after {self.seconds:.1f} s"
        return f"ended with status {code} after {self.seconds:.1f} s"


class Children:
    """All processes."""

    def __init__(self) -> None:
        """Takes over the signals that end the launcher, and becomes the parent of orphans."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._failed: Child | None = None
        self._caught: list[int] = []
        self._ended_by: int | None = None
        # The signals to send to all that still run, and when.
        self._pending: deque[tuple[float, int]] = deque()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        # Workers inherit one end and send their numbers when they have joined. It has no name that others could use.
        self._arrivals, self._of_workers = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._arrivals.setblocking(False)
        self._selector.register(self._arrivals, selectors.EVENT_READ)
        self._arrived: set[bytes] = set()
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._catch)

    def run(
        self, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], only: int | None = None
    ) -> int:
        """Starts all, and waits until all have ended; shows what the process `only` writes, or all if None."""
        try:
            passed = self._of_workers.fileno()
            told = {environment.LAUNCHER_VARIABLE: f"{passed}:{os.fstat(passed).st_ino}"}
            for worker, (command, variables) in enumerate(zip(commands, environments, strict=True)):
                child = Child(worker, command, {**variables, **told}, only in (None, worker), [passed])
                self._children.append(child)
                for source in child.outputs:
                    os.set_blocking(source.fileno(), False)
                    self._selector.register(source, selectors.EVENT_READ, child)
            count = len(commands)
            with progress.of("workers that are there", count, until=lambda work: work.done == count) as work:
                while self._running():
                    self._step()
                    work.done = self._count_arrived()
                work.done = self._count_arrived()  # Of the last ones, whose end may be seen first.
        finally:
            self._arrivals.close()
            self._of_workers.close()
            for child in self._children:
                child.end()
                for source in list(child.outputs):
                    self._read(child, source, at_end=True)
        return self._status()

    def _running(self) -> list[Child]:
        return [child for child in self._children if child.process.returncode is None]

    def _count_arrived(self) -> int:
        with suppress(BlockingIOError):
            while True:
                self._arrived.add(self._arrivals.recv(16))
        return len(self._arrived)

    def _step(self) -> None:
        wait = max(0.0, self._pending[0][0] - time.monotonic()) if self._pending else None
        for key, _ in self._selector.select(wait):
            if key.fileobj is self._reader:
                with suppress(BlockingIOError):
                    os.read(self._reader, 4096)
            elif key.fileobj is self._arrivals:
                self._count_arrived()
            else:
                self._read(key.data, key.fileobj)
        while self._caught:
            self._interrupt(self._caught.pop(0))
        for child in self._running():
            if child.has_ended() and child.code and self._failed is None:
                self._failed = child
                if self._ended_by is None:
                    self._end_all(_TO_WRITE)
        while self._pending and self._pending[0][0] <= time.monotonic():
            self._send(self._pending.popleft()[1])

    def _read(self, child: Child, source: Any, at_end: bool = False) -> None:
        lines = child.outputs.get(source)
        if lines is None:
            return
        # Until there is no more: at the end of a process that is all that it wrote.
        while data := source.read(1 << 16):  # None where there is nothing now, empty at the end.
            lines.feed(data)
            if not at_end:
                return
        if data is None and not at_end:
            return
        lines.close()
        with suppress(KeyError):
            self._selector.unregister(source)
        source.close()
        del child.outputs[source]

    def _interrupt(self, number: int) -> None:
        """Passes a signal on, and ends what does not end by it; at once at the second time."""
        again = self._ended_by is not None
        self._ended_by = number
        self._pending.clear()
        self._send(signal.SIGKILL if again else number)
        if not again:
            self._end_all(_TO_INTERRUPT)

    def _end_all(self, after: float) -> None:
        end = time.monotonic() + after
        self._pending += [(end, signal.SIGTERM), (end + _TO_END, signal.SIGKILL)]

    def _send(self, number: int) -> None:
        for child in self._running():
            child.send(number)
            child.send(signal.SIGCONT)  # A process that is stopped takes no signal but `SIGKILL`.

    def _status(self) -> int:
        if self._ended_by is not None:
            return _OF_SIGNAL + self._ended_by
        if self._failed is None:
            return 0
        lines = [f"worker {self._failed.worker} {self._failed.fate()}; its last lines:"]
        lines += [f"  {line}" for line in self._failed.last] or ["  (none)"]
        others = [child for child in self._children if child is not self._failed]
        lines += [f"worker {child.worker} {child.fate()}" for child in others]
        print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201  (The launcher's own output.)
        return self._failed.code or 1

    def _catch(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGCHLD:
            self._caught.append(number)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 2222  # Where TensorFlow's own examples have their servers.
_MOST_PORT = 65535

# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class LaunchPlan:
    """A cluster to start."""

    addresses: tuple[str, ...]
    local_replicas: int | None = None
    ipus_per_replica: int | None = None
    timeout: float | None = None

    def variables(self, worker: int, count: int = 0) -> dict[str, str]:
        """The environment variables of a worker."""
        cluster = {"worker": list(self.addresses)}
        config = {"cluster": cluster, "task": {"type": "worker", "index": worker}}
        found = {"TF_CONFIG": json.dumps(config)}
        if self.local_replicas is not None:
            found[environment.REPLICAS_VARIABLE] = str(self.local_replicas)
        if self.ipus_per_replica is not None:
            found[environment.IPUS_PER_REPLICA_VARIABLE] = str(self.ipus_per_replica)
        if self.timeout is not None:
            found[environment.TIMEOUT_VARIABLE] = f"{self.timeout:g}"
        wanted = (self.local_replicas or 1) * (self.ipus_per_replica or 1)
        if wanted > count:
            found[environment.COUNT_VARIABLE] = str(wanted)
        return found


def addresses_of(hosts: Sequence[str], instances: int, port: int) -> tuple[str, ...]:
    """The addresses of so many workers, divided evenly among hosts, with consecutive ports on each."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"`--hosts` has `{host}`, which is no host; write names or addresses with commas in between, and ports"
                " by `--port`"
            )
        if hosts.count(host) > 1:
            raise ValueError(f"`--hosts` names `{host}` twice; write it once, and raise `--instances`")
    if instances % len(hosts):
        raise ValueError(
            f"`--instances={instances}` cannot be divided evenly among {len(hosts)} hosts; choose a multiple of"
            f" {len(hosts)}"
        )
    of_host = instances // len(hosts)
    if port + of_host - 1 > _MOST_PORT:
        raise ValueError(
            f"`--port={port}` leaves no room for {of_host} ports; choose one up to {_MOST_PORT - of_host + 1}"
        )
    return tuple(f"{host}:{port + index}" for host in hosts for index in range(of_host))


def hold_ports(instances: int, port: int | None) -> list[socket.socket]:
    """Holds ports of the loopback for so many workers: the sockets are bound, and workers may listen there."""
    held: list[socket.socket] = []
    with ExitStack() as stack:
        for index in range(instances):
            one = stack.enter_context(socket.socket())
            held.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wanted = 0 if port is None else port + index
            try:
                one.bind((LOOPBACK, wanted))
            except OSError as exc:
                raise ValueError(
                    f"port {wanted}, for worker {index}, cannot be used: {(exc.strerror or str(exc)).lower()}; choose"
                    f" another `--port`, or leave it out to have free ones chosen"
                ) from exc
        stack.pop_all()
    return held
