"""Compares `strategy.run` with a direct call of the compiled function."""

from __future__ import annotations

import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf
from measure import interleave, median, print_table

import tensorflow_ipu as ipu

CALLS = 1000  # The number of calls per round.
ROUNDS = 10
TARGET_US = 50.0


def main() -> None:
    """Prints a row for a function of a tensor, and one for a function that reads a variable."""
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        variable = tf.Variable(1.0)

    @tf.function(jit_compile=True)
    def add(x):
        return x + 1.0

    @tf.function(jit_compile=True)
    def read(x):
        return x + variable

    rows = []
    for name, function in (("x + 1", add), ("x + variable", read)):
        with tf.device("/device:IPU:0"):
            x = tf.constant(1.0)

        def direct(function=function, x=x):
            with tf.device("/device:IPU:0"):
                for _ in range(CALLS):
                    function(x)

        def run(function=function, x=x):
            for _ in range(CALLS):
                strategy.run(function, args=(x,))

        times = interleave({"direct": direct, "run": run}, ROUNDS)
        more = statistics.median(r - d for r, d in zip(times["run"], times["direct"], strict=True)) / CALLS * 1e6
        rows.append((name, median(times, "direct", CALLS), median(times, "run", CALLS), more, TARGET_US))
    print_table(
        f"microseconds per call (medians of {ROUNDS} rounds of {CALLS} calls)",
        ("function", "direct call", "strategy.run", "more", "target: at most"),
        rows,
    )


if __name__ == "__main__":
    main()
