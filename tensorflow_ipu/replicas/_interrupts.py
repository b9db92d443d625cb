"""Ctrl-C for programs that wait for data.

While a program runs on the main thread, Python handles no signal: its handler only notes it, and writes the signal's
number to the wake-up file descriptor. A native thread reads that and ends the waits of feeds, so that the program
returns and Python raises `KeyboardInterrupt`.
"""

from __future__ import annotations

# What `signal` wraps with enums, at many times the price, which every run would pay.
import _signal  # pyright: ignore[reportMissingImports]
import os
import threading
from collections.abc import Callable
from signal import SIGINT, default_int_handler
from typing import Any, TypeVar

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
    if threading.current_thread() is not _MAIN or _signal.getsignal(SIGINT) is not default_int_handler:
        return program()
    pressed = False

    def note(*_: Any) -> None:
        nonlocal pressed
        pressed = True

    # Python's own handler would raise in the middle of the error that TensorFlow makes of the run's end, and TensorFlow
    # cannot cope with that.
    _signal.signal(SIGINT, note)
    previous = _signal.set_wakeup_fd(_writing_end(), warn_on_full_buffer=False)
    native.ipu_interrupt_arm(previous)
    try:
        if pressed:  # Before the watch began.
            raise KeyboardInterrupt
        return program()
    finally:
        _signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
        native.ipu_interrupt_disarm()
        _signal.signal(SIGINT, default_int_handler)
        if pressed:
            raise KeyboardInterrupt from None
