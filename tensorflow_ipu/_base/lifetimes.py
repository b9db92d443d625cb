"""Actions for the end of an object, which cost no `KeyboardInterrupt`.

Python runs signal handlers between any two steps of Python code on the main thread, also in a finalizer. What a handler
raises there, such as `KeyboardInterrupt`, reaches no caller: Python prints it and goes on. So no Python code runs when an
object of this package ends. `call_native` calls a C function, and `call_later` notes an action, which a later call of
`call_due` performs. For the same reason, the package has no `__del__` on the main thread, no `weakref.finalize`, and no
`WeakKeyDictionary` or `WeakSet`, whose callbacks are Python code: `WeakObjects` has none.
"""

from __future__ import annotations

import collections
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any


class _WeakReference(weakref.ref):
    """A weak reference with what is to be done at the end of its object."""

    # ctypes passes `_as_parameter_` to a C function that is called with this reference.
    __slots__ = ("_as_parameter_", "action")
    action: Callable[[], object]


# References to objects that live, by their `id`: they compare and hash as their objects do. A reference that ended with
# its object would call nothing.
_watches: dict[int, _WeakReference] = {}
# References to objects that ended, and whose actions are due. Python appends to a deque and pops from it in one step.
_due: collections.deque[_WeakReference] = collections.deque()


def call_native(subject: object, function: Any, number: int) -> None:
    """Has the C function `function` called with `number` at once when `subject` ends.

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
    """Has `action` called by the first `call_due` after the end of `subject`, which `action` must not refer to."""
    call_due()
    watch = _WeakReference(subject, _due.append)
    watch.action = action
    _watches[id(watch)] = watch


def call_due() -> None:
    """Performs the actions of objects that have ended."""
    while _due:
        try:
            watch = _due.popleft()
        except IndexError:  # Another thread took it.
            return
        del _watches[id(watch)]
        watch.action()


class WeakObjects:
    """A few objects, told apart by identity, for as long as something else keeps them."""

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
        return any(each is subject for each in self)
