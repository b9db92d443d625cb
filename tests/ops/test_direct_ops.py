"""Operations of programs that are lowered without MLIR: their results are those of TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

_VALUES = [-np.inf, -20.0, -3.0, -1.5, -1.0, -0.5, -0.0, 0.0, 0.25, 1.0, 2.5, 5.9, 6.0, 7.0, np.inf, np.nan]
_UNARY = ("Abs", "Ceil", "Cos", "Exp", "Expm1", "Floor", "IsFinite", "IsNan", "Log1p", "Reciprocal", "Rsqrt", "Sigmoid")
_UNARY += ("Sign", "Sqrt", "Tanh")

raw: Any = tf.raw_ops


def _run(function, *args):
    return ipu.IPUStrategy().run(tf.function(function, jit_compile=True, autograph=False), args)


def _all_of(x):
    """Returns the results of all elementwise operations by name."""
    results = {name: getattr(raw, name)(x=x) for name in _UNARY}
    results["Relu"] = raw.Relu(features=x)
    finite = tf.where(tf.math.is_nan(x), tf.zeros_like(x), x)  # XLA returns 0 for NaN here.
    results["Relu6"] = raw.Relu6(features=finite)
    results["ReluGrad"] = raw.ReluGrad(gradients=tf.ones_like(x), features=finite)
    results["PreventGradient"] = raw.PreventGradient(input=x)
    return results


def _reduced(x):
    """Returns the results of the operations that reduce, by name; `x` must be finite."""
    return {
        "Softmax": raw.Softmax(logits=x),
        "LogSoftmax": raw.LogSoftmax(logits=x),
        "Softmax of a vector": raw.Softmax(logits=x[0, 0]),
        "BiasAddGrad": raw.BiasAddGrad(out_backprop=x),
        "BiasAddGrad of images": raw.BiasAddGrad(out_backprop=x[..., None]),
    }


def _compare(function, *values):
    expected = function(*values)
    results: dict[str, tf.Tensor] = _run(function, *values)
    for name, value in expected.items():
        assert results[name].dtype == value.dtype, name
        tolerance = {tf.float32: 1e-5, tf.bfloat16: 2e-2}.get(value.dtype, 2e-3)
        actual, reference = (np.asarray(tensor, np.float64) for tensor in (results[name], value))
        np.testing.assert_allclose(actual, reference, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_operations_on_elements_and_reductions_are_those_of_tensorflow(dtype):
    numbers = np.random.default_rng(7).normal(size=(3, 4, 40))
    _compare(lambda x, y: _all_of(x) | _reduced(y), tf.constant(_VALUES, dtype), tf.constant(numbers, dtype))


def _batch_norms(images, data_format="NHWC"):
    """Returns batch normalization in each mode, and its gradients; the channels of images are last."""
    axes = [0, 3, 1, 2] if data_format == "NCHW" else [0, 1, 2, 3]
    back = [0, 2, 3, 1] if data_format == "NCHW" else axes
    x = tf.transpose(images, axes)
    scale, moving = tf.range(1.0, 4.0), {"mean": tf.range(3.0), "variance": tf.range(2.0, 5.0)}
    results = []
    for training in (True, False):
        options = {"is_training": training, "data_format": data_format, "epsilon": 0.01}
        factor = 0.25 if training else 1.0
        y, *statistics, _ = raw.FusedBatchNormV3(
            x=x, scale=scale, offset=scale, **moving, exponential_avg_factor=factor, **options
        )
        if not training:  # TensorFlow does not set the results that it reserves for gradients.
            statistics = list(moving.values())
        reserved = {f"reserve_space_{i}": statistic for i, statistic in enumerate((*statistics[-2:], tf.zeros([0])), 1)}
        of_x, *of_weights, _, _ = raw.FusedBatchNormGradV3(
            y_backprop=tf.sin(x), x=x, scale=scale, **reserved, **options
        )
        results += [tf.transpose(y, back), *statistics, tf.transpose(of_x, back), *of_weights]
    return results


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=lambda dtype: dtype.name)
def test_batch_normalization_is_that_of_tensorflow_in_both_orders_of_dimensions(dtype):
    images = tf.cast(tf.constant(np.random.default_rng(7).normal(size=(2, 4, 5, 3))), dtype)
    tolerance = 2e-5 if dtype == tf.float32 else 2e-3
    for data_format in ("NHWC", "NCHW"):
        compiled = _run(lambda x, data_format=data_format: _batch_norms(x, data_format), images)
        for actual, expected in zip(compiled, _batch_norms(images), strict=True):
            assert actual.dtype == expected.dtype
            np.testing.assert_allclose(actual, expected, tolerance, tolerance)


def test_other_types_orders_and_second_derivatives_are_those_of_tensorflow():
    integers, complex_ = tf.constant([-3, 0, 5]), tf.constant([1 + 2j, -0.5j, 0.25], tf.complex64)
    x, images = tf.constant([0.5, -0.25, 2.0]), tf.reshape(tf.range(48.0), [2, 3, 4, 2])

    def apply(of_biases):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.sigmoid(tf.tanh(x)) * tf.exp(tf.sqrt(tf.abs(x))))
            slope = inner.gradient(y, x)
        of_types = tf.abs(integers), tf.sign(integers), tf.nn.relu(integers), tf.exp(complex_), tf.tanh(complex_)
        return *of_types, of_biases(images), outer.gradient(slope, x)

    results = _run(lambda: apply(lambda x: raw.BiasAddGrad(out_backprop=x, data_format="NCHW")))
    for actual, expected in zip(results, apply(lambda x: tf.reduce_sum(x, [0, 2, 3])), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
