"""Compares a pipeline with a loop that accumulates gradients over the same micro-batches."""

from __future__ import annotations

import argparse
import gc
import math
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf
from measure import interleave, median, print_table, ratio
from tensorflow.compiler.xla.service import hlo_pb2

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining

LAYERS = 2  # The number of layers of a stage.
PIPELINED, LOOP = "pipeline", "one loop"


class Network(NamedTuple):
    """The layers of the stages, which are all equal.

    Attributes:
      title: A description of the layers.
      batch: The shape of a micro-batch, and of each layer's output.
      weights: The shape of a layer's weights.
      layer: Returns a layer's output for its input and its weights.
    """

    title: str
    batch: list[int]
    weights: list[int]
    layer: Callable[[Any, Any], Any]


NETWORKS = {
    "dense": Network("256 units, batch 64", [64, 256], [256, 256], lambda x, w: tf.tanh(x @ w)),
    "convolutional": Network(
        "3x3 convolutions to 16 features of 32x32 pixels, batch 16",
        [16, 32, 32, 16],
        [3, 3, 16, 16],
        lambda x, w: tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")),
    ),
}


def weights(network: Network, stages: int) -> list[list[tf.Variable]]:
    """Creates the weights of each stage's layers."""
    scale = math.prod(network.weights[:-1]) ** -0.5
    return [[tf.Variable(scale * tf.random.normal(network.weights)) for _ in range(LAYERS)] for _ in range(stages)]


def forward(network: Network, x: tf.Tensor, layers: list[tf.Variable]) -> tf.Tensor:
    """Returns the output of a stage with the given weights."""
    for layer in layers:
        x = network.layer(x, layer)
    return x


def pipelined(
    strategy: ipu.IPUStrategy, network: Network, stages: int, count: int, **options: Any
) -> tuple[Any, Callable[[], object]]:
    """Returns a pipeline's program, and a function that runs it."""
    with strategy.scope():
        layers = weights(network, stages)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1e-3)
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones(network.batch)).repeat())
        outfeed = ipu.IPUOutfeedQueue()
        functions: list[Any] = [
            lambda x, layers=layers[stage]: forward(network, x, layers) for stage in range(stages - 1)
        ]
        functions.append(lambda x: tf.reduce_mean(forward(network, x, layers[-1]) ** 2))

        @tf.function(jit_compile=True, autograph=False)
        def program() -> None:
            pipelining.pipeline(
                functions,
                count,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(optimizer, loss),
                **options,
            )

        infeed.initializer  # noqa: B018  (The access starts it.)

    def run() -> None:
        strategy.run(program)
        outfeed.dequeue()

    return program, run


def looped(strategy: ipu.IPUStrategy, network: Network, stages: int, count: int) -> tuple[Any, Callable[[], object]]:
    """Returns the program of a loop over the micro-batches with the same feeds, and a function that runs it."""
    with strategy.scope():
        layers = weights(network, stages)
        variables = [layer for stage in layers for layer in stage]
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones(network.batch)).repeat())
        outfeed = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True, autograph=False)
        def program() -> None:
            def body(*values: Any) -> Any:
                *sums, x = values
                with tf.GradientTape() as tape:
                    for stage in layers:
                        x = forward(network, x, stage)
                    loss = tf.reduce_mean(x**2)
                gradients = tape.gradient(loss, variables)
                return [*(a + b for a, b in zip(sums, gradients, strict=True)), outfeed.enqueue([loss])]

            zeros = [tf.zeros_like(variable) for variable in variables]
            for variable, total in zip(variables, ipu.loops.repeat(count, body, zeros, infeed), strict=True):
                variable.assign_sub(1e-3 * total)

        infeed.initializer  # noqa: B018  (The access starts it.)

    def run() -> None:
        strategy.run(program)
        outfeed.dequeue()

    return program, run


def temporary_mebibytes(strategy: ipu.IPUStrategy, program: Any) -> float:
    """Returns the memory that the compiled program allocates in addition to arguments, results and constants."""
    with strategy.scope():
        text = strategy.extended.call_on_device(
            lambda: program.experimental_get_compiler_ir()(stage="optimized_hlo_proto_serialized"), (), {}
        )
    message: Any = hlo_pb2.HloProto  # pyright: ignore[reportAttributeAccessIssue]
    allocations = message.FromString(text).buffer_assignment.buffer_allocations
    temporary = (
        buffer
        for buffer in allocations
        if not (buffer.is_entry_computation_parameter or buffer.is_constant or buffer.maybe_live_out)
    )
    return sum(buffer.size for buffer in temporary) / 2**20


def row(network: Network, stages: int, count: int, rounds: int) -> tuple[Any, ...]:
    """Measures a pipeline with the given numbers of stages and micro-batches, and returns its row of the table."""
    strategy, single = ipu.IPUStrategy(), ipu.IPUStrategy("/device:IPU:1")
    programs = {
        PIPELINED: pipelined(strategy, network, stages, count),
        LOOP: looped(single, network, stages, count),
    }
    first = {}
    for name, (_, run) in programs.items():
        gc.collect()  # So that no measurement includes the collection of earlier programs.
        begin = time.perf_counter()
        run()
        first[name] = time.perf_counter() - begin
    times = interleave({name: run for name, (_, run) in programs.items()}, rounds)
    cost = pipelining.last_pipeline()
    plan = pipelining.plan_cost(cost.plan, cost.stage_costs)
    planned = (
        sum(ipu_cost.stash_bytes + ipu_cost.link_bytes + ipu_cost.weight_bytes / 2 for ipu_cost in plan.ipus) / 2**20
    )
    return (
        f"{stages} stages, {count} micro-batches",
        median(times, PIPELINED, count),
        ratio(times, LOOP, PIPELINED),
        first[PIPELINED],
        first[LOOP],
        first[PIPELINED] / first[LOOP],
        temporary_mebibytes(strategy, programs[PIPELINED][0]),
        planned,
    )


def main() -> None:
    """Prints time, compilation time and memory for each number of stages and of micro-batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--counts", type=int, nargs="+", default=[4, 16, 64, 256], help="micro-batches, in units of 2S")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for name in arguments.networks:
        rows = []
        for stages in arguments.stages:
            config = ipu.IPUConfig()
            config.auto_select_ipus = [stages, 1]  # The loop needs a device of one IPU, to run without replicas.
            ipu.config.reset_ipu_configuration()
            config.configure_ipu_system()
            counts = dict.fromkeys(max(units // (2 * stages), 1) * 2 * stages for units in arguments.counts)
            if not rows:
                row(NETWORKS[name], stages, next(iter(counts)), 1)  # Warms up the process.
            rows += [row(NETWORKS[name], stages, count, arguments.rounds) for count in counts]
        print_table(
            f"Stages of {LAYERS} layers, {NETWORKS[name].title} (medians of {arguments.rounds} rounds)",
            (
                "",
                "us per micro-batch",
                "time / loop",
                "first run, s",
                "first loop, s",
                "first run / loop",
                "MiB",
                "MiB in the plan",
            ),
            rows,
        )


if __name__ == "__main__":
    main()
