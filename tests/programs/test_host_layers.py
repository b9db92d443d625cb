"""Layers that host kernels compute in programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.programs import _host_kernels

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.normal(size=[4, 13, 11, 4]).astype(np.float32)
VOLUMES = RANDOM.normal(size=[2, 5, 6, 7, 3]).astype(np.float32)

LARGE = RANDOM.normal(size=[4, 46, 46, 8]).astype(np.float32)


def of_filter(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=shape, scale=0.3).astype(np.float32)


def convolution(**options: Any) -> Callable[..., Any]:
    return lambda x, w: tf.nn.convolution(x, w, **options)


def batch_norm(**options: Any) -> Callable[..., Any]:
    """Returns all results of a fused batch normalization, as a row."""

    def call(x: Any, scale: Any, offset: Any) -> Any:
        moving = {"mean": tf.abs(offset), "variance": tf.abs(scale)}
        every = tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, **moving, **options)  # pyright: ignore[reportAttributeAccessIssue]
        return tf.concat([tf.reshape(tf.cast(result, tf.float32), [-1]) for result in every[:3]], 0)

    return call


def pooling(pool: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    return lambda x: pool(x, *arguments)


# A layer: its function and its inputs.
LAYERS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "conv1d": (convolution(padding="SAME"), [IMAGES[:, 0], of_filter(3, 4, 5)]),
    "conv2d": (convolution(padding="SAME"), [IMAGES, of_filter(3, 2, 4, 5)]),
    "conv2d, strides": (convolution(padding="VALID", strides=[2, 3]), [IMAGES, of_filter(3, 2, 4, 5)]),
    "conv2d, 1x1": (convolution(padding="VALID"), [IMAGES, of_filter(1, 1, 4, 5)]),
    "conv2d, explicit padding": (
        lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [1, 2], [0, 1], [0, 0]]),
        [IMAGES, of_filter(3, 2, 4, 5)],
    ),
    "conv2d, transposed": (
        lambda x, w: tf.nn.conv2d_transpose(x, w, [4, 26, 22, 3], 2),
        [IMAGES, of_filter(3, 3, 3, 4)],
    ),
    "conv3d": (convolution(padding="SAME"), [VOLUMES, of_filter(2, 2, 3, 3, 4)]),
    "depthwise": (lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "SAME"), [IMAGES, of_filter(3, 3, 4, 2)]),
    "conv3d, 1x1x1": (convolution(padding="SAME"), [VOLUMES, of_filter(1, 1, 1, 3, 4)]),
    "max pool": (pooling(tf.nn.max_pool, 3, 2, "SAME"), [IMAGES]),
    "average pool": (pooling(tf.nn.avg_pool, 3, 2, "SAME"), [IMAGES]),
    "max pool 3d": (pooling(tf.nn.max_pool, 2, 2, "VALID"), [VOLUMES]),
    "average pool 3d": (pooling(tf.nn.avg_pool, 2, 1, "SAME"), [VOLUMES]),
    "resize": (lambda x: tf.image.resize(x, [20, 7]), [IMAGES]),
    "resize to the nearest": (lambda x: tf.image.resize(x, [20, 7], "nearest"), [IMAGES]),
    "running sums": (lambda x: tf.cumsum(x, axis=1, reverse=True), [IMAGES]),
    "largest": (lambda x: tf.math.top_k(x, 2)[0], [IMAGES]),
    "scatter": (lambda x, rows: tf.tensor_scatter_nd_add(x, [[2], [0], [2]], rows), [IMAGES, IMAGES[1:] / 3]),
    "segments": (lambda x: tf.math.unsorted_segment_sum(x, [1, 0, 2, 1], 3), [IMAGES]),
    "embedding": (lambda table: tf.gather(table, [[3, 0, 3], [12, 5, 3]]), [IMAGES[0, :, :, 0]]),
    "batch normalization": (
        # The gradient of a plain sum would be zero. The weights are small, because the sine of a large sum tests
        # little.
        lambda x, scale, offset: (
            0.1 * IMAGES[::-1] * tf.compat.v1.nn.fused_batch_norm(x, scale, offset, is_training=True)[0]
        ),
        [IMAGES, of_filter(4), of_filter(4)],
    ),
    "batch normalization, moving": (batch_norm(exponential_avg_factor=0.3), [IMAGES, of_filter(4), of_filter(4)]),
    "batch normalization by constants": (batch_norm(is_training=False), [IMAGES, of_filter(4), of_filter(4)]),
    "batch normalization 3d": (batch_norm(data_format="NDHWC"), [VOLUMES, of_filter(3), of_filter(3)]),
    "sort": (lambda x: tf.sort(x, axis=-1) * tf.range(4.0), [IMAGES]),
    # The layer is large enough for oneDNN.
    "large conv2d": (convolution(padding="SAME", strides=2), [LARGE, of_filter(3, 3, 8, 8)]),
    "large depthwise": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
        [LARGE, of_filter(3, 3, 8, 1)],
    ),
    "large batch normalization, moving": (batch_norm(exponential_avg_factor=0.3), [LARGE, of_filter(8), of_filter(8)]),
    "large batch normalization by constants": (batch_norm(is_training=False), [LARGE, of_filter(8), of_filter(8)]),
    "large max pool": (lambda x: tf.nn.max_pool(tf.nn.relu(x), 3, 2, "SAME"), [LARGE]),
    "large max pool 3d": (pooling(tf.nn.max_pool, 2, 2, "VALID"), [LARGE[None]]),
    "max pool by a window that is larger": (pooling(tf.nn.max_pool, 48, 2, "SAME"), [LARGE]),
    "large average pool": (pooling(tf.nn.avg_pool, 3, 2, "VALID"), [LARGE]),
    "average pool, side by side": (pooling(tf.nn.avg_pool, 2, 2, "VALID"), [IMAGES]),
}


def results(call: Callable[..., Any], values: list[Any]) -> list[Any]:
    """Returns the results of the layer and its gradients."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        result = call(*values)
        loss = tf.reduce_sum(tf.sin(result))
    return [result, *map(tf.convert_to_tensor, tape.gradient(loss, values))]


