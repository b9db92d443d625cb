"""`tf.nn.local_response_normalization` in programs: in half precision TensorFlow's own lowering of it does not compile."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

INPUT = tf.random.stateless_normal([2, 3, 3, 8], seed=[1, 2])


def _with_gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.local_response_normalization(x, depth_radius=2, bias=1.5, alpha=0.5, beta=0.7)
        loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 3)
    return y, tape.gradient(loss, x)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(tf.float32, 1e-5), (tf.float16, 2e-3), (tf.bfloat16, 2e-2)], ids=["f32", "f16", "bf16"]
)
def test_it_and_its_gradient_are_those_of_tensorflow(dtype: tf.DType, tolerance: float) -> None:
    x = tf.cast(INPUT, dtype)
    found = ipu.IPUStrategy().run(tf.function(_with_gradient, jit_compile=True), [x])
    expected = _with_gradient(tf.cast(x, tf.float32))  # The host has no kernel for bfloat16.
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(tf.cast(one, tf.float32), other, rtol=tolerance, atol=tolerance)


def test_it_rounds_at_random_where_asked() -> None:
    @tf.function(jit_compile=True)
    def program(x: Any) -> Any:
        with ipu.scopes.stochastic_rounding(True):
            return tf.nn.local_response_normalization(x)

    strategy = ipu.IPUStrategy()
    first, second = (strategy.run(program, [tf.cast(INPUT, tf.float16)]) for _ in range(2))
    assert tf.reduce_any(first != second)
    np.testing.assert_allclose(first, second, rtol=2e-3, atol=1e-6)
