"""Keras over workers: w workers of r replicas train, evaluate and predict as one process of w times r."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts

BATCH = 2
ROUNDS = 4  # Batches of each of 4 replicas.

# What the workers run, and this process alone.


def configured(ipus: int) -> Any:
    strategy = ipu.IPUMultiWorkerStrategy()
    config = ipu.IPUConfig()
    config.auto_select_ipus = [ipus]
    config.configure_ipu_system()
    return strategy


def data_for(kind: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    shape = (6, 6, 2) if kind == "conv" else (5,)
    count = BATCH * ROUNDS * 4
    return random.normal(size=(count, *shape)).astype("float32"), random.normal(size=(count, 1)).astype("float32")


def model_for(kind: str) -> Any:
    keras.utils.set_random_seed(1 + hosts.join().worker)  # Of which worker 0's weights are all that counts.
    if kind == "conv":
        parts = [keras.Input([6, 6, 2]), layers.Conv2D(3, 3, activation="relu"), layers.Flatten(), layers.Dense(1)]
        model: Any = keras.Sequential(parts)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    else:
        with ipu.keras.PipelineStage(0):
            x = keras.Input([5])
            hidden = layers.Dense(4, activation="tanh", name="first")(x)
        with ipu.keras.PipelineStage(1):
            model = keras.Model(x, layers.Dense(1, name="second")(hidden))
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    return model


def one_layer(loss: str = "mae", inputs: int = 1) -> Any:
    model = keras.Sequential([keras.Input([inputs]), layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), loss)
    return model


def trained(kind: str, ipus: int, method: str) -> dict[str, Any]:
    strategy = configured(ipus)
    x, y = data_for(kind)
    with strategy.scope():
        model = model_for(kind)
        model.set_replication_options(method)
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], steps_per_execution=4)
        history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, validation_data=(x, y))
        return {
            "history": history.history,
            "weights": model.get_weights(),
            "evaluated": model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True),
            "predicted": model.predict(x[: -BATCH - 1], batch_size=BATCH, verbose=0),  # Padded.
        }


def shuffled() -> list[list[float]]:
    """The losses of each epoch, without a seed and with other seeds on the workers."""
    strategy = configured(2)
    with strategy.scope():
        model = one_layer()
        model.set_replication_options("MEAN")
        x = np.arange(16, dtype="float32")[:, None]
        without = model.fit(x, 0 * x, batch_size=1, epochs=3, verbose=0)
        tf.random.set_seed(7 + strategy.cluster.worker)
        seeded = model.fit(x, 0 * x, batch_size=1, epochs=3, verbose=0)
        return [without.history["loss"], seeded.history["loss"]]


def of_own_data() -> list[float]:
    strategy = configured(1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    value = float(strategy.cluster.worker + 1)
    dataset = tf.data.Dataset.from_tensors(([[value]], [[0.0]])).repeat(int(value) + 1).with_options(options)
    with strategy.scope():
        model = one_layer()
        model.set_replication_options("LIST")
        single = model.test_on_batch(np.full([1, 1], value, "float32"), np.zeros([1, 1], "float32"))
        return [np.asarray(model.evaluate(dataset, verbose=0)).tolist(), np.asarray(single).tolist()]


def of_other_data(rows: int, inputs: int, batch: int) -> None:
    strategy = configured(1)
    with strategy.scope():
        model = one_layer("mse", inputs)
        model.fit(np.zeros([rows, inputs], "float32"), np.zeros([rows, 1], "float32"), batch, verbose=0)


def with_files(folder: str) -> dict[str, Any]:
    strategy = configured(1)
    own = Path(folder, f"worker{strategy.cluster.worker}")
    own.mkdir()
    seen: list[int] = []
    with strategy.scope():
        model = one_layer("mse")
        x = np.ones([4, 1], "float32")
        callbacks = [
            keras.callbacks.ModelCheckpoint(str(own / "model.keras")),
            keras.callbacks.CSVLogger(str(own / "log.csv")),
            keras.callbacks.BackupAndRestore(str(own / "backup"), delete_checkpoint=False),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch)),
        ]
        model.fit(x, x, batch_size=1, epochs=2, verbose=0, callbacks=callbacks)
    return {"files": sorted(path.name for path in own.iterdir()), "seen": seen}


@pytest.mark.parametrize(("kind", "ipus", "method"), [("conv", 2, "NONE"), ("pipeline", 4, "LIST")])
def test_workers_compute_what_one_process_does(workers, kind, ipus, method):
    first, second = workers.call(trained, kind, ipus, method)
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)  # All workers the same, to the bit.
    alone = trained(kind, 2 * ipus, method)
    tf.nest.map_structure(lambda one, other: np.testing.assert_allclose(one, other, 2e-5, 2e-6), first, alone)


def test_shuffled_examples_are_seen_once_an_epoch(workers):
    first, second = workers.call(shuffled)
    assert first == second
    np.testing.assert_allclose(first, [[7.5, 7.5, 7.5]] * 2, rtol=1e-6)


def test_workers_may_have_data_of_their_own(workers):
    assert workers.call(of_own_data) == [[[1.0, 2.0], [1.0, 2.0]]] * 2


def test_data_of_other_sizes_and_shapes_is_told(workers):
    for outcome in workers.outcomes(of_other_data, workers.each([4, 6]), 1, 1):
        assert outcome.kinds[0] == "ValueError"
        assert "of steps, worker 0 has 2, worker 1 has 3. Give all of them the same data" in outcome.message
    for outcome in workers.outcomes(of_other_data, 4, workers.each([13, 14]), 1):
        assert outcome.kinds[0] == "InvalidArgumentError"
        for rows in (13, 14):
            said = f"broadcast from worker 0 of float32[{rows}, 1] (the initial value of `kernel`)"
            assert said in outcome.message
    for worker, outcome in enumerate(workers.outcomes(of_other_data, workers.each([4, 8]), 3, workers.each([1, 2]))):
        assert outcome.kinds[0] == "ValueError"
        assert f"batches of worker {1 - worker} have other shapes or types than the ones here" in outcome.message
        assert f"shape=({1 + worker}, 3)" in outcome.message


def test_files_are_written_once(workers, tmp_path):
    chief, other = workers.call(with_files, str(tmp_path))
    assert chief == {"files": ["backup", "log.csv", "model.keras"], "seen": [0, 1]}
    assert other == {"files": [], "seen": [0, 1]}
