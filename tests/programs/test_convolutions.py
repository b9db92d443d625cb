"""Gradients of convolutions in a loop on the device, without host kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.normal(size=[4, 13, 11, 3]).astype(np.float32)
FILTER = RANDOM.normal(size=[3, 2, 3, 5]).astype(np.float32)


def gradients(images: Any, weights: Any, options: dict[str, Any], change: Any = tf.identity) -> Any:
    """Returns the gradients of a convolution with the filter `change(weights)`."""
    with tf.GradientTape() as tape:
        tape.watch([images, weights])
        loss = tf.reduce_sum(tf.sin(tf.nn.conv2d(images, change(weights), **options)))
    return tape.gradient(loss, [images, weights])


def spread(weights: Any, dilations: list[int]) -> Any:
    """Returns the filter with zeros between its weights. Without dilations, it equals `weights` with dilations."""
    for axis, dilation in enumerate(dilations):
        taps = [
            part
            for weight in tf.split(weights, weights.shape[axis], axis)
            for part in [weight, *[0 * weight] * (dilation - 1)]
        ]
        weights = tf.concat(taps[: len(taps) - dilation + 1], axis)
    return weights


OPTIONS: list[dict[str, Any]] = [
    {"strides": 1, "padding": "SAME"},
    {"strides": 2, "padding": "SAME"},
    {"strides": [2, 3], "padding": "VALID"},
    {"strides": 4, "padding": "VALID"},
    {"strides": 1, "padding": "VALID", "dilations": [2, 3]},
    {"strides": 1, "padding": "SAME", "dilations": [3, 1]},
    {"strides": 1, "padding": [[0, 0], [1, 2], [0, 1], [0, 0]]},
    {"strides": 1, "padding": [[0, 0], [3, 3], [3, 3], [0, 0]]},  # The padding exceeds the filter's span.
]


def test_gradients_in_a_loop_equal_those_of_tensorflow():
    @tf.function(jit_compile=True)
    def program(images: Any, weights: Any) -> Any:
        sums = [[tf.zeros_like(images), tf.zeros_like(weights)] for _ in OPTIONS]
        for _ in tf.range(2):
            results = [gradients(images, weights, options) for options in OPTIONS]
            sums = tf.nest.map_structure(tf.add, sums, results)
        return sums

    images, weights = tf.constant(IMAGES), tf.constant(FILTER)
    results = ipu.IPUStrategy(host_kernels=False).run(program, (images, weights))
    for options, sums in zip(OPTIONS, results, strict=True):
        # TensorFlow's CPU kernels support gradients of dilated convolutions only on processors with oneDNN.
        undilated = {name: value for name, value in options.items() if name != "dilations"}
        dilations = options.get("dilations", [1, 1])
        expected = gradients(images, weights, undilated, lambda weights: spread(weights, dilations))  # noqa: B023
        for result, expected_result in zip(sums, expected, strict=True):
            np.testing.assert_allclose(result, 2 * expected_result, rtol=1e-4, atol=1e-4, err_msg=str(options))


def test_grouped_convolutions_and_gradients_of_gradients_in_a_loop_equal_those_of_tensorflow():
    grouped, weights = tf.constant(IMAGES[..., :2]), tf.constant(FILTER[:, :, :1, :4])

    def twice(images: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([images, weights])
            first = gradients(images, weights, {"strides": 2, "padding": "SAME"})
            loss = sum(tf.reduce_sum(tf.sin(gradient)) for gradient in first)
        return tape.gradient(loss, [images, weights])

    def once(images: Any, weights: Any) -> Any:
        return gradients(images, weights, {"strides": 1, "padding": "SAME"})

    for call, values in ((once, (grouped, weights)), (twice, (tf.constant(IMAGES), tf.constant(FILTER)))):

        @tf.function(jit_compile=True)
        def program(*values: Any) -> Any:
            result = [tf.zeros_like(value) for value in values]
            for _ in tf.range(1):
                result = call(*values)  # noqa: B023
            return result

        expected = tf.function(call, jit_compile=True)(*values)
        results = ipu.IPUStrategy(host_kernels=False).run(program, values)
        for result, expected_result in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, expected_result, rtol=1e-3, atol=1e-3)
