"""Training over several processes, against `MultiWorkerMirroredStrategy`: start, steps, collectives, scaling, idle workers."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import cost_model
from measure import print_table

ROUNDS = 5
BATCH, FEATURES, CLASSES = 32, 784, 10
NETWORKS = {"MLP": (128,), "25M parameters": (3584, 3584, 2048, 1024)}
STEPS = {"MLP": (1, 100), "25M parameters": (1, 5)}
SIZES = (1, 1 << 8, 1 << 12, 1 << 16, 1 << 18, 1 << 20)  # Elements of float32.
REPEATS = {1: 200, 1 << 8: 200, 1 << 12: 200, 1 << 16: 40, 1 << 18: 12, 1 << 20: 5}
COLLECTIVE_TARGET_US = 300.0
STEP_TARGET = {1: 1.0, 100: 1.5, 5: 1.0}


START_STEPS, START_BATCH = 50, 64  # Of all workers.
IDLE_SECONDS, IDLE_TARGET = 10, 0.02
TIMEOUT = 300  # Seconds for all workers to start, or to end.


# A worker: reads a command a line from the parent's socket, and answers with a line.


def weights_of(tf, network):
    """The variables of a network, [input, ..., output], weights and biases."""
    widths = (FEATURES, *NETWORKS[network], CLASSES)
    found = []
    for layer, (before, after) in enumerate(itertools.pairwise(widths)):
        found.append(tf.Variable(tf.random.stateless_normal([before, after], [layer, 1]) / before**0.5))
        found.append(tf.Variable(tf.zeros([after])))
    return found


def gradients_of(tf, weights):
    """What a worker computes in a step, of data that it has at hand."""
    x = tf.random.stateless_normal([BATCH, FEATURES], [5, 6])
    y = tf.random.stateless_uniform([BATCH], [7, 8], 0, CLASSES, tf.int32)
    with tf.GradientTape() as tape:
        for weight, bias in zip(weights[::2], weights[1::2], strict=True):
            x = tf.nn.relu(x @ weight + bias) if weight is not weights[-2] else x @ weight + bias
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x))
    return list(zip(tape.gradient(loss, weights), weights, strict=True))


class OnIpus:
    """This package."""

    def __init__(self):
        """Joins the cluster."""
        import tensorflow as tf

        import tensorflow_ipu as ipu

        self.tf, self.ipu = tf, ipu
        self.strategy = ipu.IPUMultiWorkerStrategy(timeout=120.0)
        config = ipu.IPUConfig()
        config.auto_select_ipus = 1
        config.configure_ipu_system()
        self.networks = {}

    def train(self, network, steps):
        """Runs so many steps, in one program."""
        tf = self.tf
        if network not in self.networks:
            with self.strategy.scope():
                weights, optimizer = weights_of(tf, network), tf.compat.v1.train.GradientDescentOptimizer(0.001)

            @tf.function(jit_compile=True)
            def program(n):
                for _ in tf.range(n):
                    optimizer.apply_gradients(gradients_of(tf, weights))

            self.networks[network] = program
        start = time.perf_counter()
        with self.strategy.scope():
            self.strategy.run(self.networks[network], args=(tf.constant(steps),))
        return time.perf_counter() - start

    def train_summing(self, how, network, steps):
        """The same with sums of the gradients written out: `together` in one, `each` by itself, or `none`."""
        tf, cross_replica_sum = self.tf, self.ipu.ops.cross_replica_ops.cross_replica_sum
        key = (how, network)
        if key not in self.networks:
            with self.strategy.scope():
                weights = weights_of(tf, network)
                context = tf.distribute.get_replica_context

            @tf.function(jit_compile=True)
            def program(n):
                for _ in tf.range(n):
                    # The backward pass has those of the last layer first.
                    gradients, variables = zip(*reversed(gradients_of(tf, weights)), strict=True)
                    if how == "together":
                        gradients = context().all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
                    for gradient, variable in zip(gradients, variables, strict=True):
                        variable.assign_sub(0.0005 * (cross_replica_sum(gradient) if how == "each" else gradient))

            self.networks[key] = program
        start = time.perf_counter()
        with self.strategy.scope():
            self.strategy.run(self.networks[key], args=(tf.constant(steps),))
        return time.perf_counter() - start

    def reduce(self, size, count):
        """Sums a tensor over the workers, so often in one program."""
        tf = self.tf
        key = ("reduce", size)
        if key not in self.networks:

            @tf.function(jit_compile=True)
            def program(x, n):
                for _ in tf.range(n):
                    x = 0.5 * self.ipu.ops.cross_replica_ops.cross_replica_sum(x)
                return x

            self.networks[key] = program, tf.ones([size])
        program, x = self.networks[key]
        start = time.perf_counter()
        self.strategy.run(program, args=(x, tf.constant(count)))
        return time.perf_counter() - start

    def exchange(self, size, count):
        """The same outside of programs, an eager call each."""
        tf = self.tf
        x = tf.ones([size])
        start = time.perf_counter()
        for _ in range(count):
            self.ipu.distributed.allreduce(x, "SUM")
        return time.perf_counter() - start

    def learn(self):
        """Trains with a share of each batch; returns the largest difference of a weight to plain TensorFlow's."""
        tf, cluster = self.tf, self.strategy.cluster
        x = tf.random.stateless_normal([START_BATCH, FEATURES], [5, 6])
        y = tf.random.stateless_uniform([START_BATCH], [7, 8], 0, CLASSES, tf.int32)

        def step(weights, x, y):
            with tf.GradientTape() as tape:
                logits = tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
                loss = tf.reduce_sum(losses) / START_BATCH
            return tape.gradient(loss, weights)

        def program(weights, x, y, total):
            for _ in tf.range(START_STEPS):
                for weight, gradient in zip(weights, total(step(weights, x, y)), strict=True):
                    weight.assign_sub(0.1 * gradient)

        def over_workers(gradients):
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        with self.strategy.scope():
            ours = weights_of(tf, "MLP")
            share = x[cluster.worker :: cluster.workers], y[cluster.worker :: cluster.workers]
            self.strategy.run(tf.function(lambda x, y: program(ours, x, y, over_workers), jit_compile=True), args=share)
        alone = weights_of(tf, "MLP")
        tf.function(lambda: program(alone, x, y, lambda gradients: gradients))()
        return max(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(ours, alone, strict=True))

    def wait(self, how, seconds):
        """Returns the processor time of worker 0, as a share of the time in which it waits for worker 1 in a collective."""
        meet = {"in a program": self.reduce, "outside": self.exchange}[how]
        meet(1, 1)
        is_late = self.strategy.cluster.worker == 1
        processor, clock = time.process_time(), time.perf_counter()
        if is_late:
            time.sleep(seconds)
        meet(1, 1)
        share = (time.process_time() - processor) / (time.perf_counter() - clock)
        return 0.0 if is_late else share


