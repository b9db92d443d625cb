"""Compares the speed of an infeed with `memcpy`, and with the dataset's iterator without a queue."""

from __future__ import annotations

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from measure import interleave, print_table

import tensorflow_ipu as ipu

SIZES = tuple(4 * 4**i for i in range(12))  # 4 bytes to 16 MiB.
ROUNDS = 7


def bare_iterator(dataset: tf.data.Dataset, count: int) -> float:
    """Returns the seconds per element of the dataset's iterator, read natively without copies."""
    windows = iter(dataset.window(count))  # One window holds all elements, as references.
    begin = time.perf_counter()
    next(windows)
    return (time.perf_counter() - begin) / count


def main() -> None:
    """Prints a row for each size of an element."""
    strategy = ipu.IPUStrategy()

    @tf.function(jit_compile=True)
    def consume(iterator, n):
        total = tf.constant(0, tf.uint8)
        for _ in tf.range(n):
            total += next(iterator)[0]
        return total

    rows = []
    for size in SIZES:
        count = max(64, min(20000, (1 << 31) // size // 2))
        dataset = tf.data.Dataset.from_tensors(tf.ones([size], tf.uint8)).repeat()
        with strategy.scope():
            iterator = iter(dataset)
        source = np.ones(size, np.uint8)
        target = np.empty_like(source)

        def fed(iterator=iterator, count=count):
            strategy.run(consume, args=(iterator, tf.constant(count)))

        def memcpy(source=source, target=target, count=count):
            for _ in range(count):
                np.copyto(target, source)

        times = interleave({"fed": fed, "memcpy": memcpy}, ROUNDS)
        bare = statistics.median(bare_iterator(dataset, count) for _ in range(ROUNDS))
        element = statistics.median(times["fed"]) / count
        speed = statistics.median(m / f for m, f in zip(times["memcpy"], times["fed"], strict=True))
        rows.append(
            (
                f"{size} B" if size < 1024 else f"{size // 1024} KiB",
                element * 1e6,
                bare * 1e6,
                (element - bare) * 1e6,
                size / element / 1e9,
                speed,
            )
        )
        with strategy.scope():
            del iterator
    print_table(
        f"infeed of elements of one tensor (medians of {ROUNDS} rounds); targets: at most 3 us more than the iterator for"
        " small elements, 0.8 of memcpy for 16 MiB",
        ("element", "us, infeed", "us, iterator", "us more", "GB/s, infeed", "share of memcpy"),
        rows,
    )


if __name__ == "__main__":
    main()
