"""Compares a step of R replicas with R steps of one replica, and measures its compilation and memory."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from measure import interleave, median, print_table, ratio

COUNTS = (1, 2, 4, 8, 16)
STEPS = 100
ROUNDS = 7
TARGET_RATIO = 1.1
BATCH, FEATURES, HIDDEN, CLASSES = 32, 784, 128, 10


def resident_mib() -> float:
    """Returns the resident memory of this process."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def measured(count: int) -> dict[str, float]:
    """Trains the MLP on a device of `count` IPUs, and sequentially `count` times on a device of one IPU."""
    import tensorflow as tf

    import tensorflow_ipu as ipu
    from tensorflow_ipu.ops.replication_ops import replication_index

    config = ipu.IPUConfig()
    config.auto_select_ipus = [count, 1]
    config.configure_ipu_system()

    def trainer(device: str, all_reduce: bool):
        strategy = ipu.IPUStrategy(device)
        with strategy.scope():
            initial = tf.random.stateless_normal
            weights = [
                tf.Variable(0.05 * initial([FEATURES, HIDDEN], [1, 2])),
                tf.Variable(tf.zeros([HIDDEN])),
                tf.Variable(0.05 * initial([HIDDEN, CLASSES], [3, 4])),
                tf.Variable(tf.zeros([CLASSES])),
            ]
        # The data are arguments, so that feeds do not matter. Each replica and each step uses other data.
        xs = tf.random.stateless_normal([16, BATCH, FEATURES], [5, 6])
        ys = tf.random.stateless_uniform([16, BATCH], [7, 8], 0, CLASSES, tf.int32)

        @tf.function(jit_compile=True)
        def train(xs, ys, n):
            for i in tf.range(n):
                index = (i + replication_index()) % 16
                x, y = xs[index], ys[index]
                with tf.GradientTape() as tape:
                    logits = tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
                    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
                gradients = tape.gradient(loss, weights)
                if all_reduce:
                    gradients = tf.distribute.get_replica_context().all_reduce("mean", gradients)
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.assign_sub(0.01 * gradient)

        return lambda: strategy.run(train, (xs, ys, tf.constant(STEPS)))

    replicated, single = trainer("/device:IPU:0", True), trainer("/device:IPU:1", False)
    single()
    memory_before = resident_mib()
    start = time.perf_counter()
    replicated()
    first = time.perf_counter() - start
    memory = resident_mib() - memory_before

    def sequential() -> None:
        for _ in range(count):
            single()

    times = interleave({"replicas": replicated, "sequential": sequential}, ROUNDS)
    return {
        "step": median(times, "replicas", STEPS),
        "sequential": median(times, "sequential", STEPS),
        "ratio": ratio(times, "sequential", "replicas"),
        "compile": first - median(times, "replicas", 1) / 1e6,
        "memory": memory,
    }


def main() -> None:
    """Measures each number of replicas in a separate process, and prints a table."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(int(sys.argv[1]))))
        return
    rows = []
    for count in COUNTS:
        done = subprocess.run([sys.executable, __file__, str(count)], check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append((count, row["step"], row["sequential"], row["ratio"], TARGET_RATIO, row["compile"], row["memory"]))
    print_table(
        f"MLP 784-128-10, batch 32 per replica: medians of {ROUNDS} rounds of {STEPS} steps",
        (
            "replicas",
            "us per step",
            "us, sequential",
            "ratio",
            "target: at most",
            "s to compile",
            "MiB more",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
