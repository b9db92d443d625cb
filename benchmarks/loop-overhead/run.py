"""Compares a training loop with feeds on the device with other ways to run the same steps."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf
from measure import interleave, median, print_table, ratio

import tensorflow_ipu as ipu

FED = "device loop with feeds"
INSIDE = "XLA loop without feeds"
PYTHON = "Python loop, compiled step, tf.data"
KERAS = "Keras fit, {} steps per execution"
KERAS_STEPS = (1, 10, 100)
BATCHES = 16  # Distinct batches. With the same batch in each step, XLA could move work out of the loop.


def mlp() -> keras.Model:
    """Returns an MLP of 784, 128 and 10 units."""
    return keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])


def tiny() -> keras.Model:
    """Returns a single layer, whose training step takes a few microseconds."""
    return keras.Sequential([keras.layers.Dense(10)])


def trained(make_model, features: int):
    """Creates a model and its optimizer under the current strategy, and returns the model and a training step."""
    model = make_model()
    model.build((None, features))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return model, step


def contestants(make_model, features: int, batch: int):
    """Returns the ways to train, by name, as functions that run a number of steps."""
    rng = np.random.default_rng(0)
    xs = rng.random((BATCHES, batch, features), np.float32)
    ys = rng.integers(0, 10, (BATCHES, batch)).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((xs, ys)).cache().repeat()
    strategy = ipu.IPUStrategy()
    calls = {}

    with strategy.scope():
        _, step = trained(make_model, features)
        iterator = iter(dataset)
        queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def fed(iterator, n):
        for _ in tf.range(n):
            x, y = next(iterator)
            queue.enqueue(step(x, y))

    def run_fed(steps):
        with strategy.scope():
            strategy.run(fed, args=(iterator, tf.constant(steps)))
            queue.dequeue()

    calls[FED] = run_fed

    with strategy.scope():
        _, step_inside = trained(make_model, features)

    @tf.function(jit_compile=True)
    def inside(x, y, n):
        losses = tf.constant(0.0)
        for i in tf.range(n):
            losses += step_inside(x[i % BATCHES], y[i % BATCHES])
        return losses

    resident = tf.constant(xs), tf.constant(ys)

    def run_inside(steps):
        with strategy.scope():
            strategy.run(inside, args=(*resident, tf.constant(steps)))

    calls[INSIDE] = run_inside

    _, step_python = trained(make_model, features)
    jitted = tf.function(step_python, jit_compile=True)
    plain_iterator = iter(dataset.prefetch(tf.data.AUTOTUNE))

    def run_python(steps):
        for _ in range(steps):
            jitted(*next(plain_iterator))

    calls[PYTHON] = run_python

    for per_execution in KERAS_STEPS:
        model = make_model()
        model.compile(
            keras.optimizers.SGD(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=per_execution,
            jit_compile=True,
        )
        calls[KERAS.format(per_execution)] = lambda steps, model=model: model.fit(
            dataset, epochs=1, steps_per_epoch=steps, verbose=0
        )
    return calls


def timed(calls, names, steps: int):
    """Returns the times of `steps` steps of the named contestants, which run in turns."""
    return interleave({name: lambda call=calls[name]: call(steps) for name in names})


def main() -> None:
    """Prints for each model a comparison with the loop without feeds, and one with Python loops and Keras."""
    for title, make_model, features, batch, long, short, targets in (
        ("MLP 784-128-10, batch 32", mlp, 784, 32, 2000, 500, (0.95, 4.5, 1.0)),
        ("one layer 16-10, batch 4", tiny, 16, 4, 20000, 2000, (0.9, 10.0, 1.0)),
    ):
        calls = contestants(make_model, features, batch)
        header = ("contestant", "us per step", "speed of the loop with feeds", "target")
        times = timed(calls, (FED, INSIDE), long)
        rows = [(name, median(times, name, long), ratio(times, FED, name)) for name in times]
        print_table(
            f"{title}, and the same loop without feeds (medians of 7 rounds of {long} steps)",
            header,
            [(*row, targets[0] if row[0] == INSIDE else "") for row in rows],
        )
        times = timed(calls, [name for name in calls if name != INSIDE], short)
        best_keras = min(KERAS_STEPS, key=lambda n: median(times, KERAS.format(n), short))
        goals = {PYTHON: targets[1], KERAS.format(best_keras): targets[2]}
        print_table(
            f"{title}, and other training loops (medians of 7 rounds of {short} steps)",
            header,
            [(name, median(times, name, short), ratio(times, FED, name), goals.get(name, "")) for name in times],
        )


if __name__ == "__main__":
    main()
