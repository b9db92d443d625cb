"""Convolutions with filters of three columns, strided ones with filters of one element, and sums by feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.programs import _host_kernels

RANDOM = np.random.default_rng(1)

EXPLICIT = [[0, 0], [2, 1], [0, 2], [0, 0]]

# The images, the rows and columns of the filter, its features, the stride and the padding. The cases cover each width
# of a tile, overlapping tiles, bands of rows, strides that end before the images, and sizes that other kernels compute.
SIZES: list[tuple[list[int], tuple[int, int, int], int, Any]] = [
    ([4, 32, 32, 16], (3, 3, 16), 1, "SAME"),
    ([3, 14, 28, 32], (3, 3, 16), 1, "VALID"),
    ([2, 9, 7, 64], (3, 3, 32), 1, "SAME"),
    ([1, 64, 40, 16], (1, 3, 16), 1, "SAME"),
    ([3, 31, 9, 16], (5, 3, 16), 1, "SAME"),
    ([5, 12, 11, 24], (4, 3, 48), 1, "SAME"),
    ([2, 34, 34, 16], (3, 3, 16), 1, EXPLICIT),
    ([4, 32, 32, 16], (3, 3, 32), 2, "SAME"),
    ([3, 16, 16, 32], (3, 3, 64), 2, "SAME"),
    ([3, 17, 33, 16], (3, 3, 16), 2, "SAME"),
    ([4, 33, 35, 8], (3, 3, 16), 2, "VALID"),
    ([3, 40, 26, 16], (2, 3, 32), 2, "VALID"),
    ([4, 32, 32, 3], (3, 3, 16), 1, "SAME"),
    ([2, 13, 16, 16], (1, 1, 8), 2, "SAME"),
    ([2, 13, 16, 16], (1, 1, 8), 3, "VALID"),
]


def of_normal(*shape: int) -> tf.Tensor:
    return tf.constant(RANDOM.normal(size=shape).astype(np.float32))


INPUTS = [
    (of_normal(*images), of_normal(*filter_[:2], images[3], filter_[2]) / images[3] ** 0.5)
    for images, filter_, _, _ in SIZES
]


def results(inputs: list[Any]) -> list[list[tf.Tensor]]:
    """Returns each convolution and its gradients."""
    outputs = []
    for (images, weights), (_, _, stride, padding) in zip(inputs, SIZES, strict=True):
        with tf.GradientTape() as tape:
            tape.watch([images, weights])
            out = tf.nn.conv2d(images, weights, stride, padding)
            loss = tf.reduce_sum(tf.sin(out))
        outputs.append([out, *tape.gradient(loss, [images, weights])])
    return outputs


def close(actual: Any, expected: Any, what: Any = "") -> None:
    for actual_leaf, expected_leaf in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        scale = np.abs(expected_leaf).max()
        np.testing.assert_allclose(actual_leaf / scale, expected_leaf / scale, atol=1e-5, err_msg=str(what))


def test_convolutions_and_gradients_of_all_sizes_equal_those_of_tensorflow():
    program: Callable[..., Any] = tf.function(results, jit_compile=True)
    expected = results(INPUTS)
    strategy = ipu.IPUStrategy()
    for size, actual, expected_gradients in zip(SIZES, strategy.run(program, (INPUTS,)), expected, strict=True):
        close(actual, expected_gradients, size)
    with _host_kernels.wherever_known():
        everywhere = strategy.run(tf.function(results, jit_compile=True), (INPUTS,))
    for size, actual, expected_gradients in zip(SIZES, everywhere, expected, strict=True):
        close(actual, expected_gradients, size)


@pytest.mark.parametrize("shape", [[64, 32, 32, 32], [4, 30, 32, 32], [4, 32, 32, 16]])
def test_gradients_of_another_shape_are_errors_and_leave_memory_alone(shape):
    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=tf.ones([4, 32, 32, 16]),
            filter_sizes=[3, 3, 16, 32],
            out_backprop=upstream,
            strides=[1, 1, 1, 1],
            padding="SAME",
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match="out_backprop"):
        ipu.IPUStrategy().run(tf.function(gradient, jit_compile=True), (tf.ones(shape),))


def test_strides_of_the_batch_are_errors_as_in_tensorflow():
    def every_other(images: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(images, tf.ones([1, 1, 16, 16]), [2, 1, 1, 1], "SAME")

    with pytest.raises(tf.errors.UnimplementedError, match="strides in the batch"):
        ipu.IPUStrategy().run(tf.function(every_other, jit_compile=True), (tf.ones([4, 8, 8, 16]),))


def test_sums_over_an_axis_twice_are_errors_as_in_tensorflow():
    def twice(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Sum(input=x * tf.sin(x), axis=[0, 0])

    with pytest.raises(tf.errors.InvalidArgumentError, match="duplicate dimension"):
        ipu.IPUStrategy().run(tf.function(twice, jit_compile=True), (tf.ones([64, 32, 16]),))


def sums(x: tf.Tensor, y: tf.Tensor, mean: tf.Tensor) -> list[tf.Tensor]:
    return [
        tf.reduce_sum(x * y, [0, 1, 2]),
        tf.reduce_mean(tf.math.squared_difference(x, mean), [2, 1, 0], keepdims=True),
        tf.reduce_mean(tf.square(x - mean), [0, -3, -2]),
        tf.reduce_sum(tf.square(tf.sin(x)), [0, 1, 2]),
        tf.reduce_sum(x * mean, [0, 1, 2]),
        tf.reduce_sum(x * y, [1, 2, 3]),
    ]


def test_sums_of_products_by_feature_equal_those_of_tensorflow():
    shapes = [[4, 32, 32, 16], [3, 17, 29, 20], [2, 5, 3, 1100], [4, 60, 80, 3]]
    values = [(of_normal(*shape), of_normal(*shape), of_normal(shape[-1])) for shape in shapes]

    def every(values: Any) -> Any:
        return [sums(*arguments) for arguments in values]

    program: Callable[..., Any] = tf.function(every, jit_compile=True)
    close(ipu.IPUStrategy().run(program, (values,)), every(values))


def test_batch_normalization_learns_as_in_keras_alone():
    images, classes = RANDOM.normal(size=[32, 16, 16, 16]).astype(np.float32), np.arange(32) % 4

    def learned() -> list[Any]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.Conv2D(32, 1, strides=2),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(4),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, steps_per_execution=2, jit_compile=False)
        model.fit(images, classes, batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    alone = learned()
    with ipu.IPUStrategy().scope():
        actual = learned()
    close(actual, alone)
