"""`IPUMultiWorkerStrategy` in several processes: variables, reductions, shares of data, and `tf.distribute`."""

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


def configured(ipus: int) -> Any:
    config = ipu.IPUConfig()
    config.auto_select_ipus = [ipus]
    config.configure_ipu_system()
    return ipu.IPUMultiWorkerStrategy()


@pytest.mark.workers(2)
@pytest.mark.parametrize("ipus", [1, 2])
def test_strategy_tells_what_callbacks_and_tf_distribute_ask(ipus):
    strategy = configured(ipus)
    worker, extended, resolver = strategy.cluster.worker, strategy.extended, strategy.cluster_resolver
    assert (strategy.num_replicas_in_sync, PopDistStrategy().num_replicas_in_sync) == (2 * ipus, 2 * ipus)
    assert (worker in (0, 1), strategy.cluster.workers) == (True, 2)
    assert (resolver.task_type, resolver.task_id) == ("worker", worker)
    assert list(resolver.cluster_spec().as_dict()) == ["worker"]
    assert extended.should_checkpoint == extended.should_save_summary == (worker == 0)
    assert extended.experimental_between_graph
    assert extended.experimental_should_init
    assert extended._in_multi_worker_mode()
    assert extended.worker_devices == ("/job:localhost/replica:0/task:0/device:IPU:0",)
    config = strategy.update_ipu_config(ipu.IPUConfig()).experimental.multi_replica_distribution
    assert (config.process_count, config.process_index) == (2, worker)
    with strategy.scope():
        assert tf.distribute.get_replica_context() is None


@pytest.mark.workers(2)
def test_variables_begin_with_the_values_of_worker_0():
    strategy: Any = ipu.IPUMultiWorkerStrategy()
    worker = strategy.cluster.worker
    inside: list[tf.Variable] = []

    @tf.function
    def counting() -> tf.Tensor:
        if not inside:
            inside.append(tf.Variable(lambda: tf.fill([2], 1.0 + worker)))
        return inside[0].assign_add(tf.ones([2]))

    with strategy.scope():
        for dtype in DTYPES:
            variable = tf.Variable(tf.cast([worker, 5], dtype), name=dtype)
            assert variable.dtype == dtype
            np.testing.assert_array_equal(variable, tf.cast([0, 5], dtype))
        for actual, expected in (
            (tf.Variable(lambda: tf.fill([3], float(worker)), name="made by a function"), [0.0] * 3),
            (tf.Variable(np.arange(2) + worker), [0, 1]),
            (tf.Variable(worker, dtype=tf.float32), 0.0),
            (counting(), [2.0] * 2),
            (counting(), [3.0] * 2),
        ):
            assert actual.numpy().tolist() == expected
        layer = tf.keras.layers.Dense(2, kernel_initializer="glorot_normal")
        layer.build([None, 3])
    kernels = strategy.gather(layer.kernel.value[tf.newaxis], axis=0).numpy()
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert np.any(kernels)


@pytest.mark.workers(2)
def test_reductions_outside_of_programs_are_over_the_workers():
    strategy: Any = ipu.IPUMultiWorkerStrategy()
    worker = strategy.cluster.worker
    summand = tf.constant([1.0, 2.0]) * (worker + 1)
    summed = tf.function(lambda x: strategy.reduce("SUM", x, axis=None))
    with strategy.scope():
        batch = strategy.extended.batch_reduce_to("SUM", [(summand, summand), (summand * 10, summand)])
        values = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([context.replica_id_in_sync_group, context.num_replicas_in_sync])
        )
        for actual, expected in (
            (strategy.reduce("SUM", summand, axis=None), [3.0, 6.0]),
            (strategy.reduce("MEAN", summand, axis=None), [1.5, 3.0]),
            (strategy.reduce("SUM", summand, axis=0), 9.0),
            (strategy.reduce("MEAN", summand, axis=0), 2.25),
            (strategy.reduce("SUM", tf.cast(summand, tf.int32), axis=None), [3, 6]),
            (tf.stack(batch), [[3.0, 6.0], [30.0, 60.0]]),
            (summed(summand), [3.0, 6.0]),
            (strategy.gather(tf.fill([1 + worker, 2], worker), axis=0), [[0, 0], [1, 1], [1, 1]]),
            (strategy.gather(tf.fill([2, 1 + worker], worker), axis=1), [[0, 1, 1], [0, 1, 1]]),
            (values, [worker, 2]),
        ):
            assert actual.numpy().tolist() == expected
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        strategy.reduce("SUM", tf.ones([20 + worker]), axis=None)
    other_worker, name = 1 - worker, strategy.cluster.names[1 - worker]
    assert f"worker {other_worker} ({name}) exchanges sum of float32[{20 + other_worker}]" in str(raised.value)
    assert f"and this worker sum of float32[{20 + worker}] (what is reduced outside of programs)" in str(raised.value)


