"""Fixtures for tests of layers: compute a layer and its Keras counterpart eagerly, compiled, and on the IPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base.tensors import tf_variable


def forward_and_backward(layer: Any, inputs: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """Returns the outputs, and the gradients of a scalar function of them for float inputs and weights."""
    floats = [tensor for tensor in tf.nest.flatten(inputs) if tensor.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        outputs = tf.nest.flatten(layer(inputs, **options))
        total = tf.add_n([
            tf.reduce_sum(tf.sin(tf.cast(out, tf.float32) + float(i))) for i, out in enumerate(outputs)
        ])  # fmt: skip
    return outputs, tape.gradient(total, floats + [tf_variable(weight) for weight in layer.trainable_variables])


def _arrays(results: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.convert_to_tensor(tensor).numpy(), results)


@pytest.fixture
def eager() -> Callable[..., Any]:
    """`eager(layer, inputs, **options)` computes a layer forward and backward on the CPU."""
    return lambda layer, inputs, **options: _arrays(forward_and_backward(layer, inputs, **options))


@pytest.fixture
def compiled() -> Callable[..., Any]:
    """`compiled(layer, inputs, **options)` computes a built layer forward and backward in a program for the CPU."""

    def compute(layer: Any, inputs: Any, **options: Any) -> Any:
        @tf.function(jit_compile=True)
        def program(inputs: Any) -> Any:
            return forward_and_backward(layer, inputs, **options)

        return _arrays(program(inputs))

    return compute


@pytest.fixture
def on_ipu() -> Callable[..., Any]:
    """`on_ipu(make, inputs, weights=None, **options)` creates a layer in the scope and computes it in a program."""

    def compute(make: Callable[[], Any], inputs: Any, weights: Any = None, **options: Any) -> Any:
        strategy = ipu.IPUStrategy()
        with strategy.scope():
            layer = make()
            layer.build(tf.nest.map_structure(lambda tensor: tuple(tensor.shape), inputs))
            if weights is not None:
                layer.set_weights(weights)
            assert all("IPU" in tf_variable(variable).device for variable in layer.trainable_variables)

            @tf.function(jit_compile=True)
            def program(inputs: Any) -> Any:
                return forward_and_backward(layer, inputs, **options)

            return _arrays(strategy.run(program, args=(inputs,)))

    return compute


@pytest.fixture
def normal() -> Callable[..., Any]:
    """`normal(shape, dtype)` returns a tensor of random values with a normal distribution."""

    def make(shape: Any, dtype: Any = np.float32, seed: int = 0) -> Any:
        return tf.constant(np.random.default_rng(seed).normal(size=shape).astype(dtype))

    return make


@pytest.fixture
def twins() -> Callable[..., tuple[Any, Any]]:
    """`twins(layer, counterpart, *inputs)` calls both, copies the weights to the counterpart, and returns both."""

    def make(layer: Any, counterpart: Any, *inputs: Any) -> tuple[Any, Any]:
        shapes = []
        for twin in (layer, counterpart):
            twin(*inputs)
            shapes.append([tuple(variable.shape) for variable in twin.trainable_variables])
        assert shapes[0] == shapes[1]
        for variable, value in zip(counterpart.trainable_variables, layer.trainable_variables, strict=True):
            variable.assign(value)
        return layer, counterpart

    return make


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Asserts that structures have the same shapes, and are equal up to rounding."""

    def check(actual: Any, expected: Any, rtol: float = 2e-5, atol: float = 2e-5) -> None:
        for pair in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
            first, second = (np.asarray(tf.convert_to_tensor(tensor), np.float64) for tensor in pair)
            assert first.shape == second.shape
            np.testing.assert_allclose(first, second, rtol, atol)

    return check
