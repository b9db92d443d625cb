"""The measured layers: each kind in three sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Layer(NamedTuple):
    """A differentiable function of tensors with given shapes."""

    name: str
    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = tf.float32


def _convolution(size: tuple[int, ...], kernel: tuple[int, ...], features: int, dtype: Any, **options: Any) -> Layer:
    """Returns a convolution of a batch of shape [batch, *space, features]."""
    options = {"strides": 1, "padding": "SAME", **options}
    name = f"conv{len(kernel)}d {'x'.join(map(str, kernel))}, {features} of {list(size)}"
    name += "".join(f", {key} {value}" for key, value in options.items() if value not in (1, "SAME"))
    name += "" if dtype is tf.float32 else f", {dtype.name}"
    return Layer(name, lambda x, w: tf.nn.convolution(x, w, **options), (size, (*kernel, size[-1], features)), dtype)


def convolutions(
    *cases: tuple[tuple[int, ...], int], kernel: tuple[int, ...], dtype: Any = tf.float32, **options: Any
) -> list[Layer]:
    """Returns a convolution for each pair of a batch's shape and a number of output features."""
    return [_convolution(size, kernel, features, dtype, **options) for size, features in cases]


def depthwise(*sizes: tuple[int, ...], stride: int = 1) -> Iterator[Layer]:
    """Yields depthwise convolutions with filters of 3x3."""
    strides = [1, stride, stride, 1]
    for size in sizes:
        name = f"depthwise 3x3 of {list(size)}" + (f", stride {stride}" if stride > 1 else "")
        yield Layer(name, lambda x, w: tf.nn.depthwise_conv2d(x, w, strides, "SAME"), (size, (3, 3, size[-1], 1)))


def transposed(*cases: tuple[tuple[int, int, int, int], int]) -> Iterator[Layer]:
    """Yields transposed convolutions that double height and width."""
    for size, features in cases:
        output = [size[0], 2 * size[1], 2 * size[2], features]
        yield Layer(
            f"transposed 3x3, {features} of {list(size)}",
            lambda x, w, output=output: tf.nn.conv2d_transpose(x, w, output, 2, "SAME"),
            (size, (3, 3, features, size[-1])),
        )


def poolings(kind: str, window: int, stride: int, *sizes: tuple[int, ...]) -> Iterator[Layer]:
    """Yields poolings with square windows."""
    pool = getattr(tf.nn, f"{kind}_pool")
    for size in sizes:
        name = f"{kind} pool {window}/{stride} of {list(size)}"
        yield Layer(name, lambda x: pool(x, window, stride, "VALID"), (size,))


def resizings(*sizes: tuple[int, int, int, int]) -> Iterator[Layer]:
    """Yields bilinear resizings that double height and width."""
    for size in sizes:
        sides = [2 * size[1], 2 * size[2]]
        yield Layer(f"resize to {sides} of {list(size)}", lambda x, sides=sides: tf.image.resize(x, sides), (size,))


def dropouts(*sizes: tuple[int, ...]) -> Iterator[Layer]:
    """Yields dropouts of half of the features, with the same seed in each step."""
    for size in sizes:
        yield Layer(f"dropout of {list(size)}", lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2]), (size,))


def sortings(*sizes: tuple[int, int]) -> Iterator[Layer]:
    """Yields sortings of rows."""
    for size in sizes:
        yield Layer(f"sort of {list(size)}", lambda x: tf.sort(x) * tf.range(float(x.shape[1])), (size,))


def largest(count: int, *sizes: tuple[int, int]) -> Iterator[Layer]:
    """Yields selections of the largest `count` elements of each row."""
    for size in sizes:
        yield Layer(f"top {count} of {list(size)}", lambda x: tf.math.top_k(x, count)[0], (size,))


def running_sums(*sizes: tuple[int, int]) -> Iterator[Layer]:
    """Yields cumulative sums of rows."""
    for size in sizes:
        yield Layer(f"cumsum of {list(size)}", lambda x: tf.cumsum(x, axis=1), (size,))


