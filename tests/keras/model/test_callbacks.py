"""Callbacks of a model in a scope: once an execution, or once a step while the program runs."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


class Record(keras.callbacks.Callback):
    """Notes what it is told, and by which thread."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[str, int]] = []
        self.losses: list[float] = []
        self.threads: set[int] = set()

    def note(self, name, index):
        self.calls.append((name, index))
        self.threads.add(threading.get_ident())

    def on_epoch_begin(self, epoch, logs=None):
        self.note("epoch", epoch)

    def on_train_batch_begin(self, batch, logs=None):
        self.note("begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        self.note("end", batch)
        self.losses.append(logs["loss"])

    def on_test_batch_end(self, batch, logs=None):
        self.note("test", batch)

    def on_predict_batch_end(self, batch, logs=None):
        self.note(f"predict {logs['outputs'].shape}", batch)


@pytest.fixture
def model(make_model, scoped):
    return scoped(lambda: make_model(steps_per_execution=2))


def data(x, y):
    return {"x": x, "y": y, "batch_size": 12, "verbose": 0}


def test_callbacks_hear_of_each_execution(features, labels, model):
    record = Record()
    options = {"validation_data": (features[:24], labels[:24]), "shuffle": False}
    model.fit(**data(features, labels), epochs=2, callbacks=[record], **options)
    epoch = [("begin", 0), ("end", 1), ("begin", 2), ("end", 3), ("test", 1)]
    assert record.calls == [("epoch", 0), *epoch, ("epoch", 1), *epoch]
    assert record.threads == {threading.get_ident()}


@pytest.mark.parametrize("ipus", [1, 2])
def test_asynchronous_callbacks_hear_of_each_step_of_each_replica(ipus, features, labels, make_model, scoped):
    config = ipu.IPUConfig()
    config.auto_select_ipus = ipus
    config.configure_ipu_system()
    model = scoped(lambda: make_model(steps_per_execution=2))
    model.set_asynchronous_callbacks(True)
    record = Record()
    history = model.fit(**data(features, labels), epochs=2, callbacks=[record], shuffle=False).history
    epoch = [(name, step) for step in range(4) for name in ("begin", "end")]
    assert record.calls == [("epoch", 0), *epoch, ("epoch", 1), *epoch]
    assert record.losses[3::4] == pytest.approx(history["loss"])
    assert len(record.threads) > 1
    record.calls.clear()
    model.evaluate(**data(features, labels), callbacks=[record])
    predicted = model.predict(features, batch_size=12, verbose=0, callbacks=[record])
    assert record.calls == [("test", n) for n in range(4)] + [("predict (12, 3)", n) for n in range(4)]
    np.testing.assert_allclose(predicted, model(features), rtol=1e-4, atol=1e-5)


def test_asynchronous_callbacks_come_while_the_program_runs(features, labels, make_model, scoped):
    """The data of the second step comes when the callback has heard of the first."""
    heard = threading.Event()

    def wait(i):
        if i == 1:
            assert heard.wait(60)
        return np.float32(0)

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            heard.set()

    numbers = tf.data.Dataset.range(2).map(
        lambda i: (tf.zeros([4, 6]) + tf.ensure_shape(tf.numpy_function(wait, [i], tf.float32), []), tf.zeros([4]))
    )
    model = scoped(lambda: make_model(steps_per_execution=2))
    model.set_asynchronous_callbacks(True)
    model.fit(numbers, verbose=0, shuffle=False, callbacks=[Tell()])
    assert heard.is_set()


def test_progress_bar_counts_steps_within_an_execution(features, labels, model, capsys):
    model.compile(
        optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=4
    )
    seen = []
    model.set_asynchronous_callbacks(True)

    class Watch(keras.callbacks.ProgbarLogger):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            seen.append(self.seen)

    model.fit(features, labels, batch_size=12, verbose=1, callbacks=[Watch()])
    assert seen == [1, 2, 3, 4]
    assert "4/4" in capsys.readouterr().out


def test_failing_callbacks_end_the_training(features, labels, model):
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ZeroDivisionError("on purpose")

    for asynchronous in (False, True):
        model.set_asynchronous_callbacks(asynchronous)
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            model.fit(**data(features, labels), callbacks=[Fail()])
    record = Record()
    model.fit(**data(features, labels), callbacks=[record])
    assert [index for name, index in record.calls if name == "end"] == [0, 1, 2, 3]


def test_failing_data_ends_the_thread_of_the_callbacks(features, model):
    model.set_asynchronous_callbacks(True)
    bad = tf.data.Dataset.range(4).map(
        lambda i: (tf.fill([4, 6], tf.cast(8 // (2 - i), tf.float32)), tf.zeros([4], tf.int32))
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(bad, verbose=0, shuffle=False)


def test_callbacks_of_keras_do_their_work(features, labels, make_model, scoped, tmp_path, assert_same):
    rates = []

    class Rate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            # Between executions, by the host.
            model: Any = self.model
            rates.append(float(model.optimizer.learning_rate))
            model.optimizer.learning_rate = rates[-1] / 2

    def use(folder, **options):
        folder.mkdir()
        callbacks = [
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras"),
            keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True, save_best_only=True),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.2 / (epoch + 1)),
            keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0),
            Rate(),
        ]
        if HAS_TENSORBOARD:
            callbacks.append(keras.callbacks.TensorBoard(folder / "board", write_graph=False))
        model = make_model(**options)
        options = {"validation_data": (features[:24], labels[:24]), "shuffle": False}
        history = model.fit(**data(features, labels), epochs=5, callbacks=callbacks, **options).history
        assert len(history["loss"]) == 2
        return [history, model.get_weights()]

    plain = use(tmp_path / "plain", steps_per_execution=2)
    expected, rates[:] = list(rates), []
    assert_same(scoped(lambda: use(tmp_path / "ipu", steps_per_execution=2)), plain)
    assert rates == expected
    last: Any = keras.models.load_model(tmp_path / "ipu" / "2.keras")
    assert_same(last.get_weights(), plain[1])
    assert len((tmp_path / "ipu" / "log.csv").read_text().splitlines()) == 3
    assert bool(list((tmp_path / "ipu" / "board").rglob("events*"))) == HAS_TENSORBOARD


def test_a_callback_evaluates_and_predicts_between_epochs(features, labels, model):
    results = []

    class ShardingProbe(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model: Any = self.model
            results.append(model.evaluate(features[:24], labels[:24], batch_size=12, verbose=0))
            results.append(model.predict(features[:24], batch_size=12, verbose=0).shape)

    for asynchronous in (False, True):
        model.set_asynchronous_callbacks(asynchronous)
        model.fit(**data(features, labels), callbacks=[ShardingProbe()])
    assert results[1::2] == [(24, 3)] * 2
