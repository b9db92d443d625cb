"""Tells the other workers what this one exchanges with them outside of programs, for those that wait for it elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tensorflow_ipu._library import native


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """A block in which all workers exchange something; a worker that waits in a run meanwhile learns of it.

    Exchanges are numbered, alike on all workers. Those in graphs, and on threads other than the main one, have no number,
    since they come in no order that all workers share.

    Args:
      what: What they exchange, in words.
    """
    if not tf.executing_eagerly() or threading.current_thread() is not threading.main_thread():
        yield
        return
    native.ipu_host_exchange_begin(what.encode())
    try:
        yield
    finally:
        native.ipu_host_exchange_end()
