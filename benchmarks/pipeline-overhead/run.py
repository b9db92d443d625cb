"""What a pipelined program costs against the same micro-batches in one loop with accumulation, both compiled by XLA."""

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

LAYERS = 2  # Of a stage.
PIPELINED, LOOP = "pipeline", "one loop"


class Network(NamedTuple):
    """What the stages are made of: layers of one kind.

    Attributes:
      batch: The shape of a micro-batch, and of what each layer makes of it.
      weights: That of the weights of a layer.
      layer: From a micro-batch and weights to what the layer makes of it.
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
    """For each stage its layers."""
    scale = math.prod(network.weights[:-1]) ** -0.5
    return [[tf.Variable(scale * tf.random.normal(network.weights)) for _ in range(LAYERS)] for _ in range(stages)]


def forward(network: Network, x: tf.Tensor, layers: list[tf.Variable]) -> tf.Tensor:
    """One stage."""
    for layer in layers:
        x = network.layer(x, layer)
    return x


def pipelined(
    strategy: ipu.IPUStrategy, network: Network, stages: int, count: int, **options: Any
) -> tuple[Any, Callable[[], object]]:
    """The program of a pipeline, and a call that runs it."""
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
    """The program of a loop over micro-batches with the same feeds, and a call that runs it."""
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
                found = tape.gradient(loss, variables)
                return [*(a + b for a, b in zip(sums, found, strict=True)), outfeed.enqueue([loss])]

            zeros = [tf.zeros_like(variable) for variable in variables]
            for variable, total in zip(variables, ipu.loops.repeat(count, body, zeros, infeed), strict=True):
                variable.assign_sub(1e-3 * total)

        infeed.initializer  # noqa: B018  (The access starts it.)

    def run() -> None:
        strategy.run(program)
        outfeed.dequeue()

    return program, run


def temporary_mebibytes(strategy: ipu.IPUStrategy, program: Any) -> float:
    """What the compiled program allocates besides arguments, results and constants."""
    with strategy.scope():
        text = strategy.extended.call_on_device(
            lambda: program.experimental_get_compiler_ir()(stage="optimized_hlo_proto_serialized"), (), {}
        )
    message: Any = hlo_pb2.HloProto  # pyright: ignore[reportAttributeAccessIssue]
    allocations = message.FromString(text).buffer_assignment.buffer_allocations
    kept = (each for each in allocations if not (each.is_entry_computation_parameter or each.is_constant))
    return sum(each.size for each in kept if not each.maybe_live_out) / 2**20


def row(network: Network, stages: int, count: int, rounds: int) -> tuple[Any, ...]:
    """Measures a pipeline of so many stages and micro-batches."""
    strategy, single = ipu.IPUStrategy(), ipu.IPUStrategy("/device:IPU:1")
    programs = {
        PIPELINED: pipelined(strategy, network, stages, count),
        LOOP: looped(single, network, stages, count),
    }
    first = {}
    for name, (_, run) in programs.items():
        gc.collect()  # What the programs before have left behind is collected at nobody's cost.
        begin = time.perf_counter()
        run()
        first[name] = time.perf_counter() - begin
    times = interleave({name: run for name, (_, run) in programs.items()}, rounds)
    cost = pipelining.last_pipeline()
    plan = pipelining.plan_cost(cost.plan, cost.stage_costs)
    planned = sum(each.stash_bytes + each.link_bytes + each.weight_bytes / 2 for each in plan.ipus) / 2**20
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
    """Prints time, compile time and memory by the number of stages and of micro-batches."""
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
            config.auto_select_ipus = [stages, 1]  # On a device of several IPUs, the loop would run as replicas.
            ipu.config.reset_ipu_configuration()
            config.configure_ipu_system()
            counts = dict.fromkeys(max(units // (2 * stages), 1) * 2 * stages for units in arguments.counts)
            if not rows:
                row(NETWORKS[name], stages, next(iter(counts)), 1)  # What the first program of a process pays for all.
            rows += [row(NETWORKS[name], stages, count, arguments.rounds) for count in counts]
        print_table(
            f"Stages of {LAYERS} layers, {NETWORKS[name].title} (medians of {arguments.rounds} rounds)",
            (
                "",
                "us a micro-batch",
                "times the loop",
                "first run s",
                "the loop's s",
                "times",
                "MiB",
                "MiB planned",
            ),
            rows,
        )


if __name__ == "__main__":
    main()
