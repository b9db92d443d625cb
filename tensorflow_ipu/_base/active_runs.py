"""Tracks the runs of programs that have not ended; thread-safe."""

from __future__ import annotations

import threading
import time

# The longest wait for one lock, in seconds. The set is checked again after each wait: if a signal handler raises as a run
# ends, the run may leave the set without releasing its lock.
_SLICE = 0.1

# One lock for each run, which is held until the run has ended.
under_way: set[threading.Lock] = set()


def active() -> bool:
    """Returns True if any program runs now."""
    return bool(under_way)


def wait_until_idle(timeout: float | None = None) -> bool:
    """Waits until no program runs; returns False after `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while runs := tuple(under_way):
        timeout_of_wait = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
        if timeout_of_wait <= 0:
            return False
        if runs[0].acquire(timeout=timeout_of_wait):
            runs[0].release()
    return True
