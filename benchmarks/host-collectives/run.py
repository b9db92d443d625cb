"""Compares training over several processes with `MultiWorkerMirroredStrategy`: start, steps, collectives, scaling."""

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


START_STEPS, START_BATCH = 50, 64  # The batch of all workers together.
IDLE_SECONDS, IDLE_TARGET = 10, 0.02
TIMEOUT = 300  # The timeout for the start, and for the end, of all workers, in seconds.


# Code of a worker. It reads one command per line from the parent's socket, and answers each with a line.


def weights_of(tf, network):
    """Creates the weights and biases of a network, in the order of its layers."""
    widths = (FEATURES, *NETWORKS[network], CLASSES)
    variables = []
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        variables.append(tf.Variable(tf.random.stateless_normal([inputs, outputs], [layer, 1]) / inputs**0.5))
        variables.append(tf.Variable(tf.zeros([outputs])))
    return variables


def gradients_of(tf, weights):
    """Computes the gradients of a step, for random data that needs no feed; returns pairs for an optimizer."""
    x = tf.random.stateless_normal([BATCH, FEATURES], [5, 6])
    y = tf.random.stateless_uniform([BATCH], [7, 8], 0, CLASSES, tf.int32)
    with tf.GradientTape() as tape:
        for weight, bias in zip(weights[::2], weights[1::2], strict=True):
            x = tf.nn.relu(x @ weight + bias) if weight is not weights[-2] else x @ weight + bias
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x))
    return list(zip(tape.gradient(loss, weights), weights, strict=True))


class OnIpus:
    """A worker of this package."""

    def __init__(self):
        import tensorflow as tf

        import tensorflow_ipu as ipu

        self.tf, self.ipu = tf, ipu
        self.strategy = ipu.IPUMultiWorkerStrategy(timeout=120.0)
        config = ipu.IPUConfig()
        config.auto_select_ipus = 1
        config.configure_ipu_system()
        self.networks = {}

    def train(self, network, steps):
        """Runs training steps in one run of a program, and returns the seconds."""
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
        """Runs training steps with explicit sums of the gradients.

        `how` is "together" for one collective, "each" for one collective per gradient, or "none" for no sums.
        """
        tf, cross_replica_sum = self.tf, self.ipu.ops.cross_replica_ops.cross_replica_sum
        key = (how, network)
        if key not in self.networks:
            with self.strategy.scope():
                weights = weights_of(tf, network)
                context = tf.distribute.get_replica_context

            @tf.function(jit_compile=True)
            def program(n):
                for _ in tf.range(n):
                    # In the order of the backward pass, which computes the gradients of the last layer first.
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
        """Sums a tensor over the workers `count` times in one run, and returns the seconds."""
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
        """Sums a tensor over the workers in `count` eager calls, and returns the seconds."""
        tf = self.tf
        x = tf.ones([size])
        start = time.perf_counter()
        for _ in range(count):
            self.ipu.distributed.allreduce(x, "SUM")
        return time.perf_counter() - start

    def learn(self):
        """Trains with a share of each batch, and returns the largest difference of a weight from plain TensorFlow."""
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
            weights = weights_of(tf, "MLP")
            share = x[cluster.worker :: cluster.workers], y[cluster.worker :: cluster.workers]
            train = tf.function(lambda x, y: program(weights, x, y, over_workers), jit_compile=True)
            self.strategy.run(train, args=share)
        expected = weights_of(tf, "MLP")
        tf.function(lambda: program(expected, x, y, lambda gradients: gradients))()
        return max(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(weights, expected, strict=True))

    def wait(self, how, seconds):
        """Returns the share of a processor that worker 0 uses while it waits for worker 1 in a collective."""
        collective = {"in a program": self.reduce, "outside": self.exchange}[how]
        collective(1, 1)
        is_late = self.strategy.cluster.worker == 1
        processor, clock = time.process_time(), time.perf_counter()
        if is_late:
            time.sleep(seconds)
        collective(1, 1)
        share = (time.process_time() - processor) / (time.perf_counter() - clock)
        return 0.0 if is_late else share


class Mirrored:
    """A worker of `MultiWorkerMirroredStrategy`, which XLA cannot compile."""

    def __init__(self):
        import tensorflow as tf

        self.tf = tf
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        self.networks = {}

    def train(self, network, steps):
        """Runs training steps in one graph, and returns the seconds."""
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
        """Sums a tensor over the workers by `count` eager calls of TensorFlow's collective, and returns the seconds."""
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
        os._exit(0)  # At a normal exit, TensorFlow's servers would wait for each other.


# Code of the parent process.


def by_mpi(command, count):
    """Starts `count` workers by the `mpiexec` of the wheel `mpich`, and returns the processes to wait for."""
    launcher = pathlib.Path(sys.executable).with_name("mpiexec")
    return [subprocess.Popen([launcher, "-n", str(count), *command], stdin=subprocess.DEVNULL)]


def by_tf_config(command, count, **variables):
    """Starts `count` workers, each with `TF_CONFIG`, and returns the processes to wait for."""
    with ExitStack() as stack:
        # All ports are open at the same time, so that they differ.
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        cluster = {"worker": [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]}
    configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(count)]
    environments = [{**os.environ, "TF_CONFIG": config, **variables} for config in configs]
    return [subprocess.Popen(command, env=environment) for environment in environments]


@contextmanager
def workers(kind, count, launch=None):
    """Starts `count` workers of a kind for the block.

    Yields a function `call(name, *arguments)`, which executes a command on all workers and returns the largest answer.
    """
    launch = launch or {"ipu": by_mpi, "mirrored": by_tf_config}[kind]
    with ExitStack() as stack:
        # Commands cannot use the standard input, because MPI's launcher passes it to one worker only.
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
    """Calls each contestant once to warm up, then all in turns, and returns the seconds that they report."""
    for call in contestants.values():
        call()
    times = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            times[name].append(call())
    return times


