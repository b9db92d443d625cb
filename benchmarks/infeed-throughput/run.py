"""How fast elements come through an infeed, against `memcpy` and against the dataset's bare iterator."""

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
    """Seconds an element of the dataset's own iterator, read natively without a copy."""
    windows = iter(dataset.window(count))  # A window has references to elements.
    begin = time.perf_counter()
    next(windows)
    return (time.perf_counter() - begin) / count


def main() -> None:
    """Prints a row a size."""
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
        f"infeed of elements of one tensor (medians of {ROUNDS} rounds); targets: at most 3 us over the bare iterator for"
        " small elements, 0.8 of memcpy for 16 MiB",
        ("element", "us fed", "us bare iterator", "us more", "GB/s fed", "of memcpy"),
        rows,
    )


if __name__ == "__main__":
    main()
