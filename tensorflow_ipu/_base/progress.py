"""Says on a terminal, or below a notebook's cell, how far long work is."""

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

# Work that is done by then says nothing.
AFTER_SECONDS = 2.0
_TICK = 0.2


class Work:
    """Work under way. Whoever does it may count what is `done`."""

    def __init__(self, words: str, total: int | None, until: Callable[[Work], bool] | None) -> None:
        self.done = 0
        self._words = words
        self._total = total
        self._until = until
        self._since = time.monotonic()

    @property
    def has_ended(self) -> bool:
        return self._until is not None and self._until(self)

    def counting(self, parts: Iterable[_T]) -> Iterator[_T]:
        """Yields the same parts, each counted when the next one is requested."""
        for part in parts:
            yield part
            self.done += 1

    def __str__(self) -> str:
        count = f", {self.done} of {self._total}" if self._total else ""
        return f"{self._words}{count}, {time.monotonic() - self._since:.0f} s"


class _Output:
    """The line that is written over and over, where that can be; else its last text."""

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
            self._write("\r" * self._rewritten + text.ljust(len(self._shown)) + "\n")
            self._shown = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # Nobody reads any more.
            self._stream.write(text)
            self._stream.flush()


_lock = threading.Lock()
_line: _Output | None = None
# The first one has the line, which also tells of the others, that are parts of it.
_works: list[Work] = []


def _new_line() -> _Output | None:
    wanted, stream = environment.progress(), sys.stderr
    if wanted is False or stream is None:
        return None
    terminal = stream.isatty()
    notebook = type(stream).__module__.startswith("ipykernel.")  # Which TensorFlow's users need not have.
    return _Output(stream, terminal, terminal or notebook) if wanted or terminal or notebook else None


@contextlib.contextmanager
def of(words: str, total: int | None = None, until: Callable[[Work], bool] | None = None) -> Iterator[Work]:
    """Says, once the block takes long, what it does and for how long it has, until it ends or `until` holds of it."""
    global _line  # noqa: PLW0603  (There is one terminal.)
    work = Work(words, total, until)
    with _lock:
        if not _works:
            _line = _new_line()
        line, first = _line, not _works
        if line is not None:
            _works.append(work)
    if line is None:
        yield work
        return
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(work, line, ended), name="ipu-progress", daemon=True)
    try:
        if first:
            with contextlib.suppress(RuntimeError):  # There is no thread to have.
                thread.start()
        yield work
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
        with _lock:
            _works.remove(work)


def _tell(work: Work, line: _Output, ended: threading.Event) -> None:
    if ended.wait(AFTER_SECONDS) or work.has_ended:
        return
    while True:
        with _lock:
            line.show("; ".join(str(each) for each in _works if not each.has_ended))
        if ended.wait(_TICK) or work.has_ended:
            break
    with _lock:
        line.close(str(work))
