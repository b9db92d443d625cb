"""`popdist` and `horovod` as scripts use them, with one instance and with several."""

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
    """Sets the variables of worker 3 of 4 without joining the others."""
    environ = {"PMI_RANK": 3, "PMI_SIZE": 4, "MPI_LOCALRANKID": 1, "MPI_LOCALNRANKS": 2}
    for name, value in {**environ, "TENSORFLOW_IPU_REPLICAS": 2, "TENSORFLOW_IPU_IPUS_PER_REPLICA": 4}.items():
        monkeypatch.setenv(name, str(value))


def numbers_of_popdist():
    import popdist

    names = ["InstanceIndex", "NumInstances", "LocalInstanceIndex", "NumLocalReplicas", "NumTotalReplicas"]
    names += ["ReplicaIndexOffset", "NumIpusPerReplica"]
    return [getattr(popdist, f"get{name}")() for name in names]


def numbers_of_horovod():
    import horovod.tensorflow as hvd

    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.mpi_enabled()]


def lists(*tensors):
    return [tensor.numpy().tolist() for tensor in tensors]


@pytest.mark.workers(2)
def test_instances_know_what_popdist_and_horovod_say_and_run_programs():
    compat.install()
    import horovod.tensorflow as hvd
    import popdist
    import popdist.tensorflow
    from tensorflow.python import ipu as old
    from tensorflow.python.ipu.distributed.popdist_strategy import PopDistStrategy

    popdist.init()
    hvd.init()
    popdist.synchronize()
    popdist.tensorflow.set_ipu_config(ipu.IPUConfig(), ipus_per_replica=1).configure_ipu_system()
    assert popdist.isPopdistEnvSet()
    assert popdist.isBackendInitialized()
    strategy = PopDistStrategy()

    @tf.function(jit_compile=True)
    def program():
        return old.cross_replica_ops.cross_replica_sum(old.replication_ops.replication_index() + 1)

    with strategy.scope():
        assert strategy.run(program).numpy() == 1 + 2
    rank = hvd.rank()
    assert rank == strategy.cluster.worker
    assert numbers_of_popdist() == [rank, 2, rank, 1, 2, rank, 1]
    assert numbers_of_horovod() == [rank, 2, rank, 2, True]
    assert (hvd.is_homogeneous(), strategy.num_replicas_in_sync) == (True, 2)


@pytest.mark.workers(2)
def test_function_runs_on_some_instances_and_exchanges_among_those():
    compat.install()
    import horovod.tensorflow as hvd
    import popdist
    from tensorflow.python.ipu.distributed import allgather, allreduce

    def exchange(factor):
        return lists(allreduce(factor * tf.constant(hvd.rank() + 1.0), "SUM"), allgather(tf.constant(hvd.rank())))

    popdist.init()
    assert popdist.execute_on_instances({1}, exchange, 10) == ([20.0, [1]] if hvd.rank() == 1 else None)
    assert popdist.execute_on_instances({0, 1}, exchange, factor=100) == [300.0, [0, 1]]


@pytest.mark.workers(2)
def test_horovod_reduces_gathers_and_sends():
    compat.install()
    import horovod.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    mean = hvd.allreduce(tf.constant([1.0, 3.0]) * rank)
    total = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5, name="x")
    rows = hvd.allgather(tf.fill([rank + 1, 2], rank))
    assert lists(mean, total, rows) == [[0.5, 1.5], [2.0], [[0, 0], [1, 1], [1, 1]]]
    slices = hvd.allreduce(tf.IndexedSlices(tf.ones([rank + 1, 2]), tf.range(rank + 1)), average=False)
    assert lists(slices.values, slices.indices) == [[[1.0, 1.0]] * 3, [0, 0, 1]]
    variables = [tf.Variable([1.0, 2.0] if rank else [0.0, 0.0]), tf.Variable(rank)]
    hvd.broadcast_variables(variables, root_rank=1)
    assert lists(*variables) == [[1.0, 2.0], 1]


