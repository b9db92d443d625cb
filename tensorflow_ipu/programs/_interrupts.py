"""Ctrl-C while a program runs on the main thread: it ends the program.

Python then only notes the signal, and writes its number to the wake-up file descriptor, by which a native thread ends the
waits of feeds. Handlers of other signals run when the program has ended, as for any operation of TensorFlow.
"""

from __future__ import annotations

# What `signal` wraps with enums, at many times the price, which every run would pay.
import _signal  # pyright: ignore[reportMissingImports]
import os
import threading
from collections.abc import Callable
from signal import SIGINT, default_int_handler
from typing import TypeVar

import tensorflow as tf

from tensorflow_ipu._native.library import native

_T = TypeVar("_T")

_MAIN_IDENT = threading.main_thread().ident
# Whose handler, in a cell of Jupyter that awaits, only tells the event loop, which stands still while a program runs.
_OF_CELLS = "ipykernel.ipkernel"
_pipe: int | None = None


def _writing_end() -> int:
    """The pipe to the native thread, which starts with the first use."""
    global _pipe  # noqa: PLW0603
    if _pipe is None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        if not native.ipu_interrupt_watch(reading):
            os.close(reading)
            os.close(writing)
            raise tf.errors.ResourceExhaustedError(
                None,
                None,
                "the system gives this process no further thread: raise its limit (`ulimit -u`, the container's)",
            )
        _pipe = writing
    return _pipe


def run_interruptibly(program: Callable[[], _T]) -> _T:
    """Calls `program`; on the main thread, Ctrl-C raises `KeyboardInterrupt`, unless it has a handler of the user's."""
    # It ends the program where it waits for data or is about to use a feed; otherwise it is raised when the program returns.
    if threading.get_ident() != _MAIN_IDENT:
        return program()
    on_interrupt = _signal.getsignal(SIGINT)
    if on_interrupt is not default_int_handler and getattr(on_interrupt, "__module__", "") != _OF_CELLS:
        return program()
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True

    writing = _writing_end()
    previous = -1
    try:
        # Python's own handler would raise in the middle of the error that TensorFlow makes of the run's end, and
        # TensorFlow cannot cope with that.
        _signal.signal(SIGINT, note)
        previous = _signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        native.ipu_interrupt_arm(previous)
        if pressed:  # Before the watch began.
            raise KeyboardInterrupt
        return program()
    finally:
        # One in the other: handlers of other signals may raise after each of these calls.
        try:
            _signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
        finally:
            try:
                native.ipu_interrupt_disarm()
            finally:
                _signal.signal(SIGINT, on_interrupt)
        if pressed:
            raise KeyboardInterrupt from None
