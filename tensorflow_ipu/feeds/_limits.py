"""The ends of feeds: how long a program may wait, and the end of the process."""

from __future__ import annotations

import atexit
import os

from tensorflow_ipu._checks import is_number
from tensorflow_ipu._library import native

_LONGEST = 1e9  # Thirty years, in seconds. The kernels count nanoseconds in 64 bits.
_owner = os.getpid()


def set_wait_limit(seconds: float | None) -> None:
    """Limits how long a program may wait for one element of an infeed.

    A program that waits longer fails with `tf.errors.DeadlineExceededError`. Waits that have begun keep their limit.

    Args:
      seconds: The limit; None for no limit, which is the default.

    Raises:
      ValueError: `seconds` is not above 0, or no time that a clock can measure.
      TypeError: `seconds` is no number.
    """
    if seconds is None:
        native.ipu_set_wait_limit(0)
        return
    if not is_number(seconds):
        raise TypeError(f"`seconds` must be a number or None, but is {seconds!r}")
    if not 0 < seconds <= _LONGEST:
        raise ValueError(
            f"`seconds` must be above 0 and at most {_LONGEST:.0e}, but is {seconds!r}; None takes the limit away"
        )
    native.ipu_set_wait_limit(max(1, int(seconds * 1e9)))


def shut_down(timeout: float = 2.0) -> bool:
    """Ends all infeeds of the process, and with them the runs that wait for data. Called at the process's end.

    Args:
      timeout: Seconds to wait for the threads that read datasets; one that is stuck in a dataset's own code may not end.

    Returns:
      Whether all have ended.
    """
    return bool(native.ipu_shut_down(int(timeout * 1e9)))


@atexit.register
def _at_exit() -> None:
    # A dataset may run Python code, for which it is too late a moment from now. A forked child has no such threads.
    if os.getpid() == _owner and not shut_down():
        native.ipu_end_process()
