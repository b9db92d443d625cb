"""Canaries: models, layers, data and optimizers of both versions of Keras behave as their adapter expects."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.tensors import tf_variable
from tensorflow_ipu._tensorflow import keras_choice
from tensorflow_ipu.keras._keras import internals, keras

layers = keras.layers
IS_2 = environment.uses_keras_2()


def functional() -> Any:
    inputs = keras.Input([4], name="x")
    hidden = layers.Dense(3, name="first", kernel_regularizer="l2")(inputs)
    return keras.Model(inputs, layers.Dense(2, name="second")(hidden))


def sequential(*parts: Any) -> Any:
    return keras.Sequential([keras.Input([4]), *parts])


def test_keras_is_chosen_once_and_a_later_change_of_the_variable_is_logged(monkeypatch, caplog):
    keras_choice._warn.cache_clear()
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0" if IS_2 else "1")
    for _ in range(2):
        assert keras_choice.settle() is IS_2
        with ipu.IPUStrategy().scope():
            assert isinstance(keras.Sequential(), tf.keras.Model)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"so this process stays with Keras {2 if IS_2 else 3}" in record.getMessage()
    monkeypatch.undo()
    keras_choice.warn_of_late_change()
    assert caplog.records == [record]


def test_models_are_called_and_built_with_symbols():
    model = keras.Sequential([layers.Dense(2)])
    symbol = internals.called_with_symbols(model, internals.symbol([None, 3], tf.float32), training=True)
    assert tuple(symbol.shape) == (None, 2)
    assert model.built
    compiled = keras.Sequential([layers.Dense(2)])
    compiled.compile("sgd", "mse", metrics=["mae"])
    internals.build_for_training(compiled, (internals.symbol([5, 3], "float32"), internals.symbol([5, 2], "float32")))
    assert internals.variables_of(compiled.optimizer)
    assert list((internals.built_shapes(compiled) or {}).values()) == [(5, 3)]
    assert internals.built_shapes(keras.Sequential([layers.Dense(2)])) is None
    assert internals.input_dtype(compiled) == "float32"
    last = keras.Sequential([layers.Dense(2)])
    last.compile("sgd", "mse")
    internals.build_by_super(
        last, data_batch=(internals.symbol([5, 3], "float32"), internals.symbol([5, 2], "float32"))
    )
    assert last.built is not IS_2


def test_steps_are_rewritten_as_keras_rewrites_them():
    class Branch(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * 2 if tf.reduce_sum(inputs) > 0 else inputs

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        return internals.converting(Branch())(x)

    with (
        contextlib.nullcontext() if IS_2 else pytest.raises(Exception, match="symbolic `tf.Tensor` as a Python `bool`")
    ):
        assert float(step(tf.constant(3.0))) == 6.0


def test_models_know_their_layers_and_structures():
    model = functional()
    assert isinstance(model, internals.Functional)
    assert [layer.name for layer in internals.all_layers(model)][-2:] == ["first", "second"]
    assert internals.takes_training(model)
    [spec] = internals.input_specs(model)
    assert tuple(spec.shape) == (None, 4)
    assert len(tf.nest.flatten(internals.input_structure(model))) == 1
    assert len(tf.nest.flatten(internals.output_structure(model))) == 1
    [standard] = internals.standard_inputs(model, tf.zeros([2, 4], tf.float64))
    assert standard.dtype == tf.float32
    assert isinstance(internals.functional_of(sequential(layers.Dense(2))), internals.Functional)
    assert internals.functional_of(keras.Sequential([layers.Dense(2)])) is None
    assert internals.functional_of(model) is model
    assert internals.has_own_weights(model.get_layer("first"))
    assert not internals.has_own_weights(model)


def test_calls_of_layers_are_known():
    model = functional()
    depths = internals.calls_by_depth(model)
    names = [call.operation.name for depth in sorted(depths, reverse=True) for call in depths[depth]]
    assert names == ["x", "first", "second"]
    [call] = internals.calls_of(model.get_layer("second"))
    assert call is internals.calls_of(model.get_layer("second"))[0]
    assert call.operation is model.get_layer("second")
    assert not call.is_input
    assert not IS_2 or isinstance(call, internals.Node)
    assert [layer.name for layer in internals.layers_before(call)] == ["first"]
    args, kwargs = call.arguments.fill_in({id(call.input_tensors[0]): tf.ones([1, 3])})
    function = internals.bound_operation(model.get_layer("second"), training=True)
    assert tuple(function(*args, **kwargs).shape) == (1, 2)
    assert not internals.is_made_by_keras(model.get_layer("second"))
    scaled = keras.Model(model.inputs, model.outputs[0] * 2.0)
    assert internals.is_made_by_keras(scaled.layers[-1]) is IS_2
    internals.forget_calls(model.get_layer("second"), 0)
    assert internals.calls_of(model.get_layer("second")) == []


def test_layers_draw_recompute_and_mask():
    dropout = layers.Dropout(0.5)
    drawn = internals.seed_generator()
    assert (drawn is None) is IS_2
    model = sequential(layers.Dense(4, use_bias=False), dropout)
    [weight] = model.trainable_variables
    assert internals.uncast(weight) is weight
    computed = []

    @tf.function(autograph=False)
    def twice(x: Any) -> Any:
        computed.append(internals.computes_again())
        with internals.stateless(model, [(weight, tf.zeros([4, 4]))], []):
            return model(x)

    np.testing.assert_array_equal(twice(tf.ones([1, 4])), tf.zeros([1, 4]))
    assert computed
    mask = tf.constant([[True, False]])
    assert internals.mask_after(layers.Masking(), tf.ones([1, 2, 3]), None) is not None
    outputs = tf.ones([1, 2, 3])
    internals.put_masks(outputs, [mask] if IS_2 else [])
    assert len(internals.masks_of(outputs)) == int(IS_2)
    passed_options: dict[str, Any] = {}
    layer = layers.LSTM(2)
    internals.make_recurrent(layer, lambda **options: passed_options.update(options), 3, False, units=2)
    assert passed_options["units"] == 2


def test_layers_compute_by_other_policies_and_archives_are_written(tmp_path, capsys):
    model = sequential(layers.Dense(2), layers.BatchNormalization())
    policies = [layer.dtype_policy for layer in model.layers]
    for layer in model.layers:
        internals.set_policy(layer, "mixed_float16")

    @tf.function(autograph=False)
    def half(x: Any) -> Any:
        with internals.casting(model.layers):
            return model(x)

    assert half(tf.ones([1, 4])).dtype == tf.float16
    for layer, policy in zip(model.layers, policies, strict=True):
        internals.set_policy(layer, policy)
    assert model(tf.ones([1, 4])).dtype == tf.float32
    archive: Any = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", model, input_signature=[tf.TensorSpec([1, 4])])
    internals.write_archive(archive, tmp_path / "served")
    assert (tmp_path / "served" / "saved_model.pb").exists()
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(IS_2, reason="Keras 2 calls TensorFlow's operation")
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


@pytest.mark.skipif(not IS_2, reason="recurrent layers of Keras 3 select nothing in programs")
def test_recurrent_layers_of_keras_2_select_by_processor():
    from tf_keras.src.layers.rnn import gru, lstm

    for module, name in ((lstm, "lstm"), (gru, "gru")):
        select = getattr(module, f"{name}_with_backend_selection")
        standard = internals.without_selection(select)  # pyright: ignore[reportAttributeAccessIssue]
        assert standard is getattr(module, f"standard_{name}")
        assert inspect.signature(standard).parameters.keys() <= inspect.signature(select).parameters.keys()


def test_losses_are_told_apart():
    class Adding(layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(tf.constant(5.0))
            return inputs

    model = sequential(layers.Dense(4, kernel_regularizer="l2"), Adding(name="adding"))
    model.compile("sgd", "mse")
    internals.forget_losses(model)
    model(tf.ones([1, 4]))
    assert [float(loss) for loss in internals.added_losses(model.get_layer("adding"))] == [5.0]
    [cost] = internals.weight_losses(model)
    y = tf.ones([1, 4])
    total = internals.total_loss(model, y, y, None, training=True)
    np.testing.assert_allclose(total, 5.0 + cost, rtol=1e-6)
    np.testing.assert_allclose(internals.total_loss(model, y, y, None, True, [tf.constant(7.0)]), 7.0)
    assert type(model) is keras.Sequential
    internals.forget_losses(model)
    assert internals.added_losses(model.get_layer("adding")) == []
    model.reset_metrics()
    loss = internals.total_loss(model, y, y, None, True, [tf.constant(3.0)])
    internals.note_loss(model, loss, 1)
    assert {metric.name: float(metric.result()) for metric in model.metrics}["loss"] == 3.0


def test_loops_say_where_they_are(tmp_path):
    model = sequential(layers.Dense(4))
    with pytest.raises((RuntimeError, ValueError), match="compile"):
        internals.check_compiled(model, "fit")
    model.compile("sgd", "mse", steps_per_execution=2)
    internals.check_compiled(model, "fit")
    internals.check_call(model, "fit")
    assert internals.steps_per_execution(model) == 2
    y = tf.ones([2, 4])
    callback = keras.callbacks.BackupAndRestore(str(tmp_path))
    internals.accept_strategy(callback, tf.distribute.get_strategy())
    model.fit(y, y, batch_size=1, verbose=0)
    assert internals.first_epoch(model) is None
    internals.set_first_epoch(model, 1)
    assert len(model.fit(y, y, epochs=3, verbose=0).epoch) == 2
    assert internals.plain_logs({"loss": np.float32(2.0)}) == {"loss": 2.0}
    internals.count_steps(model, "train", 3)


def test_a_loop_takes_its_steps_at_once_as_it_begins():
    model = sequential(layers.Dense(4))
    model.compile("sgd", "mse", steps_per_execution=2)
    weights, begun = len(model.weights), []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            begun.append(batch)

    y = tf.ones([4, 4])
    with internals.with_steps_per_execution(model, 1):
        model.fit(y, y, batch_size=1, verbose=0, callbacks=[Watch()])
    assert begun == [0, 1, 2, 3]
    assert internals.steps_per_execution(model) == 2
    assert len(model.weights) == weights
    gathering = internals.variables_of_metrics(model)
    assert gathering
    assert all(isinstance(tf_variable(variable), tf.Variable) for variable in gathering)
    validated: list[Any] = []
    watch = keras.callbacks.LambdaCallback()
    watch.on_test_begin = lambda logs=None: validated.append(internals.use_steps_of_validation_data(model))  # pyright: ignore[reportAttributeAccessIssue]
    model.fit(y, y, batch_size=2, validation_data=(y, y), verbose=0, callbacks=[watch])
    assert validated == [None]
    internals.note_program(model, "train", validated)
    assert getattr(model, "train_tf_function", validated) is validated


def test_data_are_seen_by_adapters():
    x, y = np.zeros([6, 2], np.float32), np.zeros([6], np.float32)
    options = {"steps_per_epoch": None, "class_weight": None}
    adapter: Any = internals.adapter_for(x, y, None, batch_size=3, shuffle=True, **options)
    assert isinstance(adapter, internals.ArrayDataAdapter)
    assert isinstance(adapter, internals.DataAdapter)
    assert (adapter.batch_size, adapter.num_batches, adapter.has_partial_batch) == (3, 2, False)
    assert internals.examples_of(adapter) == 6
    assert internals.is_shuffled(adapter) is True
    assert internals.has_all_epochs(adapter) is IS_2
    assert [len(part[0:2]) for part in tf.nest.flatten(internals.arrays_of(adapter))] == [2, 2]
    (first, _), (second, _) = internals.split_validation_data((x, y), 0.5)
    assert len(first[:]) == len(second[:]) == 3
    dataset = tf.data.Dataset.range(3)
    adapter = internals.adapter_for(dataset, None, None, batch_size=None, shuffle=False, **options)
    assert isinstance(adapter, internals.TFDatasetAdapter)
    assert adapter.num_batches == 3


@pytest.mark.parametrize("kinds", ["optimizers", "keras"])
def test_optimizers_update_in_one_method(kinds, strategy):
    sgd = internals.optimizers.SGD if kinds == "optimizers" else keras.optimizers.SGD
    with strategy.scope():
        assert internals.strategy_of(sgd()) is strategy
    assert internals.strategy_of(object()) is None
    layer = layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build([None, 1])
    weight, optimizer = layer.kernel, sgd(0.5)
    internals.build_optimizer(optimizer, [weight])
    assert internals.variables_of(optimizer)
    internals.update_with(optimizer, [tf.constant([[1.0]])], [weight])
    assert np.asarray(weight) == [[0.5]]
    seen: list[Any] = []
    name, method = internals.updating(lambda gradients, variables: seen.append((gradients, variables)))
    setattr(optimizer, name, method)
    optimizer.apply_gradients([(1.0, weight)])
    assert [len(part) for part in seen[0]] == [1, 1]
    assert isinstance(optimizer, internals.OPTIMIZERS)
    assert not internals.has_own_minimize(optimizer)
    assert float(internals.scaled_loss(optimizer, tf.constant(2.0))) == 2.0
    half = layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="float16")
    half.build([None, 1])
    half_optimizer = sgd(0.5)
    internals.build_optimizer(half_optimizer, [half.kernel])
    with internals.casting_gradients(half_optimizer):
        half_optimizer.apply_gradients([(tf.constant([[1.0]]), half.kernel)])
    assert np.asarray(half.kernel) == [[0.5]]
    if kinds == "optimizers" and IS_2:
        halved = [lambda pairs: [(gradient / 2.0, variable) for gradient, variable in pairs]]
        transforming = sgd(0.5, gradient_transformers=halved)
        slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([0]), tf.constant([1, 1]))
        with internals.transforming_dense(transforming):
            transforming.apply_gradients([(slices, weight)])
        assert np.asarray(weight) == [[0.25]]
    with internals.scaling_losses(optimizer):
        assert IS_2 or "_compute_gradients" not in vars(optimizer)


@pytest.mark.skipif(not IS_2, reason="optimizers of Keras 3 have no `minimize`")
@pytest.mark.parametrize("kind", ["optimizers", "keras"])
def test_the_first_half_of_minimize_is_known(kind):
    sgd = internals.optimizers.SGD if kind == "optimizers" else keras.optimizers.SGD
    weight = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = weight * weight
    [(gradient, _)] = internals.computed_gradients(sgd(), loss, [weight], None, tape)  # pyright: ignore[reportAttributeAccessIssue]
    assert float(gradient) == 6.0


def test_both_adapters_have_the_same_functions():
    from tensorflow_ipu.keras import _keras2, _keras2_training, _keras3

    def functions(*modules: Any) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for module in modules
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
        }

    first, second = functions(_keras3), functions(_keras2, _keras2_training)
    assert first.keys() - second.keys() == set()
    assert second.keys() - first.keys() == {"computed_gradients", "without_selection"}
    assert {name: second[name] for name in first} == first
