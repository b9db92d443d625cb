"""Old names and arguments of TensorFlow and Keras that scripts need, in the order of docs/porting.md."""

# The compatibility layer gives modules most of these names when it is installed.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Input as KerasInput
from tensorflow.python.keras.mixed_precision import loss_scale_optimizer
from tensorflow.python.keras.optimizer_v2 import gradient_descent

import tensorflow_ipu as ipu
from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._names import resolve

# `keras` and `keras.layers`, and the modules of `tf.keras` for both.
_WITH_INPUT = ("keras", "keras.layers", "keras._tf_keras.keras", "keras._tf_keras.keras.layers")

# New releases of NumPy have some of the names again, with another meaning.
LOST = [row for row in _names.ATTRIBUTES if row[0] != "numpy" or row[1] not in vars(np)]


@pytest.mark.usefixtures("installed")
def test_lost_names_are_back():
    from tensorflow.python.distribute import distribution_strategy_context
    from tensorflow.python.keras.datasets import mnist

    for module, name, target in LOST:
        assert getattr(importlib.import_module(module), name) is resolve(target), (module, name)
    assert mnist.load_data is keras.datasets.mnist.load_data
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        assert distribution_strategy_context.get_strategy() is strategy


def test_names_are_missing_without_the_layer(refused):
    for module, name, _ in LOST:
        assert module == "numpy" or not hasattr(importlib.import_module(module), name), (module, name)
    assert not hasattr(keras.metrics, "MSE")
    assert not hasattr(keras.backend, "sum")
    assert not hasattr(keras, "optimizer_v2")
    for module in _WITH_INPUT:
        refused(ValueError, "80", importlib.import_module(module).Input, 80)
    with ipu.IPUStrategy().scope(), pytest.raises(ValueError, match="not supported"):
        loss_scale_optimizer.LossScaleOptimizer(gradient_descent.SGD(0.1))


@pytest.mark.usefixtures("installed")
def test_control_flow_by_its_old_module_runs_and_a_variable_on_the_ipu_initializes_another_one():
    from tensorflow.python.ipu import scopes
    from tensorflow.python.ops import array_ops, control_flow_ops

    @tf.function
    def count(n):
        last = control_flow_ops.while_loop(lambda i: i < n, lambda i: [i + 2], [tf.constant(0)])
        return control_flow_ops.cond(n > 0, lambda: array_ops.stack([last, n]), lambda: array_ops.stack([n, n]))

    assert count(tf.constant(5)).numpy().tolist() == [6, 5]
    tf1 = tf.compat.v1
    with tf1.Graph().as_default():
        with scopes.ipu_scope("/device:IPU:0"):
            first = tf1.get_variable("first", [3], initializer=tf1.random_normal_initializer(), use_resource=True)
        second = tf1.get_variable("second", initializer=2 * first.initialized_value(), use_resource=True)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            first_value, second_value = session.run([first, second])
    np.testing.assert_array_equal(second_value, 2 * first_value)
    assert tf.Variable([4.0]).initialized_value().numpy().tolist() == [4.0]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.usefixtures("installed")
def test_loss_scale_optimizer_of_the_internal_keras_skips_infinite_steps_under_the_strategy(replicas, configure):
    from tensorflow.python.ipu import ipu_strategy

    configure(replicas)
    strategy = ipu_strategy.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable([1.0, 2.0])
        inner = gradient_descent.SGD(0.25, momentum=0.5)
        optimizer: Any = loss_scale_optimizer.LossScaleOptimizer(inner, initial_scale=1024, dynamic_growth_steps=2)

        @tf.function(jit_compile=True)
        def step(x):
            with tf.GradientTape() as tape:
                scaled = optimizer.get_scaled_loss(tf.reduce_sum(weights * x))
            (gradient,) = optimizer.get_unscaled_gradients(tape.gradient(scaled, [weights]))
            optimizer.apply_gradients([(gradient, weights)])

        state = []
        for x in ([1.0, 2.0], [np.inf, 1.0], [1.0, 1.0], [2.0, 1.0]):
            strategy.run(step, args=(tf.constant(x),))
            state.append([*weights.numpy(), optimizer.loss_scale.numpy()])
    # Gradients are summed over the replicas. The second step halves the scale, and two good ones double it.
    first = np.array([1.0, 2.0]) - 0.25 * replicas * np.array([1.0, 2.0])
    moment = 0.5 * replicas * np.array([1.0, 2.0]) + replicas
    second = first - 0.25 * moment
    third = second - 0.25 * (0.5 * moment + replicas * np.array([2.0, 1.0]))
    np.testing.assert_allclose(state, [[*first, 1024], [*first, 512], [*second, 512], [*third, 1024]], rtol=1e-6)


@pytest.mark.usefixtures("installed")
def test_keras_has_ipu_its_old_modules_and_the_old_names_of_tf_keras():
    import keras.ipu.optimizers
    from tensorflow.keras import ipu

    assert keras.ipu is ipu is tf.keras.ipu
    assert importlib.import_module("tensorflow.keras.ipu.optimizers") is keras.ipu.optimizers
    inputs = keras.Input(3)
    assert isinstance(inputs, keras.engine.keras_tensor.KerasTensor)
    assert type(keras.Model(inputs, keras.layers.Dense(1)(inputs))) is keras.engine.functional.Functional
    assert keras.engine.input_spec.InputSpec is keras.layers.InputSpec
    assert keras.optimizer_v2.gradient_descent.SGD is keras.optimizers.SGD
    assert keras.mixed_precision.policy.set_policy is keras.mixed_precision.set_global_policy
    assert keras.utils.np_utils.to_categorical is keras.utils.to_categorical
    assert keras.metrics.MSE is tf.keras.metrics.MSE
    np.testing.assert_array_equal(keras.metrics.MAE([[1.0, 2.0]], [[3.0, 8.0]]), [4.0])
    np.testing.assert_array_equal(keras.backend.sum(tf.constant([1.0, 2.0])), 3.0)


@pytest.mark.usefixtures("installed")
def test_functions_models_and_optimizers_take_their_old_arguments():
    optimizer = keras.optimizers.Adam(lr=0.25)
    assert optimizer.lr.numpy() == 0.25
    optimizer.lr = 0.5
    assert optimizer.learning_rate.numpy() == 0.5
    assert keras.optimizers.Adam(0.125).lr.numpy() == 0.125
    variable = keras.Variable([1.0, 2.0])
    keras.optimizers.SGD(0.5).apply_gradients([(tf.constant([2.0, 2.0]), variable)], "step")
    np.testing.assert_array_equal(variable.numpy(), [0.0, 1.0])
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=tf.constant(3, tf.int64))
    assert model.steps_per_execution == 3
    function = tf.function(lambda x: x + 1, experimental_compile=True)
    assert function(tf.constant(1)).numpy() == 2


@pytest.mark.usefixtures("installed")
def test_input_takes_one_number_as_its_shape_also_if_imported_before_the_installation(tmp_path):
    for holder in map(importlib.import_module, _WITH_INPUT):
        assert holder.Input(80).shape == (None, 80)
        assert holder.Input(shape=(3, 4), batch_size=2).shape == (2, 3, 4)
    inputs = KerasInput(shape=80)
    path = tmp_path / "model.keras"
    original = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    original.compile("sgd", "mse")
    original.save(path)
    model: Any = keras.models.load_model(path)
    assert model.input_shape == (None, 80)
    assert model.compiled  # Keras once loaded such a model without compiling it, with a warning.
    assert keras.layers.InputLayer(80, 2).get_config()["batch_shape"] == (2, 80)
