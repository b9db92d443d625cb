"""Which runs of programs are under way in this process.

A handler of a signal may raise wherever the main thread calls something. A run that were left counted by it would have
everybody wait for ever who waits until no program runs. So whoever runs one writes this, and no context manager, in
which a handler might raise between the count and the `try`:

    run = begin()
    try:
        under_way.add(run)
        ...
    finally:
        under_way.discard(run)
        run.release()
"""

from __future__ import annotations

import threading
import time

_SLICE = 0.1  # Seconds. A run whose `release` a handler has kept from being called is not waited for any longer.

# A lock each, held until the run has ended.
under_way: set[threading.Lock] = set()


def begin() -> threading.Lock:
    """A new run, which is under way once it is in `under_way`."""
    run = threading.Lock()
    run.acquire()
    return run


def active() -> bool:
    """Whether any program runs now."""
    return bool(under_way)


def wait_until_idle(timeout: float | None = None) -> bool:
    """Waits until no program runs.

    Args:
      timeout: Seconds to wait at the longest; without it, as long as it takes.

    Returns:
      Whether no program runs.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while runs := tuple(under_way):
        left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
        if left <= 0:
            return False
        if runs[0].acquire(timeout=left):
            runs[0].release()
    return True
