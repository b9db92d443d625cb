"""Measures steps that look up and train rows of a table: on the host, in the program, and in plain TensorFlow."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from measure import interleave, median, print_table, ratio

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import embedding_ops

WIDTH, LOOKED_UP, STEPS, ROUNDS = 64, 1024, 200, 7
RATE = 0.01
# The second table is too large for a variable of a program.
TABLES = {"0.25 GiB": 1 << 20, "8 GiB": 1 << 25}


def on_the_host(strategy, rows):
    """Returns a loop whose table is a `HostEmbedding`, and the embedding."""
    embedding = embedding_ops.create_host_embedding(
        f"rows_{rows}",
        [rows, WIDTH],
        tf.float32,
        optimizer_spec=embedding_ops.HostEmbeddingOptimizerSpec(RATE),
        initializer=tf.zeros_initializer(),
    )

    @tf.function(jit_compile=True)
    def loop(indices):
        for step in tf.range(STEPS):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((embedding.lookup(indices[step % 8]) - 1.0) ** 2)
            tape.gradient(loss, embedding.trainable_variables)

    return (lambda indices: strategy.run(loop, (indices,))), embedding


def in_the_program(strategy, rows):
    """Returns a loop whose table is a variable of the program."""
    with strategy.scope():
        table = tf.Variable(tf.zeros([rows, WIDTH]))

    @tf.function(jit_compile=True)
    def loop(indices):
        for step in tf.range(STEPS):
            ids = indices[step % 8]
            gradient = 2 * (tf.gather(table, ids) - 1.0)
            table.scatter_sub(tf.IndexedSlices(RATE * gradient, ids))

    return lambda indices: strategy.run(loop, (indices,))


def by_tensorflow(rows):
    """Returns the same loop, computed by TensorFlow's kernels on the CPU."""
    with tf.device("/device:CPU:0"):
        table = tf.Variable(tf.zeros([rows, WIDTH]))

    @tf.function
    def loop(indices):
        for step in tf.range(STEPS):
            ids = indices[step % 8]
            gradient = 2 * (tf.gather(table, ids) - 1.0)
            table.scatter_sub(tf.IndexedSlices(RATE * gradient, ids))

    return loop


def main() -> None:
    """Prints a row for each size of the table and each loop."""
    strategy = ipu.IPUStrategy()
    lines = []
    for name, rows in TABLES.items():
        # The steps use only a few thousand of the rows.
        used = np.random.default_rng(0).integers(0, rows, [8, LOOKED_UP]).astype(np.int32)
        indices = tf.constant(used)
        host, embedding = on_the_host(strategy, rows)
        contestants = {"host embedding": lambda host=host, indices=indices: host(indices)}
        if name != "8 GiB":
            program, plain = in_the_program(strategy, rows), by_tensorflow(rows)
            contestants["variable of the program"] = lambda program=program, indices=indices: program(indices)
            contestants["plain TensorFlow"] = lambda plain=plain, indices=indices: plain(indices)
        with embedding.register():
            times = interleave(contestants, ROUNDS)
        assert abs(embedding.table[used[0, 0]]).max() > 0
        for contestant in contestants:
            faster = ratio(times, "host embedding", contestant)
            lines.append((f"{name}, {contestant}", median(times, contestant, STEPS), faster))
    print_table(
        f"a step that looks up and trains {LOOKED_UP} rows of {WIDTH} (medians of {ROUNDS} rounds of {STEPS} steps)",
        ("table", "microseconds a step", "times the host embedding's"),
        lines,
    )


if __name__ == "__main__":
    main()
