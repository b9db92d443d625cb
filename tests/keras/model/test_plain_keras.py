"""Tests that Keras's own loops, under a strategy without extensions, compute the same as without the library."""

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers


def compiled(*parts, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([*parts, layers.Dense(3)])
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


FEATURES = np.random.default_rng(5).normal(size=[36, 6]).astype(np.float32)
LABELS = np.random.default_rng(6).integers(0, 3, [36]).astype(np.int32)


def as_arrays(batch):
    return {"x": FEATURES, "y": LABELS, "batch_size": batch, "shuffle": False}


def as_dataset(batch):
    return {"x": tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(batch), "shuffle": False}


class Record(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls: list[Any] = []

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append("epoch")

    def on_train_batch_end(self, batch, logs=None):
        assert "loss" in (logs or {})
        self.calls.append(("batch", batch))


def fit_evaluate_predict(data, batch, scope, **options):
    """Makes a model in a scope, and uses it outside of the scope."""
    with scope:
        model, record = compiled(layers.BatchNormalization(), **options), Record()
    more = {"epochs": 2, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "verbose": 0, "callbacks": [record]}
    held_out = {"validation_data": (FEATURES[:24], LABELS[:24]), "validation_batch_size": 12}
    history = model.fit(**data(batch), **held_out, **more).history
    evaluated = model.evaluate(FEATURES, LABELS, batch_size=12, verbose=0)
    predicted = model.predict(tf.data.Dataset.from_tensor_slices(FEATURES).batch(batch), verbose=0)
    weights = {f"weight {i}": weight for i, weight in enumerate(model.get_weights())}
    return model, record.calls, {**history, "evaluated": evaluated, "predicted": predicted, **weights}


# With `jit_compile=True`, steps were compiled for the host, but the variables are on the IPU.
@pytest.mark.parametrize(
    ("data", "batch", "steps_per_execution", "jit_compile"),
    # 36 examples make a last batch of 4 for one of 16; 3 steps make a last execution of 1 for one of 2.
    [(as_dataset, 16, 1, True), (as_arrays, 12, 2, False)],
)
def test_fit_evaluate_and_predict_equal_those_of_plain_keras(
    data, batch, steps_per_execution, jit_compile, plain_strategy
):
    expected = fit_evaluate_predict(as_arrays, batch, contextlib.nullcontext(), jit_compile=False)[2]
    options = {"steps_per_execution": steps_per_execution, "jit_compile": jit_compile}
    model, calls, results = fit_evaluate_predict(data, batch, plain_strategy.scope(), **options)
    # Keras counts whole executions: the second one of 2 steps ends with step 3, though there is none.
    last_steps = {1: [0, 1, 2], 2: [1, 3]}[steps_per_execution]
    assert calls == 2 * [*(("batch", step) for step in last_steps), "epoch"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} < results.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert {v.value.device.rpartition("/")[2] for v in model.variables} == {"device:IPU:0"}


def test_single_batches_train_test_and_predict(plain_strategy, assert_same):
    x, y = FEATURES[:8], LABELS[:8]

    def use(**options):
        model = compiled(**options)
        trained = [model.train_on_batch(x, y, return_dict=True)["loss"] for _ in range(2)]
        return [trained, model.test_on_batch(x, y), model.predict_on_batch(x), model(x)]

    expected = use(jit_compile=False)
    with plain_strategy.scope():
        assert_same(use(jit_compile=True), expected)


def test_eager_steps_float64_and_tables_are_refused(plain_strategy):
    doubles = FEATURES.astype(np.float64)
    with plain_strategy.scope():
        with pytest.raises(ValueError, match="does not support eager execution"):
            compiled(run_eagerly=True).fit(**as_arrays(12), verbose=0)
        model = compiled()
        dataset = tf.data.Dataset.from_tensor_slices((doubles, LABELS)).batch(12)
        with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
            model.fit(dataset, verbose=0, shuffle=False)
        model.fit(doubles, LABELS.astype(np.int64), batch_size=12, verbose=0)  # Keras converts these.
        table = keras.Sequential([layers.IntegerLookup(vocabulary=[1, 2]), layers.Embedding(4, 2)])
        with pytest.raises(tf.errors.InvalidArgumentError, match="a lookup table .* look up where the data is made"):
            plain_strategy.run(tf.function(lambda x: table(x)), (tf.constant([[1, 2]], tf.int64),))


def test_model_goes_to_files_and_back(plain_strategy, tmp_path, assert_same):
    with plain_strategy.scope():
        model = compiled(layers.BatchNormalization())
        model.fit(**as_arrays(8), epochs=1, verbose=0)
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        model.export(tmp_path / "exported", verbose=False)
    expected = model.predict(FEATURES, verbose=0)

    on_host: Any = keras.models.load_model(tmp_path / "model.keras")
    assert on_host.variables[0].value.device.endswith("CPU:0")
    np.testing.assert_allclose(on_host.predict(FEATURES, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert_same(on_host.optimizer.variables, model.optimizer.variables, rtol=0, atol=0)

    with plain_strategy.scope():
        on_device: Any = keras.models.load_model(tmp_path / "model.keras")
        assert on_device.variables[0].value.device.endswith("IPU:0")
        assert_same(on_device.get_weights(), model.get_weights(), rtol=0, atol=0)
        loaded = compiled(layers.BatchNormalization())
        loaded.build([None, 6])
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(tmp_path / "model.weights.h5")
        assert_same(loaded.get_weights(), model.get_weights(), rtol=0, atol=0)
        assert_same(on_device.optimizer.variables, model.optimizer.variables, rtol=0, atol=0)
        np.testing.assert_allclose(on_device.predict(FEATURES, verbose=0), expected, rtol=1e-5, atol=1e-6)

    served = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(served.serve(FEATURES), expected, rtol=1e-5, atol=1e-6)


def test_datasets_are_read_on_the_host_by_keras_and_by_the_user_outside_of_the_scope(plain_strategy):
    layer = layers.Normalization()
    dataset = tf.data.Dataset.from_tensor_slices(FEATURES).batch(8)
    with plain_strategy.scope():
        layer.adapt(dataset)
        assert len(list(dataset.as_numpy_iterator())) == 5
    assert len([batch.numpy() for batch in dataset]) == 5
    np.testing.assert_allclose(layer.mean, FEATURES.mean(axis=0, keepdims=True), rtol=1e-4, atol=1e-5)