def embeddings(*cases: tuple[tuple[int, int], int]) -> Iterator[Layer]:
    """Yields lookups of rows of a table, for each pair of the table's shape and the number of rows."""
    for table, count in cases:
        rows = np.random.default_rng(1).integers(0, table[0], count).astype(np.int32)
        yield Layer(f"embedding of {count} in {list(table)}", lambda x, rows=rows: tf.gather(x, rows), (table,))


def normalizations(*sizes: tuple[int, ...]) -> Iterator[Layer]:
    """Yields batch normalizations, each as one operation."""

    def normalized(x: Any, scale: Any, offset: Any) -> Any:
        return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, is_training=True)[0]

    for size in sizes:
        yield Layer(f"batch norm of {list(size)}", normalized, (size, size[-1:], size[-1:]))


LAYERS = [
    *convolutions(((8, 8, 8, 16), 16), ((32, 32, 32, 16), 16), ((4, 56, 56, 64), 64), kernel=(3, 3)),
    *convolutions(((32, 8, 8, 32), 32), ((32, 16, 16, 16), 16), ((64, 28, 28, 1), 8), kernel=(3, 3)),
    *convolutions(
        ((64, 28, 28, 1), 32), ((64, 13, 13, 32), 64), ((32, 8, 8, 128), 128), kernel=(3, 3), padding="VALID"
    ),
    *convolutions(((8, 16, 16, 16), 32), ((32, 32, 32, 16), 32), ((8, 96, 96, 3), 32), kernel=(3, 3), strides=2),
    *convolutions(((8, 8, 8, 32), 64), ((8, 24, 24, 144), 24), ((8, 48, 48, 64), 128), kernel=(1, 1)),
    *convolutions(((8, 16, 16, 8), 16), ((32, 16, 16, 32), 32), ((4, 64, 64, 32), 32), kernel=(5, 5)),
    *convolutions(((8, 32, 16), 16), ((32, 128, 32), 32), ((16, 512, 64), 64), kernel=(3,)),
    *convolutions(((2, 8, 8, 8, 4), 8), ((2, 16, 16, 16, 8), 16), ((2, 24, 24, 24, 16), 16), kernel=(3, 3, 3)),
    *depthwise((8, 8, 8, 16), (8, 48, 48, 32), (8, 24, 24, 144)),
    *depthwise((8, 12, 12, 96), (8, 24, 24, 144), (8, 48, 48, 96), stride=2),
    *transposed(((8, 4, 4, 16), 8), ((8, 16, 16, 32), 16), ((8, 32, 32, 64), 32)),
    *poolings("max", 2, 2, (8, 8, 8, 16), (64, 26, 26, 32), (8, 96, 96, 64)),
    *poolings("max", 3, 2, (8, 9, 9, 16), (32, 33, 33, 16), (8, 49, 49, 64)),
    *poolings("avg", 2, 2, (8, 8, 8, 16), (64, 26, 26, 32), (8, 96, 96, 64)),
    *poolings("avg", 3, 2, (8, 9, 9, 16), (32, 33, 33, 16), (8, 97, 97, 64)),
    *resizings((8, 8, 8, 16), (8, 32, 32, 32), (4, 64, 64, 64)),
    *normalizations((8, 8, 8, 16), (8, 32, 32, 32), (8, 64, 64, 64)),
    *dropouts((64, 100), (64, 1600), (256, 4096)),
    *sortings((32, 64), (64, 1000), (128, 4096)),
    *largest(5, (32, 64), (64, 1000), (256, 4096)),
    *running_sums((32, 64), (64, 1000), (256, 4096)),
    *embeddings(((1000, 32), 512), ((10000, 64), 2048), ((50000, 64), 8192)),
    *convolutions(((32, 32, 32, 16), 16), kernel=(3, 3), dtype=tf.bfloat16),
    *convolutions(((32, 32, 32, 16), 16), kernel=(3, 3), dtype=tf.float16),
]
