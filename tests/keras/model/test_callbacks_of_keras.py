"""Callbacks of Keras do in a scope what they do outside: with several steps an execution, and with replicas."""

from __future__ import annotations

import csv
from typing import Any

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

STEPS = 2  # An execution.


@pytest.fixture
def fit(features, labels, make_model):
    """Trains a new model for some epochs of four steps: `fit(callbacks, epochs, **compile_options)`."""

    def run(callbacks, epochs=3, *, batch_size=12, **options):
        model = make_model(**{"steps_per_execution": STEPS, **options})
        held_out = {"validation_data": (features, labels), "validation_batch_size": 12}
        model.fit(
            features,
            labels,
            batch_size=batch_size,
            epochs=epochs,
            verbose=0,
            shuffle=False,
            callbacks=callbacks,
            **held_out,
        )
        return model

    return run


@pytest.fixture
def replicas():
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    return 2


def scalars(folder):
    """What event files hold: (run, tag, step) to value."""
    found = {}
    for path in sorted(folder.rglob("*tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found[path.parent.name, value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


@pytest.mark.parametrize("options", [{}, {"update_freq": 1}, {"update_freq": 2, "histogram_freq": 1}])
def test_tensorboard_gets_the_scalars_of_keras_at_its_steps(options, fit, scoped, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorFlow writes scalars by it")

    def board(name):
        return keras.callbacks.TensorBoard(tmp_path / name, **options)

    fit([board("plain")])
    scoped(lambda: fit([board("ipu")]))
    got, expected = scalars(tmp_path / "ipu"), scalars(tmp_path / "plain")
    assert got.keys() == expected.keys()
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert {step for run, tag, step in got if (run, tag) == ("train", "epoch_loss")} == {0, 1, 2}
    if not options:
        # By the count of updates: two executions of two steps an epoch.
        assert {step for _, tag, step in got if tag == "evaluation_loss_vs_iterations"} == {4, 8, 12}
    if options == {"update_freq": 1}:
        # By the count of executions.
        assert {step for _, tag, step in got if tag == "batch_loss"} == {1, 2, 3, 4, 5, 6}


def test_tensorboard_profiles_executions(fit, scoped, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorFlow writes scalars by it")
    scoped(lambda: fit([keras.callbacks.TensorBoard(tmp_path, profile_batch=(2, 3))], 2))
    (profile,) = tmp_path.rglob("*.xplane.pb")
    assert profile.stat().st_size > 0


class Note(keras.callbacks.Callback):
    """Notes the learning rate that each epoch ends with, and what it is told."""

    def __init__(self):
        super().__init__()
        self.rates: list[float] = []
        self.logs: list[dict[str, float]] = []

    def on_epoch_end(self, epoch, logs=None):
        model: Any = self.model
        self.rates.append(float(model.optimizer.learning_rate))
        self.logs.append({name: float(value) for name, value in logs.items()})


def test_callbacks_that_steer_the_training_do_so_as_in_keras(fit, scoped, assert_same):
    def steering():
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, min_delta=10.0),
            keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0, restore_best_weights=True),
        ]

    notes = [Note(), Note()]
    plain = fit([*steering(), notes[0]], 6)
    model = scoped(lambda: fit([*steering(), notes[1]], 6))
    # By one more each epoch, by two once the loss stays where it is, and no further than there.
    assert notes[0].rates == pytest.approx([0.1, 0.1 / 2, 0.1 / 6 / 2, 0.1 / 6 / 2 / 4])
    assert notes[1].rates == pytest.approx(notes[0].rates)
    assert len(notes[1].logs) == len(notes[0].logs) == 4
    assert_same([note.logs for note in notes[1:]], [note.logs for note in notes[:1]])
    assert_same(model.get_weights(), plain.get_weights())


def read_rows(path):
    with path.open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_files_that_callbacks_write_are_those_of_keras(fit, scoped, tmp_path, assert_same):
    def callbacks(folder):
        return [
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True, save_freq=2 * STEPS),
            keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="val_loss", save_best_only=True),
        ]

    for name in ("plain", "ipu"):
        (tmp_path / name).mkdir()
    plain = fit(callbacks(tmp_path / "plain"))
    scoped(lambda: fit(callbacks(tmp_path / "ipu")))
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("plain", "ipu")]
    assert files[0] == files[1]
    assert {"best.keras", "log.csv", "2.weights.h5"} <= set(files[0])  # Releases of Keras count steps differently.
    assert_same(read_rows(tmp_path / "ipu" / "log.csv"), read_rows(tmp_path / "plain" / "log.csv"))
    models: list[Any] = [keras.models.load_model(tmp_path / name / "best.keras") for name in ("ipu", "plain")]
    assert_same(models[0].get_weights(), models[1].get_weights())
    for name in (name for name in files[0] if name.endswith(".weights.h5")):
        plain.load_weights(tmp_path / "plain" / name)
        expected = plain.get_weights()
        plain.load_weights(tmp_path / "ipu" / name)
        assert_same(plain.get_weights(), expected)


def test_backup_and_restore_goes_on_where_the_training_broke_off(fit, scoped, tmp_path, assert_same):
    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise ZeroDivisionError

    epochs: list[int] = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    whole = fit([], 4)
    with pytest.raises(ZeroDivisionError):
        scoped(lambda: fit([keras.callbacks.BackupAndRestore(tmp_path), Fail(), note], 4))
    resumed = scoped(lambda: fit([keras.callbacks.BackupAndRestore(tmp_path), note], 4))
    assert epochs == [0, 1, 2, 3]
    assert_same(resumed.get_weights(), whole.get_weights())


def test_callbacks_of_replicas_work_as_those_of_keras_on_the_whole_batch(replicas, fit, scoped, tmp_path, assert_same):
    """Two replicas that sum their gradients, at half the rate, against one with twice the batch."""

    def callbacks(folder):
        folder.mkdir()
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
            keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0),
            keras.callbacks.CSVLogger(folder / "log.csv"),
        ]

    plain = fit(callbacks(tmp_path / "plain"), 5, batch_size=24)
    model = scoped(lambda: fit(callbacks(tmp_path / "ipu"), 5, learning_rate=0.1 / replicas))
    assert_same(model.get_weights(), plain.get_weights())
    rows = [read_rows(tmp_path / name / "log.csv") for name in ("ipu", "plain")]
    assert len(rows[0]) == len(rows[1]) == 2
    assert [row["epoch"] for row in rows[0]] == [0, 1]
    for number in (1, 2):
        plain.load_weights(tmp_path / "plain" / f"{number}.weights.h5")
        expected = plain.get_weights()
        plain.load_weights(tmp_path / "ipu" / f"{number}.weights.h5")
        assert_same(plain.get_weights(), expected)
