"""A lock that threads acquire in the order of their requests."""

from __future__ import annotations

import threading
from collections import deque

# Seconds after which a waiting thread checks the lock again. A signal handler may raise in the middle of a release, so
# that nothing wakes the next thread.
_SLICE = 0.1


class FairLock:
    """A reentrant lock for `with` blocks that serves threads in the order of their requests.

    Each waiting thread acquires a plain lock of its own, appends it to a queue, and blocks by acquiring it a second time.
    A release of the `FairLock` releases the first lock of the queue, which wakes its thread. An exception of a signal
    handler, such as `KeyboardInterrupt`, ends a wait.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # Guards the other attributes.
        self._holder: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()  # (thread, lock whose release wakes it)

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._holder == thread:
            self._depth += 1
            return
        with self._guard:
            if self._holder is None and not self._waiting:
                self._holder, self._depth = thread, 1
                return
            entry = (thread, threading.Lock())
            entry[1].acquire()
            self._waiting.append(entry)
        try:
            while not self._takes(entry):
                entry[1].acquire(timeout=_SLICE)
        except BaseException:
            with self._guard:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    self._wake_first()
            self.release_all()
            raise

    def __exit__(self, *exc_info: object) -> None:
        if self._holder != threading.get_ident():
            return  # `release_all` has ended the block.
        self._depth -= 1
        if self._depth == 0:
            self._release()

    def release_all(self) -> None:
        """Releases the lock completely if this thread holds it: an exception may have skipped the end of a block."""
        if self._holder == threading.get_ident():
            self._release()

    def _takes(self, entry: tuple[int, threading.Lock]) -> bool:
        with self._guard:
            if self._holder is not None or self._waiting[0] is not entry:
                return False
            self._waiting.popleft()
            self._holder, self._depth = entry[0], 1
            return True

    def _release(self) -> None:
        with self._guard:
            self._holder, self._depth = None, 0
            self._wake_first()

    def _wake_first(self) -> None:
        if self._holder is None and self._waiting and self._waiting[0][1].locked():
            self._waiting[0][1].release()
