"""Who a process is: `TF_CONFIG` and TensorFlow's resolvers, and each fault of them in words."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.hosts import Identity, identity

WORKERS = ["a:1", "b:2", "[::1]:3"]


def of(cluster: Any, task: Any = None, **more: Any) -> Identity | None:
    task = {"type": "worker", "index": 1} if task is None else task
    return identity(environ={"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, **more})})


def test_worker_is_the_task_of_tf_config():
    found: Any = of({"worker": WORKERS})
    assert found == Identity(1, tuple(WORKERS))
    assert (found.workers, found.address) == (3, "b:2")
    # Some schedulers write the index as text.
    assert of({"worker": WORKERS}, {"type": "worker", "index": "2"}) == Identity(2, tuple(WORKERS))
    for number, task in enumerate(("chief", "worker")):
        cluster = {"worker": ["b:2"], "chief": ["a:1"]}
        assert of(cluster, {"type": task, "index": 0}) == Identity(number, ("a:1", "b:2"))
    with_evaluator = {"worker": WORKERS, "evaluator": ["c:9"]}
    assert of(with_evaluator) == Identity(1, tuple(WORKERS))
    # Alone are an evaluator, and who is told of no cluster.
    assert of(with_evaluator, {"type": "evaluator", "index": 0}) is None
    assert of({}, {}) is None
    for environ in ({}, {"TF_CONFIG": ""}, {"TF_CONFIG": "  "}):
        assert identity(environ=environ) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no JSON object"),
        ('{"cluster": []}', "`cluster` of `TF_CONFIG` must be an object, but is []"),
        ('{"cluster": {"worker": ["a:1"]}, "task": 0}', "`task` of `TF_CONFIG` must be an object, but is 0"),
    ],
)
def test_text_that_is_no_configuration_is_refused(text, message):
    with pytest.raises(ValueError, match='write it as in `.*"type": "worker", "index": 0') as raised:
        identity(environ={"TF_CONFIG": text})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        ({"worker": WORKERS, "ps": ["p:1"]}, None, "has parameter servers (`ps`), and workers meet without them"),
        ({"worker": WORKERS, "boss": ["p:1"]}, None, "has the job 'boss'; there are `chief` and `worker`"),
        ({"worker": WORKERS, "chief": ["p:1", "p:2"]}, None, "has 2 tasks in the job `chief`, which has one at most"),
        ({"worker": 3}, None, "there must be a list of addresses `host:port`, but there is 3"),
        ({"worker": []}, None, "there is no address"),
        ({"worker": ["a:1", "b"]}, None, "'b' is no address `host:port`"),
        ({"worker": ["a:1", "b:65536"]}, None, "'b:65536' is no address"),
        ({"worker": ["a:1", 7]}, None, "7 is no address"),
        ({"worker": ["a:1", "a:1"]}, None, "a:1 is there twice"),
        ({"worker": ["a:1"], "chief": ["a:1"]}, {"type": "worker", "index": 0}, "a:1 is there twice"),
        ({"worker": WORKERS}, {}, "does not say which task of the cluster this process is"),
        ({"worker": WORKERS}, {"type": "worker"}, "does not say which task of the cluster this process is"),
        ({"worker": WORKERS}, {"type": "chief", "index": 0}, "a task of 'chief', and the cluster's jobs are `worker`"),
        ({"worker": WORKERS}, {"type": "worker", "index": 3}, "is task 3 of `worker`, which has 3, from 0 on"),
        ({"worker": WORKERS}, {"type": "worker", "index": -1}, "is task -1 of `worker`"),
        ({"worker": WORKERS}, {"type": "worker", "index": 0.5}, "is task 0.5 of `worker`"),
        ({"worker": WORKERS}, {"type": "worker", "index": True}, "is task True of `worker`"),
    ],
)
def test_fault_is_told_with_its_value(cluster, task, message):
    with pytest.raises((ValueError, TypeError)) as raised:
        of(cluster, task)
    assert message in str(raised.value)
    assert "`TF_CONFIG`" in str(raised.value)


def test_all_faults_are_told_together():
    with pytest.raises(ValueError, match="3 faults") as raised:
        of({"worker": ["a"], "ps": ["p:1"]}, {"type": "worker", "index": 4})
    for part in ("'a' is no address", "parameter servers", "task 4"):
        assert part in str(raised.value)
    with pytest.raises(ValueError, match="asks for the protocol 'grpc\\+verbs'"):
        of({"worker": WORKERS}, rpc_layer="grpc+verbs")


def test_resolvers_say_who_the_process_is(monkeypatch):
    resolvers, cluster = tf.distribute.cluster_resolver, tf.train.ClusterSpec({"worker": WORKERS})
    resolver = resolvers.SimpleClusterResolver(cluster, task_type="worker", task_id=2, rpc_layer="grpc")
    assert identity(resolver) == Identity(2, tuple(WORKERS))
    with pytest.raises(ValueError, match="give it its `task_type` and `task_id`"):
        identity(resolvers.SimpleClusterResolver(cluster))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": WORKERS}}))
    assert identity(resolvers.TFConfigClusterResolver(task_type="worker", task_id=2)) == Identity(2, tuple(WORKERS))
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ValueError, match="is no JSON"):
        identity(resolvers.TFConfigClusterResolver())
    with pytest.raises(TypeError, match="must be a `tf.distribute.cluster_resolver.ClusterResolver`, but is 'slurm'"):
        identity("slurm")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`worker` is 2, and there are 2 workers, from 0 on"):
        Identity(2, ("a:1", "b:2"))


def test_slurms_resolver_says_who_the_process_is(monkeypatch):
    for name, value in {"PROCID": "3", "STEP_NODELIST": "node[1-2]", "STEP_TASKS_PER_NODE": "2(x2)",
                        "STEP_NUM_TASKS": "4"}.items():  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", value)
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=4000, gpus_per_node=2, gpus_per_task=1, auto_set_gpu=False
    )
    assert identity(resolver) == Identity(3, ("node1:4000", "node1:4001", "node2:4000", "node2:4001"))


# What the strategy makes of a scheduler's word: two workers of one port, on two addresses of this machine.


def of_slurm(worker: int, port: int) -> Any:
    """As `srun --nodes 2` sets the environment of each task."""
    os.environ.update(
        {
            "SLURM_PROCID": str(worker),
            "SLURM_STEP_NODELIST": "127.0.0.[1-2]",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            "SLURM_STEP_NUM_TASKS": "2",
        }
    )
    return tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=port, gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False
    )


class Pods:
    """The part of Kubernetes' API that the resolver asks."""

    def list_pod_for_all_namespaces(self, label_selector: str) -> SimpleNamespace:
        assert label_selector == "app=train"
        pods = [
            SimpleNamespace(
                metadata=SimpleNamespace(name=f"train-{index}"),
                status=SimpleNamespace(phase="Running", host_ip=f"127.0.0.{index + 1}"),
            )
            for index in (1, 0)
        ]
        return SimpleNamespace(items=pods)