def second(call: Callable[..., Any], values: list[Any]) -> list[Any]:
    """Returns the gradients of a function of the layer's gradients."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = tf.add_n([tf.reduce_sum(tf.sin(gradient)) for gradient in results(call, values)[1:]])
    return tape.gradient(loss, values)


def assert_near(actual: list[Any], expected: list[Any], tolerance: float = 1e-5, name: str = "") -> None:
    for actual_value, expected_value in zip(actual, expected, strict=True):
        np.testing.assert_allclose(
            actual_value, expected_value, tolerance, tolerance * np.max(np.abs(expected_value)), err_msg=name
        )


def inputs_of(names: Sequence[str]) -> dict[str, list[tf.Tensor]]:
    return {name: [tf.constant(array) for array in LAYERS[name][1]] for name in names}


def in_loop(call: Callable[..., Any], outside: Any, inputs: Any) -> Any:
    """Returns the results of `call(inputs)` in a loop; `outside` is the result outside of one."""
    inside = tf.nest.map_structure(tf.zeros_like, outside)
    for _ in tf.range(2):
        inside = call(inputs)
    return inside


@pytest.fixture
def wherever_known() -> Iterator[None]:
    """Uses host kernels also for small layers, which XLA computes faster."""
    with _host_kernels.wherever_known():
        yield


@pytest.mark.parametrize("everywhere", [False, True])
def test_layers_and_their_gradients_equal_those_of_tensorflow_without_xla(everywhere, strategy):
    inputs = inputs_of([name for name in LAYERS if not everywhere or "conv" in name or "batch" in name])

    def every(inputs: Any) -> Any:
        return {name: results(LAYERS[name][0], values) for name, values in inputs.items()}

    @tf.function(jit_compile=True)
    def program(inputs: Any) -> Any:
        once = every(inputs)
        return once, in_loop(every, once, inputs)

    with _host_kernels.wherever_known() if everywhere else contextlib.nullcontext():
        actual = strategy.run(program, (inputs,))
    expected = tf.function(every)(inputs)
    for name in inputs:
        for row in actual:
            assert_near(row[name], expected[name], name=name)


@pytest.mark.usefixtures("wherever_known")
def test_second_derivatives_equal_those_of_tensorflow_without_xla(strategy):
    inputs = inputs_of(
        ["conv2d, strides", "conv2d, transposed", "conv3d", "depthwise", "large max pool", "batch normalization"]
    )

    def every(inputs: Any) -> Any:
        return {name: second(LAYERS[name][0], values) for name, values in inputs.items()}

    actual = strategy.run(tf.function(lambda inputs: in_loop(every, inputs, inputs), jit_compile=True), (inputs,))
    expected = tf.function(every)(inputs)
    for name in inputs:
        assert_near(actual[name], expected[name], 1e-4, name)


@pytest.mark.usefixtures("wherever_known")
def test_gradients_of_a_layer_in_a_function_equal_those_of_tensorflow_without_xla(strategy):
    inner, inputs = tf.function(LAYERS["conv2d"][0]), inputs_of(["conv2d"])["conv2d"]
    actual = strategy.run(tf.function(lambda *values: results(inner, list(values)), jit_compile=True), inputs)
    assert_near(actual, results(inner, inputs))


def test_gradient_that_only_the_host_has_is_refused_where_it_has_none_to_compute():
    @tf.function(jit_compile=True)
    def program(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.image.resize(x, [20, 7], "nearest") ** 2)
        return tape.gradient(loss, x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="do not switch off the strategy's `host_kernels`"):
        ipu.IPUStrategy(host_kernels=False).run(program, (tf.constant(IMAGES),))


@pytest.mark.usefixtures("wherever_known")
def test_gradients_on_replicas_equal_those_of_tensorflow_without_xla(replicas):
    strategy = replicas(4)
    call, arrays = LAYERS["conv2d, strides"]
    images, weights = (tf.constant(array) for array in arrays)

    def layer(images: Any, weights: Any) -> Any:
        return tf.nn.max_pool(call(images, weights), 2, 1, "SAME")

    def of_weights(images: Any) -> list[Any]:
        """Returns the first and second gradients of the weights."""
        return [results(layer, [images, weights])[2], second(call, [images, weights])[1]]

    @tf.function(jit_compile=True)
    def program(images: Any) -> Any:
        scale = tf.cast(1 + ipu.ops.replication_ops.replication_index(), tf.float32)
        return [ipu.ops.cross_replica_ops.cross_replica_sum(gradient) for gradient in of_weights(scale * images)]

    on_host = tf.function(of_weights)
    first, second_gradients = zip(*(on_host(scale * images) for scale in (1.0, 2.0, 3.0, 4.0)), strict=True)
    actual = strategy.run(program, (images,))
    assert_near(actual[:1], [tf.add_n(first)])
    assert_near(actual[1:], [tf.add_n(second_gradients)], 1e-4)


@pytest.mark.usefixtures("wherever_known")
def test_gradients_that_no_kernel_of_the_host_knows_are_those_of_xla(strategy):
    layers = {
        "dilations": (convolution(padding="VALID", dilations=[2, 3]), of_filter(3, 2, 4, 5)),
        "groups": (convolution(padding="SAME"), of_filter(3, 3, 2, 6)),
    }
    inputs = {name: [tf.constant(IMAGES), tf.constant(weights)] for name, (_, weights) in layers.items()}

    def every(inputs: Any) -> Any:
        return {name: results(layers[name][0], values) for name, values in inputs.items()}

    @tf.function(jit_compile=True)
    def program(inputs: Any) -> Any:
        once = every(inputs)
        return once, in_loop(every, once, inputs)

    expected = tf.function(every, jit_compile=True)(inputs)
    for actual in strategy.run(program, (inputs,)):
        for name in layers:
            assert_near(actual[name], expected[name], 1e-4, name)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda dtype: dtype.name)
def test_types_other_than_float32_are_computed_as_without_xla(dtype, strategy):
    call, arrays = LAYERS["conv2d"]

    def narrow(*values: Any) -> Any:
        return tf.cast(call(*(tf.cast(value, dtype) for value in values)), tf.float32)

    cases = [(narrow, arrays)]
    if dtype != tf.float64:
        cases.append((lambda x, *more: batch_norm()(tf.cast(x, dtype), *more), [LARGE, of_filter(8), of_filter(8)]))
    for layer, arrays in cases:
        values = [tf.constant(array) for array in arrays]
        with _host_kernels.wherever_known() if layer is not narrow else contextlib.nullcontext():
            actual = strategy.run(tf.function(layer, jit_compile=True), values)
        assert_near([actual], [tf.function(layer)(*values)], 1e-5 if dtype is tf.float64 else 2e-2)


# XLA:CPU computed the gradients of convolutions in loops by its slowest code.
@pytest.mark.parametrize("switch", [None, "0"])
def test_programs_call_kernels_of_the_host_unless_these_are_switched_off(switch, compiled_text, monkeypatch):
    monkeypatch.delenv("TENSORFLOW_IPU_HOST_KERNELS", raising=False)
    if switch is not None:
        monkeypatch.setenv("TENSORFLOW_IPU_HOST_KERNELS", switch)

    def train(images: Any, weights: Any) -> Any:
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                tape.watch([images, weights])
                loss = tf.reduce_sum(tf.sin(tf.nn.conv2d(images, weights, strides=2, padding="SAME")))
            by_images, by_weights = tape.gradient(loss, [images, weights])
            images, weights = images - by_images, weights - by_weights
        return images

    def calls(text: str) -> int:
        return text.count('custom_call_target="ipu_host_kernel"')

    values = (tf.ones([9, 64, 64, 3]), tf.ones([3, 3, 3, 4]))
    # The batch size is known only when the program is compiled.
    signature = [tf.TensorSpec([None, 64, 64, 3]), tf.TensorSpec([3, 3, 3, 4])]
    program = tf.function(train, jit_compile=True, input_signature=signature)
    assert calls(compiled_text(ipu.IPUStrategy(), program, *values)) == (0 if switch == "0" else 3)
    if switch != "0":
        assert calls(compiled_text(ipu.IPUStrategy(host_kernels=False), program, *values)) == 0
    if switch is None:
        elsewhere = tf.function(train, jit_compile=True)
        assert calls(elsewhere.experimental_get_compiler_ir(*values)(stage="optimized_hlo")) == 0
