"""What `iter(dataset)` gives inside a strategy's scope."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from tensorflow_ipu.feeds.iterator import IPUOwnedIterator

# Code of these packages that iterates over a dataset wants its elements on the host: Keras to drive its own steps,
# TensorFlow for `as_numpy_iterator` and the like.
_HOST_PACKAGES = ("keras", "tensorflow")

_lock = threading.Lock()
_scopes = 0
# TensorFlow 1's datasets hand the question on to the one inside.
_plain_iters: dict[Any, Callable[[Any], Any]] = {
    kind: kind.__iter__ for kind in (dataset_ops.DatasetV2, dataset_ops.DatasetV1Adapter)
}


@contextlib.contextmanager
def on_device() -> Iterator[None]:
    """Has `iter(dataset)` follow the current strategy for as long as any block of this lasts.

    `tf.data` offers no hook, so its method is replaced, and put back with the end of the last block. Threads without an
    IPU strategy get what they always get.
    """
    global _scopes  # noqa: PLW0603
    with _lock:
        _scopes += 1
        for kind, plain in _plain_iters.items():
            kind.__iter__ = _following(plain)
    try:
        yield
    finally:
        with _lock:
            _scopes -= 1
            if _scopes == 0:
                for kind, plain in _plain_iters.items():
                    kind.__iter__ = plain


def _following(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def follow(dataset: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        on_ipu = getattr(strategy, "_enable_dataset_iterators", False) and tf.executing_eagerly()
        if not on_ipu or sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _HOST_PACKAGES:
            return plain(dataset)
        return IPUOwnedIterator(dataset)

    return follow
