"""What the tests of runs share: devices of several IPUs, whose programs run on replicas, and datasets that feed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

Replicas = Callable[..., ipu.IPUStrategy]


@pytest.fixture
def float_range() -> Callable[..., tf.data.Dataset]:
    """`float_range(n)` is a dataset of the float32 scalars 0, 1, ..., n - 1; of 10000 without n."""
    return lambda n=10000: tf.data.Dataset.range(n).map(lambda x: tf.cast(x, tf.float32))


@pytest.fixture
def each() -> Callable[..., Any]:
    """`each(strategy, read)` is what a function of no arguments returns on each replica, in a program of its own."""
    programs: dict[Callable[[], Any], tuple[ipu.IPUOutfeedQueue, Any]] = {}

    def values(strategy: ipu.IPUStrategy, read: Callable[[], Any]) -> Any:
        if read not in programs:
            queue = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
            programs[read] = queue, tf.function(lambda: queue.enqueue(read()) and None, jit_compile=True)
        queue, program = programs[read]
        strategy.run(program)
        return tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), queue.dequeue())

    return values
