"""Which layers of a program kernels of the host compute, which become products, and which are XLA's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

import tensorflow_ipu as ipu
from tensorflow_ipu import replicas
from tensorflow_ipu.replicas import _host_kernels

PLAIN = [[8, 34, 34, 16], [3, 3, 16, 4]]
SMALL = [[8, 12, 12, 16], [3, 3, 16, 4]]
POINTWISE = [[8, 12, 12, 16], [1, 1, 16, 4]]
SHORT_ROW = [[8, 32, 16], [3, 16, 4]]
ROWS = [[8, 100]]


def instructions(call: Callable[..., Any], shapes: list[list[int]], dtype: Any) -> list[Any]:
    """What a program consists of."""
    target = ipu.IPUStrategy().extended.target
    program, inputs = replicas.trace(
        tf.function(call, jit_compile=True), [tf.zeros(shape, dtype) for shape in shapes], {}, target
    )
    module: Any = hlo_pb2.HloModuleProto()  # pyright: ignore[reportAttributeAccessIssue]
    module.ParseFromString(replicas.hlo(program, inputs, "/device:IPU:0"))
    return [one for part in module.computations for one in part.instructions]


def opcodes(call: Callable[..., Any], shapes: list[list[int]], dtype: Any) -> Counter[str]:
    """How many of what a program consists of."""
    found = instructions(call, shapes, dtype)
    return Counter("host" if one.custom_call_target == "ipu_host_kernel" else one.opcode for one in found)


def gradients(layer: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(tf.sin(layer(*values)))
        return tape.gradient(loss, values)

    return call


def in_loop(call: Callable[..., Any]) -> Callable[..., Any]:
    def program(*values: Any) -> Any:
        return tf.while_loop(lambda i, *_: i < 2, lambda i, *v: [i + 1, *call(*v)], [tf.constant(0), *values])

    return program


def convolution(images: Any, weights: Any) -> Any:
    return tf.nn.conv2d(images, weights, 1, "SAME")


CONVOLUTION = gradients(convolution)
ROW = gradients(lambda x, w: tf.nn.conv1d(x, w, 1, "SAME"))
MAX = gradients(lambda x: tf.nn.max_pool(x, 2, 2, "SAME"))
MEAN = gradients(lambda x: tf.nn.avg_pool(x, 2, 2, "SAME"))
OVERLAPPING_MEAN = gradients(lambda x: tf.nn.avg_pool(x, 3, 2, "SAME"))

NORM = gradients(lambda x, *more: tf.compat.v1.nn.fused_batch_norm(x, *more)[0])
FEATURES = [[32], [32]]


@pytest.mark.parametrize(
    ("call", "shapes", "dtype", "calls", "convolutions", "products"),
    [
        (CONVOLUTION, PLAIN, tf.float32, 3, 0, 0),
        (in_loop(CONVOLUTION), PLAIN, tf.float32, 3, 0, 0),
        (CONVOLUTION, SMALL, tf.float32, 0, 3, 0),
        (in_loop(CONVOLUTION), SMALL, tf.float32, 0, 3, 0),
        (CONVOLUTION, SMALL, tf.float64, 3, 0, 0),
        (CONVOLUTION, POINTWISE, tf.float32, 0, 0, 3),
        (in_loop(CONVOLUTION), POINTWISE, tf.float32, 0, 0, 3),
        (ROW, SHORT_ROW, tf.float32, 0, 3, 0),
        (in_loop(ROW), SHORT_ROW, tf.float32, 0, 3, 0),
        (MAX, PLAIN[:1], tf.float32, 2, 0, 0),
        (MEAN, PLAIN[:1], tf.float32, 0, 0, 0),
        (OVERLAPPING_MEAN, PLAIN[:1], tf.float32, 2, 0, 0),
        (NORM, [[32, 28, 31, 32], *FEATURES], tf.float32, 2, 0, 0),
        (in_loop(NORM), [[32, 28, 31, 32], *FEATURES], tf.float32, 2, 0, 0),
        (NORM, [[16, 28, 28, 32], *FEATURES], tf.float32, 0, 0, 0),
        (tf.sort, ROWS, tf.float32, 1, 0, 0),
        (lambda x: tf.math.top_k(x, 3), ROWS, tf.float32, 0, 0, 0),
        (lambda x: tf.cumsum(x, 1), ROWS, tf.float32, 0, 0, 0),
    ],
)
def test_what_computes_a_layer_is_what_was_measured_to_be_fast(
    call: Any, shapes: Any, dtype: Any, calls: int, convolutions: int, products: int
) -> None:
    found = opcodes(call, shapes, dtype)
    assert (found["host"], found["convolution"], found["dot"]) == (calls, convolutions, products)


# Stages of pipelines, and functions, are traced outside of the loop that they run in. There XLA took 40 times as long.
def test_gradients_that_are_xlas_have_its_fast_order_of_dimensions_wherever_they_are_traced() -> None:
    convolutions = [one for one in instructions(CONVOLUTION, SMALL, tf.float32) if one.opcode == "convolution"]
    assert len(convolutions) == 3
    for one in convolutions:
        order = one.convolution_dimension_numbers
        assert (order.input_batch_dimension, order.input_feature_dimension) == (0, 3)
        assert (order.kernel_input_feature_dimension, order.kernel_output_feature_dimension) == (2, 3)
        assert (order.output_batch_dimension, order.output_feature_dimension) == (0, 3)


# A processor may know bfloat16 or not. One that knew float16 had a step of a small layer take 257 ms in place of 5:
# oneDNN has no code of its own for such gradients of filters.
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_convolutions_of_half_precision_are_by_kernels_of_the_host_where_one_dnn_knows_the_type(dtype: Any) -> None:
    known = bool(_host_kernels.native.ipu_one_dnn_computes(dtype.as_datatype_enum))
    assert not (known and dtype == tf.float16)
    for call in (CONVOLUTION, in_loop(CONVOLUTION)):
        found = opcodes(call, PLAIN, dtype)
        assert (found["host"], found["convolution"]) == ((3, 0) if known else (0, 3))


def test_a_block_has_kernels_of_the_host_wherever_there_are_some() -> None:
    with _host_kernels.wherever_known():
        found = opcodes(CONVOLUTION, POINTWISE, tf.float32)
    assert (found["host"], found["dot"]) == (3, 0)
    assert opcodes(CONVOLUTION, POINTWISE, tf.float32)["host"] == 0
