"""Two sets of worker processes, which serve many tests: they are sent functions to run."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

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
    kinds: tuple[str, ...] = ()  # Classes of what it raised, the nearest first; `Killed` if the process ended.
    message: str = ""
    trace: str = ""


class Workers:
    """Processes that one `mpiexec` has started."""

    each = Each  # Tests import nothing from this file.

    def __init__(self, count: int, env: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ipu"))  # Short: the path of a socket has 107 letters at most.
        self._connections: dict[int, Connection] = {}
        self._numbers: dict[int, int] = {}
        self._busy: set[int] = set()
        self._alive, held = os.pipe()  # All processes hold the other end: it is closed when the last one ends.
        script = Path(__file__).with_name("worker.py")
        with socket.socket(socket.AF_UNIX) as listener, (self._folder / "output").open("wb") as output:
            listener.bind(str(self._folder / "socket"))
            listener.listen()
            self._launcher = subprocess.Popen(
                [Path(sys.executable).with_name("mpiexec"), "-n", str(count), sys.executable, script, self._folder],
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[held],
            )
            os.close(held)
            try:
                self._meet(listener, count)
            except BaseException:
                self.close()
                raise
        host = socket.gethostname()
        self.names = [f"worker {worker} (process {self._numbers[worker]} on {host})" for worker in range(count)]

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

    @property
    def whole(self) -> bool:
        """True if all run, and wait for a case."""
        return len(self._connections) == len(self._numbers) and not self._busy

    def outcomes(self, case: Callable[..., object], *args: object, **kwargs: object) -> list[Outcome]:
        """Runs a case, a function at the top of a module, in all workers, and returns what became of it in each."""
        assert "<" not in case.__qualname__, f"`{case.__qualname__}` is not at the top of a module, and cannot be sent"

        def of(worker: int, arg: Any) -> Any:
            return arg.values[worker] if isinstance(arg, Each) else arg

        self._busy = set(self._connections)
        for worker, connection in self._connections.items():
            own = [of(worker, arg) for arg in args], {name: of(worker, arg) for name, arg in kwargs.items()}
            connection.send((inspect.getsourcefile(case), case.__qualname__, *own))
        found: dict[int, Outcome] = {}
        end = time.monotonic() + LIMIT
        while self._busy:
            waiting = {self._connections[worker]: worker for worker in self._busy}
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                self._fail(f"workers {sorted(self._busy)} were not done after {LIMIT:g} s")
            for connection in ready:
                worker = waiting[connection]  # pyright: ignore[reportArgumentType]
                found[worker] = self._outcome(worker)
        return [found[worker] for worker in sorted(found)]

    def call(self, case: Callable[..., object], *args: object, **kwargs: object) -> list[Any]:
        """Runs a case in all workers, and returns what it returns in each; fails if it raises in any."""
        found = self.outcomes(case, *args, **kwargs)
        if any(outcome.kinds for outcome in found):
            fates = [outcome.trace or f"{outcome.kinds[0]}" if outcome.kinds else "returned" for outcome in found]
            pytest.fail(self._described(f"`{case.__qualname__}` failed", *fates))
        return [outcome.value for outcome in found]

    def close(self) -> None:
        """Kills all processes, and waits until none is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()
        assert select.select([self._alive], [], [], _GRACE)[0], f"workers outlive `mpiexec`: {self._numbers}"
        os.close(self._alive)
        for connection in self._connections.values():
            connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _outcome(self, worker: int) -> Outcome:
        self._busy.discard(worker)
        try:
            return Outcome(*self._connections[worker].recv())
        except (EOFError, ConnectionResetError):
            self._connections.pop(worker).close()
            return Outcome(None, ("Killed",))

    def _fail(self, why: str) -> NoReturn:
        """Reports the stacks of all threads of the workers."""
        for number in self._numbers.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGUSR1)
        end = time.monotonic() + _GRACE
        while time.monotonic() < end and self._described("").count("Current thread") < len(self._numbers):
            time.sleep(0.05)
        pytest.fail(self._described(why))

    def _described(self, *words: str) -> str:
        outputs = [f"--- {file.name}:\n{file.read_text(errors='replace')}" for file in self._folder.glob("output*")]
        return "\n".join([*words, *sorted(outputs)])


@pytest.fixture(scope="session")
def set_of(quick_imports: dict[str, str]) -> Iterator[Callable[[int], Workers]]:
    """`set_of(2)` is the set of so many workers."""
    sets: dict[int, Workers] = {}

    def whole(count: int) -> Workers:
        if count in sets and not sets[count].whole:
            sets.pop(count).close()
        if count not in sets:
            sets[count] = Workers(count, quick_imports)
        return sets[count]

    yield whole
    for one in sets.values():
        one.close()


@pytest.fixture
def workers(set_of: Callable[[int], Workers]) -> Workers:
    """Two workers that serve many tests. A test that breaks them costs seconds, and no other test fails."""
    return set_of(2)


@pytest.fixture
def three_workers(set_of: Callable[[int], Workers]) -> Workers:
    """Three of them."""
    return set_of(3)
