"""Pauses Python's search for cyclic garbage."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()  # Guards the two names below.
_pauses = 0
_was_enabled = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pauses the garbage collector of the process for a block. Blocks may nest, and overlap on several threads.

    A trace makes many objects that all live on. Collections during it would take up to a tenth of its time.
    """
    global _pauses, _was_enabled  # noqa: PLW0603  (There is one collector.)
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