@pytest.mark.workers(2)
def test_replica_g_gets_the_elements_that_it_gets_in_one_process(tmp_path):
    strategy = configured(2)
    worker, dataset = strategy.cluster.worker, tf.data.Dataset.range(11)
    for name in "ab":
        (tmp_path / f"{name}{worker}").write_text(f"{name}1\n{name}2\n")
    lines = tf.data.TextLineDataset([str(tmp_path / f"{name}{worker}") for name in "ab"])

    def of_context(context: tf.distribute.InputContext) -> tf.data.Dataset:
        assert context.num_replicas_in_sync == strategy.num_replicas_in_sync
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)

    def by(policy: str, dataset: tf.data.Dataset = dataset) -> tf.data.Dataset:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
        return share(dataset.with_options(options))

    share = strategy.experimental_distribute_dataset
    dealt = [[0, 1, 4, 5], [2, 3, 6, 7]][worker]  # 8 elements are 2 complete rounds of 4 replicas.
    for actual, expected in (
        (share(dataset), dealt),
        (share(tf.data.Dataset.zip((dataset, dataset.map(lambda x: -x)))), [(element, -element) for element in dealt]),
        (by("OFF"), list(range(11))),
        (by("DATA"), dealt),
        (by("FILE", lines), [[b"a1", b"a2"], [b"b1", b"b2"]][worker]),
        (strategy.distribute_datasets_from_function(of_context), list(range(worker, 11, 2))),
    ):
        assert list(actual.as_numpy_iterator()) == expected
    assert int(share(dataset).cardinality()) == 4
    assert int(share(dataset.repeat()).cardinality()) == tf.data.INFINITE_CARDINALITY


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

    # The program may do its own reductions.
    for kind, total in ((strategy, 2.0), (PopDistStrategy(add_ipu_cross_replica_reductions=False), 1.0)):
        assert [result.numpy() for result in kind.run(tf.function(reducing, jit_compile=True))] == [total, 2.0]


@pytest.mark.workers(2)
def test_workers_have_the_replicas_that_the_launcher_was_told():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORFLOW_IPU_REPLICAS", "4")
        patch.setenv("TENSORFLOW_IPU_IPUS_PER_REPLICA", "1")
        ipu.IPUConfig().configure_ipu_system()
        strategy: Any = ipu.IPUMultiWorkerStrategy()
        outfeed, index = ipu.IPUOutfeedQueue(), ipu.ops.replication_ops.replication_index
        strategy.run(tf.function(lambda: outfeed.enqueue(index()) and None, jit_compile=True))
        first = 4 * strategy.cluster.worker
        assert outfeed.dequeue()[0].numpy().tolist() == [*range(first, first + 4)]
        assert (strategy.extended.replicas, strategy.num_replicas_in_sync) == (4, 8)
        patch.setenv("TENSORFLOW_IPU_REPLICAS", "1")
        patch.setenv("TENSORFLOW_IPU_IPUS_PER_REPLICA", "3")
        assert environment.default_ipus() == 3  # No policy is selected.


def test_other_replicas_than_the_launcher_was_told_are_refused(monkeypatch, refused):
    monkeypatch.setenv("TENSORFLOW_IPU_REPLICAS", "3")
    config = ipu.IPUConfig()
    config.auto_select_ipus = 4
    message = r"`auto_select_ipus=\[4\]` gives .* 4 IPUs, and .* requests 3 replicas"
    refused(ValueError, message, config.configure_ipu_system)
    config.auto_select_ipus = 6  # Each replica has two IPUs.
    config.configure_ipu_system()
    assert ipu.IPUMultiWorkerStrategy().num_replicas_in_sync == 3
    monkeypatch.setenv("TENSORFLOW_IPU_IPUS_PER_REPLICA", "1")
    refused(ValueError, "which need 3: leave out `auto_select_ipus`", config.configure_ipu_system)


def test_options_of_collectives_are_taken(refused):
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1024, timeout_seconds=7.0)
    strategy = ipu.IPUMultiWorkerStrategy(communication_options=options)
    assert (strategy.bytes_per_pack, strategy.cluster.timeout) == (1024, 7.0)
    assert ipu.IPUMultiWorkerStrategy(communication_options=options, timeout=5).cluster.timeout == 5.0
    options.implementation = tf.distribute.experimental.CommunicationImplementation.NCCL
    message = "asks for NCCL, which connects GPUs"
    refused(ValueError, message, ipu.IPUMultiWorkerStrategy, communication_options=options)


def test_bad_arguments_are_refused(refused):
    for more, kind, message in (
        ({"variables_on_host": 1}, TypeError, "`variables_on_host` must be True or False, but is 1"),
        ({"add_ipu_cross_replica_reductions": 1}, TypeError, "`add_ipu_cross_.*` must be True or False"),
        ({"ipus_per_replica": 0}, ValueError, "`ipus_per_replica` must be a positive whole number, but is 0"),
        ({"cluster_resolver": "slurm"}, TypeError, "`cluster_resolver` must be a .*, but is 'slurm'"),
        ({"communicator": 3}, TypeError, "`communicator` must be an `mpi4py.MPI.Intracomm`, but is 3"),
        ({"communication_options": 3}, TypeError, "`communication_options` must be a"),
        ({"ipu_device": "/device:CPU:0"}, ValueError, "`ipu_device` must name a device like `/device:IPU:0`"),
        ({"timeout": "5"}, TypeError, "`timeout` must be a number of seconds, but is '5'"),
        ({"timeout": 0}, ValueError, "`timeout` must be above 0 and at most 86400 s, but is 0"),
        ({"timeout": float("nan")}, ValueError, "`timeout` must be .*, but is nan"),
    ):
        refused(kind, message, ipu.IPUMultiWorkerStrategy, **more)
