"""Parts of workers that need no second worker: local names, the end of a forked child, the order of libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import tensorflow_ipu
from tensorflow_ipu import hosts
from tensorflow_ipu.compat import _horovod, _popdist
from tensorflow_ipu.hosts import Cluster, mpi

# A worker whose script forks a child, without TensorFlow. Its arguments are the exit statuses of the script and the
# child.
_FORKING = f"""
import os, sys, types
package = sys.modules["tensorflow_ipu"] = types.ModuleType("tensorflow_ipu")
package.__path__ = [{str(Path(tensorflow_ipu.__file__).parent)!r}]
from tensorflow_ipu.cli import run_script

def script():
    child = os.fork()
    if child == 0:
        sys.exit(int(sys.argv[2]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(sys.argv[2])
    return int(sys.argv[1])

sys.exit(run_script._as_worker(script))
"""


@pytest.fixture
def as_one_of_four(monkeypatch):
    """Sets the variables of worker 3 of 4, which is the only worker of its host."""
    for name, value in {"PMI_RANK": 3, "PMI_SIZE": 4, "MPI_LOCALRANKID": 0, "MPI_LOCALNRANKS": 1}.items():
        monkeypatch.setenv(name, str(value))


# The launcher's variables count all processes. A communicator may contain some of them in another order.
@pytest.mark.parametrize(("worker", "local"), [(0, (0, 3)), (1, (0, 1)), (2, (1, 3)), (3, (2, 3))])
def test_place_within_a_host_is_that_in_the_joined_cluster(monkeypatch, as_one_of_four, worker, local):
    names = tuple(f"process {number} on {host}" for number, host in enumerate("abaa"))
    monkeypatch.setattr(hosts, "joined", lambda: Cluster(worker, 4, names, 60.0))
    assert (_horovod.local_rank(), _horovod.local_size()) == local
    assert (_popdist.getLocalInstanceIndex(), _popdist.getInstanceIndex()) == (local[0], worker)


def test_mean_of_slices_among_some_instances_is_over_those(as_one_of_four):
    slices = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([0]))
    mean = _popdist.execute_on_instances({3}, lambda: _horovod.allreduce(slices).values.numpy().tolist())
    assert mean == [[4.0]]


# The child printed a status that made hydra end all workers.
@pytest.mark.parametrize(("status", "child"), [(0, 3), (4, 0)])
def test_forked_child_that_fails_ends_no_workers(status, child):
    reading, end = os.pipe()
    with open(reading, "rb") as answers:
        done = subprocess.run(
            [sys.executable, "-c", _FORKING, str(status), str(child)],
            env={**os.environ, "PMI_RANK": "0", "PMI_FD": str(end)},
            pass_fds=[end],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        os.close(end)
        output = f"the script ended with status {status}\n" if status else ""
        assert (done.returncode, done.stderr) == (status, output)
        assert answers.read() == (b"cmd=abort exitcode=%d\n" % status if status else b"")


# mpi4py could not be imported after MPICH's `libmpi_abi.so.1` was loaded.
def test_library_that_mpi4py_uses_comes_first_and_that_of_another_launcher_last(monkeypatch, tmp_path):
    for name in ("launcher/bin/mpiexec", "launcher/lib/libmpi.so.12", "wheel/lib/libmpi_abi.so.1"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "launcher" / "bin"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "wheel"))
    mpich = [(1, "libmpi.so.12"), (0, "libmpi_abi.so.1")]
    mpich_libraries = [(1, f"{tmp_path}/launcher/lib/libmpi.so.12"), (0, f"{tmp_path}/wheel/lib/libmpi_abi.so.1")]
    assert mpi.libraries({"PMI_SIZE": "2"}) == [*mpich, *mpich_libraries, (2, "libmpi.so.40")]
    by_open_mpi = [(2, "libmpi.so.40"), mpich[1], mpich_libraries[1], mpich[0], mpich_libraries[0]]
    assert mpi.libraries({"OMPI_COMM_WORLD_SIZE": "2"}) == by_open_mpi
