"""How long an element takes from the program's enqueue to the thread that dequeues it."""

from __future__ import annotations

import pathlib
import queue
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf
from measure import print_table

import tensorflow_ipu as ipu
from tensorflow_ipu._library import native

SAMPLES = 2000


def main() -> None:
    """Sends one element after the other through a program, and times the last part of its way."""
    strategy = ipu.IPUStrategy()
    tickets: queue.Queue[int] = queue.Queue()
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(tickets.get, -1), output_signature=tf.TensorSpec([], tf.int32)
    )
    with strategy.scope():
        iterator = iter(dataset)
        outfeed = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(iterator, n):
        for _ in tf.range(n):
            outfeed.enqueue(next(iterator))

    run = threading.Thread(target=lambda: strategy.run(program, args=(iterator, tf.constant(SAMPLES))))
    run.start()
    latencies = []
    last = 0
    for ticket in range(SAMPLES):
        tickets.put(ticket)
        while True:
            element = next(iter(outfeed), None)  # A loop would go on, and wait a moment for the next one.
            now = time.monotonic_ns()
            if element is not None:
                break
        woken = native.ipu_outfeed_woken_ns(outfeed._feed.number)
        if woken != last:  # Else the element was there before this thread asked, and waited for nobody.
            latencies.append((now - woken) / 1e3)
        last = woken
    run.join()
    tickets.put(-1)
    latencies.sort()
    print_table(
        f"microseconds from enqueue to the dequeuing thread ({len(latencies)} of {SAMPLES} elements found it waiting)",
        ("median", "90th percentile", "99th percentile"),
        [(statistics.median(latencies), latencies[len(latencies) * 9 // 10], latencies[len(latencies) * 99 // 100])],
    )


if __name__ == "__main__":
    main()
