"""Keras under a strategy without extensions computes what it does without the library: custom loops, and Keras's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration

PLAIN_ITER = tf.data.Dataset.__iter__
STEPS, BATCH = 4, 8


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    reset_ipu_configuration()
    keras.backend.clear_session()
    yield
    reset_ipu_configuration()
    assert tf.data.Dataset.__iter__ is PLAIN_ITER


@pytest.fixture
def strategy() -> ipu.IPUStrategy:
    return ipu.IPUStrategy(enable_keras_extensions=False)


# Models, each with the shape of its inputs.


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="tanh")
        self.head = layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.hidden(x))


def functional() -> keras.Model:
    inputs = keras.Input([6])
    left = layers.Dense(5, activation="relu")(inputs)
    right = layers.Dense(5, activation="gelu")(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.concatenate([left, right])))


def sequential(*parts: Any) -> Callable[[], keras.Model]:
    return lambda: keras.Sequential([*(part() for part in parts), layers.Dense(3)])


MODELS: dict[str, tuple[Callable[[], keras.Model], list[int]]] = {
    "linear": (sequential(), [6]),
    "sequential": (sequential(lambda: layers.Dense(8, activation="relu")), [6]),
    "functional": (functional, [6]),
    "subclassed": (Subclassed, [6]),
    "convolution": (
        sequential(
            lambda: layers.Conv2D(4, 3, padding="same", activation="relu"),
            lambda: layers.MaxPooling2D(),
            lambda: layers.Conv2D(4, 3, strides=2),
            lambda: layers.GlobalAveragePooling2D(),
        ),
        [8, 8, 2],
    ),
    "normalization": (
        sequential(
            lambda: layers.Dense(8),
            lambda: layers.BatchNormalization(momentum=0.5),
            lambda: layers.LayerNormalization(),
        ),
        [6],
    ),
    "dropout": (sequential(lambda: layers.Dense(8), lambda: layers.Dropout(0.5, seed=7)), [6]),
    "recurrent": (sequential(lambda: layers.LSTM(4)), [5, 2]),
    "embedding": (sequential(lambda: layers.Embedding(10, 4), lambda: SelfAttention(), lambda: layers.Flatten()), [3]),
}
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, clipnorm=1.0),
    "rmsprop": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5), momentum=0.5
    ),
    "averaging": lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}
CASES = [*((model, "momentum") for model in MODELS), *(("linear", optimizer) for optimizer in OPTIMIZERS)]


class SelfAttention(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(1, 4)

    def call(self, x: Any) -> Any:
        return self.attention(x, x, use_causal_mask=True)


def batches(shape: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Features, integers where a table is looked up, and labels: a batch a step."""
    random = np.random.default_rng(1)
    size = [STEPS, BATCH, *shape]
    features = random.integers(0, 10, size) if shape == [3] else random.normal(size=size)
    return features.astype(np.int32 if shape == [3] else np.float32), random.integers(0, 3, size[:2]).astype(np.int32)


class Training:
    """A model, an optimizer and a loss, made from one seed, and a step of training."""

    def __init__(self, model: str, optimizer: str) -> None:
        keras.utils.set_random_seed(0)
        self.model = MODELS[model][0]()
        self.optimizer = OPTIMIZERS[optimizer]()
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def values(self) -> list[np.ndarray]:
        return [np.asarray(v) for v in (*self.model.variables, *self.optimizer.variables)]

    def variables(self) -> list[Any]:
        return [v.value for v in (*self.model.variables, *self.optimizer.variables)]


def assert_same(left: list[Any], right: list[Any], **tolerance: float) -> None:
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, **({"rtol": 0} | tolerance))


