"""Which runs of programs are under way in this process."""

from __future__ import annotations

import threading
import time

_changed = threading.Condition()
_running = 0


class running:  # noqa: N801  (A context manager; a class, since a generator costs three times as much at each run.)
    """Counts one run for as long as the block lasts. Thread-safe."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _running  # noqa: PLW0603
        with _changed:
            _running += 1

    def __exit__(self, *exc_info: object) -> None:
        global _running  # noqa: PLW0603
        with _changed:
            _running -= 1
            if _running == 0:
                _changed.notify_all()


def active() -> bool:
    """Whether any program runs now."""
    return _running > 0


def wait_until_idle(timeout: float | None = None) -> bool:
    """Waits until no program runs.

    Args:
      timeout: Seconds to wait at the longest; without it, as long as it takes.

    Returns:
      Whether no program runs.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with _changed:
        # In slices, so that Ctrl-C reaches a main thread that waits here.
        while _running > 0:
            left = 0.1 if deadline is None else min(0.1, deadline - time.monotonic())
            if left <= 0:
                return False
            _changed.wait(left)
        return True
