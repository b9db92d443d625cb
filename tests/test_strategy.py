"""`IPUStrategy`: its arguments, its scope, its properties, and its methods that TensorFlow calls in a program."""

import copy

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu.errors import DeviceLimitError, IpuError

PREFIX = "/job:localhost/replica:0/task:0"
IPU, CPU = f"{PREFIX}/device:IPU:0", f"{PREFIX}/device:CPU:0"
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
PLAIN_ITER = tf.data.Dataset.__iter__


@pytest.fixture(autouse=True)
def iteration_is_as_ever():
    yield
    assert tf.data.Dataset.__iter__ is PLAIN_ITER


def test_names_arguments_and_devices_are_those_of_the_original_and_of_tensorflow():
    assert ipu.IPUStrategy is ipu.IPUStrategyV1
    assert issubclass(ipu.IPUStrategy, (tf.distribute.Strategy, tf.compat.v1.distribute.Strategy))
    for arguments, named in (
        (("/device:IPU:0", "/device:CPU:0", True, True), {}),
        (("/device:IPU", "cpu"), {}),
        ((), {"ipu_device": "IPU:0", "cpu_device": "CPU:0"}),
        ((), {"enable_dataset_iterators": False, "enable_keras_extensions": False}),
    ):
        extended = ipu.IPUStrategy(*arguments, **named).extended
        assert (extended.ipu_device, extended.cpu_device) == (IPU, CPU)
    for name in ("/device:IPU:1", "/device:ipu:1", "/IPU:1", "IPU:1", "device:IPU:1", f"{PREFIX}/device:IPU:1"):
        assert ipu.IPUStrategy(name).extended.ipu_device == f"{PREFIX}/device:IPU:1"


def test_what_names_no_device_and_switches_that_are_no_bools_are_refused(refused):
    for name in ("", "/device:CPU:0", "/device:GPU:0", "IPU:x", "IPU:-1", "/device:IPU:*", 0, None):
        refused(ValueError, r"`ipu_device` must name a device like `/device:IPU:0`, but is", ipu.IPUStrategy, name)
    for name in ("", "/device:IPU:0", "host", 0, None):
        with pytest.raises(ValueError, match=r"`cpu_device` must name a device like `/device:CPU:0`, but is"):
            ipu.IPUStrategy(cpu_device=name)
    for name in ("enable_dataset_iterators", "enable_keras_extensions", "host_kernels"):
        refused(TypeError, rf"`{name}` must be True or False, but is 'yes'", ipu.IPUStrategy, **{name: "yes"})
    # TensorFlow placed variables of unregistered devices on the CPU without a warning.
    last = environment.registered_devices() - 1
    ipu.IPUStrategy(f"/device:IPU:{last}")
    with pytest.raises(DeviceLimitError, match=rf"`/device:IPU:{last + 1}`.*`TENSORFLOW_IPU_DEVICES={last + 2}`"):
        ipu.IPUStrategy(f"/device:IPU:{last + 1}")
    assert issubclass(DeviceLimitError, IpuError)


def test_strategies_trace_a_function_once_for_each_choice_of_kernels():
    traced = []

    @tf.function(jit_compile=True)
    def program(x):
        traced.append(x)
        return tf.nn.max_pool(x, 2, 2, "VALID")

    for choice in (None, True, False, True, False):
        ipu.IPUStrategy(host_kernels=choice).run(program, (tf.ones([1, 4, 4, 1]),))
    assert len(traced) == 2


def test_scope_makes_the_strategy_current_nests_and_can_be_entered_again(strategy):
    dataset = tf.data.Dataset.from_tensors(1)
    scope = strategy.scope()
    for _ in range(2):
        with scope as current, strategy.scope(), scope:
            assert current is strategy
            assert tf.distribute.get_strategy() is strategy
            assert tf.distribute.in_cross_replica_context()
            assert isinstance(iter(dataset), ipu.feeds.IPUOwnedIterator)
            assert [int(x) for x in dataset.as_numpy_iterator()] == [1]
        assert not tf.distribute.has_strategy()
        assert next(iter(dataset)).numpy() == 1
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError("mine")
    assert not tf.distribute.has_strategy()
    with ipu.IPUStrategy(enable_dataset_iterators=False).scope():
        assert next(iter(dataset)).numpy() == 1


