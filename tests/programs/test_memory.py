"""Runs without enough memory fail, their variables keep their values, and the next run works."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

# If TensorFlow allocates through oneDNN, it waits ten seconds for memory to become free.
WAITS = os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"


def more_than_any_memory(x: Any) -> Any:
    """Returns a scalar whose program needs 512 TiB, more than a process can address."""
    rows = tf.cast(tf.range(2**31 - 8), tf.float32)[:, None] * tf.ones([1, 2**16])
    return tf.reduce_sum(tf.sort(tf.tanh(x + rows)))


# The error was: XLA freed the memory that a program updates in place before it failed, but variables and state
# variables still used it. It was freed twice, which ended the process then or at its exit.
@pytest.mark.parametrize("ipus", [1, pytest.param(2, marks=pytest.mark.skipif(WAITS, reason="takes half a minute"))])
def test_a_run_without_memory_leaves_its_variables_as_they_were(ipus, replicas, within):
    strategy = replicas(ipus)
    with strategy.scope():
        small, large = tf.Variable(tf.range(4.0)), tf.Variable(tf.fill([1 << 20], 3.0))
        outfeed = ipu.IPUOutfeedQueue()

    def update(also: Any) -> Any:
        small.assign_add(tf.ones_like(small))
        large.assign_add(tf.ones_like(large))
        total = also(small[0])
        outfeed.enqueue(total)
        return total

    fails = tf.function(lambda: update(more_than_any_memory), jit_compile=True)
    works = tf.function(lambda: update(lambda x: x), jit_compile=True)
    assert within(60, lambda: strategy.run(works)) == 1  # From here on, each replica has separate copies.
    for runs in range(1, 2 if WAITS else 4):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="Out of memory"):
            within(60, lambda: strategy.run(fails))
        tensors = [tf.fill([1 << 20], 7.0), tf.fill([4], 7.0)]  # These would reuse freed memory.
        np.testing.assert_array_equal(small, np.arange(4.0) + runs)
        np.testing.assert_array_equal(large, np.full(1 << 20, 3.0 + runs))
        del tensors
        assert within(60, lambda: strategy.run(works)) == runs + 1
    counts = outfeed.dequeue().numpy().reshape(-1, ipus)
    np.testing.assert_array_equal(counts, np.repeat(np.arange(1.0, len(counts) + 1)[:, None], ipus, axis=1))