def train(peer, network, steps, calls):
    """Returns the seconds of `calls` executions."""
    return sum(peer("train", network, steps) for _ in range(calls))


def compare_steps():
    """Prints the times of training steps on two workers. Both strategies' workers are running, but train in turns."""
    rows = []
    with workers("ipu", 2) as ipu, workers("mirrored", 2) as mirrored:
        for network, counts in STEPS.items():
            for steps in counts:
                calls = max(1, (50 if network == "MLP" else 3) // steps)
                times = in_turn(
                    {
                        "ipu": partial(train, ipu, network, steps, calls),
                        "mirrored": partial(train, mirrored, network, steps, calls),
                    },
                    ROUNDS if network == "MLP" else 3,
                )
                ratio = statistics.median(b / a for a, b in zip(times["ipu"], times["mirrored"], strict=True))
                milliseconds = [statistics.median(times[name]) / calls / steps * 1e3 for name in ("ipu", "mirrored")]
                rows.append([network, steps, *milliseconds, ratio, STEP_TARGET[steps]])
    print_table(
        "Training steps on two workers",
        ["network", "steps per execution", "ms per step", "MultiWorkerMirroredStrategy", "times as fast", "target"],
        rows,
    )


def compare_overlap():
    """Prints the times of steps with one sum of all gradients, and with sums that overlap with the backward pass."""
    rows = []
    with workers("ipu", 2) as ipu:
        for network, counts in STEPS.items():
            steps = counts[-1]
            ways = ("together", "each", "none")
            times = in_turn({how: partial(ipu, "train_summing", how, network, steps) for how in ways})
            milliseconds = [statistics.median(times[how]) / steps * 1e3 for how in ways]
            ratio = statistics.median(b / a for a, b in zip(times["together"], times["each"], strict=True))
            rows.append([network, *milliseconds, ratio])
    print_table(
        "Sums of gradients on two workers, in ms per step",
        ["network", "one collective", "one per gradient", "without sums", "one per gradient / one"],
        rows,
    )


def measure_collectives(counts=(2, 4)):
    """Compares sums over workers with TensorFlow's eager collective, and prints the times.

    Returns:
      For each sum in a program the number of workers, the bytes and the seconds.
    """
    rows, points = [], []
    for count in counts:
        with workers("ipu", count) as ipu, workers("mirrored", count) as mirrored:
            for size in SIZES:
                ways = {"reduce": ipu, "exchange": ipu, "eager": mirrored}
                seconds = in_turn({name: partial(peer, name, size, REPEATS[size]) for name, peer in ways.items()})
                times = {name: [value / REPEATS[size] * 1e6 for value in values] for name, values in seconds.items()}
                added = statistics.median(a - b for a, b in zip(times["reduce"], times["eager"], strict=True))
                rows.append([count, 4 * size, *(statistics.median(times[name]) for name in ways), added])
                points.append((count, 4 * size, rows[-1][2] / 1e6))
    print_table(
        f"A sum over workers, in us; for small tensors, a program may add at most {COLLECTIVE_TARGET_US:.0f} us",
        ["workers", "bytes", "in a program", "eager", "TensorFlow, eager", "a program adds"],
        rows,
    )
    return points


def scale_weakly(counts=(1, 2, 4)):
    """Prints the times of a step of the MLP with the same work for each worker, and 100 steps per execution."""
    rows = []
    with ExitStack() as stack:
        peers = {count: stack.enter_context(workers("ipu", count)) for count in counts}
        times = in_turn({count: partial(peer, "train", "MLP", 100) for count, peer in peers.items()})
    for count in counts:
        step = statistics.median(times[count]) / 100
        relative = statistics.median(b / a for a, b in zip(times[1], times[count], strict=True))
        rows.append([count, step * 1e6, relative, count / relative])
    print_table(
        f"Weak scaling on {os.cpu_count()} cores: the MLP, {BATCH} samples per worker and step",
        ["workers", "us per step", "time / one worker", "samples per second / one worker"],
        rows,
    )


def start(counts=(2, 4, 8, 16)):
    """Prints how long workers take to start, train and end. Their weights must equal the weights of one process."""
    rows = []
    for count in counts:
        began = time.perf_counter()
        with workers("ipu", count) as ipu:
            started = time.perf_counter()
            difference = ipu("learn")
            trained = time.perf_counter()
        ended = time.perf_counter()
        assert difference < 1e-4, f"the weights of {count} workers differ by {difference} from those of one process"
        rows.append([count, started - began, trained - started, ended - trained, f"{difference:.1e}"])
    print_table(
        f"{START_STEPS} steps of the MLP on {os.cpu_count()} cores, in seconds",
        ["workers", "start", "compilation and training", "end", "largest difference from one process"],
        rows,
    )


def measure_idle():
    """Prints the processor time of a worker that waits for another one."""
    with workers("ipu", 2) as ipu:
        rows = [[how, 100 * ipu("wait", how, IDLE_SECONDS), 100 * IDLE_TARGET] for how in ("in a program", "outside")]
    print_table(
        f"Processor time of a worker that waits {IDLE_SECONDS} s for another one",
        ["collective", "percent", "target"],
        rows,
    )


def main():
    """Measures the parts that the command line names, or all."""
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
            "Predicted times of summing 25M gradients on a network of 10 Gbit/s",
            cost_model.HEADER,
            rows,
        )
    if "scaling" in parts:
        scale_weakly()
    if "idle" in parts:
        measure_idle()


if __name__ == "__main__":
    main()
