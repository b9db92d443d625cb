"""Compares the all-reduce of replicas with `memcpy`, and with `MirroredStrategy` on logical CPU devices."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from measure import print_table

COUNTS = (2, 4, 8, 16)
SIZES = (1, 1 << 10, 1 << 16, 1 << 20)  # Elements of float32.
ROUNDS = 7
SCALAR_TARGET_US = 50.0
BATCH, FEATURES, HIDDEN, CLASSES = 32, 784, 128, 10


def repeats(size: int) -> int:
    """Returns a number of all-reduces that together take long enough to be measured."""
    return max(5, min(500, (1 << 22) // size))


def parameters(tf):
    """Returns the weights of the MLP."""
    normal = tf.random.stateless_normal
    return [
        tf.Variable(0.05 * normal([FEATURES, HIDDEN], [1, 2])),
        tf.Variable(tf.zeros([HIDDEN])),
        tf.Variable(0.05 * normal([HIDDEN, CLASSES], [3, 4])),
        tf.Variable(tf.zeros([CLASSES])),
    ]


def training_step(tf, weights, optimizer, x, y) -> None:
    """Runs a training step in the current replica; the optimizer sums gradients over replicas."""
    with tf.GradientTape() as tape:
        logits = tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))


def batch(tf):
    """Returns the inputs and labels of each step."""
    x = tf.random.stateless_normal([BATCH, FEATURES], [5, 6])
    return x, tf.random.stateless_uniform([BATCH], [7, 8], 0, CLASSES, tf.int32)


def on_ipus(count: int):
    """Returns two functions of this package: `reduce(size, n)` runs n all-reduces and `train(n)` n training steps."""
    import tensorflow as tf

    import tensorflow_ipu as ipu

    config = ipu.IPUConfig()
    config.auto_select_ipus = count
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()

    @tf.function(jit_compile=True)
    def reduce(x, n):
        for _ in tf.range(n):
            x = tf.distribute.get_replica_context().all_reduce("mean", x)
        return x

    with strategy.scope():
        weights, optimizer = parameters(tf), tf.compat.v1.train.GradientDescentOptimizer(0.001)

    @tf.function(jit_compile=True)
    def train(x, y, n):
        for _ in tf.range(n):
            training_step(tf, weights, optimizer, x, y)

    x, y = batch(tf)
    return (
        lambda size, n: strategy.run(reduce, (tf.zeros([size]), tf.constant(n))),
        lambda n: strategy.run(train, (x, y, tf.constant(n))),
    )


def mirrored(count: int):
    """Returns the same two functions with TensorFlow's strategy for several devices of one host."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    strategy = tf.distribute.MirroredStrategy([f"/device:CPU:{i}" for i in range(count)])

    def all_reduce(x):
        return tf.distribute.get_replica_context().all_reduce("mean", x)

    @tf.function
    def reduce(x, n):
        for _ in tf.range(n):
            x = strategy.run(all_reduce, (x,))
        return x

    with strategy.scope():
        weights, optimizer = parameters(tf), tf.compat.v1.train.GradientDescentOptimizer(0.001)
    x, y = batch(tf)

    @tf.function
    def train(n):
        for _ in tf.range(n):
            strategy.run(lambda: training_step(tf, weights, optimizer, x, y))

    def values(size):
        return strategy.experimental_distribute_values_from_function(lambda _: tf.zeros([size]))

    return lambda size, n: reduce(values(size), tf.constant(n)), lambda n: train(tf.constant(n))


def measured(kind: str, count: int) -> dict[str, float]:
    """Returns the microseconds of an all-reduce, by size, and of a training step, by `"step"`."""
    reduce, train = (on_ipus if kind == "ipu" else mirrored)(count)

    def microseconds(call, n: int) -> float:
        call(n)
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            call(n)
            times.append(time.perf_counter() - start)
        return statistics.median(times) / n * 1e6

    figures = {str(size): microseconds(lambda n, s=size: reduce(s, n), repeats(size)) for size in SIZES}
    return figures | {"step": microseconds(train, 100)}


def memcpy_gigabytes_a_second(size: int) -> float:
    """Returns the speed at which NumPy copies `size` bytes."""
    source, target = np.zeros(size, np.uint8), np.ones(size, np.uint8)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(5):
            np.copyto(target, source)
        times.append((time.perf_counter() - start) / 5)
    return size / statistics.median(times) / 1e9


def main() -> None:
    """Measures each strategy and number of replicas in a separate process, and prints the tables."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
        return
    counts = [count for count in COUNTS if count <= int(os.environ.get("LARGEST", "16"))]
    times = {}
    for count in counts:
        for kind in ("ipu", "mirrored"):
            command = [sys.executable, __file__, kind, str(count)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            times[kind, count] = json.loads(done.stdout.splitlines()[-1])
    for size in SIZES:
        rows = []
        for count in counts:
            ipu, mirrored = times["ipu", count][str(size)], times["mirrored", count][str(size)]
            total = count * size * 4
            rate = total / ipu / 1e3
            target = SCALAR_TARGET_US if (size, count) == (1, 8) else ""
            rows.append((count, ipu, target, rate, rate / memcpy_gigabytes_a_second(total), mirrored, mirrored / ipu))
        print_table(
            f"all-reduce of {size} x float32 per replica (medians of {ROUNDS} rounds)",
            ("replicas", "us", "target: at most", "GB/s", "of memcpy", "MirroredStrategy us", "faster by (target: 1)"),
            rows,
        )
    rows = []
    for count in counts:
        ipu, mirrored = times["ipu", count]["step"], times["mirrored", count]["step"]
        rows.append((count, ipu, mirrored, mirrored / ipu))
    print_table(
        f"training step of an MLP 784-128-10, batch 32 per replica (medians of {ROUNDS} rounds)",
        ("replicas", "us", "MirroredStrategy us", "faster by (target: 1)"),
        rows,
    )


if __name__ == "__main__":
    main()