def test_strategy_can_be_made_the_global_one_and_none_be_entered_in_another(strategy, refused):
    with strategy.scope():
        second_scope = ipu.IPUStrategy().scope()
        refused(RuntimeError, "Mixing different tf.distribute.Strategy objects", second_scope.__enter__)
        assert tf.distribute.get_strategy() is strategy
    assert not tf.distribute.has_strategy()
    tf.distribute.experimental_set_strategy(strategy)
    try:
        assert tf.distribute.get_strategy() is strategy
        assert tf.Variable(1.0).device.endswith("IPU:0")
        assert strategy.run(tf.function(lambda: tf.constant(3))).numpy() == 3
    finally:
        tf.distribute.experimental_set_strategy(None)
    assert not tf.distribute.has_strategy()


def test_what_is_prepared_runs_any_number_of_times_until_the_system_is_configured_anew(strategy, configure):
    traces = []
    with strategy.scope():
        count = tf.Variable(0)

    @tf.function(jit_compile=True)
    def program(step):
        traces.append(step)
        return count.assign_add(step)

    prepared = strategy.prepare(program, (tf.constant(2),))
    assert count.numpy() == 0
    assert [int(prepared.run()) for _ in range(3)] == [2, 4, 6]
    assert int(strategy.run(program, (tf.constant(1),))) == 7
    assert len(traces) == 1
    assert prepared.is_current
    configure(2)
    assert not prepared.is_current
    assert strategy.prepare(program, (tf.constant(2),)).is_current


def test_what_cannot_be_prepared_is_refused(strategy, refused):
    with pytest.raises(ValueError, match="does not support eager execution, and `fn` is the plain callable"):
        strategy.prepare(lambda: None)
    refused(TypeError, "`fn` must be a `tf.function`, but is 3", strategy.prepare, 3)
    refused(ValueError, "`args` must be a list or tuple", strategy.prepare, tf.function(lambda x: x), tf.constant(1))
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="a graph is being built: call `run` in it"):
        strategy.prepare(tf.function(lambda: None))


@pytest.mark.parametrize("ipus", [1, 4])
def test_host_sees_one_replica_however_many_ipus_there_are(ipus, replicas):
    strategy = replicas(ipus)
    assert strategy.num_replicas_in_sync == 1
    value = strategy.run(tf.function(lambda: tf.constant([[1.0, 2.0]])))
    (local,) = strategy.experimental_local_results(value)
    assert local is value
    assert strategy.unwrap(value) == (value,)
    np.testing.assert_array_equal(strategy.gather(value, axis=0), [[1, 2]])
    values = strategy.experimental_distribute_values_from_function(
        lambda context: (context.num_replicas_in_sync, context.replica_id_in_sync_group)
    )
    assert values == (1, 0)
    for operation in ("SUM", "sum", "MEAN", SUM, MEAN):
        np.testing.assert_array_equal(strategy.reduce(operation, value, axis=None), [[1, 2]])
        np.testing.assert_array_equal(strategy.reduce(operation, value), [[1, 2]])


def test_reduce_reduces_an_axis(strategy):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = strategy.run(tf.function(lambda x: x), (tf.constant(array),))
    for axis in (0, 1, -1, (0, 1)):
        np.testing.assert_allclose(strategy.reduce("SUM", value, axis=axis), array.sum(axis=axis))
        np.testing.assert_allclose(strategy.reduce("MEAN", value, axis=axis), array.mean(axis=axis))
        with strategy.scope():
            np.testing.assert_allclose(strategy.reduce("SUM", value, axis), array.sum(axis=axis))
        graph = tf.function(lambda value, axis=axis: strategy.reduce("MEAN", value, axis=axis))
        np.testing.assert_allclose(graph(value), array.mean(axis=axis))
    with pytest.raises(ValueError, match="(?i)invalid reduction dimension|out of range"):
        strategy.reduce("MEAN", tf.constant([1.0]), axis=3)


