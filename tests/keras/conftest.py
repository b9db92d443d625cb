"""Fixtures of the tests of Keras models: a fresh system, small models and data, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration

PLAIN_INIT = keras.Model.__init__
PLAIN_ITER = tf.data.Dataset.__iter__
COUNT, WIDTH, CLASSES = 48, 6, 3


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    """Resets the configuration and Keras. After the test, checks that no patch is left in Keras or TensorFlow."""
    reset_ipu_configuration()
    keras.backend.clear_session(free_memory=False)  # Freeing memory takes 0.1 s.
    yield
    reset_ipu_configuration()
    assert keras.Model.__init__ is PLAIN_INIT
    assert tf.data.Dataset.__iter__ is PLAIN_ITER


@pytest.fixture
def scoped() -> Callable[[Callable[[], Any]], Any]:
    """Returns a function that calls another one in a strategy's scope: `scoped(make)`."""

    def call(make: Callable[[], Any]) -> Any:
        with ipu.IPUStrategy().scope():
            return make()

    return call


@pytest.fixture
def plain_strategy() -> ipu.IPUStrategy:
    """Returns a strategy without extensions: models in its scope are plain Keras models."""
    return ipu.IPUStrategy(enable_keras_extensions=False)


@pytest.fixture(scope="session")
def features() -> np.ndarray:
    """Returns inputs of shape [48, 6], float32."""
    return np.random.default_rng(5).normal(size=[COUNT, WIDTH]).astype(np.float32)


@pytest.fixture(scope="session")
def labels() -> np.ndarray:
    """Returns labels from 0 to 2 of shape [48], int64."""
    return np.random.default_rng(6).integers(0, CLASSES, [COUNT])


@pytest.fixture
def make_model() -> Callable[..., keras.Model]:
    """Returns a function that makes the same compiled classifier each time: `make_model(*layers, **compile_options)`."""

    def make(*parts: Any, learning_rate: Any = 0.1, **options: Any) -> keras.Model:
        keras.utils.set_random_seed(3)
        layers = [part() for part in parts] or [keras.layers.Dense(4, activation="tanh")]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
        model.compile(
            **{
                "optimizer": keras.optimizers.SGD(learning_rate, momentum=0.9),
                "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": ["accuracy"],
                **options,
            }
        )
        return model

    return make


@pytest.fixture
def assert_same() -> Callable[..., None]:
    """Returns a check that structures of arrays are equal up to rounding, and that no value has diverged."""

    def check(left: Any, right: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
        left, right = keras.tree.flatten(left), keras.tree.flatten(right)
        assert len(left) == len(right) > 0
        for left_part, right_part in zip(left, right, strict=True):
            np.testing.assert_allclose(left_part, right_part, rtol=rtol, atol=atol)
            if np.asarray(right_part).dtype.kind == "f":  # Seeds are integers of any size.
                assert np.max(np.abs(right_part), initial=0) < 100, (
                    "diverging values may be equal by chance on this processor"
                )

    return check
