"""Host kernels in programs: the layers that they compute, shared kernels, failures, and programs on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

import tensorflow_ipu as ipu
from tensorflow_ipu import programs
from tensorflow_ipu.programs import _host_kernels


def draw_below(limit: Any) -> Any:
    return tf.random.stateless_uniform([3], [1, 2], minval=5, maxval=limit, dtype=tf.int32)


def test_failure_of_a_kernel_is_the_runs_and_names_the_operation_and_the_line(strategy):
    program = tf.function(draw_below, jit_compile=True)
    np.testing.assert_array_equal(strategy.run(program, (tf.constant(9),)), draw_below(tf.constant(9)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Need minval < maxval") as failure:
        strategy.run(program, (tf.constant(4),))
    line = draw_below.__code__.co_firstlineno + 1
    assert re.search(rf"StatelessRandomUniformIntV2 `\S+` \(.*test_host_kernels\.py:{line}\b.*\)", str(failure.value))
    np.testing.assert_array_equal(strategy.run(program, (tf.constant(9),)), draw_below(tf.constant(9)))


def test_failure_on_one_replica_ends_the_run_of_all(replicas):
    strategy = replicas(4)
    ipu.clear_metrics()
    from tensorflow_ipu.ops.replication_ops import replication_index

    @tf.function(jit_compile=True)
    def program() -> Any:
        drawn = draw_below(6 - replication_index())  # The second replica has no values to draw from.
        return ipu.ops.cross_replica_ops.cross_replica_sum(tf.cast(drawn, tf.float32))

    with pytest.raises(tf.errors.InvalidArgumentError, match="Need minval < maxval"):
        strategy.run(program)
    counters = {name: ipu.counter_value(name) or 0 for name in ipu.counter_names()}
    calls = counters["HostKernelCalls:StatelessRandomUniformIntV2"]
    of_types = [count for name, count in counters.items() if name.startswith("HostKernelCalls:")]
    assert 1 <= calls <= 4
    assert calls <= counters["HostKernelCalls"] == sum(of_types)


def test_sixteen_replicas_with_convolutions_in_flight_never_wait_for_themselves(replicas, within):
    strategy = replicas(16)
    images = tf.random.stateless_normal([4, 12, 12, 8], [1, 2])
    filters = [tf.random.stateless_normal([3, 3, 8, 8], [3, i], stddev=0.1) for i in range(6)]

    def branches(images: Any) -> Any:
        return tf.add_n([tf.nn.conv2d(images, weights, 1, "SAME") for weights in filters])

    @tf.function(jit_compile=True)
    def program(images: Any) -> Any:
        for _ in tf.range(20):
            with tf.GradientTape() as tape:
                tape.watch(images)
                loss = tf.reduce_mean(tf.square(branches(images)))
            images -= 0.01 * ipu.ops.cross_replica_ops.cross_replica_mean(tape.gradient(loss, images))
        return images

    with _host_kernels.wherever_known():
        result = within(300, lambda: strategy.run(program, (images,)))
    for _ in range(20):
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_mean(tf.square(branches(images)))
        images -= 0.01 * tape.gradient(loss, images)
    np.testing.assert_allclose(result, images, rtol=1e-4, atol=1e-5)


# Kernels that wait for parts of their work may occupy all of XLA's threads, and then the parts have no thread.
def test_kernels_on_all_threads_of_xla_never_wait_for_parts_that_have_no_thread(strategy, within):
    images = tf.random.stateless_normal([8, 64, 64, 16], [1, 2])
    matrices = [tf.random.stateless_normal([16, 16], [3, i], stddev=0.25) for i in range(4)]
    filters = tf.random.stateless_normal([3, 3, 16, 1], [3, 4], stddev=0.3)

    def step(images: Any) -> Any:
        branches = [tf.matmul(tf.reshape(images, [-1, 16]), matrix) for matrix in matrices]
        branches = [tf.reshape(branch, [8, 64, 64, 16]) for branch in branches]
        images = tf.add_n([tf.nn.depthwise_conv2d(branch, filters, [1, 1, 1, 1], "SAME") for branch in branches])
        return images * tf.math.rsqrt(tf.reduce_mean(tf.square(images)))

    @tf.function(jit_compile=True)
    def program(images: Any) -> Any:
        for _ in tf.range(50):
            images = step(images)
        return images

    result = within(300, lambda: strategy.run(program, (images,)))
    for _ in range(50):
        images = step(images)
    np.testing.assert_allclose(result, images, rtol=1e-3, atol=1e-3)


# The user's lines were part of a program, so the program changed when a line moved.
def test_programs_on_disk_serve_other_processes_and_after_lines_have_moved(run_script, tmp_path):
    script = """
        import tensorflow as tf
        import tensorflow_ipu as ipu

        def network(images, weights):
            return tf.nn.conv2d(images, weights, 1, "SAME") + tf.random.stateless_normal([2, 80, 80, 4], [1, 2])

        @tf.function(jit_compile=True)
        def program(images, weights, limit):
            drawn = tf.random.stateless_uniform([3], [1, 2], minval=5, maxval=limit, dtype=tf.int32)
            result = network(images, weights)
            tf.debugging.assert_less(limit, 10)
            with ipu.scopes.outside_compilation_scope():
                drawn += tf.strings.length("abc")
            return result, drawn

        values = (tf.random.stateless_normal([2, 80, 80, 3], [3, 4]), tf.random.stateless_normal([3, 3, 3, 4], [5, 6]))
        result, _ = ipu.IPUStrategy().run(program, (*values, tf.constant(9)))
        print("off by", float(tf.reduce_max(tf.abs(result - network(*values)))))
        try:
            ipu.IPUStrategy().run(program, (*values, tf.constant(4)))
        except tf.errors.InvalidArgumentError as exc:
            print("line", exc.message.partition(".py:")[2].partition(")")[0])
        """
    cache = tmp_path / "cache"
    env = {"TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={cache}"}
    outputs = []
    for moved in (script, script.replace("@tf.function", "# A line more.\n        @tf.function")):
        outputs.append(run_script(moved, env=env).stdout.split())
        assert len(list(cache.iterdir())) == 1
    (_, _, off, _, line), (_, _, off_again, _, line_after) = outputs
    assert off == off_again
    assert float(off) < 1e-5
    assert int(line_after) == int(line) + 1


PLAIN = [[8, 34, 34, 16], [3, 3, 16, 4]]
SMALL = [[8, 12, 12, 16], [3, 3, 16, 4]]
POINTWISE = [[8, 12, 12, 16], [1, 1, 16, 4]]
SHORT_ROW = [[8, 32, 16], [3, 16, 4]]
ROWS = [[8, 100]]


nothing = tf.function(lambda: tf.constant(0), jit_compile=True)


def instructions(call: Callable[..., Any], shapes: list[list[int]], dtype: Any) -> list[Any]:
    """Returns the instructions of a program."""
    ipu.IPUStrategy().run(nothing)  # Before a device's first run, programs are shown without host kernels.
    target = ipu.IPUStrategy().extended.target
    arrays = [tf.zeros(shape, dtype) for shape in shapes]
    program = programs.Program.trace(tf.function(call, jit_compile=True), arrays, {}, "/device:IPU:0", target)
    module: Any = hlo_pb2.HloModuleProto()  # pyright: ignore[reportAttributeAccessIssue]
    module.ParseFromString(programs.hlo(program.function, program.inputs, program.device))
    return [instruction for part in module.computations for instruction in part.instructions]


def opcodes(call: Callable[..., Any], shapes: list[list[int]], dtype: Any) -> Counter[str]:
    """Returns the number of instructions of each kind in a program."""
    all_instructions = instructions(call, shapes, dtype)
    return Counter(
        "host" if instruction.custom_call_target == "ipu_host_kernel" else instruction.opcode
        for instruction in all_instructions
    )


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
def test_what_computes_a_layer_is_what_was_measured_to_be_fast(call, shapes, dtype, calls, convolutions, products):
    counts = opcodes(call, shapes, dtype)
    assert (counts["host"], counts["convolution"], counts["dot"]) == (calls, convolutions, products)


# Stages of pipelines, and functions, are traced outside the loop that contains them. XLA took 40 times as long there.
def test_gradients_that_are_xlas_have_its_fast_order_of_dimensions_wherever_they_are_traced():
    convolutions = [
        instruction
        for call in (CONVOLUTION, in_loop(CONVOLUTION))
        for instruction in instructions(call, SMALL, tf.float32)
        if instruction.opcode == "convolution"
    ]
    assert len(convolutions) == 6
    for instruction in convolutions:
        order = instruction.convolution_dimension_numbers
        assert (order.input_batch_dimension, order.input_feature_dimension) == (0, 3)
        assert (order.kernel_input_feature_dimension, order.kernel_output_feature_dimension) == (2, 3)
        assert (order.output_batch_dimension, order.output_feature_dimension) == (0, 3)


# oneDNN has no code for gradients of float16 filters: a step of a small layer took 257 ms instead of 5.
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_layers_of_half_precision_are_by_kernels_of_the_host_in_float32_unless_one_dnn_knows_the_type(dtype):
    is_supported = bool(_host_kernels.native.ipu_one_dnn_computes(dtype.as_datatype_enum))
    assert not (is_supported and dtype == tf.float16)
    for call in (CONVOLUTION, in_loop(CONVOLUTION)):
        all_instructions = instructions(call, PLAIN, dtype)
        types = [
            instruction.shape.element_type
            for instruction in all_instructions
            if instruction.custom_call_target == "ipu_host_kernel"
        ]
        assert types == [16 if is_supported else 11] * 3  # BF16 and F32 of `xla_data.proto`.
        assert not any(instruction.opcode == "convolution" for instruction in all_instructions)


def depthwise(images: Any, weights: Any) -> Any:
    return tf.nn.depthwise_conv2d(images, weights, [1, 1, 1, 1], "SAME")


def normalize(images: Any, scale: Any, offset: Any) -> Any:
    return tf.raw_ops.FusedBatchNormV3(x=images, scale=scale, offset=offset, mean=[], variance=[]).y


def with_gradients(layer: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = layer(*values)
        return result, tape.gradient(
            result, values, output_gradients=tf.cast(tf.cast(tf.abs(result), tf.float16), result.dtype)
        )

    return call


def half_of(*shapes: list[int]) -> list[tf.Tensor]:
    return [tf.random.stateless_normal(shape, [i, 1], dtype=tf.float16) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (with_gradients(convolution), half_of(*PLAIN)),
        (with_gradients(depthwise), half_of([2, 34, 34, 16], [3, 3, 16, 1])),
        (with_gradients(lambda x: tf.nn.max_pool(x, 2, 2, "SAME")), half_of(PLAIN[0])),
        (with_gradients(lambda x: tf.nn.avg_pool(x, 3, 2, "SAME")), half_of(PLAIN[0])),
        (with_gradients(normalize), [*half_of([32, 28, 31, 32]), tf.ones([32]), tf.zeros([32])]),
        (tf.sort, half_of([8, 100])),
    ],
)
def test_layers_of_float16_give_the_numbers_of_float32_rounded(strategy, call, values):
    got = tf.nest.flatten(strategy.run(tf.function(call, jit_compile=True), tuple(values)))
    want = tf.nest.flatten(call(*[tf.cast(value, tf.float32) for value in values]))
    for actual, expected in zip(got, want, strict=True):
        scale = float(tf.reduce_max(tf.abs(expected)))
        np.testing.assert_allclose(tf.cast(actual, tf.float32), expected, rtol=2e-3, atol=2e-3 * scale)


# The type of the operands was taken for the type of the result.
def test_numbers_drawn_by_counts_of_float16_are_those_of_plain_tensorflow(strategy):
    def draw(counts: Any, logits: Any) -> Any:
        binomial = tf.random.stateless_binomial([100], [1, 2], counts, counts / 20, output_dtype=tf.float16)
        return binomial, tf.random.stateless_categorical(logits, 30, [1, 2])

    values = (tf.constant(10, tf.float16), *half_of([4, 8]))
    got = strategy.run(tf.function(draw, jit_compile=True), values)
    tf.nest.map_structure(np.testing.assert_array_equal, got, draw(*values))


def test_a_block_has_kernels_of_the_host_wherever_there_are_some():
    with _host_kernels.wherever_known():
        counts = opcodes(CONVOLUTION, POINTWISE, tf.float32)
    assert (counts["host"], counts["dot"]) == (3, 0)
    assert opcodes(CONVOLUTION, POINTWISE, tf.float32)["host"] == 0