@pytest.mark.parametrize("operation", ["MAX", "", None, 1, tf.VariableAggregation.SUM])
def test_reduction_that_is_neither_sum_nor_mean_is_refused(operation, strategy, refused):
    message = r"Unsupported reduce op: `reduce_op` is .*`tf.distribute.ReduceOp.SUM` or `MEAN`"
    value = tf.constant([1.0])
    refused(ValueError, message, strategy.reduce, operation, value, axis=None)
    with strategy.scope():
        refused(ValueError, message, strategy.extended.reduce_to, operation, value, CPU)
        refused(ValueError, message, strategy.extended.batch_reduce_to, operation, [(value, CPU)])
    program = tf.function(lambda x: tf.distribute.get_replica_context().all_reduce(operation, x))
    refused(ValueError, message, strategy.run, program, (value,))


def test_datasets_are_not_distributed(strategy):
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.int32))
    contexts = []

    def make(context):
        contexts.append(context)
        return dataset

    for options in ((), (tf.distribute.InputOptions(),)):
        assert strategy.experimental_distribute_dataset(dataset, *options) is dataset
        assert strategy.distribute_datasets_from_function(make, *options) is dataset
    assert strategy.experimental_distribute_datasets_from_function(make) is dataset
    context = contexts[0]
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 1)
    assert context.get_per_replica_batch_size(8) == 8
    program = tf.function(lambda iterator: next(iterator) * 10)
    with strategy.scope():
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        assert [int(strategy.run(program, (iterator,))) for _ in range(4)] == [0, 10, 20, 30]


def test_strategy_supports_loss_scaling_needs_static_shapes_and_can_be_copied_deeply(strategy):
    assert strategy.supports_loss_scaling is True
    extended = strategy.extended
    assert extended.experimental_require_static_shapes is True
    assert (extended.experimental_between_graph, extended.experimental_should_init) == (False, True)
    assert (extended.should_checkpoint, extended.should_save_summary) == (True, True)
    assert extended.worker_devices == extended.parameter_devices == (IPU,)
    assert strategy.cluster_resolver is None
    twin = copy.deepcopy(strategy)
    assert twin is not strategy
    with twin.scope():
        assert tf.distribute.get_strategy() is twin
        variable = tf.Variable(1.0)
    assert twin.run(tf.function(lambda: variable + 1)).numpy() == 2


def test_strategies_of_a_device_share_its_variables_and_those_of_others_have_their_own(configure):
    configure(2, 4)
    strategies = [ipu.IPUStrategy(f"/device:IPU:{i}") for i in (0, 1, 0)]
    program = tf.function(lambda variable: variable.assign_add(1.0))
    variables = []
    for i, strategy in enumerate(strategies[:2]):
        with strategy.scope():
            variables.append(tf.Variable(10.0 * i))
        assert variables[i].device == f"{PREFIX}/device:IPU:{i}"
    for strategy, variable in zip(strategies, (*variables, variables[0]), strict=True):
        assert strategy.run(program, (variable,)).device == variable.device
    assert [variable.numpy() for variable in variables] == [2, 11]


def test_program_is_traced_in_the_context_of_the_one_replica(strategy):
    @tf.function
    def program():
        context = tf.distribute.get_replica_context()
        assert tf.distribute.get_strategy() is strategy
        assert context.strategy is strategy
        assert context.num_replicas_in_sync == 1
        assert context.devices == (IPU,)
        assert not tf.distribute.in_cross_replica_context()
        return context.replica_id_in_sync_group

    assert strategy.run(program).numpy() == 0
    with strategy.scope():
        assert tf.distribute.get_replica_context() is None
    assert tf.distribute.get_replica_context() is not None
    contexts = []
    tf.function(lambda: strategy.run(lambda: contexts.append(tf.distribute.get_replica_context())))()
    assert contexts[0].strategy is strategy


