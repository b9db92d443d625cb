"""What a layer's step, forward and gradients, costs by XLA and by TensorFlow's kernels inside of a program."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from measure import interleave, median, print_table, ratio

import tensorflow_ipu as ipu

LOOP = 8  # Steps in a loop.
NEAR = 1.05  # A choice that is this much slower than the best counts as the best.
WAYS = {"XLA": False, "host": True}


class Layer(NamedTuple):
    """A function of tensors of these shapes, which has gradients with respect to all of them."""

    name: str
    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = tf.float32


def convolution(size: tuple[int, ...], kernel: tuple[int, ...], features: int, **options: Any) -> Layer:
    """A convolution of a batch [batch, *space, features]."""
    options = {"strides": 1, "padding": "SAME", **options}
    name = f"conv{len(kernel)}d {'x'.join(map(str, kernel))}, {features} of {list(size)}"
    name += "".join(f", {key} {value}" for key, value in options.items() if value not in (1, "SAME"))
    return Layer(name, lambda x, w: tf.nn.convolution(x, w, **options), (size, (*kernel, size[-1], features)))


def depthwise(size: tuple[int, ...], stride: int = 1) -> Layer:
    """A filter of 3x3 for each feature."""
    name = f"depthwise 3x3 of {list(size)}" + (f", stride {stride}" if stride > 1 else "")
    strides = [1, stride, stride, 1]
    return Layer(name, lambda x, w: tf.nn.depthwise_conv2d(x, w, strides, "SAME"), (size, (3, 3, size[-1], 1)))


def transposed(size: tuple[int, ...], features: int) -> Layer:
    """A transposed convolution that doubles the sides."""
    batch, rows, columns, _ = size
    output = [batch, 2 * rows, 2 * columns, features]
    return Layer(
        f"transposed 3x3, {features} of {list(size)}",
        lambda x, w: tf.nn.conv2d_transpose(x, w, output, 2, "SAME"),
        (size, (3, 3, features, size[-1])),
    )


def pooling(kind: str, size: tuple[int, ...], window: int = 2, stride: int = 2) -> Layer:
    """A pooling of windows of this side."""
    pool = getattr(tf.nn, f"{kind}_pool")
    return Layer(f"{kind} pool {window}/{stride} of {list(size)}", lambda x: pool(x, window, stride, "VALID"), (size,))


LAYERS = [
    convolution((64, 28, 28, 1), (3, 3), 32, padding="VALID"),
    convolution((64, 13, 13, 32), (3, 3), 64, padding="VALID"),
    convolution((8, 8, 8, 16), (3, 3), 16),
    convolution((32, 32, 32, 16), (3, 3), 16),
    convolution((32, 32, 32, 16), (3, 3), 32, strides=2),
    convolution((32, 16, 16, 32), (1, 1), 64),
    convolution((8, 24, 24, 144), (1, 1), 24),
    convolution((8, 96, 96, 3), (3, 3), 32, strides=2),
    convolution((4, 64, 64, 32), (5, 5), 32),
    convolution((32, 128, 32), (3,), 32),
    convolution((2, 16, 16, 16, 8), (3, 3, 3), 16),
    depthwise((8, 8, 8, 16)),
    depthwise((8, 48, 48, 32)),
    depthwise((8, 24, 24, 144), 2),
    transposed((8, 16, 16, 32), 16),
    transposed((32, 8, 8, 16), 8),
    pooling("max", (8, 8, 8, 16)),
    pooling("max", (64, 26, 26, 32)),
    pooling("max", (8, 48, 48, 64), 3),
    pooling("avg", (8, 8, 8, 16)),
    pooling("avg", (64, 26, 26, 32)),
    pooling("avg", (8, 8, 8, 256), 8, 8),
]


def stepper(layer: Layer) -> Callable[..., Any]:
    """One step of gradient descent on what the layer is given."""

    def step(*values: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(tf.square(layer.call(*values)))
        return [v - tf.cast(1e-6, v.dtype) * g for v, g in zip(values, tape.gradient(loss, values), strict=True)]

    return step


def contestants(layer: Layer, loop: bool) -> dict[str, Callable[[], object]]:
    """A call for each way to compute the layer."""
    rng = np.random.default_rng(0)
    values = [tf.constant(rng.normal(size=shape, scale=0.1), layer.dtype) for shape in layer.shapes]
    step = stepper(layer)
    calls: dict[str, Callable[[], object]] = {}
    for way, host_kernels in WAYS.items():
        strategy = ipu.IPUStrategy(host_kernels=host_kernels)

        @tf.function(jit_compile=True)
        def program(*values: Any) -> Any:
            if not loop:
                return step(*values)
            results = list(values)
            for _ in tf.range(LOOP):
                results = step(*results)
            return results

        calls[way] = lambda strategy=strategy, program=program: strategy.run(program, values)
    return calls


def main() -> None:
    """Prints a table of all layers, or of those whose names have the argument in them."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    rows: list[list[object]] = []
    for layer in LAYERS:
        if wanted not in layer.name:
            continue
        for loop in (False, True):
            times = interleave(contestants(layer, loop), rounds)
            count = LOOP if loop else 1
            columns = [median(times, way, count) for way in WAYS]
            rows.append([layer.name, "loop" if loop else "once", *columns, ratio(times, "host", "XLA")])
    print_table("A step, us", ["layer", "where", *WAYS, "XLA / host"], rows)
    best = sum(row[-1] >= 1 / NEAR for row in rows if isinstance(row[-1], float))
    print(f"\nthe choice by default is the fastest, to {NEAR - 1:.0%}, in {best} of {len(rows)} rows")


if __name__ == "__main__":
    main()
