"""The identity of a worker: from the variables of MPI's launchers. `TF_CONFIG` and resolvers must agree with it."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import Identity, identity, mpi

WORKERS = ["a:1", "b:2", "[::1]:3"]
OPEN_MPI = "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=2"
SLURM = {"PROCID": "1", "STEP_NODELIST": "node[1-2]", "STEP_TASKS_PER_NODE": "1(x2)", "STEP_NUM_TASKS": "2"}


def config_of(workers: object, index: object = 1, job: str = "worker", **jobs: object) -> str:
    return json.dumps({"cluster": {"worker": workers, **jobs}, "task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("", None),
        ("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", Identity(3, 4, 1, 2)),
        ("SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1", Identity(2, 4, 1)),
        ("SLURM_PROCID=0 SLURM_NTASKS=4", None),  # The environment of an `sbatch` script outside of a step.
        ("PMI_RANK=1", None),
        (f"TF_CONFIG={config_of(WORKERS)}".replace(" ", ""), None),
        (OPEN_MPI, Identity(5, 8, 3, 2)),
    ],
)
def test_launchers_say_which_worker_a_process_is(variables, expected):
    assert identity(dict(assignment.split("=") for assignment in variables.split())) == expected


def test_malformed_variables_of_launchers_are_refused(refused):
    message = "`PMI_RANK=x` must be an integer from 0: unset it, or start .* `mpiexec`"
    refused(ValueError, message, identity, {"PMI_RANK": "x", "PMI_SIZE": "2"})
    refused(ValueError, "`PMI_RANK=2` must be below `PMI_SIZE=2`", identity, {"PMI_RANK": "2", "PMI_SIZE": "2"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (config_of(WORKERS), "`TF_CONFIG` names 3 workers, but MPI has not .*: run `mpiexec -n 3 python .*`, or unset"),
        (config_of(WORKERS, 0, "chief", chief=["c:4"]), "names 4 workers.* `mpiexec -n 4 python"),
        ("{", "`TF_CONFIG={` is not valid JSON"),
        ("[1]", r"`TF_CONFIG=\[1\]` is not a JSON object"),
        ('{"cluster": []}', "`TF_CONFIG` is malformed: .*write it as in"),
        ('{"cluster": {"worker": ["a:1"]}, "task": 0}', "`TF_CONFIG` is malformed: .*write it as in"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "`TF_CONFIG` is malformed"),
    ],
)
def test_tf_config_of_several_workers_is_refused_outside_of_mpi(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        hosts.join()


def test_resolvers_of_several_workers_are_refused_outside_of_mpi(refused):
    spec = tf.train.ClusterSpec({"worker": WORKERS})
    simple = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=2)
    message = r"`cluster_resolver` \(SimpleClusterResolver\) names 3 workers.*`mpiexec -n 3 python"
    refused(ValueError, message, ipu.IPUMultiWorkerStrategy, simple)


@pytest.mark.parametrize(
    "text",
    ["  ", "{}", config_of(["a:1"], 0), config_of([], 0, "chief", chief=["a:1"]), config_of(WORKERS, 0, "evaluator")],
)
def test_one_worker_joins_nobody_and_neither_does_an_evaluator(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    cluster = hosts.join()
    assert (cluster.worker, cluster.workers, cluster.is_chief) == (0, 1, True)
    assert cluster.names[0].startswith(f"process {os.getpid()} on ")
    assert hosts.joined() is None


def test_mpi_that_is_asked_for_and_not_there_is_told(monkeypatch, refused):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(mpi, "libraries", lambda: [(0, "libmissing.so.1")])
    refused(ClusterError, "started as worker 0 of 2, and no MPI library is found.*`pip install mpich`", hosts.join)


@pytest.mark.workers(2)
def test_inside_of_mpi_resolvers_are_checked_against_rank_and_size():
    first = hosts.join()
    worker = first.worker
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", config_of(WORKERS[:2], worker))
        assert hosts.join() is first
        for text, configured in (
            (config_of(WORKERS[:2], 1 - worker), f"{1 - worker} of 2"),
            (config_of(WORKERS, worker), f"{worker} of 3"),
        ):
            patch.setenv("TF_CONFIG", text)
            message = (
                f"^in `TF_CONFIG`, this process is worker {configured}, but in MPI it is worker {worker} of 2: remove"
            )
            with pytest.raises(ValueError, match=message):
                hosts.join()
        patch.delenv("TF_CONFIG")
        for name, value in {**SLURM, "PROCID": str(worker)}.items():
            patch.setenv(f"SLURM_{name}", value)
        kind: Any = tf.distribute.cluster_resolver.SlurmClusterResolver
        resolver = kind(port_base=4000, gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False)
        strategy: Any = ipu.IPUMultiWorkerStrategy(resolver)
    assert strategy.cluster is first is hosts.joined()
    assert strategy.cluster_resolver.task_id == worker
    assert first.names[worker] == f"process {os.getpid()} on {socket.gethostname()}"
    assert strategy.reduce("SUM", tf.constant(worker + 1.0), axis=None).numpy() == 3.0
