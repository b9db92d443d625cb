"""Tests callbacks of models in a scope, per execution and per step, and callbacks of Keras."""

import csv
import os
import signal
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._tensorflow import devices


class Record(keras.callbacks.Callback):
    """Records the calls of its hooks, with their threads."""

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
        self.losses.append((logs or {})["loss"])

    def on_test_batch_end(self, batch, logs=None):
        self.note("test", batch)

    def on_predict_batch_end(self, batch, logs=None):
        self.note(f"predict {(logs or {})['outputs'].shape}", batch)


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


def test_asynchronous_callbacks_hear_of_each_step_of_each_replica(features, labels, make_model, scoped, configure):
    configure(2)
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


def test_asynchronous_callbacks_come_while_the_program_runs(model):
    """The data has its second step only after the callback of the first step."""
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
    model.set_asynchronous_callbacks(True)
    model.fit(numbers, verbose=0, shuffle=False, callbacks=[Tell()])
    assert heard.is_set()


# A thread that was interrupted after its start, before it was stored in a variable, never ended.
def test_ctrl_c_while_the_thread_of_asynchronous_callbacks_starts_leaves_no_thread(
    features, labels, model, monkeypatch
):
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        if thread.name == "ipu-keras-callbacks":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    model.set_asynchronous_callbacks(True)
    with pytest.raises(KeyboardInterrupt):
        model.fit(**data(features, labels))
    assert "ipu-keras-callbacks" not in [thread.name for thread in threading.enumerate()]
    monkeypatch.undo()
    assert len(model.fit(**data(features, labels)).history["loss"]) == 1


