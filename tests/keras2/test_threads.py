"""Tests that threads that share a model of Keras 2 get the same results as without other threads."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu

ROWS, SIZE = 16, 4


def rows(seed):
    generator = np.random.default_rng(seed)
    return generator.normal(size=[ROWS, 3]).astype("f"), (seed % 5 + 1) * generator.normal(size=[ROWS, 2]).astype("f")


def fit(model, seed):
    (x, y), held_out = rows(seed), rows(seed + 1)
    options = {"batch_size": SIZE, "epochs": 2, "validation_data": held_out, "shuffle": False, "verbose": 0}
    return list(model.fit(x, y, **options).history.values())


USES = {
    "fit": fit,
    "evaluate": lambda model, seed: model.evaluate(*rows(seed), batch_size=SIZE, verbose=0),
    "predict": lambda model, seed: model.predict(rows(seed)[0], batch_size=SIZE, verbose=0),
    "predict_on_batch": lambda model, seed: model.predict_on_batch(rows(seed)[0][:SIZE]),
    "test_on_batch": lambda model, seed: model.test_on_batch(*(part[:SIZE] for part in rows(seed))),
}


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_of_many_threads_gets_the_numbers_that_it_gets_alone(configure, replicas):
    configure(replicas)
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"], steps_per_execution=2)
    names = list(USES)[: 5 if replicas == 1 else 3]
    jobs = [(USES[name], seed) for seed, name in zip(range(8), itertools.cycle(names))]
    alone = [use(model, seed) for use, seed in jobs]
    begin = threading.Barrier(len(jobs) + 1)

    def repeat(use, seed):
        begin.wait(60)
        return [use(model, seed) for _ in range(2)]

    def end_datasets():
        """Ends datasets in a thread: the failed operation must not end copies of other threads."""
        begin.wait(60)
        for _ in range(50):
            list(tf.data.Dataset.range(1))

    with ThreadPoolExecutor(len(jobs) + 1) as pool:
        waiting = [pool.submit(repeat, *job) for job in jobs]
        pool.submit(end_datasets).result(60)
        for future, expected in zip(waiting, alone, strict=True):
            for result in future.result(60):
                np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_thread_that_saves_a_model_before_its_first_step_makes_its_metrics_on_the_ipu(tmp_path):
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"], steps_per_execution=2)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.save, tmp_path / "model.h5").result(60)
    assert [variable.device[-5:] for metric in model.metrics for variable in metric.variables] == ["IPU:0"] * 4
    fit(model, 1)
