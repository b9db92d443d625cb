"""Tests of models of Keras 2, in processes with `TF_USE_LEGACY_KERAS=1`, which `make test` starts for this folder alone."""

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
    """One IPU, and a Keras without state; and no patch is left in Keras or TensorFlow."""
    plain = keras.Model.__init__, tf.data.Dataset.__iter__
    reset_ipu_configuration()
    keras.backend.clear_session()
    yield
    reset_ipu_configuration()
    assert (keras.Model.__init__, tf.data.Dataset.__iter__) == plain


@pytest.fixture(scope="session")
def features() -> np.ndarray:
    """Shape [48, 6], float32."""
    return np.random.default_rng(5).normal(size=[COUNT, WIDTH]).astype(np.float32)


@pytest.fixture(scope="session")
def labels() -> np.ndarray:
    """Shape [48], int32, 0 to 2."""
    return np.random.default_rng(6).integers(0, CLASSES, [COUNT]).astype(np.int32)


@pytest.fixture
def both() -> Callable[..., tuple[Any, Any]]:
    """What a function returns in a strategy's scope, and in plain Keras 2: `both(train)`; seeds are the same."""

    def call(function: Callable[..., Any], plain: Callable[..., Any] | None = None) -> tuple[Any, Any]:
        results = []
        for scope, run in (
            (ipu.IPUStrategy().scope(), function),
            (contextlib.nullcontext(), plain or function),
        ):
            keras.backend.clear_session()
            keras.utils.set_random_seed(11)
            with scope:
                results.append(run())
        return results[0], results[1]

    return call


@pytest.fixture
def same() -> Callable[..., None]:
    """Compares structures of numbers, to the bit if there is no tolerance: `same(found, expected, rtol=1e-5)`."""

    def compare(found: Any, expected: Any, rtol: float = 0.0) -> None:
        tf.nest.assert_same_structure(found, expected)
        for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=rtol)

    return compare
