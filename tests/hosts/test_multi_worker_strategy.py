"""`IPUMultiWorkerStrategy` in several processes: variables, reductions, shares of data, and what `tf.distribute` asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu.strategy.workers import PopDistStrategy

DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64"]
DTYPES += ["uint8", "uint16", "uint32", "uint64", "bool", "complex64"]

# What the workers run.


def configured(ipus: int = 1) -> Any:
    config = ipu.IPUConfig()
    config.auto_select_ipus = [ipus]
    config.configure_ipu_system()
    return ipu.IPUMultiWorkerStrategy()


def shape_of_the_system(ipus: int) -> dict[str, Any]:
    strategy = configured(ipus)
    extended, resolver = strategy.extended, strategy.cluster_resolver
    config = strategy.update_ipu_config(ipu.IPUConfig()).experimental.multi_replica_distribution
    with strategy.scope():
        in_scope = tf.distribute.get_replica_context() is None
    return {
        "replicas": (strategy.num_replicas_in_sync, PopDistStrategy().num_replicas_in_sync),
        "world": (strategy.cluster.worker, strategy.cluster.workers),
        "task": (resolver.task_type, resolver.task_id, sorted(resolver.cluster_spec().as_dict())),
        "chief": (extended.should_checkpoint, extended.should_save_summary),
        "several": (extended.experimental_between_graph, extended.experimental_should_init),
        "in_several": extended._in_multi_worker_mode(),
        "configured": (config.process_count, config.process_index),
        "devices": extended.worker_devices,
        "cross_replica": in_scope,
    }


def initial_values() -> list[Any]:
    strategy = configured()
    worker = strategy.cluster.worker
    inside: list[tf.Variable] = []

    @tf.function
    def counting() -> tf.Tensor:
        if not inside:
            inside.append(tf.Variable(lambda: tf.fill([2], 1.0 + worker)))
        return inside[0].assign_add(tf.ones([2]))

    with strategy.scope():
        layer = tf.keras.layers.Dense(2, kernel_initializer="glorot_normal")
        layer.build([None, 3])
        return [
            [tf.Variable(tf.cast([worker, 5], dtype), name=dtype) for dtype in DTYPES],
            tf.Variable(lambda: tf.fill([3], float(worker)), name="made by a function"),
            tf.Variable(np.arange(2) + worker),
            tf.Variable(worker, dtype=tf.float32),
            [counting() for _ in range(2)],
            layer.kernel.numpy(),
        ]


def reductions() -> dict[str, Any]:
    strategy = configured()
    worker = strategy.cluster.worker
    own = tf.constant([1.0, 2.0]) * (worker + 1)
    summed = tf.function(lambda x: strategy.reduce("SUM", x, axis=None))
    with strategy.scope():
        return {
            "sum": strategy.reduce("SUM", own, axis=None),
            "mean": strategy.reduce("MEAN", own, axis=None),
            "sum_of_all": strategy.reduce("SUM", own, axis=0),
            "mean_of_all": strategy.reduce("MEAN", own, axis=0),
            "integers": strategy.reduce("SUM", tf.cast(own, tf.int32), axis=None),
            "batch": tf.stack(strategy.extended.batch_reduce_to("SUM", [(own, own), (own * 10, own)])),
            "in_a_function": summed(own),
            "gathered": strategy.gather(tf.fill([1 + worker, 2], worker), axis=0),
            "gathered_along_1": strategy.gather(tf.fill([2, 1 + worker], worker), axis=1),
            "values": strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant([context.replica_id_in_sync_group, context.num_replicas_in_sync])
            ),
        }


def with_policy(dataset: tf.data.Dataset, policy: str) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return dataset.with_options(options)


def datasets(folder: str) -> dict[str, Any]:
    strategy = configured(2)
    dataset = tf.data.Dataset.range(11)
    pairs = tf.data.Dataset.zip((dataset, dataset.map(lambda x: -x)))
    lines = tf.data.TextLineDataset([f"{folder}/{name}" for name in "ab"])

    def of_context(context: tf.distribute.InputContext) -> tf.data.Dataset:
        assert context.num_replicas_in_sync == strategy.num_replicas_in_sync
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)

    def read(shared: Any) -> list[Any]:
        return list(shared.as_numpy_iterator())

    share = strategy.experimental_distribute_dataset
    return {
        "auto": read(share(dataset)),
        "cardinality": [int(share(each).cardinality()) for each in (dataset, dataset.repeat())],
        "pairs": read(share(pairs)),
        "off": read(share(with_policy(dataset, "OFF"))),
        "data": read(share(with_policy(dataset, "DATA"))),
        "files": read(share(with_policy(lines, "FILE"))),
        "function": read(strategy.distribute_datasets_from_function(of_context)),
    }


def another_shape() -> None:
    strategy = configured()
    strategy.reduce("SUM", tf.ones([20 + strategy.cluster.worker]), axis=None)


def replicas_of_the_environment() -> Any:
    """Replicas here and of all, numbers of those here, and IPUs if nothing is selected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORFLOW_IPU_REPLICAS", "4")
        patch.setenv("TENSORFLOW_IPU_IPUS_PER_REPLICA", "1")
        ipu.IPUConfig().configure_ipu_system()
        strategy = ipu.IPUMultiWorkerStrategy()
        outfeed, index = ipu.IPUOutfeedQueue(), ipu.ops.replication_ops.replication_index
        strategy.run(tf.function(lambda: outfeed.enqueue(index()) and None, jit_compile=True))
        found = outfeed.dequeue()[0][::2].numpy().tolist()
        told = (strategy.extended.replicas, strategy.num_replicas_in_sync)
        patch.setenv("TENSORFLOW_IPU_REPLICAS", "1")
        patch.setenv("TENSORFLOW_IPU_IPUS_PER_REPLICA", "3")
        return *told, found, environment.default_ipus()


