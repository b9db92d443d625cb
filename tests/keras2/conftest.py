"""Fixtures of tests of Keras 2. `make test` runs this folder in processes with `TF_USE_LEGACY_KERAS=1`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration

keras: Any = tf.keras
if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    collect_ignore_glob = ["test_*.py"]

COUNT, WIDTH, CLASSES = 48, 6, 3


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    """Resets the configuration and Keras. After the test, checks that no patch is left in Keras or TensorFlow."""
    originals = keras.Model.__init__, tf.data.Dataset.__iter__
    reset_ipu_configuration()
    keras.backend.clear_session()
    yield
    reset_ipu_configuration()
    assert (keras.Model.__init__, tf.data.Dataset.__iter__) == originals


@pytest.fixture(scope="session")
def features() -> np.ndarray:
    """Returns inputs of shape [48, 6], float32."""
    return np.random.default_rng(5).normal(size=[COUNT, WIDTH]).astype(np.float32)


@pytest.fixture(scope="session")
def labels() -> np.ndarray:
    """Returns labels from 0 to 2 of shape [48], int32."""
    return np.random.default_rng(6).integers(0, CLASSES, [COUNT]).astype(np.int32)


@pytest.fixture
def in_scope_and_plain() -> Callable[..., tuple[Any, Any]]:
    """Returns a function that calls another one in a strategy's scope and in plain Keras 2, with the same seeds."""

    def call(function: Callable[..., Any], plain_function: Callable[..., Any] | None = None) -> tuple[Any, Any]:
        results = []
        for scope, run in (
            (ipu.IPUStrategy().scope(), function),
            (contextlib.nullcontext(), plain_function or function),
        ):
            keras.backend.clear_session()
            keras.utils.set_random_seed(11)
            with scope:
                results.append(run())
        return results[0], results[1]

    return call


@pytest.fixture
def same() -> Callable[..., None]:
    """Returns a comparison of structures of values, bit by bit without `rtol`: `same(results, expected, rtol=1e-5)`."""

    def compare(results: Any, expected: Any, rtol: float = 0.0) -> None:
        tf.nest.assert_same_structure(results, expected)
        for result, expected_result in zip(tf.nest.flatten(results), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(np.asarray(result), np.asarray(expected_result), rtol=rtol, atol=rtol)

    return compare
