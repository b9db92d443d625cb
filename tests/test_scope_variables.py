"""Variables of a strategy: their devices, their creation, their initial values, and their checkpoints."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.keras import layers as legacy_layers

import tensorflow_ipu as ipu

IPU = "/job:localhost/replica:0/task:0/device:IPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_variables_in_the_scope_are_on_the_device_with_their_initial_values(strategy):
    values = [2.0, [1.0, 2.0], np.ones([2], np.float32), tf.constant(3.0), tf.zeros([0, 3])]
    with strategy.scope():
        variables = [tf.Variable(value) for value in (*values, lambda: tf.constant(4.0), lambda: 5.0)]
    results = strategy.run(tf.function(lambda: [variable + 1 for variable in variables], jit_compile=True))
    for value, variable, result in zip((*values, 4.0, 5.0), variables, results, strict=True):
        assert variable.device == IPU
        np.testing.assert_array_equal(variable, value)
        np.testing.assert_array_equal(result, np.asarray(value) + 1)


def test_variables_of_any_type_aggregation_and_synchronization_live_on_the_device(strategy):
    kinds = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int32, tf.int64, tf.bool)
    synchronizations = (tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_READ)
    synchronizations += (tf.VariableSynchronization.ON_WRITE,)
    pairs = list(itertools.product(tf.VariableAggregation, synchronizations))
    with strategy.scope():
        typed = [tf.Variable(tf.cast([0, 1], dtype)) for dtype in kinds]
        combined = [
            tf.Variable(1.0, aggregation=aggregation, synchronization=synchronization, trainable=False)
            for aggregation, synchronization in pairs
        ]

    @tf.function(jit_compile=True)
    def program():
        for variable in typed:
            variable.assign(tf.reverse(variable, [0]))
        for variable in combined:
            variable.assign_add(2.0)

    strategy.run(program)
    for variable, dtype in zip(typed, kinds, strict=True):
        assert (variable.device, variable.dtype) == (IPU, dtype)
        np.testing.assert_array_equal(tf.cast(variable, tf.int32), [1, 0])
    for variable, (aggregation, _) in zip(combined, pairs, strict=True):
        assert variable.aggregation == aggregation
        assert variable.numpy() == strategy.extended.read_var(variable).numpy() == 3


def test_initial_value_that_xla_cannot_compute_serves_a_variable_made_in_a_program(strategy):
    variables = []

    @tf.function(jit_compile=True)
    def program():
        if not variables:
            text = "1 2 3"
            variables.append(tf.Variable(lambda: tf.strings.to_number(tf.strings.split([text]).values)))
        return variables[0].assign_add([1.0, 1.0, 1.0])

    assert [strategy.run(program).numpy().tolist() for _ in range(2)] == [[2, 3, 4], [3, 4, 5]]
    assert variables[0].device == IPU
    assert len(variables) == 1


# The values were once random numbers of the program, for which TensorFlow raised `UnliftableError`.
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.Variable(lambda: tf.random.normal([1, 3]) * 2),
        lambda: tf.Variable(tf.random.normal([1, 3]) * 2 + tf.random.uniform([3], seed=4)),
        lambda: keras.layers.Dense(3),
        lambda: legacy_layers.Dense(3, bias_initializer="random_normal"),
    ],
    ids=["callable", "tensor", "layer of Keras", "layer of legacy Keras"],
)
def test_initial_value_that_the_first_call_draws_is_plain_tensorflows(make, strategy):
    def program():
        layers = []

        def first_call():
            if not layers:
                tf.random.uniform([])  # Another random operation comes first.
                layers.append(make())
            return layers[0](tf.ones([1, 3])) if callable(layers[0]) else tf.identity(layers[0])

        keras.utils.set_random_seed(3)
        return tf.function(first_call, autograph=False)

    on_host = program()()
    with strategy.scope():
        np.testing.assert_allclose(strategy.run(program()), on_host, rtol=1e-5)


def test_variable_made_in_the_first_call_keeps_its_value(strategy):
    class Counter(tf.Module):
        count = None

        @tf.function
        def __call__(self, step):
            if self.count is None:
                self.count = tf.Variable(10, trainable=False, name="count")
            return self.count.assign_add(step)

    for i, counter in enumerate((Counter(), Counter()), 1):
        counts = [int(strategy.run(counter.__call__, (tf.constant(i),))) for _ in range(3)]
        assert counts == [10 + i * step for step in (1, 2, 3)]
        np.testing.assert_array_equal(counter.count, counts[-1])


def test_variable_made_in_a_later_call_is_refused(strategy, refused):
    variables = []

    @tf.function
    def program(make):
        if make:
            variables.append(tf.Variable(1.0))
        return tf.constant(1.0)

    with pytest.raises(ValueError, match="(?i)variables? .*first call"):
        strategy.run(tf.function(lambda: variables.append(tf.Variable(1.0)) or variables[-1] + 1))
    strategy.run(program, (False,))
    # The check once compared a list with itself, and the program failed because of a missing initial value.
    refused(ValueError, "made variables on a call that is not its first", strategy.run, program, (True,))


def test_variable_is_known_to_be_of_the_scope_and_where_another_one_is(strategy):
    outside = tf.Variable(1.0)
    with strategy.scope():
        inside = tf.Variable(1.0)
        with strategy.extended.colocate_vars_with(inside):
            assert tf.Variable(2.0).device == IPU
        with (
            pytest.raises(ValueError, match=r"make the model inside `strategy.scope\(\)`"),
            strategy.extended.colocate_vars_with(outside),
        ):
            pass
    created = strategy.extended.variable_created_in_scope
    assert created(inside)
    # Each variable was once reported to be of each scope.
    assert not created(outside)
    assert not ipu.IPUStrategy().extended.variable_created_in_scope(inside)


def test_initial_value_is_computed_on_the_host_and_the_variable_can_be_used_eagerly(strategy):
    places = []

    def initial(shape, dtype=tf.float32):
        value = tf.ones(shape, dtype)
        places.append(value.device)
        return value

    with strategy.scope():
        variable = tf.Variable(functools.partial(initial, [2]))
        variable.assign_add([1.0, 2.0])
        variable[0].assign(9.0)
    assert places == [CPU]
    np.testing.assert_array_equal(variable * 2, [18, 6])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable**2)
    np.testing.assert_array_equal(tape.gradient(loss, variable), [18, 6])


def test_variable_of_a_device_that_is_configured_later_is_used_then(configure, refused):
    strategy = ipu.IPUStrategy("/device:IPU:2")
    with strategy.scope():
        variable = tf.Variable(lambda: tf.random.stateless_normal([3], [1, 2]))
    program = tf.function(lambda: variable * 2, jit_compile=True)
    refused(ipu.errors.NotConfiguredError, "`/device:IPU:2` does not exist", strategy.run, program)
    configure(1, 1, 1)
    np.testing.assert_array_equal(strategy.run(program), 2 * tf.random.stateless_normal([3], [1, 2]))


# Saving.


def test_checkpoint_goes_from_the_device_to_the_host_and_back_and_to_variables_made_later(strategy, tmp_path):
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
        saved = tf.train.Checkpoint(variable=variable, step=tf.Variable(3)).save(str(tmp_path / "saved"))
    variable.assign([7.0, 7.0])
    tf.train.Checkpoint(variable=variable).restore(saved).expect_partial().assert_existing_objects_matched()
    np.testing.assert_array_equal(variable, [1, 2])
    for value in ([0.0, 0.0], lambda: tf.zeros([2])):
        checkpoint = tf.train.Checkpoint()
        status = checkpoint.restore(saved)
        with strategy.scope():
            checkpoint.variable = tf.Variable(value)
        status.expect_partial().assert_existing_objects_matched()
        assert checkpoint.variable.device == IPU
        np.testing.assert_array_equal(checkpoint.variable, [1, 2])
    on_host = tf.Variable([0.0, 0.0])
    tf.train.Checkpoint(variable=on_host).restore(saved).expect_partial()
    np.testing.assert_array_equal(on_host, [1, 2])
    on_host.assign([5.0, 6.0])
    saved = tf.train.Checkpoint(variable=on_host).save(str(tmp_path / "host"))
    with strategy.scope():
        tf.train.Checkpoint(variable=variable).restore(saved).assert_consumed()
    np.testing.assert_array_equal(strategy.run(tf.function(lambda: variable + 0)), [5, 6])
    assert variable.device == IPU


def test_saved_model_of_the_scope_loads_on_the_host_and_on_the_device(strategy, tmp_path):
    with strategy.scope():
        module: Any = tf.Module()
        module.weight = tf.Variable([[2.0], [3.0]])
        module.serve = tf.function(lambda x: tf.matmul(x, module.weight), [tf.TensorSpec([None, 2])])
        assert strategy.run(module.serve, (tf.ones([1, 2]),)).numpy() == 5
        tf.saved_model.save(module, str(tmp_path))
    on_host = tf.saved_model.load(str(tmp_path))
    assert on_host.weight.device == CPU
    np.testing.assert_array_equal(on_host.serve(tf.ones([2, 2])), [[5], [5]])
    with strategy.scope():
        on_device = tf.saved_model.load(str(tmp_path))
    assert on_device.weight.device == IPU
    np.testing.assert_array_equal(strategy.run(on_device.serve, (tf.ones([2, 2]),)), [[5], [5]])