class Mirrored:
    """`MultiWorkerMirroredStrategy`, which XLA cannot compile here."""

    def __init__(self):
        """Joins the cluster."""
        import tensorflow as tf

        self.tf = tf
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        self.networks = {}

    def train(self, network, steps):
        """Runs so many steps, in one graph."""
        tf = self.tf
        if network not in self.networks:
            with self.strategy.scope():
                weights, optimizer = weights_of(tf, network), tf.keras.optimizers.SGD(0.001)
                optimizer.build(weights)

            @tf.function
            def program(n):
                for _ in tf.range(n):
                    self.strategy.run(lambda: optimizer.apply_gradients(gradients_of(tf, weights)))

            self.networks[network] = program
        start = time.perf_counter()
        self.networks[network](tf.constant(steps))
        return time.perf_counter() - start

    def eager(self, size, count):
        """Sums a tensor over the workers by TensorFlow's collective, an eager call each."""
        tf = self.tf
        with tf.device("/device:CPU:0"):
            x = tf.ones([size])
            start = time.perf_counter()
            for _ in range(count):
                tf.raw_ops.CollectiveReduceV2(
                    input=x, group_size=self.strategy.cluster_resolver.cluster_spec().num_tasks("worker"),
                    group_key=9000, instance_key=size, ordering_token=[], merge_op="Add", final_op="Id",
                    communication_hint="ring", timeout_seconds=120.0,
                )  # fmt: skip
        return time.perf_counter() - start


