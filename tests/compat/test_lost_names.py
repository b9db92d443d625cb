# ruff: noqa: NPY001, NPY003, NPY201
"""Names of NumPy, TensorFlow and `tensorflow_addons` that programs of 2021 use, with the compatibility layer."""

# The compatibility layer gives modules most of these names when it is installed.
# pyright: reportAttributeAccessIssue=false

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compat
from tensorflow_ipu.compat import _lost_names


@pytest.fixture
def logged(caplog, monkeypatch):
    """A function that returns the log messages of the layer."""
    monkeypatch.setattr(_lost_names, "_noted", set())
    caplog.set_level(logging.INFO, "tensorflow_ipu.compat")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("tensorflow_ipu.compat")]


def test_names_of_numpy_are_back_until_the_layer_goes_each_with_a_line_in_the_log(logged):
    names = ["int", "float", "float_", "Inf", "product", "asscalar"]
    assert not any(hasattr(np, name) for name in names)
    compat.install()
    try:
        assert [np.int, np.float, np.object, np.str, np.float_] == [int, float, object, str, np.float64]
        assert np.product([2, 3]) == 6
        assert np.zeros([2], np.int).dtype == np.int64
        assert np.bool_ is np.array([True]).dtype.type
        with pytest.raises(AttributeError, match="no_such"):
            np.no_such  # noqa: B018
    finally:
        compat.uninstall()
    assert not any(hasattr(np, name) for name in names)
    assert [line for line in logged() if "numpy.int`" in line] == ["`numpy.int` is replaced by `int`"]


@pytest.mark.usefixtures("installed")
def test_a_learning_rate_may_be_any_number_whose_value_is_known(logged):
    for rate in (np.float32(0.5), np.array(0.5), tf.constant(0.5), tf.constant(0.5, tf.float16)):
        assert float(keras.optimizers.SGD(rate).learning_rate) == 0.5
    assert float(keras.optimizers.SGD(2).learning_rate) == 2.0
    with pytest.raises(ValueError, match="learning_rate"):
        keras.optimizers.SGD(tf.constant([0.5]))
    assert float(keras.optimizers.Adam(lr=np.int64(2)).learning_rate) == 2.0
    assert logged()[0] == "a learning rate of type `float32` is replaced by a Python float"


@pytest.mark.usefixtures("installed")
def test_error_of_estimators_suggests_replacements(logged):
    with pytest.raises(AttributeError, match=r"removed estimators in 2.16: train a Keras model by `fit`"):
        tf.estimator.Estimator  # noqa: B018
    with pytest.raises(AttributeError, match="removed estimators"):
        tf.compat.v1.estimator.EstimatorSpec  # noqa: B018
    from tensorflow.python.data.experimental.ops import threading_options
    from tensorflow.python.framework import ops

    assert ops.IndexedSlices is tf.IndexedSlices
    assert ops.IndexedSlices is tf.IndexedSlices
    assert threading_options.ThreadingOptions is type(tf.data.Options().threading)
    assert sum("framework.ops.IndexedSlices`" in line for line in logged()) == 1
    assert sum("threading_options.ThreadingOptions`" in line for line in logged()) == 1


@pytest.fixture
def addons():
    """The layer's module `tensorflow_addons`."""
    compat.install()
    import tensorflow_addons

    yield tensorflow_addons
    compat.uninstall()


def test_weights_decay_before_each_update_but_those_that_are_left_out(addons):
    optimizers = addons.optimizers
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.1, 0.2])
    extended = optimizers.extend_with_decoupled_weight_decay(keras.optimizers.SGD)

    class Own(optimizers.DecoupledWeightDecayExtension, keras.optimizers.SGD):
        """A class of the form that programs contain."""

    for make, decays in (
        (lambda: optimizers.SGDW(0.1, 0.5), (0.1, 0.1)),
        (lambda: extended(lambda: 0.1, 0.5), (0.1, 0.1)),
        (lambda: Own(0.1, learning_rate=0.5), (0.1, 0.1)),
        (lambda: optimizers.SGDW(schedule, 0.5), (0.1, 0.2)),
        (lambda: optimizers.SGDW(0.1, 0.5, exclude_from_weight_decay=["w"]), (0.0, 0.0)),
        (lambda: optimizers.SGDW.from_config(optimizers.SGDW(0.1, 0.5).get_config()), (0.1, 0.1)),
    ):
        optimizer, weights = make(), keras.Variable([2.0, 4.0], name="w")
        expected = np.array([2.0, 4.0])
        for decay in decays:
            optimizer.apply_gradients([(tf.constant([1.0, 1.0]), weights)])
            expected = expected * (1 - decay) - 0.5
        np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-6)
    optimizer, weights = optimizers.SGDW(0.1, 0.5), keras.Variable([2.0])
    optimizer.apply_gradients([(tf.constant([1.0]), weights)], decay_var_list=[])
    np.testing.assert_allclose(weights.numpy(), [1.5], rtol=1e-6)


