"""Sets of worker processes, which are sent functions to run: all at once, or one by one."""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

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


class Workers:
    """So many processes that `mpiexec` started together."""

    each = Each  # Tests import nothing from this file.

    def __init__(self, count: int, env: Mapping[str, str]) -> None:
        """Starts them with more variables."""
        self.folder = Path(tempfile.mkdtemp(prefix="ipu"))  # Short: the path of a socket has 107 letters at most.
        self._connections: dict[int, Connection] = {}
        self._numbers: dict[int, int] = {}
        self._sent: set[int] = set()
        alive, held = os.pipe()  # All processes hold the other end: it is closed when the last one ends.
        self._alive: int | None = alive
        script = Path(__file__).with_name("worker.py")
        with socket.socket(socket.AF_UNIX) as listener, (self.folder / "launcher").open("wb") as output:
            listener.bind(str(self.folder / "socket"))
            listener.listen()
            self._launcher = subprocess.Popen(
                [Path(sys.executable).with_name("mpiexec"), "-n", str(count), sys.executable, script, self.folder],
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[held],
            )
            os.close(held)
            self._meet(listener, count)
        host = socket.gethostname()
        self.names = [f"worker {worker} (process {self._numbers[worker]} on {host})" for worker in range(count)]

    @property
    def whole(self) -> bool:
        """Whether all run, and none has anything under way."""
        return len(self._connections) == len(self._numbers) and not self._sent

    def _meet(self, listener: socket.socket, count: int) -> None:
        end = time.monotonic() + _GRACE
        while len(self._connections) < count:
            if not select.select([listener], [], [], 0.2)[0]:
                if time.monotonic() > end or self._launcher.poll() is not None:
                    self._fail(f"of {count} workers, {sorted(self._connections)} came")
                continue
            connection = Connection(listener.accept()[0].detach())
            worker, self._numbers[worker] = connection.recv()
            self._connections[worker] = connection

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
            for worker, outcome in enumerate(found):
                fate = outcome.trace or f"{outcome.kinds[0]}: {outcome.message}" if outcome.failed else "returned"
                lines += [f"--- worker {worker}: {fate}", self.printed(worker)]
            raise CaseError("\n".join(lines))
        return [outcome.value for outcome in found]

    def printed(self, worker: int) -> str:
        """All that a worker has printed, errors among it."""
        return (self.folder / f"output{worker}").read_text(errors="replace")

    def close(self) -> None:
        """Kills all processes, and waits until none is left. A second call does nothing."""
        if self._alive is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()
        gone = select.select([self._alive], [], [], _GRACE)[0]
        os.close(self._alive)
        self._alive = None
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        if not gone:
            raise CaseError(f"workers outlive `mpiexec`: {self._numbers}")

    def _outcome(self, worker: int) -> Outcome:
        self._sent.discard(worker)
        try:
            what, *rest = self._connections[worker].recv()
        except (EOFError, ConnectionResetError):
            self._connections.pop(worker).close()
            return Outcome(None, ("Killed",), "the process ended", self.printed(worker)[-2000:])
        if what == "returned":
            return Outcome(rest[0])
        kinds, message, trace = rest
        return Outcome(None, tuple(kinds), message, trace)

    def _fail(self, why: str) -> NoReturn:
        """Says where each worker is, and ends the set."""
        for worker in self._connections:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._numbers[worker], signal.SIGUSR1)  # It prints the stacks of its threads.
        end = time.monotonic() + _GRACE
        while time.monotonic() < end and not all("Current thread" in self.printed(each) for each in self._connections):
            time.sleep(0.05)
        files = [self.folder / "launcher", *sorted(self.folder.glob("output*"))]
        lines = [why, *(f"--- {file.name} printed:\n{file.read_text(errors='replace')}" for file in files)]
        self.close()
        raise CaseError("\n".join(lines))
