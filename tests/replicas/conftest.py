"""What the tests of runs share: a fresh system and its strategy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_configuration


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    """Nothing is configured before and after each test."""
    reset_ipu_configuration()
    yield
    reset_ipu_configuration()


@pytest.fixture
def strategy() -> ipu.IPUStrategy:
    return ipu.IPUStrategy()
