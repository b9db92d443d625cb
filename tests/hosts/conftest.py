"""Fixtures that run scripts under `mpiexec`, and sets of worker processes that serve many tests.

A test with the mark `workers(2)` runs in two workers at the same time. Its assertions must hold in both.
"""

from __future__ import annotations

import inspect
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NoReturn

import pytest

LIMIT = 240  # In seconds. Processes import the package and compile while the machine does other work.


class Run:
    """`count` processes of one `mpiexec` that run a script of this folder, or one process without it if `count` is 0."""

    def __init__(
        self,
        output: Path,
        count: int,
        script: str,
        *words: object,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(count)] if count else []
        self._output = output
        self._alive, held = os.pipe()  # All processes inherit the other end. It is closed when the last of them ends.
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [*launcher, sys.executable, Path(__file__).with_name(script), *map(str, words)],
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
                cwd=output.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=[held, *pass_fds],
            )
        os.close(held)

    @property
    def output(self) -> str:
        """The text that the processes have printed."""
        return self._output.read_text(errors="replace")

    @property
    def number(self) -> int:
        """The process id of `mpiexec`."""
        return self._process.pid

    def wait_for(self, pattern: str, times: int) -> None:
        """Waits until the processes have printed a pattern at least `times` times."""
        end = time.monotonic() + LIMIT
        while len(re.findall(pattern, self.output)) < times:
            assert self._process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.05)

    def end(self) -> int:
        """Waits for the end of all processes, and returns the status of `mpiexec`."""
        if not select.select([self._alive], [], [], LIMIT)[0]:
            pytest.fail(f"processes were not done after {LIMIT} s; they printed:\n{self.output}")
        return self._process.wait()

    def close(self) -> None:
        """Kills the remaining processes, and waits for their end."""
        if not select.select([self._alive], [], [], 0)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.end()
        os.close(self._alive)


class Workers:
    """Processes of `worker.py`, which run functions on request."""

    def __init__(self, output: Path, count: int, env: Mapping[str, str]) -> None:
        pipes = [Pipe() for _ in range(count)]
        ends = [theirs.fileno() for _, theirs in pipes]
        self._connections = [ours for ours, _ in pipes]
        self._run = Run(output, count, "worker.py", LIMIT, *ends, env=env, pass_fds=ends)
        for _, theirs in pipes:
            theirs.close()
        self.usable = True

    def call(self, function: Callable[..., object], *args: object, **kwargs: object) -> list[Any]:
        """Runs a function of a module in all workers, and returns its results; fails if it raises in any.

        Tensors and variables are arrays in results.
        """
        self.usable = False
        for connection in self._connections:
            connection.send((inspect.getsourcefile(function), function.__name__, args, kwargs))
        end = time.monotonic() + LIMIT + 60  # Workers print their stacks before this limit.
        answers = []
        for connection in self._connections:
            if not connection.poll(max(0.0, end - time.monotonic())):
                self._fail(f"workers were not done after {LIMIT} s")
            try:
                answers.append(connection.recv())
            except (EOFError, ConnectionResetError):
                self._fail("a worker ended")
        self.usable = True
        if errors := [error for _, error in answers if error]:
            self._fail(*errors)
        return [value for value, _ in answers]

    def close(self) -> None:
        self._run.close()
        for connection in self._connections:
            connection.close()

    def _fail(self, *words: str) -> NoReturn:
        printed = "--- The output of all tests of these workers:", self._run.output
        pytest.fail("\n".join([*words, *printed]), pytrace=False)


@pytest.fixture
def mpiexec(tmp_path: Path, quick_imports: dict[str, str]) -> Iterator[Callable[..., Run]]:
    """Returns a function: `mpiexec(2, "ends.py", "killed")` starts the script in two processes. They end with the test."""
    runs: list[Run] = []

    def start(*words: Any) -> Run:
        runs.append(Run(tmp_path / f"output{len(runs)}", *words, env=quick_imports))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture(scope="session", autouse=True)
def set_of(
    quick_imports: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Workers]]:
    """Returns a function: `set_of(2)` returns a set of two workers for all tests. A new set replaces a broken one."""
    sets: dict[int, Workers] = {}

    def usable(count: int) -> Workers:
        if count in sets and not sets[count].usable:
            sets.pop(count).close()
        if count not in sets:
            sets[count] = Workers(tmp_path_factory.mktemp("workers") / "output", count, quick_imports)
        return sets[count]

    yield usable
    for workers in sets.values():
        workers.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "workers(count): run the test in each of so many workers")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    mark = pyfuncitem.get_closest_marker("workers")
    if mark is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    pyfuncitem.funcargs["set_of"](*mark.args).call(pyfuncitem.obj, **arguments)
    return True
