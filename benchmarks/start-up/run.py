"""What the package adds to the import of TensorFlow and to the first compilation."""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from measure import interleave, print_table

ROUNDS = 7

COMPILE = """
import time
import keras, numpy as np, tensorflow as tf
import tensorflow_ipu as ipu

strategy = ipu.IPUStrategy() if {ours} else tf.distribute.get_strategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 784))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function(jit_compile=True)
def train(x, y, n):
    for _ in tf.range(n):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

arguments = tf.ones([32, 784]), tf.ones([32], tf.int32), tf.constant(1)
start = time.perf_counter()
strategy.run(train, args=arguments) if {ours} else train(*arguments)
print(time.perf_counter() - start)
"""


def seconds_printed(script: str) -> float:
    """What a script prints in a process of its own."""
    return float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Prints the import's row and the compilation's."""
    imports = interleave(
        {
            name: lambda name=name: subprocess.run(
                [sys.executable, "-c", f"import {name}"], check=True, capture_output=True
            )
            for name in ("tensorflow", "tensorflow_ipu")
        },
        ROUNDS,
    )
    pairs = list(zip(imports["tensorflow"], imports["tensorflow_ipu"], strict=True))
    compiles = [
        (seconds_printed(COMPILE.format(ours=False)), seconds_printed(COMPILE.format(ours=True))) for _ in range(ROUNDS)
    ]
    rows = [
        (
            "import",
            statistics.median(plain for plain, _ in pairs),
            statistics.median(ours for _, ours in pairs),
            f"{statistics.median(ours - plain for plain, ours in pairs):.2f} s more",
            "at most 0.2 s more",
        ),
        (
            "first call of a training loop",
            statistics.median(plain for plain, _ in compiles),
            statistics.median(ours for _, ours in compiles),
            f"{statistics.median(ours / plain for plain, ours in compiles):.2f} times",
            "at most 1.05 times",
        ),
    ]
    print_table(
        f"seconds (medians of {ROUNDS} pairs of processes)",
        ("what", "plain TensorFlow", "tensorflow_ipu", "so", "target"),
        rows,
    )


if __name__ == "__main__":
    main()
