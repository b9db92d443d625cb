"""What `iter(dataset)` gives inside a strategy's scope."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu.feeds.iterator import IPUOwnedIterator

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested

# Code of these packages that iterates over a dataset wants its elements on the host: Keras to drive its own steps,
# TensorFlow for `as_numpy_iterator` and the like.
_HOST_PACKAGES = ("keras", "tensorflow")


def on_device() -> contextlib.AbstractContextManager[None]:
    """Has `iter(dataset)` follow the current strategy for as long as any block of this lasts.

    Threads without an IPU strategy get what they always get.
    """
    return patches.DATASET_ITERATORS.applied()


def _following(plain: Callable[[Nested], Nested]) -> Callable[[Nested], Nested]:
    def follow(dataset: tf.data.Dataset) -> Nested:
        strategy = tf.distribute.get_strategy()
        on_ipu = getattr(strategy, "_enable_dataset_iterators", False) and tf.executing_eagerly()
        if not on_ipu or sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _HOST_PACKAGES:
            return plain(dataset)
        return IPUOwnedIterator(dataset)

    return follow


patches.DATASET_ITERATORS.by(_following)
