"""Fixtures for tests of runs: devices of several IPUs, whose programs run on replicas, and datasets for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

Replicas = Callable[..., ipu.IPUStrategy]


@pytest.fixture
def float_range() -> Callable[..., tf.data.Dataset]:
    """Returns a function: `float_range(n)` is a dataset of the float32 scalars from 0 to n - 1; n is 10000 by default."""
    return lambda n=10000: tf.data.Dataset.range(n).map(lambda x: tf.cast(x, tf.float32))


@pytest.fixture
def each() -> Callable[..., Any]:
    """Returns a function: `each(strategy, read)` returns the results of `read()` on all replicas, in a new program."""
    programs: dict[Callable[[], Any], tuple[ipu.IPUOutfeedQueue, Any]] = {}

    def values(strategy: ipu.IPUStrategy, read: Callable[[], Any]) -> Any:
        if read not in programs:
            queue = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
            programs[read] = queue, tf.function(lambda: queue.enqueue(read()) and None, jit_compile=True)
        queue, program = programs[read]
        strategy.run(program)
        return tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), queue.dequeue())

    return values