@pytest.mark.parametrize("ipus", [1, 2])
def test_strategy_tells_what_callbacks_and_tf_distribute_ask(workers, ipus):
    for worker, told in enumerate(workers.call(shape_of_the_system, ipus)):
        assert told == {
            "replicas": (2 * ipus, 2 * ipus),
            "world": (worker, 2),
            "task": ("worker", worker, ["worker"]),
            "chief": (worker == 0, worker == 0),
            "several": (True, True),
            "in_several": True,
            "configured": (2, worker),
            "devices": ("/job:localhost/replica:0/task:0/device:IPU:0",),
            "cross_replica": True,
        }


def test_variables_begin_with_the_values_of_worker_0(workers):
    zero, one = workers.call(initial_values)
    tf.nest.map_structure(np.testing.assert_array_equal, zero, one)
    typed, by_function, of_numpy, of_python, counted, kernel = zero
    for dtype, found in zip(DTYPES, typed, strict=True):
        assert found.dtype == tf.as_dtype(dtype).as_numpy_dtype
        np.testing.assert_array_equal(found, tf.cast([0, 5], dtype))
    assert [each.tolist() for each in (*counted, by_function, of_numpy)] == [[2.0] * 2, [3.0] * 2, [0.0] * 3, [0, 1]]
    assert of_python == 0.0
    assert np.any(kernel)


def test_reductions_outside_of_programs_are_over_the_workers(workers):
    for worker, found in enumerate(workers.call(reductions)):
        assert {name: value.tolist() for name, value in found.items()} == {
            "sum": [3.0, 6.0],
            "mean": [1.5, 3.0],
            "sum_of_all": 9.0,
            "mean_of_all": 2.25,
            "integers": [3, 6],
            "batch": [[3.0, 6.0], [30.0, 60.0]],
            "in_a_function": [3.0, 6.0],
            "gathered": [[0, 0], [1, 1], [1, 1]],
            "gathered_along_1": [[0, 1, 1], [0, 1, 1]],
            "values": [worker, 2],
        }


