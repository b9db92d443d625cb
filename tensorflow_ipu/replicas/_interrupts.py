"""Signals while a program runs on the main thread: Python's handlers run, and what they raise ends the program.

Python then only notes a signal, and writes its number to the wake-up file descriptor, by which a native thread ends the
waits of feeds on Ctrl-C. For other handlers, the program runs on another thread while the main thread waits for it.
"""

from __future__ import annotations

# What `signal` wraps with enums, at many times the price, which every run would pay.
import _signal  # pyright: ignore[reportMissingImports]
import _thread
import os
import threading
from collections.abc import Callable
from signal import SIGALRM, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, default_int_handler
from typing import Any, TypeVar

import tensorflow as tf

from tensorflow_ipu._native.library import native
from tensorflow_ipu._tensorflow import devices, gradients

_T = TypeVar("_T")

_MAIN_IDENT = threading.main_thread().ident
# Those that programs have handlers for, other than SIGINT. Each is asked for at each run.
_SIGNALS = tuple(map(int, (SIGALRM, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2)))
# Whose handler, in a cell of Jupyter that awaits, only tells the event loop, which stands still while a program runs.
_OF_CELLS = "ipykernel.ipkernel"
_pipe: int | None = None
_runs_beside = False  # Another thread runs a program for the main one.


def _writing_end() -> int:
    """The pipe to the native thread, which starts with the first use."""
    global _pipe  # noqa: PLW0603
    if _pipe is None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        if not native.ipu_interrupt_watch(reading):
            os.close(reading)
            os.close(writing)
            raise _no_thread()
        _pipe = writing
    return _pipe


def _no_thread() -> tf.errors.ResourceExhaustedError:
    return tf.errors.ResourceExhaustedError(
        None, None, "the system gives this process no further thread: raise its limit (`ulimit -u`, the container's)"
    )


def run_interruptibly(program: Callable[[], _T]) -> _T:
    """Calls `program`; on the main thread, signals are handled meanwhile."""
    # What a handler raises ends the program where it waits for data or is about to use a feed; otherwise it is raised when
    # the program returns.
    if threading.get_ident() != _MAIN_IDENT:
        return program()
    on_interrupt = _signal.getsignal(SIGINT)
    raises = on_interrupt is default_int_handler or getattr(on_interrupt, "__module__", "") == _OF_CELLS
    others = map(
        callable, map(_signal.getsignal, _SIGNALS)
    )  # Maps, since each run asks: a loop costs four times as much.
    handled = (not raises and callable(on_interrupt)) or any(others)
    if handled and not gradients.is_watched():  # Else tapes, which are this thread's, would miss the program.
        return _run_beside(program)
    if not raises:
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


class _ProgramThread:
    """A program that runs on a thread of its own, on the device of the thread that makes this."""

    def __init__(self, program: Callable[[], object]) -> None:
        self._program = program
        self._device = devices.of_eager_thread()
        self._begun = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()
        self.result: Any = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Starts the thread from another one: a handler that raises in `Thread.start` keeps a thread from its work."""
        try:
            _thread.start_new_thread(self._start, ())
        except RuntimeError:
            raise _no_thread() from None

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="ipu-run", daemon=True).start()
        except RuntimeError:
            self.failure = _no_thread()
            self._ended.release()

    def cancel(self) -> bool:
        """Cancels a program that has not begun; returns whether it has not."""
        return self._begun.acquire(blocking=False)

    def _run(self) -> None:
        global _runs_beside  # noqa: PLW0603
        if not self._begun.acquire(blocking=False):
            return
        first = not _runs_beside
        _runs_beside = True
        try:
            with tf.device(self._device):
                self.result = self._program()
        except BaseException as exc:
            self.failure = exc
        finally:
            if first:
                _runs_beside = False
            self._ended.release()

    def wait(self) -> None:
        """Returns when the program has ended; handlers of signals run meanwhile, and may raise here."""
        with self._ended:
            pass


def _run_beside(program: Callable[[], _T]) -> _T:
    run = _ProgramThread(program)
    raised: BaseException | None = None
    outermost = not _runs_beside  # Else a handler runs a program while one runs.
    try:
        if outermost:
            native.ipu_interrupt_arm(-1)
        try:
            run.start()
            run.wait()
        except BaseException as exc:
            raised = exc
        while raised is not None:
            try:
                if run.cancel():
                    break
                native.ipu_interrupt_now()
                run.wait()
                break
            except BaseException:
                continue
    finally:
        if outermost:
            native.ipu_interrupt_disarm()
    try:
        if raised is not None:
            raise raised from None
        if run.failure is not None:
            raise run.failure
        return run.result
    finally:
        run.failure = raised = None  # Their tracebacks lead back here, and would keep all that the program had.
