"""The end of workers: by an error of one of them, by a signal, or of all together. No process or wait remains."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest


def last_object(run: Any) -> Any:
    """Returns the object in the last line of JSON that the processes printed."""
    assert run.end() == 0, run.output
    return json.loads([line for line in run.output.splitlines() if line[:1] == "["][-1])


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("killed", signal.SIGKILL, "KILLED|Killed"),
        ("raising", 1, "KeyError: 'the data are bad'"),
        ("exiting", 3, ""),
        ("stopped", 1, r"DeadlineExceededError.*worker 1 \(process {1} on "),
        ("absent", 1, r"DeadlineExceededError.*worker 1 \(process {1} on "),
        ("late", 1, "ClusterError: .*worker 1 .*3 s"),
        ("alone", 0, r"ran\n(.*\n)*ran\n"),
        ("finished", 0, r"ran\n(.*\n)*ran\n"),
    ],
)
def test_workers_end_together_with_the_status_of_a_fault_and_say_who_it_was(mpiexec, end, status, message):
    run = mpiexec(2, "ends.py", end)
    assert run.end() == status, run.output
    number = re.findall(r"worker 1 is process (\d+)\.", run.output)
    assert re.search(message.replace("{1}", *number) if number else message, run.output), run.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_the_launcher_ends_all_workers(mpiexec, number):
    run = mpiexec(2, "ends.py", "waiting")
    run.wait_for(r"is process \d+\.", 2)
    os.kill(run.number, number)
    assert run.end() != 0
    assert number == signal.SIGTERM or "KeyboardInterrupt" in run.output


def test_one_process_of_mpiexec_trains_as_one_without_it(mpiexec):
    under, without = (mpiexec(count, "ends.py", "trained") for count in (1, 0))
    assert last_object(under) == last_object(without)


def test_run_whose_worker_is_killed_resumes_to_the_same_weights(mpiexec, tmp_path):
    epochs, weights = last_object(mpiexec(2, "ends.py", "trained", tmp_path / "undisturbed", 4))
    assert epochs == [0, 1, 2, 3]
    run = mpiexec(2, "ends.py", "trained", tmp_path / "disturbed", 4, 1)
    assert run.end() == signal.SIGKILL, run.output
    assert last_object(mpiexec(2, "ends.py", "trained", tmp_path / "disturbed", 4)) == [[2, 3], weights]


def test_strategy_takes_a_communicator_of_mpi4py(mpiexec):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    rows, ((zero, of_zero), (first, of_first), _), end = last_object(mpiexec(3, "ends.py", "split"))
    assert rows == [[1, 2, 1.0], [0, 2, 1.0], [0, 1, 2.0]]
    assert of_zero == of_first == [f"process {first}", f"process {zero}"]
    assert "This process has left the workers." in end
