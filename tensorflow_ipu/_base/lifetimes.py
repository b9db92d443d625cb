"""Performs actions when an object ends, without ever swallowing a `KeyboardInterrupt`.

Python may run a signal handler between any two steps of Python code on the main thread, even in a finalizer. If the
handler raises an exception there, such as `KeyboardInterrupt`, it reaches no caller: Python prints it and goes on. So no
Python code may run when an object of this package ends:

* `call_native`: Python calls a C function when the object ends.
* `call_later`: Python appends an action to a deque when the object ends, which runs C code only. The next `call_due`
  performs the action.

For the same reason, the package has no `__del__` on the main thread, no `weakref.finalize`, and no `WeakKeyDictionary`
or `WeakSet`, whose callbacks are Python code. `WeakObjects` has no callbacks.
"""

from __future__ import annotations

import collections
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any


class _WeakReference(weakref.ref):
    """A weak reference with the action for the end of its object."""

    # ctypes passes `_as_parameter_` to a C function that is called with this reference.
    __slots__ = ("_as_parameter_", "action")
    action: Callable[[], object]


# The references to objects that live, by `id(reference)`: as a key, a reference would hash and compare like its object.
# They must be kept: a reference that ends before its object calls nothing.
_watches: dict[int, _WeakReference] = {}
# References whose objects have ended, so that their actions are due. Appending to and popping from a deque are atomic.
_due: collections.deque[_WeakReference] = collections.deque()


def call_native(subject: object, function: Any, number: int) -> None:
    """Calls the C function `function` with `number` as soon as `subject` ends.

    Args:
      subject: Any object that can be referenced weakly.
      function: A function of a `ctypes.CDLL` that takes one integer.
      number: The argument.
    """
    watch = _WeakReference(subject, function)
    watch._as_parameter_ = ctypes.c_int64(number)
    _watches[id(watch)] = watch
    call_later(subject, lambda: _watches.pop(id(watch)))


def call_later(subject: object, action: Callable[[], object]) -> None:
    """Makes the first `call_due` after the end of `subject` call `action`, which must not refer to `subject`."""
    call_due()
    watch = _WeakReference(subject, _due.append)
    watch.action = action
    _watches[id(watch)] = watch


def call_due() -> None:
    """Performs the actions of objects that have ended."""
    while _due:
        try:
            watch = _due.popleft()
        except IndexError:  # Another thread has taken the last one.
            return
        del _watches[id(watch)]
        watch.action()


class WeakObjects:
    """A small collection of weakly referenced objects, which are compared by identity."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._references: list[weakref.ref[object]] = []  # Guarded by the lock.

    def add(self, subject: object) -> None:
        with self._lock:
            self._references = [reference for reference in self._references if reference() is not None]
            self._references.append(weakref.ref(subject))

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            references = list(self._references)
        return (subject for reference in references if (subject := reference()) is not None)

    def __contains__(self, subject: object) -> bool:
        return any(member is subject for member in self)
