"""Canaries: models, layers and data of Keras are as the seam takes them to be."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tensorflow_ipu.keras import _keras3 as internals


def functional() -> Any:
    inputs = keras.Input([4], name="x")
    hidden = layers.Dense(3, name="first", kernel_regularizer="l2")(inputs)
    return keras.Model(inputs, layers.Dense(2, name="second")(hidden))


def test_models_are_called_and_built_with_symbols():
    model = keras.Sequential([layers.Dense(2)])
    symbol = internals.called_with_symbols(model, keras.KerasTensor([None, 3]), training=True)
    assert symbol.shape == (None, 2)
    assert model.built
    other = keras.Sequential([layers.Dense(2)])
    other.compile("sgd", "mse", metrics=["mae"])
    internals.build_for_training(other, (keras.KerasTensor([5, 3]), keras.KerasTensor([5, 2])))
    assert other.optimizer.built
    assert internals.built_shapes(other) is not None
    assert internals.built_shapes(keras.Sequential([layers.Dense(2)])) is None


def test_models_know_their_layers_and_structures():
    model = functional()
    assert isinstance(model, internals.Functional)
    assert [layer.name for layer in internals.all_layers(model)][-2:] == ["first", "second"]
    assert internals.takes_training(model)
    [spec] = internals.input_specs(model)
    assert spec.shape == (None, 4)
    assert len(keras.tree.flatten(internals.input_structure(model))) == 1
    assert len(keras.tree.flatten(internals.output_structure(model))) == 1
    [standard] = internals.standard_inputs(model, np.zeros([2, 4]))
    assert standard.dtype == tf.float32
    sequential = keras.Sequential([keras.Input([4]), layers.Dense(2)])
    assert isinstance(internals.functional_of(sequential), internals.Functional)
    assert internals.functional_of(model) is model
    assert internals.has_own_weights(model.get_layer("first"))
    assert not internals.has_own_weights(model)


def test_calls_of_layers_are_known():
    model = functional()
    depths = internals.calls_by_depth(model)
    assert [call.operation.name for depth in sorted(depths, reverse=True) for call in depths[depth]] == [
        "x",
        "first",
        "second",
    ]
    [call] = internals.calls_of(model.get_layer("second"))
    assert call.operation is model.get_layer("second")
    assert [layer.name for layer in internals.layers_before(call)] == ["first"]
    function = internals.bound_operation(model.get_layer("second"), training=True)
    assert function(tf.ones([1, 3])).shape == (1, 2)


def test_batch_normalization_takes_its_statistics_from_one_method():
    layer = layers.BatchNormalization()
    layer.build([None, 2, 2, 3])
    assert (layer.axis, layer.synchronized) == (-1, False)
    if tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 13):
        assert layer.renorm is False
    images = tf.reshape(tf.range(24.0), [2, 2, 2, 3])
    mean, variance = getattr(layer, "_moments")(images, None)  # noqa: B009
    np.testing.assert_allclose(mean, np.mean(images, (0, 1, 2)))
    np.testing.assert_allclose(variance, np.var(images, (0, 1, 2)))


def test_losses_are_told_apart():
    class Adding(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(tf.constant(5.0))
            return x

    model = keras.Sequential([keras.Input([4]), layers.Dense(4, kernel_regularizer="l2"), Adding(name="adding")])
    model.compile("sgd", "mse")
    model(tf.ones([1, 4]))
    assert [float(loss) for loss in internals.added_losses(model.get_layer("adding"))] == [5.0]
    assert len(internals.weight_losses(model)) == 1
    with internals.with_losses(model, [tf.constant(7.0)]):
        assert [float(loss) for loss in model.losses] == [7.0]
    internals.forget_losses(model)
    assert internals.added_losses(model.get_layer("adding")) == []
    y = tf.ones([1, 4])
    total = internals.total_loss(model, y, y, None, training=True)
    np.testing.assert_allclose(total, sum(float(loss) for loss in model.losses), rtol=1e-6)
    internals.note_loss(model, tf.constant(3.0), 2)
    assert {metric.name: float(metric.result()) for metric in model.metrics}["loss"] == 3.0
    internals.check_compiled(model, "fit")
    seen: list[Any] = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(internals.validation_iterator(model)))
    model.fit(y, y, validation_data=(y, y), verbose=0, callbacks=[watch])
    assert seen[0] is not None
    assert internals.first_epoch(model) is None
    internals.begin_with_epoch(model, 1)
    assert internals.first_epoch(model) == 1
    assert len(model.fit(y, y, epochs=3, verbose=0).epoch) == 2
    assert internals.plain_logs({"loss": np.float32(2.0)}) == {"loss": 2.0}


def test_data_are_seen_by_adapters():
    x, y = np.zeros([6, 2], np.float32), np.zeros([6], np.float32)
    adapter: Any = internals.adapter_for(x, y, None, batch_size=3, shuffle=True)
    assert isinstance(adapter, internals.ArrayDataAdapter)
    assert isinstance(adapter, internals.DataAdapter)
    assert internals.examples_of(adapter) == 6
    assert internals.is_shuffled(adapter) is True
    assert [len(part[0:2]) for part in keras.tree.flatten(internals.arrays_of(adapter))] == [2, 2]
    (first, _), (second, _) = internals.split_off((x, y), 0.5)
    assert len(first[:]) == len(second[:]) == 3
    assert isinstance(internals.adapter_for(tf.data.Dataset.range(3), None, None), internals.TFDatasetAdapter)


def test_optimizers_know_their_strategy(strategy):
    with strategy.scope():
        assert internals.strategy_of(keras.optimizers.SGD()) is strategy
    assert internals.strategy_of(object()) is None


def test_optimizers_update_in_one_method():
    weight, optimizer = keras.Variable([1.0]), keras.optimizers.SGD(0.5)
    internals.build_optimizer(optimizer, [weight])
    assert optimizer.built
    assert optimizer.iterations in internals.variables_of(optimizer)
    internals.update_with(optimizer, [tf.constant([1.0])], [weight])
    assert weight.numpy() == [0.5]
    seen = []
    name, method = internals.updating(lambda gradients, variables: seen.append((gradients, variables)))
    setattr(optimizer, name, method)
    optimizer.apply_gradients([(1.0, weight)])
    assert seen == [((1.0,), (weight,))]
    assert isinstance(optimizer, internals.OPTIMIZERS)
    assert not internals.has_own_minimize(optimizer)
