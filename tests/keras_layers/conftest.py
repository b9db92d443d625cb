"""What the tests of layers share: a layer and its plain counterpart, computed in each of the places they work in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base.tensors import tf_variable


def forward_and_backward(layer: Any, inputs: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """The outputs, and the gradients of a scalar made from them for float inputs and weights."""
    floats = [tensor for tensor in tf.nest.flatten(inputs) if tensor.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        outputs = tf.nest.flatten(layer(inputs, **options))
        total = tf.add_n([
            tf.reduce_sum(tf.sin(tf.cast(out, tf.float32) + float(i))) for i, out in enumerate(outputs)
        ])  # fmt: skip
    return outputs, tape.gradient(total, floats + [tf_variable(weight) for weight in layer.trainable_variables])


def _arrays(results: Any) -> Any:
    return tf.nest.map_structure(lambda each: tf.convert_to_tensor(each).numpy(), results)


@pytest.fixture
def eager() -> Callable[..., Any]:
    """`eager(layer, inputs, **options)` computes a layer forward and backward on the CPU."""
    return lambda layer, inputs, **options: _arrays(forward_and_backward(layer, inputs, **options))


@pytest.fixture
def compiled() -> Callable[..., Any]:
    """`compiled(layer, inputs, **options)` does so in a program for the CPU. The layer has its weights already."""

    def compute(layer: Any, inputs: Any, **options: Any) -> Any:
        @tf.function(jit_compile=True)
        def program(inputs: Any) -> Any:
            return forward_and_backward(layer, inputs, **options)

        return _arrays(program(inputs))

    return compute


@pytest.fixture
def on_ipu() -> Callable[..., Any]:
    """`on_ipu(make, inputs, weights=None, **options)` makes a layer in the scope and computes it in a program."""

    def compute(make: Callable[[], Any], inputs: Any, weights: Any = None, **options: Any) -> Any:
        strategy = ipu.IPUStrategy()
        with strategy.scope():
            layer = make()
            layer.build(tf.nest.map_structure(lambda each: tuple(each.shape), inputs))
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
    """`normal(shape, dtype)` is a tensor of normal random numbers."""

    def make(shape: Any, dtype: Any = np.float32, seed: int = 0) -> Any:
        return tf.constant(np.random.default_rng(seed).normal(size=shape).astype(dtype))

    return make


@pytest.fixture
def twins() -> Callable[..., tuple[Any, Any]]:
    """`twins(layer, plain, *inputs)` calls both, gives the plain layer the weights of the other, and returns both."""

    def make(layer: Any, plain: Any, *inputs: Any) -> tuple[Any, Any]:
        for each in (layer, plain):
            each(*inputs)
        shapes = [[tuple(one.shape) for one in each.trainable_variables] for each in (layer, plain)]
        assert shapes[0] == shapes[1]
        for variable, value in zip(plain.trainable_variables, layer.trainable_variables, strict=True):
            variable.assign(value)
        return layer, plain

    return make


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Asserts that structures are of the same shapes, and equal to float rounding."""

    def check(actual: Any, expected: Any, rtol: float = 2e-5, atol: float = 2e-5) -> None:
        for pair in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
            one, other = (np.asarray(tf.convert_to_tensor(each), np.float64) for each in pair)
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol, atol)

    return check
