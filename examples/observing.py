"""Measures how long a loop waits for its data, and writes a trace that shows it."""

from __future__ import annotations

import argparse
import hashlib

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu


def slow_element(number: np.ndarray) -> np.ndarray:
    """Returns an element after some milliseconds of work, as in a slow dataset."""
    digest = hashlib.pbkdf2_hmac("sha256", bytes([int(number) % 256]), b"salt", 10_000)
    return np.frombuffer(digest, np.uint8).astype(np.float32)


def main() -> None:
    """Runs a loop on slow data, and prints its metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trace", default="trace.json", help="a file for the trace; open it at https://ui.perfetto.dev"
    )
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    data = tf.data.Dataset.range(10**6).map(
        lambda number: tf.ensure_shape(tf.numpy_function(slow_element, [number], tf.float32), [32])
    )
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        total = tf.Variable(tf.zeros(32))
        iterator = iter(data)

    @tf.function(jit_compile=True)
    def program(iterator: ipu.feeds.IPUIterator, steps: tf.Tensor) -> None:
        for _ in tf.range(steps):
            total.assign_add(tf.tanh(next(iterator)))

    arguments = (iterator, tf.constant(options.steps))
    strategy.run(program, arguments)  # Compiles the program.
    ipu.clear_metrics()
    with ipu.trace(options.trace):
        strategy.run(program, arguments)
    _, running, _ = ipu.metric_data("RunTime")
    waits, waiting, _ = ipu.metric_data("InfeedWaitTime")
    print(ipu.metrics_report())
    print(f"{options.steps} steps waited {waits} times for data: {waiting / running:.0%} of the run")
    print(f"trace: {options.trace}")


if __name__ == "__main__":
    main()