# Keras's device scope raised `RuntimeError: Exiting device scope without proper scope nesting` instead.
def test_ctrl_c_as_a_scope_of_a_device_ends_is_a_keyboard_interrupt(features, labels, model, monkeypatch):
    def interrupted(_):
        devices.place_eager_thread(tf.constant(0).device)
        raise KeyboardInterrupt

    monkeypatch.setattr(ipu.IPUOutfeedQueue, "dequeue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(**data(features, labels))
    assert devices.of_eager_thread() == ""
    monkeypatch.undo()
    assert len(model.fit(**data(features, labels)).history["loss"]) == 1


# An interrupt ended a step when it enqueued its results. XLA had reused the memory of weights by then.
def test_interrupt_ends_a_step_that_has_begun(features, labels, model):
    model.optimizer.learning_rate = 0.0
    model.fit(**data(features, labels))
    initial_weights = model.get_weights()
    for delay in np.linspace(0.0001, 0.01, 40):
        ended = threading.Event()

        def press():
            # Python ignores a signal in a finalizer, so the signal is repeated.
            wait = delay  # noqa: B023
            while not ended.wait(wait):  # noqa: B023
                os.kill(os.getpid(), signal.SIGINT)
                wait = 20.0

        thread = threading.Thread(target=press)
        begin = keras.callbacks.LambdaCallback(on_train_begin=lambda _, thread=thread: thread.start())
        with pytest.raises(KeyboardInterrupt):
            model.fit(**data(features, labels), epochs=100_000, callbacks=[begin])
        ended.set()
        thread.join(60)
        for weight, was in zip(model.get_weights(), initial_weights, strict=True):
            np.testing.assert_array_equal(weight, was)


def test_progress_bar_counts_steps_and_a_callback_evaluates_and_predicts_between_epochs(
    features, labels, model, capsys
):
    counts, results = [], []

    class Watch(keras.callbacks.ProgbarLogger):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            counts.append(self.seen)

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            model: Any = self.model
            results.append(model.evaluate(features, labels, batch_size=12, verbose=0))
            results.append(model.predict(features, batch_size=12, verbose=0).shape)

    model.steps_per_execution = 4
    for asynchronous, steps in ((False, [4]), (True, [1, 2, 3, 4])):
        model.set_asynchronous_callbacks(asynchronous)
        model.fit(features, labels, batch_size=12, verbose=1, callbacks=[Watch()])
        assert counts == steps
        counts.clear()
    assert results[1::2] == [(48, 3)] * 2
    assert "4/4" in capsys.readouterr().out


def test_failing_callbacks_and_data_end_the_training(features, labels, model):
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
    bad = tf.data.Dataset.range(4).map(
        lambda i: (tf.fill([12, 6], tf.cast(8 // (2 - i), tf.float32)), tf.zeros([12], tf.int32))
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(bad, verbose=0, shuffle=False)


STEPS = 2  # The number of executions.


@pytest.fixture
def fit(features, labels, make_model):
    """Returns a function that trains a new model for epochs of four steps: `fit(callbacks, epochs, **compile_options)`."""

    def run(callbacks, epochs=3, *, batch_size=12, validate=False, **options):
        model = make_model(**{"steps_per_execution": STEPS, **options})
        held_out = {"validation_data": (features, labels), "validation_batch_size": 12} if validate else {}
        arguments = {"batch_size": batch_size, "epochs": epochs, "callbacks": callbacks, **held_out}
        model.fit(features, labels, **arguments, verbose=0, shuffle=False)
        return model

    return run


def scalars(folder):
    """Returns the scalars in event files, by run, tag and step."""
    values_by_step = {}
    for path in sorted(folder.rglob("*tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    values_by_step[path.parent.name, value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return values_by_step


# `update_freq` counts updates, of which an epoch has four, or executions.
@pytest.mark.parametrize(
    ("options", "tag", "steps"),
    [
        ({"update_freq": 1}, "batch_loss", {1, 2, 3, 4, 5, 6}),
        ({"update_freq": 2, "histogram_freq": 1, "profile_batch": (2, 3)}, "evaluation_loss_vs_iterations", {4, 8, 12}),
    ],
)
def test_tensorboard_gets_the_scalars_of_keras_at_its_steps(options, tag, steps, fit, scoped, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorFlow writes scalars by it")
    validate = "histogram_freq" in options
    fit([keras.callbacks.TensorBoard(tmp_path / "plain", **options | {"profile_batch": 0})], validate=validate)
    scoped(lambda: fit([keras.callbacks.TensorBoard(tmp_path / "ipu", **options)], validate=validate))
    got, expected = scalars(tmp_path / "ipu"), scalars(tmp_path / "plain")
    assert got.keys() == expected.keys()
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert {step for run, name, step in got if (run, name) == ("train", "epoch_loss")} == {0, 1, 2}
    assert {step for _, name, step in got if name == tag} == steps
    if validate:
        (profile,) = (tmp_path / "ipu").rglob("*.xplane.pb")
        assert profile.stat().st_size > 0


class Note(keras.callbacks.Callback):
    """Halves the learning rate after each execution, and records the rate and the logs at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.rates: list[float] = []
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch, logs=None):
        model: Any = self.model
        # The host changes the rate between executions.
        model.optimizer.learning_rate = float(model.optimizer.learning_rate) / 2

    def on_epoch_end(self, epoch, logs=None):
        model: Any = self.model
        self.rates.append(float(model.optimizer.learning_rate))
        self.logs.append({name: float(value) for name, value in (logs or {}).items()})


def test_callbacks_that_steer_the_training_and_write_files_do_so_as_in_keras(fit, scoped, tmp_path, assert_same):
    def callbacks(folder):
        folder.mkdir()
        every = 2 * STEPS
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 4 * rate / (epoch + 1)),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, min_delta=10.0),
            keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0, restore_best_weights=True),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True, save_freq=every),
            keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="val_loss", save_best_only=True),
        ]

    folders = [tmp_path / name for name in ("ipu", "plain")]
    notes = [Note(), Note()]
    model = scoped(lambda: fit([*callbacks(folders[0]), notes[0]], 6, validate=True))
    plain_model = fit([*callbacks(folders[1]), notes[1]], 6, validate=True)
    # The rate is divided by a number that grows with each epoch, and by 2 more when the loss stops falling.
    assert notes[1].rates == pytest.approx([0.1, 0.1 / 2, 0.1 / 6 / 2, 0.1 / 6 / 2 / 4])
    assert notes[0].rates == pytest.approx(notes[1].rates)
    assert len(notes[0].logs) == len(notes[1].logs) == 4
    assert_same(notes[0].logs, notes[1].logs)
    assert_same(model.get_weights(), plain_model.get_weights())
    files = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert files[0] == files[1]
    assert {"best.keras", "log.csv", "2.weights.h5"} <= set(files[0])  # Releases of Keras count steps differently.
    assert_same(*(read_rows(folder / "log.csv") for folder in folders))
    models: list[Any] = [keras.models.load_model(folder / "best.keras") for folder in folders]
    assert_same(models[0].get_weights(), models[1].get_weights())
    for name in (name for name in files[0] if name.endswith(".weights.h5")):
        weights = []
        for folder in folders:
            plain_model.load_weights(folder / name)
            weights.append(plain_model.get_weights())
        assert_same(*weights)


def read_rows(path):
    with path.open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_backup_and_restore_goes_on_where_the_training_broke_off(fit, scoped, tmp_path, assert_same):
    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise ZeroDivisionError

    epochs: list[int] = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    uninterrupted = fit([], 4)
    with pytest.raises(ZeroDivisionError):
        scoped(lambda: fit([keras.callbacks.BackupAndRestore(tmp_path), Fail(), note], 4))
    resumed = scoped(lambda: fit([keras.callbacks.BackupAndRestore(tmp_path), note], 4))
    assert epochs == [0, 1, 2, 3]
    assert_same(resumed.get_weights(), uninterrupted.get_weights())


def test_callbacks_of_replicas_work_as_those_of_keras_on_the_whole_batch(configure, fit, scoped, tmp_path, assert_same):
    """Two replicas sum their gradients at half the rate. Plain Keras has twice the batch."""

    def callbacks(folder):
        folder.mkdir()
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
            keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0),
            keras.callbacks.CSVLogger(folder / "log.csv"),
        ]

    configure(2)
    folders = [tmp_path / name for name in ("ipu", "plain")]
    plain_model = fit(callbacks(folders[1]), 5, batch_size=24, validate=True)
    model = scoped(lambda: fit(callbacks(folders[0]), 5, learning_rate=0.05, validate=True))
    assert_same(model.get_weights(), plain_model.get_weights())
    rows = [read_rows(folder / "log.csv") for folder in folders]
    assert len(rows[0]) == len(rows[1]) == 2
    assert [row["epoch"] for row in rows[0]] == [0, 1]
