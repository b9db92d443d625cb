"""Predictions of the machine model beside published results: how far off they are.

Models are built in plain Keras with the published settings; nothing is trained.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from tensorflow_ipu.machine import Report, report_of, system_of


@dataclass(frozen=True)
class Result:
    """A published result: what was measured on which machine, and what the model says."""

    name: str
    machine: str
    published: float
    unit: str
    predict: Callable[[str], tuple[float, Report]]


def hlo(function: Callable[..., Any], *arguments: tf.Tensor) -> bytes:
    """The program of a function and its arguments, before any optimisation."""
    return tf.function(function, jit_compile=True).experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")


def product(size: int, dtype: tf.DType) -> Callable[[str], tuple[float, Report]]:
    """TFLOP/s of the product of square matrices."""

    def predict(machine: str) -> tuple[float, Report]:
        report = report_of(hlo(lambda a, b: a @ b, *[tf.zeros([size, size], dtype)] * 2), system_of(machine))
        return 2 * size**3 / report.seconds / 1e12, report

    return predict


def best_product(sizes: tuple[int, ...], dtype: tf.DType) -> Callable[[str], tuple[float, Report]]:
    """The most TFLOP/s among products of square matrices of some sizes."""
    return lambda machine: max((product(size, dtype)(machine) for size in sizes), key=lambda found: found[0])


def encoder_layer(width: int, heads: int) -> keras.Model:
    """A layer of a transformer's encoder, as BERT has it, in float16."""
    x = inputs = keras.Input((None, width), dtype="float16")
    attended = keras.layers.MultiHeadAttention(heads, width // heads)(x, x)
    x = keras.layers.LayerNormalization()(keras.layers.Dropout(0.1)(attended) + x)
    hidden = keras.layers.Dense(4 * width, activation=keras.activations.gelu)(x)
    hidden = keras.layers.Dropout(0.1)(keras.layers.Dense(width)(hidden))
    return keras.Model(inputs, keras.layers.LayerNormalization()(hidden + x))


def step_of(parts: Sequence[keras.Model], batch: tf.Tensor, inner: bool) -> bytes:
    """A training step that keeps the inputs of its parts alone, and recomputes each part for its backward pass.

    Args:
      parts: What it runs, one after the other.
      batch: What it is given.
      inner: Whether it is a stage behind others, which want the gradient of `batch`.
    """
    variables = [variable for part in parts for variable in part.trainable_variables]

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            if inner:
                tape.watch(x)
            y = x
            for part in parts:
                y = tf.recompute_grad(functools.partial(part, training=True))(y)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, [x, *variables] if inner else variables)

    return hlo(step, batch)


def transformer(
    layers: int, width: int, heads: int, tokens: int, micro_batch: int, replicas: int, proportion: float
) -> Callable[[str], tuple[float, Report]]:
    """Sequences a second of all replicas, priced by the slowest stage, which has so many layers."""

    def predict(machine: str) -> tuple[float, Report]:
        parts = [encoder_layer(width, heads) for _ in range(layers)]
        program = step_of(parts, tf.zeros([micro_batch, tokens, width], tf.float16), inner=True)
        report = report_of(program, system_of(machine), proportion=proportion)
        return replicas * micro_batch / report.seconds, report

    return predict


def resnet(micro_batch: int, proportion: float) -> Callable[[str], tuple[float, Report]]:
    """Images a second of an IPU that trains ResNet-50, all stages on the one chip, recomputed."""
    cuts = ("pool1_pool", "conv2_block3_out", "conv3_block2_out", "conv3_block4_out", "conv4_block3_out")
    cuts = (*cuts, "conv4_block6_out", "predictions")

    def predict(machine: str) -> tuple[float, Report]:
        whole = keras.applications.ResNet50(weights=None)
        ends = [whole.input, *(whole.get_layer(name).output for name in cuts)]
        parts = [keras.Model(begin, end) for begin, end in itertools.pairwise(ends)]
        program = step_of(parts, tf.zeros([micro_batch, 224, 224, 3], tf.float16), inner=False)
        report = report_of(program, system_of(machine), proportion=proportion)
        return micro_batch / report.seconds, report

    return predict


# The published figures, with their settings: `docs/machine.md` has the sources.
RESULTS = (
    Result("product 3584, float32", "GC200", 44.0, "TFLOP/s", product(3584, tf.float32)),
    Result("best product, float32", "GC2", 18.9, "TFLOP/s", best_product((1024, 2048, 2944), tf.float32)),
    Result("best product, float16", "GC2", 58.9, "TFLOP/s", best_product((1024, 2048, 2944), tf.float16)),
    Result("BERT-Large, 128 tokens", "Bow Pod16", 5179, "sequences/s", transformer(7, 1024, 16, 128, 8, 4, 0.2)),
    Result("BERT-Base, 128 tokens", "Bow Pod16", 16391, "sequences/s", transformer(4, 768, 12, 128, 32, 4, 0.28)),
    Result("BERT-Base, 512 tokens", "Bow Pod16", 3656, "sequences/s", transformer(4, 768, 12, 512, 8, 4, 0.28)),
    Result("ResNet-50, an IPU", "Bow Pod16", 42029 / 16, "images/s", resnet(20, 0.15)),
)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="results whose name has this in it")
    chosen = parser.parse_args()
    keras.config.set_dtype_policy("float16")
    print("| result | machine | predicted | published | | error | memory | verdict | s |")
    print("| --- | --- | ---: | ---: | --- | ---: | ---: | --- | ---: |")
    errors = []
    for result in RESULTS:
        if chosen.only not in result.name:
            continue
        begin = time.perf_counter()
        value, report = result.predict(result.machine)
        took = time.perf_counter() - begin
        error = value / result.published - 1
        errors.append(abs(error))
        print(
            f"| {result.name} | {result.machine} | {value:,.4g} | {result.published:,.4g} | {result.unit} | {error:+.0%} |"
            f" {report.memory.low / report.memory.capacity:.0%} | {report.memory.verdict} | {took:.1f} |",
            flush=True,
        )
    print(f"\nmedian error {statistics.median(errors):.0%}, largest {max(errors):.0%}")


if __name__ == "__main__":
    main()
