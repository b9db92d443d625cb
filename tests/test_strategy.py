"""`IPUStrategy`: its arguments, its scope, and what it answers as a `tf.distribute.Strategy`."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu.config import reset_ipu_configuration
from tensorflow_ipu.errors import DeviceLimitError, IpuError

PREFIX = "/job:localhost/replica:0/task:0"
PLAIN_ITER = tf.data.Dataset.__iter__


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    reset_ipu_configuration()
    yield
    reset_ipu_configuration()
    assert tf.data.Dataset.__iter__ is PLAIN_ITER


@pytest.fixture
def strategy() -> ipu.IPUStrategy:
    return ipu.IPUStrategy()


def test_both_names_are_one_class_and_a_strategy_of_tensorflow(strategy: Any) -> None:
    assert ipu.IPUStrategy is ipu.IPUStrategyV1
    assert isinstance(strategy, tf.distribute.Strategy)
    assert isinstance(strategy, tf.compat.v1.distribute.Strategy)


def test_arguments_have_the_names_the_order_and_the_defaults_of_the_original() -> None:
    strategy = ipu.IPUStrategyV1("/device:IPU:0", "/device:CPU:0", True, True)
    assert strategy.extended.ipu_device == f"{PREFIX}/device:IPU:0"
    assert strategy.extended.cpu_device == f"{PREFIX}/device:CPU:0"
    strategy = ipu.IPUStrategy(
        ipu_device="/device:IPU:3",
        cpu_device="/device:CPU:0",
        enable_dataset_iterators=False,
        enable_keras_extensions=False,
    )
    assert strategy.extended.ipu_device == f"{PREFIX}/device:IPU:3"


@pytest.mark.parametrize(
    "name", ["/device:IPU:1", "/device:ipu:1", "/IPU:1", "IPU:1", "device:IPU:1", f"{PREFIX}/device:IPU:1"]
)
def test_device_may_be_named_in_every_way_that_tensorflow_knows(name: str) -> None:
    assert ipu.IPUStrategy(name).extended.ipu_device == f"{PREFIX}/device:IPU:1"


def test_device_without_a_number_is_the_first() -> None:
    strategy = ipu.IPUStrategy("/device:IPU", "cpu")
    assert strategy.extended.ipu_device == f"{PREFIX}/device:IPU:0"
    assert strategy.extended.cpu_device == f"{PREFIX}/device:CPU:0"


@pytest.mark.parametrize("name", ["", "/device:CPU:0", "/device:GPU:0", "IPU:x", "IPU:-1", "/device:IPU:*", 0, None])
def test_ipu_device_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"`ipu_device` must name a device like `/device:IPU:0`, but is"):
        ipu.IPUStrategy(name)


@pytest.mark.parametrize("name", ["", "/device:IPU:0", "host", 0, None])
def test_cpu_device_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"`cpu_device` must name a device like `/device:CPU:0`, but is"):
        ipu.IPUStrategy(cpu_device=name)


# Its variables landed on the CPU, and TensorFlow said nothing.
def test_device_that_is_not_registered_is_refused() -> None:
    last = environment.registered_devices() - 1
    ipu.IPUStrategy(f"/device:IPU:{last}")
    with pytest.raises(DeviceLimitError, match=rf"`/device:IPU:{last + 1}`.*`TENSORFLOW_IPU_DEVICES={last + 2}`"):
        ipu.IPUStrategy(f"/device:IPU:{last + 1}")
    assert issubclass(DeviceLimitError, IpuError)


@pytest.mark.parametrize("name", ["enable_dataset_iterators", "enable_keras_extensions"])
@pytest.mark.parametrize("value", [1, None, "yes"])
def test_switch_that_is_no_bool_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"`{name}` must be True or False, but is"):
        ipu.IPUStrategy(**{name: value})


def test_strategies_trace_a_function_once_for_each_choice_of_kernels() -> None:
    traced = []

    @tf.function(jit_compile=True)
    def program(x: Any) -> Any:
        traced.append(x)
        return tf.nn.max_pool(x, 2, 2, "VALID")

    for choice in (None, True, False, True, False):
        ipu.IPUStrategy(host_kernels=choice).run(program, (tf.ones([1, 4, 4, 1]),))
    assert len(traced) == 2
    with pytest.raises(TypeError, match="`host_kernels` must be True or False, but is 'no'"):
        ipu.IPUStrategy(host_kernels="no")  # pyright: ignore[reportArgumentType]


def test_scope_makes_the_strategy_current_and_gives_it(strategy: Any) -> None:
    assert not tf.distribute.has_strategy()
    with strategy.scope() as current:
        assert current is strategy
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.in_cross_replica_context()
    assert not tf.distribute.has_strategy()


def test_scope_nests_and_can_be_entered_again(strategy: Any) -> None:
    dataset = tf.data.Dataset.from_tensors(1)
    scope = strategy.scope()
    for _ in range(2):
        with scope, strategy.scope(), scope:
            assert tf.distribute.get_strategy() is strategy
            assert isinstance(iter(dataset), ipu.feeds.IPUIterator)
        assert not tf.distribute.has_strategy()
        assert next(iter(dataset)).numpy() == 1


# The scope of a notebook, which nobody holds, was left by the garbage collector.
def test_scope_that_is_entered_without_with_lasts(strategy: Any) -> None:
    manager = strategy.scope()
    manager.__enter__()
    exit_scope = manager.__exit__
    del manager
    gc.collect()
    try:
        assert tf.distribute.get_strategy() is strategy
        assert tf.Variable(1.0).device.endswith("IPU:0")
    finally:
        exit_scope(None, None, None)
    assert not tf.distribute.has_strategy()


def test_scope_ends_with_an_exception(strategy: Any) -> None:
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError("mine")
    assert not tf.distribute.has_strategy()
    assert tf.data.Dataset.__iter__ is PLAIN_ITER


def test_scope_of_another_strategy_inside_of_one_is_refused(strategy: Any) -> None:
    with strategy.scope():
        with (
            pytest.raises(RuntimeError, match="Mixing different tf.distribute.Strategy objects"),
            ipu.IPUStrategy().scope(),
        ):
            pass
        assert tf.distribute.get_strategy() is strategy
    assert not tf.distribute.has_strategy()


def test_strategy_can_be_made_the_global_one(strategy: Any) -> None:
    tf.distribute.experimental_set_strategy(strategy)
    try:
        assert tf.distribute.get_strategy() is strategy
        assert tf.Variable(1.0).device.endswith("IPU:0")
        assert strategy.run(tf.function(lambda: tf.constant(3))).numpy() == 3
    finally:
        tf.distribute.experimental_set_strategy(None)
    assert not tf.distribute.has_strategy()


def test_iterating_over_a_dataset_in_the_scope_feeds_programs_and_nowhere_else(strategy: Any) -> None:
    dataset = tf.data.Dataset.from_tensors(1)
    with strategy.scope():
        assert isinstance(iter(dataset), ipu.feeds.IPUOwnedIterator)
        assert [int(x) for x in dataset.as_numpy_iterator()] == [1]
    assert not isinstance(iter(dataset), ipu.feeds.IPUIterator)
    assert [int(x) for x in dataset] == [1]


def test_iterating_over_a_dataset_is_as_ever_where_it_was_turned_off() -> None:
    strategy = ipu.IPUStrategy(enable_dataset_iterators=False)
    with strategy.scope():
        assert next(iter(tf.data.Dataset.from_tensors(1))).numpy() == 1


def test_what_is_prepared_runs_any_number_of_times_and_is_traced_once(strategy: Any) -> None:
    traces = []
    with strategy.scope():
        count = tf.Variable(0)

    @tf.function(jit_compile=True)
    def program(step: Any) -> Any:
        traces.append(step)
        return count.assign_add(step)

    prepared = strategy.prepare(program, (tf.constant(2),))
    assert count.numpy() == 0
    assert [int(prepared.run()) for _ in range(3)] == [2, 4, 6]
    assert int(strategy.run(program, (tf.constant(1),))) == 7
    assert len(traces) == 1


def test_what_is_prepared_is_for_the_system_as_it_was_configured(strategy: Any) -> None:
    prepared = strategy.prepare(tf.function(lambda: tf.constant(1), jit_compile=True))
    assert prepared.is_current
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    assert not prepared.is_current
    assert strategy.prepare(tf.function(lambda: tf.constant(1), jit_compile=True)).is_current


def test_what_cannot_be_prepared_is_refused(strategy: Any) -> None:
    with pytest.raises(ValueError, match="does not support eager execution, and `fn` is the plain callable"):
        strategy.prepare(lambda: None)
    with pytest.raises(TypeError, match="`fn` must be a `tf.function`, but is 3"):
        strategy.prepare(3)
    with pytest.raises(ValueError, match="`args` must be a list or tuple"):
        strategy.prepare(tf.function(lambda x: x), tf.constant(1))
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="a graph is being built: call `run` in it"):
        strategy.prepare(tf.function(lambda: None))


def test_host_sees_one_replica_however_many_ipus_there_are() -> None:
    for ipus in (1, 4):
        config = ipu.IPUConfig()
        config.auto_select_ipus = ipus
        config.configure_ipu_system()
        strategy = ipu.IPUStrategy()
        assert strategy.num_replicas_in_sync == 1
        assert strategy.run(tf.function(lambda x: x + 1), (1,)).numpy() == 2


def test_reduce_leaves_the_value_of_one_replica_as_it_is(strategy: Any) -> None:
    value = strategy.run(tf.function(lambda: tf.constant([1.0, 2.0])))
    for operation in ("SUM", "sum", "MEAN", tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        np.testing.assert_array_equal(strategy.reduce(operation, value, axis=None), [1, 2])
        np.testing.assert_array_equal(strategy.reduce(operation, value), [1, 2])


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 1)])
def test_reduce_reduces_an_axis(axis: Any, strategy: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = strategy.run(tf.function(lambda x: x), (tf.constant(array),))
    np.testing.assert_allclose(strategy.reduce("SUM", value, axis=axis), array.sum(axis=axis))
    np.testing.assert_allclose(strategy.reduce("MEAN", value, axis=axis), array.mean(axis=axis))
    with strategy.scope():
        np.testing.assert_allclose(strategy.reduce("SUM", value, axis), array.sum(axis=axis))
    graph = tf.function(lambda value: strategy.reduce("MEAN", value, axis=axis))
    np.testing.assert_allclose(graph(value), array.mean(axis=axis))


def test_reduce_over_an_axis_that_is_not_there_is_refused(strategy: Any) -> None:
    with pytest.raises(ValueError, match="(?i)invalid reduction dimension|out of range"):
        strategy.reduce("MEAN", tf.constant([1.0]), axis=3)


@pytest.mark.parametrize("operation", ["MAX", "", None, 1, tf.VariableAggregation.SUM])
def test_reduction_that_is_neither_sum_nor_mean_is_refused(operation: Any, strategy: Any) -> None:
    words = r"Unsupported reduce op: `reduce_op` is .*`tf.distribute.ReduceOp.SUM` or `MEAN`"
    value = tf.constant([1.0])
    with pytest.raises(ValueError, match=words):
        strategy.reduce(operation, value, axis=None)
    with strategy.scope(), pytest.raises(ValueError, match=words):
        strategy.extended.reduce_to(operation, value, "/device:CPU:0")
    with strategy.scope(), pytest.raises(ValueError, match=words):
        strategy.extended.batch_reduce_to(operation, [(value, "/device:CPU:0")])

    @tf.function
    def program(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(operation, x)

    with pytest.raises(ValueError, match=words):
        strategy.run(program, (value,))


def test_local_results_are_those_of_the_one_replica(strategy: Any) -> None:
    value = strategy.run(tf.function(lambda: tf.constant(3)))
    (local,) = strategy.experimental_local_results(value)
    assert local is value
    assert strategy.unwrap(value) == (value,)


def test_gather_leaves_the_value_of_one_replica_as_it_is(strategy: Any) -> None:
    value = tf.constant([[1.0, 2.0]])
    np.testing.assert_array_equal(strategy.gather(value, axis=0), [[1, 2]])


def test_values_from_a_function_are_those_of_the_one_replica(strategy: Any) -> None:
    values = strategy.experimental_distribute_values_from_function(
        lambda context: (context.num_replicas_in_sync, context.replica_id_in_sync_group)
    )
    assert values == (1, 0)


def test_datasets_are_not_distributed(strategy: Any) -> None:
    dataset = tf.data.Dataset.range(4).batch(2)
    assert strategy.experimental_distribute_dataset(dataset) is dataset
    assert strategy.experimental_distribute_dataset(dataset, tf.distribute.InputOptions()) is dataset
    contexts = []

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        contexts.append(context)
        return dataset

    assert strategy.distribute_datasets_from_function(make) is dataset
    assert strategy.distribute_datasets_from_function(make, tf.distribute.InputOptions()) is dataset
    assert strategy.experimental_distribute_datasets_from_function(make) is dataset
    context = contexts[0]
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 1)
    assert context.get_per_replica_batch_size(8) == 8


def test_distributed_dataset_feeds_programs(strategy: Any) -> None:
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.int32))
    program = tf.function(lambda iterator: next(iterator) * 10)
    with strategy.scope():
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        assert [int(strategy.run(program, (iterator,))) for _ in range(4)] == [0, 10, 20, 30]


def test_strategy_supports_loss_scaling_and_needs_static_shapes(strategy: Any) -> None:
    assert strategy.supports_loss_scaling is True
    extended = strategy.extended
    assert extended.experimental_require_static_shapes is True
    assert (extended.experimental_between_graph, extended.experimental_should_init) == (False, True)
    assert (extended.should_checkpoint, extended.should_save_summary) == (True, True)
    assert extended.worker_devices == extended.parameter_devices == (f"{PREFIX}/device:IPU:0",)
    assert strategy.cluster_resolver is None


def test_strategy_can_be_copied_deeply(strategy: Any) -> None:
    twin = copy.deepcopy(strategy)
    assert twin is not strategy
    with twin.scope():
        assert tf.distribute.get_strategy() is twin
        variable = tf.Variable(1.0)
    assert twin.run(tf.function(lambda: variable + 1)).numpy() == 2


def test_there_is_a_strategy_a_device() -> None:
    config = ipu.IPUConfig()
    config.auto_select_ipus = [2, 4]
    config.configure_ipu_system()
    strategies = [ipu.IPUStrategy(f"/device:IPU:{i}") for i in range(2)]
    program = tf.function(lambda variable: variable.assign_add(1.0))
    variables = []
    for i, strategy in enumerate(strategies):
        with strategy.scope():
            variables.append(tf.Variable(10.0 * i))
        assert variables[i].device == f"{PREFIX}/device:IPU:{i}"
    for _ in range(2):
        for strategy, variable in zip(strategies, variables, strict=True):
            assert strategy.run(program, (variable,)).device == variable.device
    assert [variable.numpy() for variable in variables] == [2, 12]


def test_two_strategies_of_a_device_share_its_variables() -> None:
    first, second = ipu.IPUStrategy(), ipu.IPUStrategy()
    with first.scope():
        variable = tf.Variable(1.0)
    program = tf.function(lambda: variable.assign_add(1.0))
    assert [float(strategy.run(program)) for strategy in (first, second, first)] == [2, 3, 4]
