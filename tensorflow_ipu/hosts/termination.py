"""Keeps what SIGTERM does to this process: to end it, or what a handler of the user's does."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from collections.abc import Iterator

# Of `struct sigaction`, which no system has larger.
_BYTES = 1024


@contextlib.contextmanager
def termination_kept() -> Iterator[None]:
    """A block behind which SIGTERM does what it did before.

    TensorFlow's coordination service takes the signal as a notice of preemption: from then on it ends nothing, and a handler
    of Python's that was there is called no more. Nobody asks for that notice here, and the process of a worker is to end
    when it is told to. What waits for such notices, as `tf.distribute.experimental.PreemptionCheckpointHandler` does, sets a
    handler of its own.

    By the C library: Python's `signal` works on the main thread alone, and knows no handlers but Python's.
    """
    action = ctypes.create_string_buffer(_BYTES)
    library = ctypes.CDLL(None)
    number = int(signal.SIGTERM)
    library.sigaction(number, None, action)
    try:
        yield
    finally:
        library.sigaction(number, action, None)