@functools.cache
def plain_training(case: tuple[str, str]) -> tuple[list[Any], list[np.ndarray]]:
    """The losses and the values of all variables after training without the library."""
    plain = Training(*case)
    step = tf.function(plain.step, jit_compile=True)
    return [step(x, y).numpy() for x, y in zip(*batches(MODELS[case[0]][1]), strict=True)], plain.values()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_steps_equal_those_of_plain_keras_to_the_bit(case: tuple[str, str], strategy: Any) -> None:
    losses, values = plain_training(case)
    # All variables are made inside of the first call.
    with strategy.scope():
        training = Training(*case)
        step = tf.function(training.step, jit_compile=True)
        data = zip(*batches(MODELS[case[0]][1]), strict=True)
        assert [strategy.run(step, (x, y)).numpy() for x, y in data] == losses
    assert_same(training.values(), values, atol=0)
    assert {variable.device.rpartition("/")[2] for variable in training.variables()} == {"device:IPU:0"}


@pytest.mark.parametrize("model", ["convolution", "normalization"])
def test_loop_on_the_device_equals_plain_keras_to_float_rounding(model: str, strategy: Any) -> None:
    losses, values = plain_training((model, "momentum"))
    with strategy.scope():
        training = Training(model, "momentum")
        queue = ipu.IPUOutfeedQueue()
        source = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(batches(MODELS[model][1])))
        source.initializer  # noqa: B018

        @tf.function(jit_compile=True)
        def program(n: Any) -> None:
            ipu.loops.repeat(n, lambda x, y: queue.enqueue(training.step(x, y)), infeed_queue=source)

        for n in (1, STEPS - 1):
            strategy.run(program, (tf.constant(n),))
    np.testing.assert_allclose(queue.dequeue(), losses, rtol=1e-5)
    assert_same(training.values(), values, rtol=1e-4, atol=1e-5)


def test_training_goes_on_from_a_model_that_was_built_before(strategy: Any) -> None:
    features, labels = batches([6])
    with strategy.scope():
        training = Training("sequential", "adam")
        training.model.build([None, 6])
        training.optimizer.build(training.model.trainable_variables)
        before = training.values()
        iterator = iter(tf.data.Dataset.from_tensor_slices((features, labels)))

        @tf.function(jit_compile=True)
        def program(iterator: Any, training: Any) -> Any:
            loss = 0.0
            for _ in tf.range(STEPS):
                loss = training.step(*next(iterator))
            return loss

        assert strategy.run(program, (iterator, training)).numpy() > 0
    assert all(np.any(a != b) for a, b in zip(before[:4], training.values()[:4], strict=True))


def test_metrics_gather_in_a_program(strategy: Any) -> None:
    with strategy.scope():
        mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

        @tf.function(jit_compile=True)
        def program(x: Any, y: Any) -> None:
            for i in tf.range(4):
                mean.update_state(tf.cast(i, tf.float32))
                accuracy.update_state(y, x)

        strategy.run(program, (tf.eye(4), tf.constant([0, 1, 2, 0])))
    assert float(mean.result()) == 1.5
    assert float(accuracy.result()) == 0.75
    mean.reset_state()
    assert float(mean.result()) == 0


def test_mixed_precision_trains_in_half(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), layers.Dense(3, dtype="mixed_float16")])
        step = tf.function(lambda x: model(x), jit_compile=True)
        result = strategy.run(step, (tf.ones([2, 4]),))
    assert result.dtype == tf.float16
    assert model.layers[0].kernel.dtype == "float32"


# Keras's own loops.


def compiled(*parts: Any, **options: Any) -> keras.Model:
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


def as_arrays(batch: int) -> dict[str, Any]:
    return {"x": FEATURES, "y": LABELS, "batch_size": batch, "shuffle": False}


def as_dataset(batch: int) -> dict[str, Any]:
    return {"x": tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(batch), "shuffle": False}


