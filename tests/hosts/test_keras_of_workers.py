"""Keras over workers: each worker's share of the data, and files that only one worker writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu


def one_layer(strategy: Any, loss: str = "mse", inputs: int = 1) -> Any:
    with strategy.scope():
        parts = [keras.Input([inputs]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
        model = keras.Sequential(parts)
        model.compile(keras.optimizers.SGD(0.0), loss)
    return model


@pytest.mark.workers(2)
def test_shuffled_examples_are_seen_once_an_epoch_without_a_seed_and_with_other_ones():
    strategy = ipu.IPUMultiWorkerStrategy()
    x = np.arange(16, dtype="float32")[:, None]
    with strategy.scope():
        model = one_layer(strategy, "mae")
        model.set_replication_options("MEAN")
        for seed in (None, 7 + strategy.cluster.worker):
            if seed is not None:
                tf.random.set_seed(seed)
            losses = model.fit(x, 0 * x, batch_size=1, epochs=3, verbose=0).history["loss"]
            np.testing.assert_allclose(losses, [7.5] * 3, rtol=1e-6)


@pytest.mark.workers(2)
def test_workers_may_have_data_of_their_own():
    strategy = ipu.IPUMultiWorkerStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    value = strategy.cluster.worker + 1.0
    dataset = tf.data.Dataset.from_tensors(([[value]], [[0.0]])).repeat(int(value) + 1).with_options(options)
    with strategy.scope():
        model = one_layer(strategy, "mae")
        model.set_replication_options("LIST")
        single = model.test_on_batch(np.full([1, 1], value, "float32"), np.zeros([1, 1], "float32"))
        assert np.asarray(model.evaluate(dataset, verbose=0)).tolist() == np.asarray(single).tolist() == [1.0, 2.0]


@pytest.mark.workers(2)
def test_data_of_other_sizes_and_shapes_is_told():
    strategy = ipu.IPUMultiWorkerStrategy()
    worker, other_worker = strategy.cluster.worker, 1 - strategy.cluster.worker

    def fit(rows: int, inputs: int, batch: int) -> None:
        with strategy.scope():
            model = one_layer(strategy, inputs=inputs)
            model.fit(np.zeros([rows, inputs], "float32"), np.zeros([rows, 1], "float32"), batch, verbose=0)

    def message_of(kind: type[Exception], *args: int) -> str:
        with pytest.raises(kind) as raised:
            fit(*args)
        return str(raised.value)

    message = message_of(ValueError, [4, 6][worker], 1, 1)
    assert "of steps, worker 0 has 2, worker 1 has 3. Give all of them the same data" in message
    message = message_of(tf.errors.InvalidArgumentError, 4, [13, 14][worker], 1)
    for inputs in (13, 14):
        assert f"broadcast from worker 0 of float32[{inputs}, 1] (the initial value of `kernel`)" in message
    message = message_of(ValueError, [4, 8][worker], 3, [1, 2][worker])
    assert f"batches of worker {other_worker} have other shapes or types than the ones here" in message
    assert f"shape=({1 + worker}, 3)" in message


@pytest.mark.workers(2)
def test_files_are_written_once(tmp_path):
    strategy = ipu.IPUMultiWorkerStrategy()
    folder = Path(tmp_path, f"worker{strategy.cluster.worker}")
    folder.mkdir()
    epochs: list[int] = []
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(folder / "model.keras")),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch)),
    ]
    x = np.ones([4, 1], "float32")
    with strategy.scope():
        one_layer(strategy).fit(x, x, batch_size=1, epochs=2, verbose=0, callbacks=callbacks)
    files = ["backup", "log.csv", "model.keras"] if strategy.cluster.is_chief else []
    assert (sorted(path.name for path in folder.iterdir()), epochs) == (files, [0, 1])