@pytest.mark.workers(2)
def test_variables_of_a_session_get_the_values_of_one_instance():
    compat.install()
    from tensorflow.python.ipu import horovod as hvd

    hvd.init()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for index in range(3):
            tf.compat.v1.get_variable(f"v{index}", initializer=tf.constant([float(hvd.rank()), index]))
        done = hvd.broadcast_global_variables(1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(done)
        values = session.run(tf.compat.v1.global_variables())
    assert [value.tolist() for value in values] == [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]


def test_one_instance_is_all_there_is():
    import horovod.tensorflow as hvd
    import popdist
    import popdist.tensorflow

    popdist.init()
    hvd.init()
    popdist.synchronize()
    assert (popdist.isPopdistEnvSet(), popdist.isBackendInitialized()) == (False, True)
    assert (numbers_of_popdist(), popdist.getDeviceId()) == ([0, 1, 0, 1, 1, 0, 1], 0)
    assert [popdist.getDeviceId(4), popdist.checkNumIpusPerReplica(1), popdist.checkNumIpusPerReplica(2)] == [96, 1, 0]
    assert numbers_of_horovod() == [0, 1, 0, 1, False]
    assert popdist.execute_on_instances({0}, lambda x, y: x + y, 1, y=2) == 3
    config = popdist.tensorflow.set_ipu_config(ipu.IPUConfig(), 2)
    assert config.auto_select_ipus == 2
    config.configure_ipu_system()
    assert (popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas()) == (2, 2)
    value = tf.constant([1.0, 2.0])
    for result in (hvd.allreduce(value), hvd.allgather(value), hvd.broadcast(value, 0)):
        np.testing.assert_array_equal(result, value)


def test_instance_of_several_answers_before_they_are_joined(as_one_of_four):
    import popdist
    import popdist.tensorflow

    assert (numbers_of_popdist(), popdist.getDeviceId()) == ([3, 4, 1, 2, 8, 6, 4], 64 + 32 + 16)
    assert (numbers_of_horovod(), popdist.isPopdistEnvSet()) == ([3, 4, 1, 2, True], True)
    assert popdist.execute_on_instances({0, 1}, lambda: 1) is None
    config = popdist.tensorflow.set_ipu_config(ipu.IPUConfig())
    assert config.auto_select_ipus == 8
    processes = config.experimental.multi_replica_distribution
    assert (processes.process_count, processes.process_index) == (4, 3)
    assert popdist.tensorflow.set_ipu_config(ipu.IPUConfig(), configure_device=False).auto_select_ipus == []


def test_wrong_arguments_of_popdist_are_refused(as_one_of_four, refused):
    import popdist.tensorflow

    some, set_config = popdist.execute_on_instances, popdist.tensorflow.set_ipu_config
    refused(ValueError, r"the participating instances 0, 1, 2, 3, but is \{4\}", some, {4}, print)
    refused(ValueError, r"`instances` must be .* but is set\(\)", some, set(), print)
    refused(TypeError, "`instances` must be a set of numbers", some, "0", print)
    refused(ValueError, "a machine of 64 IPUs has no device of 6 IPUs", popdist.getDeviceId, 3)
    refused(ValueError, "run with `--ipus-per-replica 2`", set_config, ipu.IPUConfig(), 2)
    refused(ValueError, "`ipus_per_replica` must be 1 or more", set_config, ipu.IPUConfig(), 0)
    refused(TypeError, "`config` must be an `IPUConfig`", set_config, {})


def test_wrong_arguments_of_horovod_are_refused(refused):
    import horovod.tensorflow as hvd

    refused(ValueError, "`op` must be `Average` or `Sum`, but is 7", hvd.allreduce, 1.0, op=7)
    refused(ValueError, "must not both be set", hvd.allreduce, 1.0, average=True, op=0)
    refused(ValueError, "`compression` must be None", hvd.allreduce, 1.0, compression=object())
    refused(TypeError, r"`communicator` must be an `mpi4py.MPI.Intracomm`, but is \[0\]", hvd.init, comm=[0])


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