class Record(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append("epoch")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert "loss" in logs
        self.calls.append(("batch", batch))


def fit_evaluate_predict(data: Any, batch: int, **options: Any) -> tuple[keras.Model, list[Any], dict[str, Any]]:
    model = compiled(layers.BatchNormalization(), **options)
    record = Record()
    history = model.fit(
        **data(batch),
        epochs=2,
        verbose=0,
        validation_data=(FEATURES[:24], LABELS[:24]),
        validation_batch_size=12,
        callbacks=[record],
    ).history
    return (
        model,
        record.calls,
        {
            **history,
            "evaluated": model.evaluate(FEATURES, LABELS, batch_size=12, verbose=0),
            "predicted": model.predict(tf.data.Dataset.from_tensor_slices(FEATURES).batch(batch), verbose=0),
            **{f"weight {i}": weight for i, weight in enumerate(model.get_weights())},
        },
    )


@functools.cache
def plain_results(batch: int) -> dict[str, Any]:
    return fit_evaluate_predict(as_arrays, batch, jit_compile=True)[2]


# With `jit_compile=True` the steps were compiled for the host, where the variables are not.
@pytest.mark.parametrize(
    ("data", "batch", "steps_per_execution", "jit_compile"),
    # 36 examples make a last batch of 4 for one of 16; 3 steps make a last execution of 1 for one of 2.
    [(as_arrays, 12, 1, "auto"), (as_arrays, 12, 2, True), (as_dataset, 16, 1, True), (as_dataset, 12, 2, False)],
)
def test_fit_evaluate_and_predict_equal_those_of_plain_keras(
    data: Any, batch: int, steps_per_execution: int, jit_compile: Any, strategy: Any
) -> None:
    expected = plain_results(batch)
    with strategy.scope():
        model, calls, results = fit_evaluate_predict(
            data, batch, steps_per_execution=steps_per_execution, jit_compile=jit_compile
        )
    # Keras counts whole executions: the second one of 2 steps ends with step 3, though there is none.
    last_steps = {1: [0, 1, 2], 2: [1, 3]}[steps_per_execution]
    assert calls == 2 * [*(("batch", step) for step in last_steps), "epoch"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} < results.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert {v.value.device.rpartition("/")[2] for v in model.variables} == {"device:IPU:0"}


def test_model_of_the_scope_trains_after_the_scope_was_left(strategy: Any) -> None:
    plain = compiled()
    plain.fit(**as_arrays(8), epochs=1, verbose=0)
    with strategy.scope():
        model = compiled()
    model.fit(**as_arrays(8), epochs=1, verbose=0)
    assert_same(model.get_weights(), plain.get_weights(), rtol=1e-4, atol=1e-5)
    assert model.variables[0].value.device.endswith("IPU:0")


@pytest.mark.parametrize("jit_compile", [True, False])
def test_single_batches_train_test_and_predict(jit_compile: bool, strategy: Any) -> None:
    plain = compiled(jit_compile=True)
    for _ in range(2):
        expected = plain.train_on_batch(FEATURES[:8], LABELS[:8], return_dict=True)
    with strategy.scope():
        model = compiled(jit_compile=jit_compile)
        for _ in range(2):
            result = model.train_on_batch(FEATURES[:8], LABELS[:8], return_dict=True)
        tested = model.test_on_batch(FEATURES[:8], LABELS[:8])
        predicted = model.predict_on_batch(FEATURES[:8])
        called = model(FEATURES[:8])
    np.testing.assert_allclose(result["loss"], expected["loss"], rtol=1e-4)
    np.testing.assert_allclose(tested, plain.test_on_batch(FEATURES[:8], LABELS[:8]), rtol=1e-4)
    np.testing.assert_allclose(predicted, plain.predict_on_batch(FEATURES[:8]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(called, predicted, rtol=1e-4, atol=1e-5)


def test_weights_of_classes_and_so_of_examples_count(strategy: Any) -> None:
    options = {"epochs": 1, "verbose": 0, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    plain = compiled()
    expected = plain.fit(**as_arrays(8), **options).history
    with strategy.scope():
        model = compiled()
        result = model.fit(**as_arrays(8), **options).history
    np.testing.assert_allclose(result["loss"], expected["loss"], rtol=1e-4)
    assert_same(model.get_weights(), plain.get_weights(), rtol=1e-4, atol=1e-5)


def test_custom_train_step_runs_under_the_scope(strategy: Any) -> None:
    class Custom(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1, kernel_initializer="ones")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True)[:, 0] - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"mine": loss}

    data = FEATURES, LABELS.astype(np.float32)
    histories = []
    for scope in (None, strategy.scope()):
        with scope or tf.device("/device:CPU:0"):
            model = Custom()
            model.compile(optimizer=keras.optimizers.SGD(0.1))
            histories.append(model.fit(*data, batch_size=8, epochs=2, verbose=0, shuffle=False).history)
    assert histories[0].keys() == {"mine"}
    np.testing.assert_allclose(histories[1]["mine"], histories[0]["mine"], rtol=1e-4)


def test_eager_steps_are_refused_under_the_scope(strategy: Any) -> None:
    with strategy.scope():
        model = compiled(run_eagerly=True)
        with pytest.raises(ValueError, match="does not support eager execution"):
            model.fit(**as_arrays(8), verbose=0)


def test_data_of_float64_is_refused_where_keras_does_not_convert_it(strategy: Any) -> None:
    with strategy.scope():
        model = compiled()
        dataset = tf.data.Dataset.from_tensor_slices((FEATURES.astype(np.float64), LABELS)).batch(12)
        with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
            model.fit(dataset, verbose=0, shuffle=False)
        model.fit(FEATURES.astype(np.float64), LABELS.astype(np.int64), batch_size=12, verbose=0)


def test_layer_that_looks_up_in_a_table_is_refused_in_words(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([layers.IntegerLookup(vocabulary=[1, 2]), layers.Embedding(4, 2)])
        with pytest.raises(ValueError, match="a lookup table stays on the host, so look up where the dataset is made"):
            strategy.run(tf.function(lambda x: model(x)), (tf.constant([[1, 2]], tf.int64),))


def test_model_goes_to_files_and_back(strategy: Any, tmp_path: Path) -> None:
    with strategy.scope():
        model = compiled(layers.BatchNormalization())
        model.fit(**as_arrays(8), epochs=1, verbose=0)
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        model.export(tmp_path / "exported", verbose=False)
    expected = model.predict(FEATURES, verbose=0)

    on_host = keras.models.load_model(tmp_path / "model.keras")
    assert on_host.variables[0].value.device.endswith("CPU:0")
    np.testing.assert_allclose(on_host.predict(FEATURES, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert_same(on_host.optimizer.variables, model.optimizer.variables, atol=0)

    with strategy.scope():
        on_device = keras.models.load_model(tmp_path / "model.keras")
        assert on_device.variables[0].value.device.endswith("IPU:0")
        assert_same(on_device.get_weights(), model.get_weights(), atol=0)
        again = compiled(layers.BatchNormalization())
        again.build([None, 6])
        again.optimizer.build(again.trainable_variables)
        again.load_weights(tmp_path / "model.weights.h5")
        assert_same(again.get_weights(), model.get_weights(), atol=0)
        assert_same(on_device.optimizer.variables, model.optimizer.variables, atol=0)
        np.testing.assert_allclose(on_device.predict(FEATURES, verbose=0), expected, rtol=1e-5, atol=1e-6)

    served = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(served.serve(FEATURES), expected, rtol=1e-5, atol=1e-6)


def test_model_made_outside_of_the_scope_behaves_as_ever(strategy: Any) -> None:
    with strategy.scope():
        compiled().train_on_batch(FEATURES[:8], LABELS[:8])
    model, twin = compiled(), compiled()
    expected = twin.fit(**as_dataset(8), epochs=1, verbose=0).history
    history = model.fit(**as_dataset(8), epochs=1, verbose=0).history
    assert history == expected
    assert_same(model.get_weights(), twin.get_weights(), atol=0)
    assert model.variables[0].value.device.endswith("CPU:0")
    assert not tf.distribute.has_strategy()
    assert tf.data.Dataset.__iter__ is PLAIN_ITER


def test_datasets_are_read_on_the_host_by_keras_and_by_the_user_outside_of_the_scope(strategy: Any) -> None:
    layer = layers.Normalization()
    dataset = tf.data.Dataset.from_tensor_slices(FEATURES).batch(8)
    with strategy.scope():
        layer.adapt(dataset)
        assert len(list(dataset.as_numpy_iterator())) == 5
    assert len([batch.numpy() for batch in dataset]) == 5
    np.testing.assert_allclose(layer.mean, FEATURES.mean(axis=0, keepdims=True), rtol=1e-4, atol=1e-5)
