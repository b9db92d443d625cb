"""How fast replicas exchange: an all-reduce against `memcpy`, and against `MirroredStrategy` on logical CPU devices."""

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
    """How many of them make a time that can be measured."""
    return max(5, min(500, (1 << 22) // size))


def parameters(tf):
    """The weights of the MLP."""
    normal = tf.random.stateless_normal
    return [
        tf.Variable(0.05 * normal([FEATURES, HIDDEN], [1, 2])),
        tf.Variable(tf.zeros([HIDDEN])),
        tf.Variable(0.05 * normal([HIDDEN, CLASSES], [3, 4])),
        tf.Variable(tf.zeros([CLASSES])),
    ]


def training_step(tf, weights, optimizer, x, y) -> None:
    """The step that both strategies train by; the optimizer sums over their replicas."""
    with tf.GradientTape() as tape:
        logits = tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))


def batch(tf):
    """What every step is trained on."""
    x = tf.random.stateless_normal([BATCH, FEATURES], [5, 6])
    return x, tf.random.stateless_uniform([BATCH], [7, 8], 0, CLASSES, tf.int32)


def on_ipus(count: int):
    """`reduce(size, n)` and `train(n)`: n all-reduces, or n training steps, in one run."""
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
    """The same by TensorFlow's own strategy for several devices of one machine."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    strategy = tf.distribute.MirroredStrategy([f"/device:CPU:{i}" for i in range(count)])

    def once(x):
        return tf.distribute.get_replica_context().all_reduce("mean", x)

    @tf.function
    def reduce(x, n):
        for _ in tf.range(n):
            x = strategy.run(once, (x,))
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
    """Microseconds of an all-reduce of each size, by its name, and of a training step."""
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
    """How fast so many bytes are copied."""
    source, target = np.zeros(size, np.uint8), np.ones(size, np.uint8)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(5):
            np.copyto(target, source)
        times.append((time.perf_counter() - start) / 5)
    return size / statistics.median(times) / 1e9


def main() -> None:
    """Measures each contestant in processes of its own, in turn, and prints the tables."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
        return
    counts = [count for count in COUNTS if count <= int(os.environ.get("LARGEST", "16"))]
    found = {}
    for count in counts:
        for kind in ("ipu", "mirrored"):
            command = [sys.executable, __file__, kind, str(count)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[kind, count] = json.loads(done.stdout.splitlines()[-1])
    for size in SIZES:
        rows = []
        for count in counts:
            ours, theirs = found["ipu", count][str(size)], found["mirrored", count][str(size)]
            total = count * size * 4
            rate = total / ours / 1e3
            target = SCALAR_TARGET_US if (size, count) == (1, 8) else ""
            rows.append((count, ours, target, rate, rate / memcpy_gigabytes_a_second(total), theirs, theirs / ours))
        print_table(
            f"all-reduce of {size} x float32 a replica (medians of {ROUNDS} rounds)",
            ("replicas", "us", "target: at most", "GB/s", "of memcpy", "MirroredStrategy us", "faster by (target: 1)"),
            rows,
        )
    rows = []
    for count in counts:
        ours, theirs = found["ipu", count]["step"], found["mirrored", count]["step"]
        rows.append((count, ours, theirs, theirs / ours))
    print_table(
        f"training step of an MLP 784-128-10, batch 32 a replica (medians of {ROUNDS} rounds)",
        ("replicas", "us", "MirroredStrategy us", "faster by (target: 1)"),
        rows,
    )


if __name__ == "__main__":
    main()
