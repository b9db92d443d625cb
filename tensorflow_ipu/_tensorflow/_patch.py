"""What replaces something of TensorFlow's or Keras's, and puts it back."""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_NOTHING = object()


class Lifetime(enum.Enum):
    """When something is replaced."""

    IMPORT = "from the import of the package on"
    TRACE = "while a program is traced"
    SCOPE = "in the scope of a strategy, or of a pipeline stage"
    OBJECT = "while an object lives that needs it"
    INSTALL = "from `compat.install` to `compat.uninstall`"


# A finalizer may take it in the midst of a block that has it, on the same thread.
_lock = threading.RLock()


class Patch:
    """Something that is replaced for a while, and put back after it. Thread-safe."""

    def __init__(self, *places: str, why: str, lasts: Lifetime, until: str) -> None:
        """Describes it; nothing is replaced yet."""
        self.places = places
        self.why = why
        self.lasts = lasts
        self.until = until
        self._make: Callable[[Any], Any] | None = None
        self._holders: set[object] = set()
        self._put: list[tuple[object, str, object, object]] = []  # Holder, name, what was there, what is there now.
        self._made: dict[str, tuple[Any, Any]] = {}  # A place: what was there, and what was made of it.

    def by(self, make: Callable[[Any], Any]) -> None:
        """Says by what it is replaced."""
        self._make = make

    @property
    def is_applied(self) -> bool:
        """Whether it is replaced now."""
        return bool(self._put)

    @property
    def is_known(self) -> bool:
        """Whether it was said by what it is replaced."""
        return self._make is not None

    @property
    def is_loaded(self) -> bool:
        """Whether the modules that it is in are imported already."""
        return all(place.partition(":")[0] in sys.modules for place in self.places)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """A block in which it is replaced, on all threads."""
        token = object()
        self._hold(token)
        try:
            yield
        finally:
            self._release(token)

    def apply_while(self, owner: object) -> None:
        """Has it be replaced for as long as an object lives, and no longer than others need it."""
        token = id(owner)
        if token not in self._holders:
            self._hold(token)
            weakref.finalize(owner, self._release, token).atexit = False

    def apply_for_good(self) -> None:
        """Has it be replaced until the process ends."""
        self._hold(None)

    def _hold(self, token: object) -> None:
        found = [_located(place) for place in self.places]  # May import, which takes locks of its own.
        with _lock:
            self._holders.add(token)
            if not self._put:
                self._apply(found)

    def _release(self, token: object) -> None:
        with _lock:
            self._holders.discard(token)
            if self._put and not self._holders:
                self._undo()

    def _apply(self, found: list[tuple[object, str]]) -> None:
        assert self._make is not None  # Whoever applies it has imported who says so.
        for place, (holder, name) in zip(self.places, found, strict=True):
            before = _own(holder, name)
            plain = getattr(holder, name) if before is _NOTHING else before
            known = self._made.get(place)
            if known is None or known[0] is not plain:
                known = self._made[place] = (plain, self._make(plain))
            _write(holder, name, known[1])
            self._put.append((holder, name, before, known[1]))

    def _undo(self) -> None:
        while self._put:
            holder, name, before, ours = self._put.pop()
            # Somebody else's stays, and calls on to ours, which does what it is for and no more.
            if _own(holder, name) is not ours:
                continue
            if before is _NOTHING:
                delattr(holder, name)
            else:
                _write(holder, name, before)


class Hook(Patch):
    """A function that TensorFlow calls, of a list of such, for a while.

    It comes into the list when it is first wanted, and stays there: TensorFlow may be going through the list at any moment
    in which the last object goes that wants it, and would leave the next one out. From then on it does nothing.
    """

    def _apply(self, found: list[tuple[object, str]]) -> None:
        for holder, name in found:
            hooks = getattr(holder, name)
            if self._called not in hooks:
                hooks.append(self._called)
            self._put.append((holder, name, None, self._called))

    def _undo(self) -> None:
        self._put.clear()

    def _called(self, subject: object) -> None:
        if self._put:
            assert self._make is not None
            self._make(subject)


class Changes:
    """Changes to modules and classes that are known when they are made, and can all be taken back. Not thread-safe."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []
        self._applied = contextlib.ExitStack()

    def apply(self, patch: Patch) -> None:
        """Replaces what a row of the table is about."""
        self._applied.enter_context(patch.applied())

    def put(self, holder: object, name: str, value: object) -> None:
        """Sets an attribute of a module or class."""
        self._before.append((holder, name, vars(holder).get(name, _NOTHING)))
        setattr(holder, name, value)

    def add(self, module: str, name: str, value: object) -> None:
        """Gives a module a name that it lacks; one that it has stays as it is."""
        holder = importlib.import_module(module)
        if not hasattr(holder, name):
            self.put(holder, name, value)

    def undo(self) -> None:
        """Takes everything back, the last change first."""
        self._applied.close()
        while self._before:
            holder, name, before = self._before.pop()
            if before is _NOTHING:
                delattr(holder, name)
            else:
                setattr(holder, name, before)


def _located(place: str) -> tuple[object, str]:
    """The module, class, object or dict that has what is at a place, and its name there."""
    module, _, path = place.partition(":")
    holder: object = importlib.import_module(module)
    *way, name = path.split(".")
    for step in way:
        holder = holder[step] if isinstance(holder, dict) else getattr(holder, step)
    return holder, name


def _own(holder: object, name: str) -> Any:
    """What a holder has there; `_NOTHING` where a class has it of its base."""
    if isinstance(holder, dict):
        return holder[name]
    return vars(holder).get(name, _NOTHING) if inspect.isclass(holder) else getattr(holder, name)


def _write(holder: object, name: str, value: object) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)
