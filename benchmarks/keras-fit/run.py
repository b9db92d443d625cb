"""What an epoch of `fit` costs in a strategy's scope, against Keras alone; and how soon a second `fit` begins."""

from __future__ import annotations

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from keras import layers
from measure import Times, interleave, median, print_table, ratio

import tensorflow_ipu as ipu

BATCH = 32
KERAS = "Keras, jit_compile, {} steps an execution"
OURS = "in the scope, {} steps an execution"
STEPS_PER_EXECUTION = (1, 10, 100)


def mlp() -> keras.Model:
    """The MLP of 784, 128 and 10 units."""
    return keras.Sequential([layers.Dense(128, activation="relu"), layers.Dense(10)])


def cnn() -> keras.Model:
    """Two small convolutions, pooled, and a layer on top."""
    return keras.Sequential(
        [
            layers.Reshape([28, 28, 1]),
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def compiled(make_model, steps: int) -> keras.Model:
    """A model that runs so many steps an execution."""
    model = make_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"], steps_per_execution=steps, jit_compile=True)
    return model


def second_fit(make_model, data) -> tuple[float, float]:
    """Milliseconds from the call of a `fit` that is not the first to its first batch, and to the end of that batch."""
    with ipu.IPUStrategy().scope():
        model = compiled(make_model, 1)
    begun: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: begun.append(time.perf_counter()))
    starts, firsts = [], []
    few = [part[: 10 * BATCH] for part in data]
    model.fit(*few, batch_size=BATCH, verbose=0)
    for _ in range(9):
        start = time.perf_counter()
        model.fit(*data, batch_size=BATCH, steps_per_epoch=1, verbose=0, callbacks=[note])
        firsts.append(time.perf_counter() - start)
        starts.append(begun[-1] - start)
    return statistics.median(starts) * 1e3, statistics.median(firsts) * 1e3


def epochs(make_model, data, steps: int, rounds: int) -> Times:
    """The times of an epoch of `steps` steps, by contestant."""
    calls = {}
    strategy = ipu.IPUStrategy()
    part = [values[: steps * BATCH] for values in data]

    def fit(model: keras.Model):
        return lambda: model.fit(*part, batch_size=BATCH, verbose=0)

    for count in STEPS_PER_EXECUTION:
        calls[KERAS.format(count)] = fit(compiled(make_model, count))
        with strategy.scope():
            calls[OURS.format(count)] = fit(compiled(make_model, count))
    return interleave(calls, rounds)


def main() -> None:
    """Prints a table for each model."""
    steps, rounds = (int(text) for text in (sys.argv[1:3] if len(sys.argv) > 2 else (1000, 7)))
    rng = np.random.default_rng(0)
    data = rng.random((steps * BATCH, 784), np.float32), rng.integers(0, 10, [steps * BATCH]).astype(np.int32)
    for name, make_model, share in (("MLP 784-128-10", mlp, 1), ("small CNN", cnn, 5)):
        count = steps // share
        times = epochs(make_model, data, count, rounds)
        best = min((KERAS.format(n) for n in STEPS_PER_EXECUTION), key=lambda one: median(times, one, count))
        rows = [[one, median(times, one, count), ratio(times, one, best)] for one in times]
        print_table(
            f"{name}, batch {BATCH}", ["an epoch of `fit`", "us a step", "times as fast as the best Keras"], rows
        )
        begins, first = second_fit(make_model, data)
        print(f"\na second fit begins its first batch after {begins:.0f} ms, and has run it after {first:.0f} ms")


if __name__ == "__main__":
    main()
