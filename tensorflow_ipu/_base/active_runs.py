"""The runs of programs that have begun and not ended; thread-safe."""

from __future__ import annotations

import threading
import time

_SLICE = 0.1  # Seconds. A run whose `release` a handler has kept from being called is not waited for any longer.

# A lock each, held until the run has ended.
under_way: set[threading.Lock] = set()


def active() -> bool:
    """Returns True if any program runs now."""
    return bool(under_way)


def wait_until_idle(timeout: float | None = None) -> bool:
    """Waits until no program runs; returns False if `timeout` seconds were not enough."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while runs := tuple(under_way):
        left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
        if left <= 0:
            return False
        if runs[0].acquire(timeout=left):
            runs[0].release()
    return True
