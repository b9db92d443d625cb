"""Sets of worker processes, which are sent functions to run: all at once, or one by one."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self

LIMIT = 240.0  # Seconds. A set imports the package, and compiles, beside whatever else the machine does.
_GRACE = 60.0


@dataclass(frozen=True)
class Each:
    """Stands among a case's arguments for one that differs: worker `i` gets `values[i]`."""

    values: Sequence[Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a case in one worker."""

    value: Any = None  # What the function returned; tensors and variables are arrays.
    kinds: tuple[str, ...] = ()  # Classes of what it raised, the nearest first; `Killed` where the process ended.
    message: str = ""
    trace: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.kinds)


class CaseError(AssertionError):
    """A case did not end as it was to, in one worker or more."""


def reserve(count: int) -> list[socket.socket]:
    """Sockets that hold ports of the loopback, on which a server that allows the reuse of its address may listen."""
    sockets = []
    for _ in range(count):
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        sockets.append(held)
    return sockets


class Workers:
    """So many processes, each with the `TF_CONFIG` of one worker. As a context it ends with all of them killed."""

    each = Each  # Tests import nothing from this file.

    def __init__(
        self,
        forking: Any,
        count: int,
        *,
        env: Mapping[str, str | None] | None = None,
        started: Sequence[int] | None = None,
    ) -> None:
        """Starts those of `started`, or all, with more variables; one of None is removed."""
        self._forking = forking
        self._env = dict(env or {})

        self._held = reserve(count)
        self.addresses = tuple(f"127.0.0.1:{held.getsockname()[1]}" for held in self._held)
        self.folder = Path(tempfile.mkdtemp(prefix="ipu"))  # Short: the path of a socket has 107 letters at most.
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / "socket"))
        self._listener.listen()
        self.processes: dict[int, int] = {}
        self._connections: dict[int, Connection] = {}
        self._sent: set[int] = set()
        self._running: set[int] = set()
        try:
            self.start(*(range(count) if started is None else started))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def whole(self) -> bool:
        """Whether all run, and none has anything under way."""
        return bool(self._connections) and not self._sent and len(self._running) == len(self.processes)

    def start(self, *workers: int) -> None:
        """Starts workers that do not run."""
        for worker in workers:
            folder = self.folder / f"worker{worker}"
            folder.mkdir(exist_ok=True)
            self.processes[worker] = self._forking.start(
                Path(__file__).with_name("worker.py"),
                str(self.folder / "socket"),
                str(worker),
                str(self._forking.number),
                folder=folder,
                output=self.folder / f"output{worker}",
                env={"TF_CONFIG": self.tf_config(worker), **self._env},
            )
            self._running.add(worker)
        waiting = set(workers)
        self._listener.settimeout(_GRACE)
        while waiting:
            try:
                connection = Connection(self._listener.accept()[0].detach())
            except TimeoutError:
                self._fail(f"workers {sorted(waiting)} did not come")
            worker = connection.recv()
            self._connections[worker] = connection
            waiting.discard(worker)

    def tf_config(self, worker: int) -> str:
        return json.dumps({"cluster": {"worker": list(self.addresses)}, "task": {"type": "worker", "index": worker}})

    def send(self, worker: int, case: Callable[..., object], *args: object, **kwargs: object) -> None:
        """Has one worker begin a case: a function at the top of a module, or a method of a class there."""
        if "<" in case.__qualname__:
            raise TypeError(f"`{case.__qualname__}` is no function at the top of a module, and cannot be sent")
        assert worker not in self._sent, f"worker {worker} is busy"
        args = tuple(arg.values[worker] if isinstance(arg, Each) else arg for arg in args)
        kwargs = {name: arg.values[worker] if isinstance(arg, Each) else arg for name, arg in kwargs.items()}
        self._sent.add(worker)
        self._connections[worker].send((inspect.getsourcefile(case), case.__qualname__, args, kwargs))

    def collect(self, *workers: int) -> list[Outcome]:
        """Waits for what these workers were sent. Kills the set, and fails, when that takes too long."""
        outcomes: dict[int, Outcome] = {}
        end = time.monotonic() + LIMIT
        while len(outcomes) < len(workers):
            waiting = {self._connections[worker]: worker for worker in workers if worker not in outcomes}
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                self._fail(f"workers {sorted(waiting.values())} were not done after {LIMIT:g} s")
            for connection in ready:
                worker = waiting[connection]  # pyright: ignore[reportArgumentType]
                outcomes[worker] = self._outcome(worker)
        return [outcomes[worker] for worker in workers]

    def outcomes(self, case: Callable[..., object], *args: object, **kwargs: object) -> list[Outcome]:
        """Has all workers run a case, and gives what became of it in each, in order."""
        workers = sorted(self._connections)
        for worker in workers:
            self.send(worker, case, *args, **kwargs)
        return self.collect(*workers)

    def call(self, case: Callable[..., object], *args: object, **kwargs: object) -> list[Any]:
        """Has all workers run a case, and gives what it returns in each, in order; fails where it raises in any."""
        found = self.outcomes(case, *args, **kwargs)
        if any(outcome.failed for outcome in found):
            lines = [f"`{case.__qualname__}` failed:"]
            for worker, outcome in zip(sorted(self.processes), found, strict=True):
                fate = outcome.trace or f"{outcome.kinds[0]}: {outcome.message}" if outcome.failed else "returned"
                lines += [f"--- worker {worker}: {fate}", self.printed(worker)]
            raise CaseError("\n".join(lines))
        return [outcome.value for outcome in found]

    def printed(self, worker: int) -> str:
        """All that a worker has printed, errors among it."""
        return (self.folder / f"output{worker}").read_text(errors="replace")

    def close(self) -> None:
        """Kills all processes, and gives all ports back. A second call does nothing."""
        for worker in self._running:
            os.kill(self.processes[worker], signal.SIGKILL)
            self._forking.end(self.processes[worker])
        self._running.clear()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._listener.close()
        for held in self._held:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _outcome(self, worker: int) -> Outcome:
        self._sent.discard(worker)
        try:
            what, *rest = self._connections[worker].recv()
        except (EOFError, ConnectionResetError):
            self._connections.pop(worker).close()
            self._running.discard(worker)
            code = self._forking.end(self.processes[worker])
            return Outcome(None, ("Killed",), f"the process ended with {code}", self.printed(worker)[-2000:])
        if what == "returned":
            return Outcome(rest[0])
        kinds, message, trace = rest
        return Outcome(None, tuple(kinds), message, trace)

    def _fail(self, why: str) -> NoReturn:
        """Says where each worker is, and ends the set."""
        for worker in self._running:
            os.kill(self.processes[worker], signal.SIGCONT)
            os.kill(self.processes[worker], signal.SIGUSR1)  # It prints the stacks of its threads.
        end = time.monotonic() + _GRACE
        while time.monotonic() < end and not all("Current thread" in self.printed(worker) for worker in self._running):
            time.sleep(0.05)
        lines = [why, *(f"--- worker {worker} printed:\n{self.printed(worker)}" for worker in self.processes)]
        self.close()
        raise CaseError("\n".join(lines))
