"""A lock that threads get in the order in which they ask for it."""

from __future__ import annotations

import threading
from collections import deque

# Seconds after which a waiting thread looks for itself: a signal handler may raise between any two lines of a release.
_SLICE = 0.1


class FairLock:
    """A lock for `with` blocks, which a thread that holds it may take again.

    What a signal handler raises, such as `KeyboardInterrupt`, ends a wait.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # Guards the other attributes.
        self._holder: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()  # Threads, each with what wakes it when released.

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._holder == thread:
            self._depth += 1
            return
        with self._guard:
            if self._holder is None and not self._waiting:
                self._holder, self._depth = thread, 1
                return
            place = (thread, threading.Lock())
            place[1].acquire()
            self._waiting.append(place)
        try:
            while not self._takes(place):
                place[1].acquire(timeout=_SLICE)
        except BaseException:
            with self._guard:
                if place in self._waiting:
                    self._waiting.remove(place)
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
        """Releases the lock if this thread holds it, however often: an exception may have kept a block from its end."""
        if self._holder == threading.get_ident():
            self._release()

    def _takes(self, place: tuple[int, threading.Lock]) -> bool:
        with self._guard:
            if self._holder is not None or self._waiting[0] is not place:
                return False
            self._waiting.popleft()
            self._holder, self._depth = place[0], 1
            return True

    def _release(self) -> None:
        with self._guard:
            self._holder, self._depth = None, 0
            self._wake_first()

    def _wake_first(self) -> None:
        if self._holder is None and self._waiting and self._waiting[0][1].locked():
            self._waiting[0][1].release()