def test_collectives_over_one_replica_change_nothing_and_have_gradients(strategy):
    with strategy.scope():
        table = tf.Variable(tf.ones([4, 2]))

    @tf.function
    def program(x, y, indices):
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            tape.watch(x)
            squared = context.all_reduce("SUM", x * x)
        with tf.GradientTape() as of_table:
            loss = tf.reduce_sum(tf.gather(table, indices))
        sparse = of_table.gradient(loss, table)
        assert isinstance(sparse, tf.IndexedSlices)
        reduced = context.all_reduce("SUM", [sparse])[0]
        assert isinstance(reduced, tf.IndexedSlices)
        same = [context.all_reduce(operation, x) for operation in (SUM, MEAN, "sum", "MEAN")]
        nested = context.all_reduce(SUM, {"x": x, "y": [y, x]})
        return (
            [*same, nested["x"], nested["y"][1], context.all_gather(x, axis=0)],
            nested["y"][0],
            tape.gradient(squared, x),
            tf.convert_to_tensor(reduced),
        )

    args = (tf.constant([1.0, 2.0]), tf.constant(3), tf.constant([1, 3, 1]))
    same, scalar, gradient, of_table = strategy.run(program, args)
    np.testing.assert_array_equal(same, [[1, 2]] * 7)
    assert scalar.numpy() == 3
    np.testing.assert_array_equal(gradient, [2, 4])
    np.testing.assert_array_equal(of_table, [[0, 0], [2, 2], [0, 0], [1, 1]])


def test_all_gather_concatenates_what_all_replicas_have_and_sums_their_gradients(replicas, configure, refused):
    # It once returned only the tensor of the replica, and its gradient was rejected because of a dynamic shape.
    strategy = replicas(2)

    def program(x):
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            tape.watch(x)
            scaled = x * (1.0 + tf.cast(context.replica_id_in_sync_group, tf.float32))
            rows = context.all_gather({"columns": scaled, "rows": [tf.transpose(scaled)]}, axis=1)
            loss = tf.reduce_sum(rows["columns"] ** 2)
        return rows["columns"], rows["rows"][0], tape.gradient(loss, x)

    x = tf.constant([[1.0, 2.0]])
    compiled = tf.function(program, jit_compile=True)
    in_a_graph = tf.function(lambda x: strategy.run(compiled, (x,)))
    for columns, rows, gradient in (strategy.run(compiled, (x,)), in_a_graph(x)):
        assert columns.numpy().tolist() == [[1, 2, 2, 4]]
        assert rows.numpy().tolist() == [[1, 2], [2, 4]]
        assert gradient.numpy().tolist() == [[4, 8]]
    configure(4)
    message = "while the device had 2 replicas.*configure the system before the graph is built"
    refused(tf.errors.InvalidArgumentError, message, in_a_graph, x)


def test_merge_call_hands_over_the_strategy_and_the_arguments(strategy):
    with strategy.scope():
        variable = tf.Variable(1.0)

    def merge(merging, x, scale=1.0):
        assert merging is strategy
        assert tf.distribute.in_cross_replica_context()
        total = merging.extended.reduce_to(SUM, x * scale, variable)
        (mean,) = merging.extended.batch_reduce_to("mean", [(x, variable)])
        return merging.extended.update(variable, lambda var, value: var.assign_add(value), args=(total + mean,))

    @tf.function
    def program(x):
        return tf.distribute.get_replica_context().merge_call(merge, args=(x,), kwargs={"scale": 2.0})

    assert strategy.run(program, (tf.constant(3.0),)).numpy() == 10
    assert variable.numpy() == 10


def test_update_gives_the_results_grouped_or_a_replica_and_reductions_on_the_host_values_as_they_are(strategy):
    value = tf.constant([1.0, 2.0])
    extended = strategy.extended
    with strategy.scope():
        variable = tf.Variable(1.0)
        assert extended.update(variable, lambda var, x: var.assign_add(x), args=(2.0,)).numpy() == 3
        (result,) = extended.update(variable, lambda var: var.assign_add(1.0), group=False)
        assert result.numpy() == 4
        devices = extended.non_slot_devices([variable])
        assert extended.update_non_slot(devices, lambda: variable.assign(7.0)).numpy() == 7
        assert extended.value_container(variable) is variable
        assert extended.reduce_to(SUM, value, CPU) is value
        assert extended.batch_reduce_to(MEAN, [(value, CPU), (value, CPU)]) == [value, value]
        assert extended.broadcast_to(value, CPU) is value
    assert extended.reduce_to("sum", value, CPU) is value

    update = tf.function(lambda: extended.update(variable, lambda var, x: var.assign_add(x), args=(tf.constant(1.0),)))
    assert strategy.run(update).numpy() == 8