def serve(kind, address):
    """Executes the parent's commands until it closes the connection."""
    peer = {"ipu": OnIpus, "mirrored": Mirrored}[kind]()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw") as stream:
            for line in stream:
                name, *arguments = json.loads(line)
                print(json.dumps(getattr(peer, name)(*arguments)), file=stream, flush=True)
    if kind == "mirrored":
        os._exit(0)  # TensorFlow's servers would wait for each other.


# The parent.


def by_mpi(command, count):
    """Starts so many workers by the `mpiexec` of the wheel `mpich`; returns what to wait for."""
    launcher = pathlib.Path(sys.executable).with_name("mpiexec")
    return [subprocess.Popen([launcher, "-n", str(count), *command], stdin=subprocess.DEVNULL)]


def by_tf_config(command, count, **variables):
    """Starts so many workers, each with `TF_CONFIG`; returns what to wait for."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        cluster = {"worker": [f"127.0.0.1:{each.getsockname()[1]}" for each in held]}
    configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(count)]
    environments = [{**os.environ, "TF_CONFIG": config, **variables} for config in configs]
    return [subprocess.Popen(command, env=environment) for environment in environments]


@contextmanager
def workers(kind, count, launch=None):
    """So many workers of a kind: `call(name, *arguments)` has all of them run a command, and gives the largest answer."""
    launch = launch or {"ipu": by_mpi, "mirrored": by_tf_config}[kind]
    with ExitStack() as stack:
        # MPI's launcher hands the standard input to one worker only.
        address = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "commands")
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(address)
        listening.listen(count)
        listening.settimeout(TIMEOUT)
        processes = launch([sys.executable, __file__, "--worker", kind, "--commands", address], count)
        try:
            connections = [stack.enter_context(listening.accept()[0]) for _ in range(count)]
            streams = [stack.enter_context(connection.makefile("rw")) for connection in connections]

            def call(*command):
                for stream in streams:
                    print(json.dumps(command), file=stream, flush=True)
                return max(json.loads(stream.readline()) for stream in streams)

            yield call
            for connection in connections:
                connection.shutdown(socket.SHUT_RDWR)
            for process in processes:
                assert process.wait(TIMEOUT) == 0, f"a process of {kind} ended with {process.returncode}"
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def in_turn(contestants, rounds=ROUNDS):
    """Warms up each contestant, then has all of them run in turn; the times of each."""
    for call in contestants.values():
        call()
    times = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            times[name].append(call())
    return times


def train(peer, network, steps, calls):
    """The time of so many executions."""
    return sum(peer("train", network, steps) for _ in range(calls))


def compare_steps():
    """Training steps on two workers, with both strategies' workers up at the same time, and one pair at work."""
    rows = []
    with workers("ipu", 2) as ours, workers("mirrored", 2) as theirs:
        for network, counts in STEPS.items():
            for steps in counts:
                calls = max(1, (50 if network == "MLP" else 3) // steps)
                times = in_turn(
                    {
                        "ours": partial(train, ours, network, steps, calls),
                        "theirs": partial(train, theirs, network, steps, calls),
                    },
                    ROUNDS if network == "MLP" else 3,
                )
                ratio = statistics.median(b / a for a, b in zip(times["ours"], times["theirs"], strict=True))
                each = [statistics.median(times[name]) / calls / steps * 1e3 for name in ("ours", "theirs")]
                rows.append([network, steps, *each, ratio, STEP_TARGET[steps]])
    print_table(
        "Training steps on two workers",
        ["network", "steps an execution", "ms a step", "MultiWorkerMirroredStrategy", "times as fast", "target"],
        rows,
    )


def compare_overlap():
    """All gradients summed in one collective, against each as soon as there is one, beside the rest of the backward pass."""
    rows = []
    with workers("ipu", 2) as ours:
        for network, counts in STEPS.items():
            steps = counts[-1]
            ways = ("together", "each", "none")
            times = in_turn({how: partial(ours, "train_summing", how, network, steps) for how in ways})
            each = [statistics.median(times[how]) / steps * 1e3 for how in ways]
            ratio = statistics.median(b / a for a, b in zip(times["together"], times["each"], strict=True))
            rows.append([network, *each, ratio])
    print_table(
        "Sums of gradients on two workers, in ms a step",
        ["network", "in one", "each by itself", "without sums", "each, times in one"],
        rows,
    )


def measure_collectives(counts=(2, 4)):
    """Sums over workers against TensorFlow's eager collective; (workers, bytes, seconds) of each for the model."""
    rows, points = [], []
    for count in counts:
        with workers("ipu", count) as ours, workers("mirrored", count) as theirs:
            for size in SIZES:
                ways = {"reduce": ours, "exchange": ours, "eager": theirs}
                times = in_turn({name: partial(peer, name, size, REPEATS[size]) for name, peer in ways.items()})
                times = {name: [seconds / REPEATS[size] * 1e6 for seconds in found] for name, found in times.items()}
                added = statistics.median(a - b for a, b in zip(times["reduce"], times["eager"], strict=True))
                rows.append([count, 4 * size, *(statistics.median(times[name]) for name in ways), added])
                points.append((count, 4 * size, rows[-1][2] / 1e6))
    print_table(
        f"A sum over workers, in us; what a program adds is to be below {COLLECTIVE_TARGET_US:.0f} us for small tensors",
        ["workers", "bytes", "in a program", "outside, eager", "TensorFlow, eager", "a program adds"],
        rows,
    )
    return points


def scale_weakly(counts=(1, 2, 4)):
    """The MLP with the same work for each worker: 100 steps an execution."""
    rows = []
    with ExitStack() as stack:
        peers = {count: stack.enter_context(workers("ipu", count)) for count in counts}
        times = in_turn({count: partial(peer, "train", "MLP", 100) for count, peer in peers.items()})
    for count in counts:
        step = statistics.median(times[count]) / 100
        relative = statistics.median(b / a for a, b in zip(times[1], times[count], strict=True))
        rows.append([count, step * 1e6, relative, count / relative])
    print_table(
        f"Weak scaling on {os.cpu_count()} cores: the MLP, {BATCH} samples a worker and step",
        ["workers", "us a step", "times one worker's", "samples, times one worker's"],
        rows,
    )


def start(counts=(2, 4, 8, 16)):
    """Starts, training and ends of workers: none may lack, and all learn what one process does."""
    rows = []
    for count in counts:
        began = time.perf_counter()
        with workers("ipu", count) as ours:
            started = time.perf_counter()
            difference = ours("learn")
            trained = time.perf_counter()
        ended = time.perf_counter()
        assert difference < 1e-4, f"{count} workers learn other weights: they differ by {difference}"
        rows.append([count, started - began, trained - started, ended - trained, f"{difference:.1e}"])
    print_table(
        f"{START_STEPS} steps of the MLP on {os.cpu_count()} cores, in seconds",
        ["workers", "to start", "to compile and train", "to end", "largest difference to one process"],
        rows,
    )


def measure_idle():
    """The processor time of a worker that waits for another one."""
    with workers("ipu", 2) as ours:
        rows = [[how, 100 * ours("wait", how, IDLE_SECONDS), 100 * IDLE_TARGET] for how in ("in a program", "outside")]
    print_table(
        f"Processor time of a worker that waits {IDLE_SECONDS} s for another one",
        ["collective", "percent", "target"],
        rows,
    )


def main():
    """Measures what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", choices=["ipu", "mirrored"])
    parser.add_argument("--commands", help="the socket of the worker's commands")
    parser.add_argument("parts", nargs="*", help="start, steps, overlap, collectives, scaling, idle; all by default")
    options = parser.parse_args()
    if options.worker:
        serve(options.worker, options.commands)
        return
    parts = options.parts or ["start", "steps", "overlap", "collectives", "scaling", "idle"]
    if "start" in parts:
        start()
    if "steps" in parts:
        compare_steps()
    if "overlap" in parts:
        compare_overlap()
    if "collectives" in parts:
        model = cost_model.fit(measure_collectives(), os.cpu_count() or 1)
        print(f"\n{model}")
        rows = cost_model.extended(model)
        print_table(
            "The gradients of 25M parameters on a network of 10 Gbit/s: the model, not a measurement",
            cost_model.HEADER,
            rows,
        )
    if "scaling" in parts:
        scale_weakly()
    if "idle" in parts:
        measure_idle()


if __name__ == "__main__":
    main()
