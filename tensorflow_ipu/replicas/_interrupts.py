"""Ctrl-C for programs that wait for data.

While a program runs on the main thread, Python handles no signal: its handler only notes it, and writes the signal's
number to the wake-up file descriptor. A native thread reads that and ends the waits of feeds, so that the program
returns and Python raises `KeyboardInterrupt`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from tensorflow_ipu._library import native

_T = TypeVar("_T")

_MAIN = threading.main_thread()
_pipe: int | None = None


def _writing_end() -> int:
    """The pipe to the native thread, which starts with the first use."""
    global _pipe  # noqa: PLW0603
    if _pipe is None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        native.ipu_interrupt_watch(reading)
        _pipe = writing
    return _pipe


def run_interruptibly(program: Callable[[], _T]) -> _T:
    """Calls `program` so that Ctrl-C ends it where it waits for data, if this is the main thread.

    A handler of the user's own is left to do what it does after the run: it may well want the run to end in peace.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed.
    """
    if threading.current_thread() is not _MAIN or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return program()
    previous = -1
    try:
        previous = signal.set_wakeup_fd(_writing_end(), warn_on_full_buffer=False)
        native.ipu_interrupt_arm(previous)
        return program()
    finally:
        # Python raises `KeyboardInterrupt` right after the first of these calls, so they need a `finally` each.
        try:
            signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
        finally:
            native.ipu_interrupt_disarm()
