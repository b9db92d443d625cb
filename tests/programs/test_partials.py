"""Products and convolutions of float16 with the selected type of partial sums, bit for bit as NumPy defines them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes
from tensorflow_ipu.ops.rnn_ops import PopnnGRU, PopnnLSTM
from tensorflow_ipu.programs import Program, hlo

BLOCK = 16

Array = Any


def summed(products: Array, half: bool) -> Array:
    """Returns the sum over the first axis: blocks are added to a partial sum of float16 or float32."""
    partial: Array = np.zeros(products.shape[1:], np.float32)
    for first in range(0, len(products), BLOCK):
        block = np.zeros_like(partial)
        for product in products[first : first + BLOCK]:
            block += product
        partial += block
        if half:
            partial = partial.astype(np.float16).astype(np.float32)
    return partial.astype(np.float16)


def product(left: Array, right: Array, half: bool) -> Array:
    """Returns the product of two matrices."""
    return summed(left.astype(np.float32).T[:, :, None] * right.astype(np.float32)[:, None, :], half)


def convolution(
    images: Array,
    weights: Array,
    half: bool,
    out: Sequence[int],
    before: Sequence[int],
    strides: Sequence[int] = (1, 1, 1),
    gaps: Sequence[int] = (1, 1, 1),
    dilations: Sequence[int] = (1, 1, 1),
) -> Array:
    """Returns a convolution of [batch, ..., channels] with [..., channels, features], both with gaps, of size `out`."""
    space = weights.ndim - 2
    sizes = [(size - 1) * gap + 1 for size, gap in zip(images.shape[1:-1], gaps, strict=False)]
    gapped = np.zeros((images.shape[0], *sizes, images.shape[-1]), np.float32)
    gapped[(slice(None), *(slice(None, None, gaps[i]) for i in range(space)))] = images
    far = 40  # Zeros surround the values.
    padded = np.pad(gapped, [(0, 0), *[(far, far)] * space, (0, 0)])

    def tap_view(tap: Sequence[int]) -> Array:
        begins = [far + tap[i] * dilations[i] - before[i] for i in range(space)]
        strided = padded[(slice(None), *(slice(begins[i], None, strides[i]) for i in range(space)))]
        return strided[(slice(None), *(slice(0, out[i]) for i in range(space)))]

    taps = list(itertools.product(*(range(size) for size in weights.shape[:-2])))
    channels = images.shape[-1]
    order = [(tap, channel) for tap in taps for channel in range(channels)]
    if channels % BLOCK == 0:
        order = [(tap, first + i) for first in range(0, channels, BLOCK) for tap in taps for i in range(BLOCK)]
    products = [tap_view(tap)[..., channel, None] * np.float32(weights[tap][channel]) for tap, channel in order]
    return summed(np.stack(products), half)


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float16)


def configured(half: bool) -> None:
    config = ipu.IPUConfig()
    config.matmuls.poplar_options = config.convolutions.poplar_options = {"partialsType": "half" if half else "float"}
    config.configure_ipu_system()


def computed(call: Callable[..., Any], *arrays: Array) -> list[Array]:
    program = tf.function(call, jit_compile=True)
    results = ipu.IPUStrategy().run(program, args=[tf.constant(array) for array in arrays])
    return [tensor.numpy() for tensor in tf.nest.flatten(results)]


def same(actual: Array, expected: Array) -> bool:
    return actual.dtype == expected.dtype and actual.shape == expected.shape and actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("half", [True, False])
def test_products_of_all_kinds_sum_as_defined(half):
    configured(half)
    a, b, stack = random(5, 70), random(70, 9), random(3, 5, 70)

    def call(a: tf.Tensor, b: tf.Tensor, stack: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            result = tf.matmul(a, b)
        of_a, of_b = tape.gradient(result, [a, b], output_gradients=tf.ones_like(result) * tf.constant(0.3, tf.float16))
        turned = tf.linalg.matmul(stack, tf.stack([b] * 3))
        return result, of_a, of_b, turned, tf.einsum("bij,kj->bik", stack, tf.transpose(b))

    result, of_a, of_b, stacked, einsum = computed(call, a, b, stack)
    upstream = np.full((5, 9), 0.3, np.float16)
    assert same(result, product(a, b, half))
    assert same(of_a, product(upstream, b.T, half))
    assert same(of_b, product(a.T, upstream, half))
    assert same(stacked, np.stack([product(matrix, b, half) for matrix in stack]))
    assert same(einsum, stacked)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("channels", [3, 32])
def test_convolutions_and_their_gradients_sum_as_defined(half, channels):
    configured(half)
    images, weights, upstream = random(2, 7, 6, channels), random(3, 2, channels, 5), random(2, 4, 6, 5)

    def call(images: tf.Tensor, weights: tf.Tensor, upstream: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([images, weights])
            result = tf.nn.conv2d(images, weights, [2, 1], "SAME")
        return result, tape.gradient(result, [images, weights], output_gradients=upstream)

    result, of_images, of_weights = computed(call, images, weights, upstream)
    assert same(result, convolution(images, weights, half, (4, 6), (1, 0), (2, 1)))
    turned = weights[::-1, ::-1].transpose(0, 1, 3, 2)
    assert same(of_images, convolution(upstream, turned, half, (7, 6), (1, 1), gaps=(2, 1)))
    batch_last, places = images.transpose(3, 1, 2, 0), upstream.transpose(1, 2, 0, 3)
    expected = convolution(batch_last, places, half, (3, 2), (1, 0), dilations=(2, 1))
    assert same(of_weights, expected.transpose(1, 2, 0, 3))


def test_convolutions_of_other_shapes_sum_as_defined():
    configured(half=True)
    row, volume, image = random(2, 20, 3), random(1, 4, 5, 6, 2), random(2, 6, 5, 4)
    of_row, of_volume = random(5, 3, 7), random(2, 3, 2, 2, 3)
    dilated, grouped, deep = random(3, 3, 4, 6), random(3, 3, 2, 6), random(3, 3, 4, 2)

    def call(*arrays: tf.Tensor) -> Any:
        row, volume, image, of_row, of_volume, dilated, grouped, deep = arrays
        with tf.GradientTape() as tape:
            tape.watch([image, deep])
            by_depth = tf.nn.depthwise_conv2d(image, deep, [1, 1, 1, 1], "SAME")
        return (
            tf.nn.conv1d(row, of_row, 1, "VALID"),
            tf.nn.conv3d(volume, of_volume, [1, 1, 1, 1, 1], "VALID"),
            tf.nn.conv2d(image, dilated, 1, "VALID", dilations=2),
            tf.nn.conv2d(image, grouped, 1, "SAME"),
            by_depth,
            tape.gradient(by_depth, [image, deep]),
        )

    by_row, by_volume, by_gaps, by_groups, by_depth, of_image, of_deep = computed(
        call, row, volume, image, of_row, of_volume, dilated, grouped, deep
    )
    assert same(by_row, convolution(row, of_row, True, (16,), (0,)))
    assert same(by_volume, convolution(volume, of_volume, True, (3, 3, 5), (0, 0, 0)))
    assert same(by_gaps, convolution(image, dilated, True, (2, 1), (0, 0), dilations=(2, 2)))
    halves = [
        convolution(image[..., 2 * g : 2 * g + 2], grouped[..., 3 * g : 3 * g + 3], True, (6, 5), (1, 1))
        for g in range(2)
    ]
    assert same(by_groups, np.concatenate(halves, -1))
    channels = [convolution(image[..., c : c + 1], deep[:, :, c : c + 1], True, (6, 5), (1, 1)) for c in range(4)]
    assert same(by_depth, np.concatenate(channels, -1))
    ones = np.ones((2, 6, 5, 2), np.float16)
    back = [convolution(ones, deep[::-1, ::-1, c, :, None], True, (6, 5), (1, 1)) for c in range(4)]
    assert same(of_image, np.concatenate(back, -1))
    places, by_pixel = ones.transpose(1, 2, 0, 3), image.transpose(3, 1, 2, 0)
    filters = [convolution(by_pixel[c, None], places, True, (3, 3), (1, 1)) for c in range(4)]
    assert same(of_deep, np.stack([result[0] for result in filters], 2))


def test_scopes_go_before_the_configuration_and_gradients_follow_them():
    configured(half=True)
    a, b = random(4, 300), random(300, 6)

    def call(a: tf.Tensor, b: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(b)
            with scopes.partials_type(tf.float32):
                inside = tf.matmul(b, tf.transpose(b))
        return inside, tape.gradient(inside, b), tf.matmul(a, b)

    inside, gradient, outside = computed(call, a, b)
    ones = np.ones((300, 300), np.float16)
    assert same(inside, product(b, b.T, False))
    assert same(gradient, product(ones, b, False) + product(ones, b, False))
    assert same(outside, product(a, b, True))


def test_a_scope_is_enough_in_a_loop_and_on_replicas(replicas):
    strategy = replicas(2)
    queue = ipu.IPUOutfeedQueue()
    a, b = random(4, 300), random(300, 300)

    @tf.function(jit_compile=True)
    def program(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        def body(a: tf.Tensor) -> tf.Tensor:
            with scopes.poplar_options({"partialsType": "half"}):
                return tf.matmul(a, b) * tf.constant(0.05, tf.float16)

        result = ipu.loops.repeat(2, body, [a])
        queue.enqueue(result)
        return result

    strategy.run(program, args=[a, b])
    expected = a
    for _ in range(2):
        expected = product(expected, b, True) * np.float16(0.05)
    for rows in queue.dequeue().numpy().reshape(2, 4, 300):
        assert same(rows, expected)


def test_float32_and_programs_without_options_are_as_ever():
    def call(a: tf.Tensor, images: tf.Tensor, weights: tf.Tensor) -> Any:
        return tf.matmul(a, a), tf.nn.conv2d(images, weights, 1, "SAME")

    arrays = [tf.constant(array) for array in (random(4, 4), random(1, 5, 5, 2), random(3, 3, 2, 2))]
    target = ipu.IPUStrategy().extended.target
    program = Program.trace(tf.function(call, jit_compile=True), arrays, {}, "/device:IPU:0", target)
    text = hlo(program.function, program.inputs, program.device)
    assert b"ipu_half" not in text
    assert b"ipu_partial" not in text
    a, b = np.float32(random(5, 70)), np.float32(random(70, 9))
    [default] = computed(tf.matmul, a, b)
    configured(half=True)
    [selected] = computed(tf.matmul, a, b)
    assert same(default, selected)


def test_half_partials_round_at_random_where_results_do():
    """From 1024 on, neighbours differ by 1. Each of 64 blocks adds a quarter, which rounding to nearest drops."""
    config = ipu.IPUConfig()
    config.matmuls.poplar_options = {"partialsType": "half"}
    config.floating_point_behaviour.esr = ipu.config.StochasticRoundingBehaviour.ON
    config.configure_ipu_system()
    ipu.config.reset_ipu_seed(3)
    row, columns = np.ones((1, 16 * 65), np.float16), np.full((16 * 65, 512), 1 / 64, np.float16)
    columns[:16] = 64

    def call(row: tf.Tensor, columns: tf.Tensor) -> Any:
        with scopes.stochastic_rounding(False):
            nearest = once = tf.matmul(row, columns)
        for _ in tf.range(1):
            once = tf.matmul(row, columns)
        return nearest, tf.matmul(row, columns), once

    nearest, first, second = (result.astype(np.float64) for result in computed(call, row, columns))
    assert (nearest == 1024).all()
    for result in (first, second):
        assert abs(result.mean() - 1040) < 4 * np.sqrt(64 * 3 / 16 / 512)
        assert result.std() > 2
    assert (first != second).any()


@pytest.mark.parametrize(
    ("partials_dtype", "old", "new"),
    [(tf.float16, PopnnLSTM, ipu.keras.layers.PopnnGRU), (tf.float32, PopnnGRU, ipu.keras.layers.PopnnLSTM)],
)
def test_recurrent_layers_sum_in_the_type_of_their_own(partials_dtype, old, new):
    """The layer's type precedes the configuration's, and a scope's precedes the layer's."""
    configured(partials_dtype != tf.float16)
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        layers: list[Any] = [old(4, tf.float16, partials_dtype, return_state=False)]
        layers.append(new(4, partials_dtype=partials_dtype, dtype="float16", time_major=True))

    def call(x: tf.Tensor) -> Any:
        layer_results = [layer(x) for layer in layers]
        within = []
        for type_ in (tf.float16, tf.float32):
            with scopes.partials_type(type_):
                within.append([layer(x) for layer in layers])
        return layer_results, within

    program = tf.function(call, jit_compile=True)
    results = [result.numpy() for result in tf.nest.flatten(strategy.run(program, [tf.constant(random(2, 2, 100))]))]
    layer_results, half, single = (results[start : start + 2] for start in (0, 2, 4))
    expected, unexpected = (half, single) if partials_dtype == tf.float16 else (single, half)
    for result, same_type, other_type in zip(layer_results, expected, unexpected, strict=True):
        assert same(result, same_type)
        assert not same(result, other_type)