def of_kubernetes(worker: int, port: int) -> Any:
    resolver: Any = tf.distribute.cluster_resolver.KubernetesClusterResolver(
        {"worker": ["app=train"]}, tf_server_port=port, override_client=Pods()
    )
    addresses = resolver.cluster_spec().as_dict()["worker"]
    resolver.task_type, resolver.task_id = "worker", addresses.index(f"127.0.0.{worker + 1}:{port}")
    return resolver


def joined_by(scheduler: str, worker: int, port: int) -> Any:
    os.environ.pop("TF_CONFIG", None)
    strategy = ipu.IPUMultiWorkerStrategy({"slurm": of_slurm, "kubernetes": of_kubernetes}[scheduler](worker, port))
    resolver = strategy.cluster_resolver
    total = strategy.reduce("SUM", tf.constant(worker + 1.0), axis=None)
    return strategy.cluster.addresses, resolver.task_type, resolver.task_id, total


def test_strategy_joins_by_the_resolver_of_a_scheduler(fresh_workers):
    workers = fresh_workers(2)
    port = int(workers.addresses[0].rpartition(":")[2])  # Nobody else is given it, on the first address.
    schedulers = workers.each(["slurm", "kubernetes"])
    for worker, found in enumerate(workers.call(joined_by, schedulers, workers.each([0, 1]), port)):
        assert found == ((f"127.0.0.1:{port}", f"127.0.0.2:{port}"), "worker", worker, 3.0)
