"""`compile` accepts optimizers of TensorFlow 1: each trains as in TensorFlow 1, or is rejected by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.keras.optimizer_v2 import gradient_descent as legacy

import tensorflow_ipu as ipu
from tensorflow_ipu import optimizers

pytestmark = pytest.mark.usefixtures("installed")

train = tf.compat.v1.train

# Values that differ from the defaults.
FTRL = {"initial_accumulator_value": 0.3, "l1_regularization_strength": 0.05, "l2_regularization_strength": 0.1}
FTRL |= {"l2_shrinkage_regularization_strength": 0.2, "beta": 0.5, "learning_rate_power": -0.6}


@pytest.mark.parametrize(
    "make",
    [
        lambda: train.AdadeltaOptimizer(0.5, rho=0.8, epsilon=0.01),
        lambda: train.AdagradOptimizer(0.25, initial_accumulator_value=1e-6),
        lambda: train.AdamOptimizer(0.125, beta1=0.7, beta2=0.8, epsilon=0.1),
        lambda: train.FtrlOptimizer(0.25, **FTRL),
        lambda: train.GradientDescentOptimizer(tf.constant(0.125)),
        lambda: train.MomentumOptimizer(0.125, momentum=0.75),
        lambda: train.MomentumOptimizer(0.125, momentum=tf.constant(0.75), use_nesterov=True),
        lambda: train.RMSPropOptimizer(0.125, decay=0.8, epsilon=0.01),
        lambda: train.RMSPropOptimizer(0.125, momentum=0.5, centered=True),
    ],
)
def test_optimizer_of_tensorflow_1_updates_as_it_does_there(make):
    expected, actual = tf.Variable(tf.ones([4])), keras.Variable(tf.ones([4]))
    old_optimizer, optimizer = make(), _compiled(make())
    assert isinstance(optimizer, keras.optimizers.Optimizer)
    for gradient in GRADIENTS:
        old_optimizer.apply_gradients([(tf.constant(gradient), expected)])
        optimizer.apply_gradients([(tf.constant(gradient), actual)])
        np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(expected.numpy() - 1).max() > 0.01


GRADIENTS = np.random.RandomState(1).standard_normal([6, 4]).astype(np.float32)


def _compiled(optimizer):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model.optimizer


def test_fit_on_replicas_trains_by_the_rules_of_the_optimizer_of_tensorflow_1(configure):
    configure(2)
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape([8, 2])
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1, use_bias=False)])
        start = model.get_weights()[0]
        model.compile(optimizer=train.RMSPropOptimizer(0.125, momentum=0.5), loss="mse", steps_per_execution=4)
        model.fit(x, x.sum(axis=1, keepdims=True), batch_size=1, verbose=0, shuffle=False)
    weights, optimizer = tf.Variable(start), train.RMSPropOptimizer(0.125, momentum=0.5)
    for batch in np.split(x, 4):
        # Each of two replicas has one sample, and their gradients are summed.
        error = batch @ weights.numpy() - batch.sum(axis=1, keepdims=True)
        optimizer.apply_gradients([(tf.constant(2 * batch.T @ error), weights)])
    np.testing.assert_allclose(model.get_weights()[0], weights.numpy(), rtol=1e-5)


def test_optimizer_of_keras_is_left_alone():
    optimizer = keras.optimizers.SGD(0.1)
    assert _compiled(optimizer) is optimizer
    assert isinstance(_compiled("adam"), keras.optimizers.Adam)


class Mine(train.GradientDescentOptimizer):
    """A class that is not TensorFlow's own, although it inherits from one."""


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            lambda: train.ProximalAdagradOptimizer(0.1),
            "no optimizer like `ProximalAdagradOptimizer`: .*`AdamOptimizer`",
        ),
        (lambda: Mine(0.1), "no optimizer like `Mine`"),
        (
            lambda: optimizers.CrossReplicaOptimizer(train.AdamOptimizer()),
            "`CrossReplicaOptimizer`; pass the wrapped optimizer to `compile`",
        ),
        (
            lambda: optimizers.GradientAccumulationOptimizerV2(train.AdamOptimizer(), 4),
            r"`GradientAccumulationOptimizerV2`; call `model.set_gradient_accumulation_options\(...\)`",
        ),
        (lambda: train.MomentumOptimizer(lambda: 0.1, 0.9), "the `learning_rate` of `MomentumOptimizer` is `<function"),
        (lambda: train.AdamOptimizer(tf.Variable(0.1)), "the `learning_rate` of `AdamOptimizer` is `<tf.Variable"),
        (lambda: legacy.SGD(0.1), "`SGD` is one of `tensorflow.python.keras`; create it from `keras.optimizers`"),
    ],
)
def test_optimizer_without_an_equal_is_refused_by_name(optimizer, message, refused):
    refused(ValueError, message, _compiled, optimizer())