def test_model_of_addons_trains_in_the_scope(addons):
    with ipu.IPUStrategy().scope():
        layers = [
            addons.layers.WeightNormalization(keras.layers.Dense(4)),
            addons.layers.GELU(),
            addons.layers.GroupNormalization(2),
            keras.layers.Dense(2),
        ]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile(addons.optimizers.AdamW(1e-3, 1e-2), addons.losses.SigmoidFocalCrossEntropy(from_logits=True))
        x, y = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.eye(2, dtype=np.float32)[[0, 1, 0, 1]]
        losses = model.fit(x, y, epochs=3, batch_size=2, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert addons.optimizers.LAMB(0.1, weight_decay_rate=0.1).name == "LAMB"


def test_f1_score_takes_labels_and_predictions_of_any_type(addons):
    score = addons.metrics.F1Score(2, threshold=0.5)
    score.update_state(tf.constant([[1, 0], [0, 1]]), tf.constant([[0.9, 0.1], [0.2, 0.8]], tf.float16))
    np.testing.assert_allclose(score.result(), [1.0, 1.0], rtol=1e-6)


def test_weight_normalization_trains_length_and_direction_apart(addons):
    x = tf.random.stateless_normal([16, 3], [1, 2])
    layer = addons.layers.WeightNormalization(keras.layers.Dense(3, kernel_initializer="identity"))
    outputs = layer(x)
    np.testing.assert_allclose(tf.nn.moments(outputs, [0]), [np.zeros(3), np.ones(3)], atol=1e-5)
    # Another batch does not set the weights again.
    np.testing.assert_allclose(layer(x * 2.0), outputs + outputs - layer(x * 0.0), rtol=1e-4, atol=1e-5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x) ** 2)
    of_length, of_direction = tape.gradient(loss, [layer.g.value, layer.v.value])
    assert np.abs(of_length).min() > 0.1
    np.testing.assert_allclose(np.diag(of_direction), np.zeros(3), atol=1e-5)
    np.testing.assert_allclose(layer.remove()(x), outputs, rtol=1e-5)
    for original in (keras.layers.Conv2D(2, 2), keras.layers.LSTM(4)):
        images = tf.random.stateless_normal([2, 4, 4, 3][: 4 - isinstance(original, keras.layers.LSTM)], [3, 4])
        np.testing.assert_allclose(
            addons.layers.WeightNormalization(original, data_init=False)(images), original(images), 1e-5, 1e-6
        )
    with pytest.raises(ValueError, match="needs a layer with a `kernel`"):
        addons.layers.WeightNormalization(keras.layers.Flatten())(x)


def test_functions_and_metrics_of_addons_have_the_numbers_of_its_pages(addons):
    score = addons.metrics.F1Score(3, threshold=0.5)
    score.update_state(
        np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]], np.float32),
        np.array([[0.2, 0.6, 0.7], [0.2, 0.6, 0.6], [0.6, 0.8, 0.0]], np.float32),
    )
    np.testing.assert_allclose(score.result(), [0.5, 0.8, 2 / 3], rtol=1e-5)
    correlation = addons.metrics.MatthewsCorrelationCoefficient(2)
    correlation.update_state(np.eye(2)[[1, 1, 1, 0]], np.eye(2)[[1, 0, 1, 1]])
    assert float(correlation.result()) == pytest.approx(-1 / 3)
    loss = addons.losses.sigmoid_focal_crossentropy(np.array([[1.0], [1.0], [0.0]]), np.array([[0.97], [0.91], [0.03]]))
    np.testing.assert_allclose(loss, [6.8532745e-06, 1.9097870e-04, 2.0559824e-05], rtol=1e-4)
    np.testing.assert_allclose(addons.activations.gelu(tf.constant([1.0])), [0.841192], rtol=1e-5)
    normal = addons.layers.InstanceNormalization()(tf.random.stateless_normal([2, 4, 4, 3], [1, 2]))
    np.testing.assert_allclose(tf.reduce_mean(normal, [1, 2]), np.zeros([2, 3]), atol=1e-6)
    with pytest.raises(AttributeError, match="`Yogi`.*no longer installs"):
        addons.optimizers.Yogi  # noqa: B018
