"""Tests that workers train models of Keras 2 like one process with all their replicas, and resume together."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tensorflow_ipu as ipu

SCRIPT = Path(__file__).with_name("training_of_workers.py")
TRAINING = runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def of_workers(tmp_path_factory):
    """Returns the results of each of two workers."""
    folder = tmp_path_factory.mktemp("workers")
    command = [sys.executable, "-m", "tensorflow_ipu", "run", "--keras", "2", "--instances", "2", SCRIPT, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads((folder / f"{worker}.json").read_text()) for worker in range(2)]


def test_workers_train_as_one_process_does_and_resume_where_they_ended(of_workers, same):
    first, straight = (TRAINING["trained"](ipu.IPUMultiWorkerStrategy(), 4, epochs) for epochs in (2, 3))
    for results in of_workers:
        same(results["first"], first, rtol=1e-4)
        assert results["resumed"]["epochs"] == [2]
        same(results["resumed"]["weights"], straight["weights"], rtol=1e-4)
