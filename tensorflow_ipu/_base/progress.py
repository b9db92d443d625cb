"""Shows the progress of long work in a terminal or below a notebook's cell."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from tensorflow_ipu._base import environment

_T = TypeVar("_T")

# Progress is shown after this time, and then updated at this interval.
AFTER_SECONDS = 2.0
_TICK = 0.2


class Work:
    """Work in progress. The code that performs it may count in `done` how many of `total` parts are finished."""

    def __init__(self, description: str, total: int | None, until: Callable[[Work], bool] | None) -> None:
        self.done = 0
        self._description = description
        self._total = total
        self._until = until
        self._since = time.monotonic()

    @property
    def has_ended(self) -> bool:
        return self._until is not None and self._until(self)

    def counting(self, parts: Iterable[_T]) -> Iterator[_T]:
        """Yields `parts`. A part is counted when the next one is requested."""
        for part in parts:
            yield part
            self.done += 1

    def __str__(self) -> str:
        count = f", {self.done} of {self._total}" if self._total else ""
        return f"{self._description}{count}, {time.monotonic() - self._since:.0f} s"


class _Output:
    """The line that shows progress.

    In terminals and notebooks, the line is `rewritten` repeatedly. At the end it is `erased` in terminals, and stays in
    notebooks. Elsewhere, it is written once, at the end.
    """

    def __init__(self, stream: TextIO, erased: bool, rewritten: bool) -> None:
        self._stream = stream
        self._erased = erased
        self._rewritten = rewritten
        self._shown = ""

    def show(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1] if self._erased else text
        if self._rewritten and text != self._shown:
            self._write("\r" + text.ljust(len(self._shown)))
            self._shown = text

    def hide(self) -> None:
        if self._shown:
            self._write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""

    def close(self, text: str) -> None:
        if self._erased:
            self.hide()
        else:
            self._write(("\r" if self._rewritten else "") + text.ljust(len(self._shown)) + "\n")
            self._shown = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # The stream may be closed.
            self._stream.write(text)
            self._stream.flush()


_lock = threading.Lock()
_line: _Output | None = None
# The works that run now, in the order of their begin. The thread of the first one shows the line for all of them.
_works: list[Work] = []


def _new_line() -> _Output | None:
    is_on, stream = environment.progress(), sys.stderr
    if is_on is False or stream is None:
        return None
    terminal = stream.isatty()
    notebook = type(stream).__module__.startswith("ipykernel.")  # `ipykernel` need not be installed.
    return _Output(stream, terminal, terminal or notebook) if is_on or terminal or notebook else None


@contextlib.contextmanager
def of(description: str, total: int | None = None, until: Callable[[Work], bool] | None = None) -> Iterator[Work]:
    """Shows the progress of a long block: its description and duration, until it ends or `until(work)` is True.

    A nested block appends to the line of the outer one: `tracing, 2 of 4, 7 s; stage 2, 3 s`.
    """
    global _line  # noqa: PLW0603  (There is one terminal.)
    work = Work(description, total, until)
    with _lock:
        if not _works:
            _line = _new_line()
        line, is_first = _line, not _works
        if line is not None:
            _works.append(work)
    if line is None:
        yield work
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(work, line, ended), name="ipu-progress", daemon=True)
    try:
        if is_first:
            with contextlib.suppress(RuntimeError):  # The system may have no thread left.
                thread.start()
        yield work
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
        with _lock:
            _works.remove(work)


def _show(work: Work, line: _Output, ended: threading.Event) -> None:
    if ended.wait(AFTER_SECONDS) or work.has_ended:
        return
    while True:
        with _lock:
            line.show("; ".join(str(nested) for nested in _works if not nested.has_ended))
        if ended.wait(_TICK) or work.has_ended:
            break
    with _lock:
        line.close(str(work))
