"""How workers end: by a fault of one, by a signal, or all together. No end leaves a process behind, or a wait."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("workers.py")
MPIEXEC = Path(sys.executable).with_name("mpiexec")
LIMIT = 240  # Seconds.


class Run:
    """`mpiexec` with a script of `workers.py`."""

    def __init__(self, output: Path, count: int, words: tuple[str, ...], env: dict[str, str]) -> None:
        launcher = [MPIEXEC, "-n", str(count)] if count else []
        self._output = output
        self._alive, held = os.pipe()  # All processes hold the other end: it is closed when the last one ends.
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*launcher, sys.executable, SCRIPT, *words],
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
                cwd=output.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=[held],
            )
        os.close(held)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, words: str, times: int) -> None:
        """Waits until the processes have printed these words so often."""
        end = time.monotonic() + LIMIT
        while len(re.findall(words, self.output)) < times:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.05)

    def end(self) -> int:
        """Waits for the end of all processes, and returns the status of `mpiexec`."""
        if not select.select([self._alive], [], [], LIMIT)[0]:
            pytest.fail(f"processes were not done after {LIMIT} s; they printed:\n{self.output}")
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.end()
        os.close(self._alive)

    def found(self) -> Any:
        """What the last line that the processes printed says, as JSON."""
        assert self.end() == 0, self.output
        return json.loads([line for line in self.output.splitlines() if line[:1] in "[{"][-1])


@pytest.fixture
def mpiexec(tmp_path: Path, quick_imports: dict[str, str]) -> Iterator[Callable[..., Run]]:
    """`mpiexec(2, "killed")` starts so many processes, and none of them outlives the test; 0 are one, without MPI."""
    runs: list[Run] = []

    def start(count: int, *words: str) -> Run:
        runs.append(Run(tmp_path / f"output{len(runs)}", count, words, quick_imports))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("killed", signal.SIGKILL, "KILLED|Killed"),
        ("raising", 1, "ValueError: the data are bad"),
        ("exiting", 3, ""),
        ("stopped", 1, r"DeadlineExceededError.*worker 1 \(process {1} on "),
        ("absent", 1, r"DeadlineExceededError.*worker 1 \(process {1} on "),
        ("late", 1, "ClusterError: .*worker 1 .*3 s"),
    ],
)
def test_fault_of_one_worker_ends_all_with_its_status_and_says_who_it_was(mpiexec, end, status, words):
    run = mpiexec(2, end)
    assert run.end() == status, run.output
    number = re.findall(r"worker 1 is process (\d+)\.", run.output)
    assert re.search(words.replace("{1}", *number) if number else words, run.output), run.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_the_launcher_ends_all_workers(mpiexec, number):
    run = mpiexec(2, "waiting")
    run.wait_for(r"is process \d+\.", 2)
    run.process.send_signal(number)
    assert run.end() != 0
    assert number == signal.SIGTERM or "KeyboardInterrupt" in run.output


@pytest.mark.parametrize("script", ["alone", "finished"])
def test_workers_that_end_well_end_together(mpiexec, script):
    run = mpiexec(2, script)
    assert run.end() == 0, run.output
    assert run.output.count("ran\n") == 2


def test_one_process_of_mpiexec_trains_as_one_without_it(mpiexec):
    under, without = (mpiexec(count, "trained") for count in (1, 0))
    assert under.found() == without.found()


def test_run_whose_worker_is_killed_resumes_to_the_same_weights(mpiexec, tmp_path):
    undisturbed = mpiexec(2, "trained", str(tmp_path / "undisturbed"), "4").found()
    assert undisturbed["epochs"] == [0, 1, 2, 3]
    run = mpiexec(2, "trained", str(tmp_path / "disturbed"), "4", "1")
    assert run.end() == signal.SIGKILL, run.output
    resumed = mpiexec(2, "trained", str(tmp_path / "disturbed"), "4").found()
    assert resumed == {"epochs": [2, 3], "weights": undisturbed["weights"]}


def test_strategy_takes_a_communicator_of_mpi4py(mpiexec):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    zero, one, two = mpiexec(3, "split").found()
    assert [row[:3] for row in (zero, one, two)] == [[1, 2, 1.0], [0, 2, 1.0], [0, 1, 2.0]]
    for row, members in ((zero, (one, zero)), (one, (one, zero))):
        assert [name.split(" on ")[0] for name in row[4]] == [f"process {member[3]}" for member in members]
