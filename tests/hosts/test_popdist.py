"""`popdist` and `horovod` as scripts ask them, with one instance and with several."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compat


@pytest.fixture(autouse=True)
def installed():
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture
def as_one_of_four(monkeypatch):
    """This process is told that it is worker 3 of 4, which nobody joins."""
    environ = {"PMI_RANK": 3, "PMI_SIZE": 4, "MPI_LOCALRANKID": 1, "MPI_LOCALNRANKS": 2}
    for name, value in {**environ, "TENSORFLOW_IPU_REPLICAS": 2, "TENSORFLOW_IPU_IPUS_PER_REPLICA": 4}.items():
        monkeypatch.setenv(name, str(value))


def numbers_of(popdist):
    names = ["InstanceIndex", "NumInstances", "LocalInstanceIndex", "NumLocalReplicas", "NumTotalReplicas"]
    names += ["ReplicaIndexOffset", "NumIpusPerReplica", "DeviceId"]
    return [getattr(popdist, f"get{name}")() for name in names]


# What the workers run.


def asked():
    compat.install()
    import horovod.tensorflow as hvd
    import popdist
    import popdist.tensorflow

    popdist.init()
    hvd.init()
    popdist.synchronize()
    config = popdist.tensorflow.set_ipu_config(ipu.IPUConfig(), ipus_per_replica=1)
    config.configure_ipu_system()
    assert popdist.isPopdistEnvSet()
    assert popdist.isBackendInitialized()
    from tensorflow.python import ipu as old
    from tensorflow.python.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()

    @tf.function(jit_compile=True)
    def program():
        return old.cross_replica_ops.cross_replica_sum(old.replication_ops.replication_index() + 1)

    with strategy.scope():
        total = strategy.run(program)
    ranks = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.is_homogeneous(), hvd.mpi_enabled()]
    return numbers_of(popdist)[:6], ranks, [strategy.num_replicas_in_sync, total]


def on_some():
    compat.install()
    import horovod.tensorflow as hvd
    import popdist
    from tensorflow.python.ipu import distributed

    popdist.init()

    def exchange(factor):
        total = distributed.allreduce(factor * tf.constant(hvd.rank() + 1.0), tf.distribute.ReduceOp.SUM)
        return total, distributed.allgather(tf.constant(hvd.rank()))

    first = popdist.execute_on_instances({1}, exchange, 10)
    return first, popdist.execute_on_instances({0, 1}, exchange, factor=100)


def by_horovod():
    compat.install()
    import horovod.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    mean = hvd.allreduce(tf.constant([1.0, 3.0]) * rank)
    total = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5, name="x")
    rows = hvd.allgather(tf.fill([rank + 1, 2], rank))
    slices = hvd.allreduce(tf.IndexedSlices(tf.ones([rank + 1, 2]), tf.range(rank + 1)), average=False)
    variables = [tf.Variable([1.0, 2.0] if rank else [0.0, 0.0]), tf.Variable(rank)]
    hvd.broadcast_variables(variables, root_rank=1)
    return mean, total, rows, slices.values, slices.indices, [variable.numpy() for variable in variables]


def variables_of_a_graph():
    compat.install()
    from tensorflow.python.ipu import horovod as hvd

    hvd.init()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for index in range(3):
            tf.compat.v1.get_variable(f"v{index}", initializer=tf.constant([float(hvd.rank()), index]))
        done = hvd.broadcast_global_variables(1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(done)
        return session.run(tf.compat.v1.global_variables())


def test_instances_know_what_popdist_and_horovod_say_and_run_programs(workers):
    for rank, found in enumerate(workers.call(asked)):
        assert found == ([rank, 2, rank, 1, 2, rank], [rank, 2, rank, 2, True, True], [2, 1 + 2])


def test_function_runs_on_some_instances_and_exchanges_among_those(workers):
    (first, both), (second, also_both) = workers.call(on_some)
    assert first is None
    assert [value.tolist() for value in second] == [20.0, [1]]
    assert [value.tolist() for value in both] == [value.tolist() for value in also_both] == [300.0, [0, 1]]


def test_horovod_reduces_gathers_and_sends(workers):
    for mean, total, rows, values, indices, variables in workers.call(by_horovod):
        assert mean.tolist() == [0.5, 1.5]
        assert total.tolist() == [2.0]
        assert rows.tolist() == [[0, 0], [1, 1], [1, 1]]
        assert values.tolist() == [[1.0, 1.0]] * 3
        assert indices.tolist() == [0, 0, 1]
        np.testing.assert_array_equal(variables[0], [1.0, 2.0])
        assert variables[1] == 1


def test_variables_of_a_session_get_the_values_of_one_instance(workers):
    for values in workers.call(variables_of_a_graph):
        assert [value.tolist() for value in values] == [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]


def test_one_instance_is_all_there_is():
    import horovod.tensorflow as hvd
    import popdist
    import popdist.tensorflow

    popdist.init()
    hvd.init()
    popdist.synchronize()
    assert not popdist.isPopdistEnvSet()
    assert popdist.isBackendInitialized()
    assert numbers_of(popdist) == [0, 1, 0, 1, 1, 0, 1, 0]
    assert [popdist.getDeviceId(4), popdist.checkNumIpusPerReplica(1), popdist.checkNumIpusPerReplica(2)] == [96, 1, 0]
    assert [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.mpi_enabled()] == [0, 1, 0, 1, False]
    assert popdist.execute_on_instances({0}, lambda x, y: x + y, 1, y=2) == 3
    config = popdist.tensorflow.set_ipu_config(ipu.IPUConfig(), 2)
    assert config.auto_select_ipus == 2
    config.configure_ipu_system()
    assert (popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas()) == (2, 2)
    value = tf.constant([1.0, 2.0])
    for found in (hvd.allreduce(value), hvd.allgather(value), hvd.broadcast(value, 0)):
        np.testing.assert_array_equal(found, value)


def test_instance_of_several_answers_before_they_are_joined(as_one_of_four):
    import horovod.tensorflow as hvd
    import popdist
    import popdist.tensorflow

    assert numbers_of(popdist) == [3, 4, 1, 2, 8, 6, 4, 64 + 32 + 16]
    assert [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), popdist.isPopdistEnvSet()] == [3, 4, 1, 2, True]
    assert popdist.execute_on_instances({0, 1}, lambda: 1) is None
    config = popdist.tensorflow.set_ipu_config(ipu.IPUConfig())
    assert config.auto_select_ipus == 8
    processes = config.experimental.multi_replica_distribution
    assert (processes.process_count, processes.process_index) == (4, 3)
    config = popdist.tensorflow.set_ipu_config(ipu.IPUConfig(), configure_device=False)
    assert config.auto_select_ipus == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.execute_on_instances({4}, print), ValueError, r"is \{4\}, .* that take part: 0, 1, 2, 3"),
        (lambda p: p.execute_on_instances(set(), print), ValueError, r"`instances` is set\(\)"),
        (lambda p: p.execute_on_instances("0", print), TypeError, "`instances` must be a set of numbers"),
        (lambda p: p.getDeviceId(3), ValueError, "no id names a device of 6 IPUs in a machine of 64"),
        (lambda p: p.tensorflow.set_ipu_config(ipu.IPUConfig(), 2), ValueError, "run with `--ipus-per-replica 2`"),
        (lambda p: p.tensorflow.set_ipu_config(ipu.IPUConfig(), 0), ValueError, "`ipus_per_replica` must be 1 or more"),
        (lambda p: p.tensorflow.set_ipu_config({}), TypeError, "`config` must be an `IPUConfig`"),
    ],
)
def test_wrong_arguments_of_popdist_are_refused(as_one_of_four, call, error, message):
    import popdist.tensorflow

    with pytest.raises(error, match=message):
        call(popdist)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda hvd: hvd.allreduce(1.0, op=7), "`op` must be `Average` or `Sum`, but is 7"),
        (lambda hvd: hvd.allreduce(1.0, average=True, op=0), "say the same thing"),
        (lambda hvd: hvd.allreduce(1.0, compression=object()), "`compression` must be None"),
    ],
)
def test_wrong_arguments_of_horovod_are_refused(call, message):
    import horovod.tensorflow as hvd

    with pytest.raises(ValueError, match=message):
        call(hvd)
    with pytest.raises(TypeError, match=r"`communicator` must be an `mpi4py.MPI.Intracomm`, but is \[0\]"):
        hvd.init(comm=[0])


def test_horovod_that_is_installed_goes_before_ours_which_has_no_optimizer(tmp_path, monkeypatch):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        spec = importlib.util.find_spec("horovod")
        assert spec is not None
        assert str(tmp_path) in str(spec.origin)
    with pytest.raises(ImportError, match="`PopDistStrategy` and the optimizers of `ipu.optimizers`"):
        from horovod.tensorflow import DistributedOptimizer  # noqa: F401
