"""Canaries: gradients, devices, strategies, datasets and variables behave as the seam expects."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import error_interpolation, registry

from tensorflow_ipu._tensorflow import autograph, devices, gradients, old_keras, op_errors, patches, variables, xla

SCALAR = tf.TensorSpec([], tf.float32)


def test_gradients_of_one_graph_are_made_in_another():
    is_current: list[Any] = []
    forward = tf.function(lambda x: x**3.0, autograph=False)
    program: Any = forward.get_concrete_function(SCALAR)

    @tf.function(autograph=False)
    def backward() -> Any:
        gradient: Any
        [gradient] = gradients.between(program.graph.outputs, program.graph.inputs, None, program.graph)
        is_current.append(gradient.graph is tf.compat.v1.get_default_graph())
        return 0.0

    backward.get_concrete_function()
    assert is_current == [True]


def test_tapes_take_what_is_recorded_for_them_and_nothing_else():
    assert gradients.has_gradient(tf.Variable(1.0).handle)
    assert gradients.has_gradient(tf.constant(1.0))
    assert not gradients.has_gradient(tf.constant(1))
    x, variable = tf.constant(3.0), tf.Variable(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with gradients.unrecorded():
            y = x * x
        gradients.record_as("Ours", [y], [x], lambda upstream: [5.0 * upstream])
        gradients.note_use_of(variable)
    gradient: Any = tape.gradient(y, x)
    assert gradient.numpy() == 5.0
    assert list(tape.watched_variables()) == [variable]
    program: Any = tf.function(lambda x: x**2.0).get_concrete_function(SCALAR)
    assert callable(gradients.of_call(program))


def test_gradients_of_operations_are_replaced_in_a_block_of_a_graph():
    @tf.function(autograph=False)
    def program(x: Any) -> Any:
        with gradients.overridden(tf.compat.v1.get_default_graph(), "Square", lambda op, upstream: 7.0 * upstream):
            y = tf.square(x)
        return tf.gradients(y, x)[0]

    assert program(tf.constant(3.0)).numpy() == 7.0
    assert callable(gradients.REGISTRY.lookup("Square"))


def test_operations_and_tapes_say_by_what_they_are_differentiated(monkeypatch):
    recorded: list[Any] = []

    @tf.function(autograph=False)
    def program(x: Any) -> Any:
        def gradient(op: Any, upstream: Any) -> Any:
            recorded.append(gradients.recorded_attributes(op))
            return upstream

        with gradients.overridden(tf.compat.v1.get_default_graph(), "Square", gradient):
            y = tf.square(x)
        assert gradients.own_gradient(y.op) is gradient
        assert gradients.own_gradient((x + x).op) is None
        return tf.gradients(y, x)[0]

    program(tf.constant(3.0))
    assert recorded == [()]  # Nothing is recorded for an operation of a graph, which has attributes itself.

    class Recording(registry.Registry):
        __slots__ = ()

        def lookup(self, name: str) -> Any:
            gradient = super().lookup(name)
            if name != "Relu":
                return gradient
            return lambda op, upstream: (recorded.append(gradients.recorded_attributes(op)), gradient(op, upstream))[1]

    x = tf.constant([1.0])
    monkeypatch.setattr(gradients.REGISTRY, "__class__", Recording)
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert tf.convert_to_tensor(tape.gradient(tf.nn.relu(x), x)).numpy() == 1.0
    assert "T" in recorded[-1]


def test_a_custom_gradient_of_a_graph_is_registered_by_a_name_of_its_own_until_it_is_forgotten():
    @tf.custom_gradient
    def tripled(x: Any) -> Any:
        return x * 3.0, lambda upstream: upstream * 3.0

    with tf.Graph().as_default():
        name = tripled(tf.constant(1.0)).op.get_attr("_gradient_op_type").decode()
    assert gradients.is_custom(name)
    assert not gradients.is_custom("Square")
    assert gradients.REGISTRY.lookup(name)
    gradients.forget(name)
    with pytest.raises(LookupError):
        gradients.REGISTRY.lookup(name)


def test_devices_eager_execution_and_the_seed_are_known():
    assert devices.are_in_use()
    assert devices.current() == ""
    with tf.device("/device:CPU:0"):
        assert devices.current().endswith("CPU:0")
        assert devices.of_eager_thread().endswith("CPU:0")
    assert devices.of_eager_thread() == ""
    for place in ("/job:localhost/replica:0/task:0/device:CPU:0", ""):
        devices.place_eager_thread(place)
        assert devices.of_eager_thread() == place
        assert tf.constant(0).device.endswith("CPU:0")
    assert devices.full_name("/device:CPU:0") == "/job:localhost/replica:0/task:0/device:CPU:0"
    with tf.Graph().as_default(), devices.eagerly():
        assert tf.executing_eagerly()
    previous_seed = devices.global_seed()
    try:
        tf.random.set_seed(31)
        assert devices.global_seed() == 31
    finally:
        tf.random.set_seed(previous_seed)  # pyright: ignore[reportArgumentType]  # None removes the seed.


def test_a_generator_knows_whether_it_was_made_in_the_scope_of_a_strategy(strategy):
    assert not devices.is_of_strategy(tf.random.Generator.from_seed(1))
    with strategy.scope():
        assert devices.is_of_strategy(tf.random.Generator.from_seed(1))


def test_a_thread_enters_and_leaves_the_modes_of_a_strategy(strategy, refused):
    with strategy.scope():
        context, own = tf.distribute.ReplicaContext(strategy, 0), tf.Variable(1.0)
    with devices.replica_mode(context):
        assert not tf.distribute.in_cross_replica_context()
        with devices.cross_replica_mode(strategy):
            assert tf.distribute.in_cross_replica_context()
        assert not tf.distribute.in_cross_replica_context()
    with devices.updating("/device:CPU:0"):
        assert not tf.distribute.has_strategy()
    devices.check_colocated(own, strategy.extended)
    refused(ValueError, "colocate_vars_with", devices.check_colocated, tf.Variable(1.0), strategy.extended)


def test_datasets_have_options_paths_and_shards():
    dataset = tf.data.Dataset.range(3)
    assert isinstance(iter(dataset), variables.OwnedIterator)
    assert [int(element) for element in variables.as_run(dataset)] == [0, 1, 2]
    with tf.Graph().as_default():
        assert isinstance(variables.options_of(tf.data.Dataset.range(3)), tf.data.Options)
    assert isinstance(variables.options_of(dataset), tf.data.Options)
    assert [path for path, _ in variables.with_paths({"a": [1, 2], "b": 3})] == ["a/0", "a/1", "b"]
    spec: Any = tf.data.Dataset.from_tensors((1, None)).element_spec
    assert isinstance(spec[1], variables.NoneSpec)
    assert isinstance(tf.ragged.constant([[1]]), variables.CompositeTensor)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.range(5).with_options(options)
    assert list(variables.auto_sharded(dataset, 2, 1).as_numpy_iterator()) == [1, 3]


def test_autograph_rewrites_the_users_functions_and_not_ours():
    @tf.function
    def program(n: Any) -> Any:
        def body(m: Any) -> Any:
            total = 0
            while total < m:
                total += 2
            return total

        return autograph.user_code(body)(n)

    assert program(tf.constant(5)).numpy() == 6

    @tf.function(autograph=False)
    def plain(n: Any) -> Any:
        return autograph.converted(lambda m: m if m > 0 else -m)(n)

    assert plain(tf.constant(-5)).numpy() == 5
    error = autograph.without_lines("what happened").create_exception(ValueError("what happened"))
    assert isinstance(error, ValueError)
    assert "what happened" in str(error)

    def failing() -> None:
        try:
            autograph.user_code(fail)()
        except ValueError as exc:
            autograph.add_to_message(exc, "and where")
            raise

    def fail() -> None:
        raise ValueError("what happened")

    for function in (failing, tf.function(failing)):
        with pytest.raises(ValueError, match=r"what happened\n *\n *and where"):
            function()


def test_optimizers_of_tensorflow_1_have_settings_and_slots():
    with tf.Graph().as_default():
        optimizer = tf.compat.v1.train.MomentumOptimizer(0.5, 0.9)
        assert old_keras.setting(optimizer, "momentum") == 0.9
        variable = tf.compat.v1.get_variable("v", initializer=1.0)
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
        slot = optimizer.get_slot(variable, "momentum")
        assert slot is not None
        slots: dict[Any, Any] = {}
        old_keras.take_over_slots(optimizer, slots, ())
        later_optimizer = tf.compat.v1.train.MomentumOptimizer(0.5, 0.9)
        old_keras.take_over_slots(later_optimizer, slots, ())
        assert later_optimizer.get_slot(variable, "momentum") is slot


def test_handles_say_what_is_behind_them():
    variable = tf.Variable([1.0, 2.0])
    assert isinstance(variable, variables.ResourceVariable)
    [data] = variables.handle_data(variable.handle).shape_and_type
    assert [dimension.size for dimension in data.shape.dim] == [2]
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder(tf.resource, [])
        variables.copy_handle_data(variable.handle, placeholder)
        [copied] = variables.handle_data(placeholder).shape_and_type
        assert copied.shape == data.shape


def test_variable_of_a_trace_may_be_made_in_each_one():
    created = []

    @tf.function
    def function(x: Any) -> Any:
        with tf.init_scope():
            created.append(variables.of_trace(tf.constant(5), "made"))
        return created[-1] + tf.cast(x, tf.int32)

    assert [function(tf.constant(x)).numpy() for x in (1, 2.0)] == [6, 7]
    assert [variable.trainable for variable in created] == [False, False]


def test_variable_of_a_handle_is_read_assigned_and_fetched_and_in_no_collection():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[])
        variable = variables.of_handle(handle, tf.TensorSpec([], tf.int32), "made")
        session.run(variable.assign(5).op)
        assert session.run([variable, variable.read_value() + 1]) == [5, 6]
        assert (variable.trainable, tf.compat.v1.global_variables()) == (False, [])


def test_dataset_of_arrays_has_their_rows_by_variables_on_a_device():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = variables.numpy_dataset(np.arange(3), "/device:CPU:0", session)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        session.run(iterator.initializer)
        row = iterator.get_next()
        assert [session.run(row) for _ in range(3)] == [0, 1, 2]
        assert len(tf.compat.v1.global_variables()) == 1
    assert list(variables.numpy_dataset(np.arange(3), "/device:CPU:0", None).as_numpy_iterator()) == [0, 1, 2]


def test_operations_of_xla_compute_what_they_say():
    @tf.function(jit_compile=True, autograph=False)
    def program(x: Any, image: Any, kernel: Any) -> Any:
        part = xla.read_at(x, tf.constant([1]), tf.constant([2]))
        [barred] = xla.optimization_barrier([part])
        return (
            xla.written_at(x, 10.0 * barred, tf.constant([0])),
            xla.convolution(image, kernel, [[0, 0], [0, 0]], kernel_gaps=[2, 2]),
        )

    written, convolved = program(tf.range(4.0), tf.ones([1, 3, 3, 1]), tf.ones([2, 2, 1, 1]))
    np.testing.assert_array_equal(written, [10.0, 20.0, 2.0, 3.0])
    np.testing.assert_array_equal(convolved, np.full([1, 1, 1, 1], 4.0))
    serialized = xla.serialized_frontend_attributes({"a": "b"})
    assert xla.frontend_attributes(serialized) == {"a": "b"}


def test_keras_says_that_it_looks_for_shapes_and_old_keras_has_its_optimizers():
    from tensorflow.python.keras.optimizer_v2 import gradient_descent

    is_symbolic: list[bool] = []

    class Layer(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            is_symbolic.append(old_keras.is_computing_shapes())
            return x

    Layer()(keras.Input([2]))
    Layer()(tf.ones([1, 2]))
    assert is_symbolic == [True, False]
    assert issubclass(gradient_descent.SGD, old_keras.Optimizer)
    assert old_keras.Optimizer in old_keras.keras_2_optimizers()


def test_messages_have_the_forms_that_are_cut():
    reshape = op_errors.with_plain_errors(tf.raw_ops.Reshape)
    with pytest.raises(tf.errors.InvalidArgumentError) as original:
        tf.raw_ops.Reshape(tensor=tf.zeros(3), shape=[2])
    with pytest.raises(tf.errors.InvalidArgumentError) as simplified:
        reshape(tensor=tf.zeros(3), shape=[2])
    assert str(original.value).startswith("{{function_node __wrapped__Reshape")
    assert "[Op:Reshape]" in str(original.value)
    assert str(simplified.value) == "Input to reshape is a tensor with 3 values, but the requested shape has 2"
    assert op_errors.plain_message(str(original.value)) == str(simplified.value)

    @tf.function
    def function(x: Any) -> Any:
        return tf.gather(x, 7)

    with pytest.raises(tf.errors.InvalidArgumentError) as of_function:
        function(tf.zeros(3))
    assert str(of_function.value).startswith("Graph execution error:\n\nDetected at node")
    assert op_errors.plain_message(str(of_function.value)).startswith("indices = 7 is not in [0, 3)")
    assert str(op_errors.with_plain_message(of_function.value)).startswith("indices = 7 is not in [0, 3)")


def test_errors_of_our_operations_in_graphs_alone_are_told_plainly(refused):
    add = op_errors.with_plain_errors(tf.raw_ops.AddV2, eagerly=False)
    assert add(x=1.0, y=2.0).numpy() == 3.0
    not_interpolated = patch.object(error_interpolation, "interpolate_graph", lambda message, graph: message)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        add(x=1.0, y=2.0)
        assert {patches.FUNCTION_ERRORS, patches.SESSION_ERRORS} <= set(getattr(graph, patches._PATCHES))
        op_errors.show_plain_errors_in(graph)
        x = tf.compat.v1.placeholder(tf.float32, [None])
        refused(tf.errors.InvalidArgumentError, "Graph execution error", session.run, tf.gather(x, 7), {x: [1.0]})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, not_interpolated:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        for name in ("a/IpuGather", "a/Gather"):
            with pytest.raises(tf.errors.InvalidArgumentError) as failure:
                session.run(tf.gather(x, 7, name=name), {x: [1.0]})
            assert f"[[{{{{node {name}}}}}]]" in failure.value.message
            assert op_errors.is_ours(failure.value.message) == (name == "a/IpuGather")