def test_replica_g_gets_the_elements_that_it_gets_in_one_process(workers, tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    for worker, found in enumerate(workers.call(datasets, str(tmp_path))):
        mine = [[0, 1, 4, 5], [2, 3, 6, 7]][worker]  # 8 elements are 2 whole rounds of 4 replicas.
        assert found == {
            "auto": mine,
            "cardinality": [4, tf.data.INFINITE_CARDINALITY],
            "pairs": [(one, -one) for one in mine],
            "off": list(range(11)),
            "data": mine,
            "files": [[b"a1", b"a2"], [b"b1", b"b2"]][worker],
            "function": list(range(worker, 11, 2)),
        }


def test_other_shapes_outside_of_programs_are_told(workers):
    for worker, outcome in enumerate(workers.outcomes(another_shape)):
        other = 1 - worker
        assert outcome.kinds[0] == "InvalidArgumentError"
        assert f"{workers.names[other]} exchanges sum of float32[{20 + other}]" in outcome.message
        assert f"and this worker sum of float32[{20 + worker}] (what is reduced outside of programs)" in outcome.message


def test_one_worker_is_what_one_process_is(replicas):
    replicas(2)
    strategy = ipu.IPUMultiWorkerStrategy()
    assert (strategy.num_replicas_in_sync, strategy.extended.workers) == (2, 1)
    assert not strategy.extended._in_multi_worker_mode()
    dataset = tf.data.Dataset.range(3)
    assert strategy.experimental_distribute_dataset(dataset) is dataset
    assert strategy.reduce("SUM", tf.constant(2.0), axis=None).numpy() == 2.0

    def reducing() -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.ones([])), ipu.ops.cross_replica_ops.cross_replica_sum(tf.ones([]))

    # Reductions in programs can be left to the program.
    for kind, total in ((strategy, 2.0), (PopDistStrategy(add_ipu_cross_replica_reductions=False), 1.0)):
        assert [each.numpy() for each in kind.run(tf.function(reducing, jit_compile=True))] == [total, 2.0]


def test_workers_have_the_replicas_that_the_launcher_was_told(workers):
    assert workers.call(replicas_of_the_environment) == [(4, 8, [0, 2], 3), (4, 8, [4, 6], 3)]


def test_other_replicas_than_the_launcher_was_told_are_refused(monkeypatch, refused):
    monkeypatch.setenv("TENSORFLOW_IPU_REPLICAS", "3")
    config = ipu.IPUConfig()
    config.auto_select_ipus = 4
    words = r"`auto_select_ipus=\[4\]` gives .* 4 IPUs, and .* says 3 replicas"
    refused(ValueError, words, config.configure_ipu_system)
    config.auto_select_ipus = 6  # Of two IPUs each.
    config.configure_ipu_system()
    assert ipu.IPUMultiWorkerStrategy().num_replicas_in_sync == 3
    monkeypatch.setenv("TENSORFLOW_IPU_IPUS_PER_REPLICA", "1")
    refused(ValueError, "which need 3: leave out `auto_select_ipus`", config.configure_ipu_system)


def test_options_of_collectives_are_taken():
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1024, timeout_seconds=7.0)
    strategy = ipu.IPUMultiWorkerStrategy(communication_options=options)
    assert (strategy.bytes_per_pack, strategy.cluster.timeout) == (1024, 7.0)
    assert ipu.IPUMultiWorkerStrategy(communication_options=options, timeout=5).cluster.timeout == 5.0
    options.implementation = tf.distribute.experimental.CommunicationImplementation.NCCL
    with pytest.raises(ValueError, match="asks for NCCL, which connects GPUs"):
        ipu.IPUMultiWorkerStrategy(communication_options=options)


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"variables_on_host": 1}, TypeError, "`variables_on_host` must be True or False, but is 1"),
        ({"add_ipu_cross_replica_reductions": 1}, TypeError, "`add_ipu_cross_.*` must be True or False"),
        ({"ipus_per_replica": 0}, ValueError, "`ipus_per_replica` must be a positive whole number, but is 0"),
        ({"cluster_resolver": "slurm"}, TypeError, "`cluster_resolver` must be a .*, but is 'slurm'"),
        ({"communicator": 3}, TypeError, "`communicator` must be an `mpi4py.MPI.Intracomm`, but is 3"),
        ({"communication_options": 3}, TypeError, "`communication_options` must be a"),
        ({"ipu_device": "/device:CPU:0"}, ValueError, "`ipu_device` must name a device like `/device:IPU:0`"),
        ({"timeout": "5"}, TypeError, "`timeout` must be a number of seconds, but is '5'"),
        ({"timeout": 0}, ValueError, "`timeout` is 0, and must be above 0 and at most 86400 s"),
        ({"timeout": float("nan")}, ValueError, "`timeout` is nan"),
    ],
)
def test_bad_arguments_are_refused(more, kind, message):
    with pytest.raises(kind, match=message):
        ipu.IPUMultiWorkerStrategy(**more)
