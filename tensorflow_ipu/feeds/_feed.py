"""A native feed on Python's side: its number, its lifetime and its states."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import tensorflow as tf

from tensorflow_ipu import metrics
from tensorflow_ipu._base import lifetimes
from tensorflow_ipu._base.checks import is_number
from tensorflow_ipu._base.page import PageView, small_page, table
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import devices
from tensorflow_ipu.replicas import in_function, in_plain_graph

_serial = itertools.count()
_owner = os.getpid()
# Guards the states of all feeds and the feeds that programs share: several threads may trace their first programs at
# once. Reentrant, since the function that creates a shared feed may create another one.
_lock = threading.RLock()


def unique_name(kind: str) -> str:
    """A name that no other feed of this process has, for instance `"infeed_3"`."""
    return f"{kind}_{next(_serial)}"


def check_old_arguments(queue: str, given: Mapping[str, object], known: frozenset[str], others: str) -> None:
    """Refuses arguments that no release of the SDK had; `others` names those of today."""
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"`{queue}` has no argument {', '.join(f'`{name}`' for name in unknown)}; it has {others}")


class NoOperation:
    """What eager accesses to `initializer` and `deleter` give: they have acted, and there is nothing to call or to run."""

    def __init__(self, name: str) -> None:
        """Takes the name of the property."""
        self._name = name

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<no operation: `{self._name}` acted as it was accessed>"

    def __call__(self, *_: object) -> NoReturn:
        """Always raises `TypeError`."""
        raise TypeError(f"`{self._name}` is a property, which has acted by now: write it without brackets")


class Feed:
    """Owns a native feed, which lives as long as its queue or a program that captured its state."""

    def __init__(self, number: int, drop: Callable[[int], object] | None, keep: object = None) -> None:
        """Takes over a native feed, which the C function `drop` ends; None for an order, which has no native feed."""
        self.number = number
        self.keep = keep
        self.queue: weakref.ref[Queue] | None = None  # Set by the queue that it is of.
        # A device: the state's handle, for eager execution. Weak, since the handle keeps this object.
        self._states: dict[str, weakref.ref[tf.Tensor]] = {}
        # A device, replica and replicas: another handle of the same state, to destroy it by.
        self._replica_states: dict[tuple[str, int, int], tf.Tensor] = {}
        self._drop = drop
        states = self._replica_states
        self.drop_with(self)
        lifetimes.call_later(self, lambda: _destroy(states))

    def drop_with(self, owner: object) -> None:
        """Ends the native feed when `owner` ends; programs that have its state fail from then on."""
        if self._drop is not None:
            lifetimes.call_native(owner, self._drop, self.number)

    def state(self, device: str, replica: int = 0, replicas: int = 1) -> tf.Tensor:
        """The resource that names this feed to a program on `device`, for the graph being built or eager execution."""
        if replicas > 1:
            return self._state_of_replica(device, replica, replicas)
        with tf.init_scope(), _lock:
            if tf.executing_eagerly():
                reference = self._states.get(device)
                state = None if reference is None else reference()
                if state is None:
                    state = self._make_state(device, 0, 1)
                    state._ipu_feed = self  # pyright: ignore[reportAttributeAccessIssue]
                    self._states[device] = weakref.ref(state)
                    self._state_of_replica(device, 0, 1)
                return state
            graph: Any = tf.compat.v1.get_default_graph()
            # A plain graph takes attributes, though it shows no `__dict__`. The key keeps this object as long as the graph.
            states = graph._ipu_states = getattr(graph, "_ipu_states", {})
            if (self, device) not in states:
                states[self, device] = self._make_state(device, 0, 1)
            return states[self, device]

    def _state_of_replica(self, device: str, replica: int, replicas: int) -> tf.Tensor:
        with _lock:
            state = self._replica_states.get((device, replica, replicas))
            if state is None:
                state = self._replica_states[device, replica, replicas] = self._make_state(device, replica, replicas)
            return state

    def _make_state(self, device: str, replica: int, replicas: int) -> tf.Tensor:
        with tf.device(device):
            return ops.ipu_feed_state(initial=tf.constant([self.number, replica, replicas, 0], tf.int64))


class SharedFeeds:
    """Feeds that all programs of a device, or of a library, share; thread-safe."""

    def __init__(self) -> None:
        """Holds no feed yet."""
        self._feeds: dict[tuple[str, ...], Feed] = {}  # Guarded by `_lock`.

    def get(self, key: tuple[str, ...], make: Callable[[], Feed]) -> Feed:
        """Returns the feed of a key, which the first call for the key makes."""
        with _lock:
            if key not in self._feeds:
                self._feeds[key] = make()
            return self._feeds[key]

    def key_of(self, feed: object) -> tuple[str, ...] | None:
        """Returns the key of a feed, or None for a feed that is not shared here."""
        with _lock:
            return next((key for key, shared in self._feeds.items() if shared is feed), None)


class Queue(PageView):
    """What infeed and outfeed queues have in common: the feed that they own, or the state that they were passed as."""

    _device: str
    _feed: Feed | None
    _handle: tf.Tensor | None
    _name: str
    _graph: tf.Graph | None = None

    def _note_graph(self) -> None:
        """Keeps the graph of a session that the queue is made in."""
        self._graph = tf.compat.v1.get_default_graph() if in_plain_graph() else None

    def _in_its_graph(self) -> AbstractContextManager[object]:
        """A block whose operations come into the graph that the queue was made in, wherever the call is."""
        return nullcontext() if self._graph is None else self._graph.as_default()

    def _described(self) -> dict[str, object]:
        """What a notebook shows of this kind of queue, by what it is."""
        raise NotImplementedError

    def _page(self) -> str:
        kind = self._name.partition("_")[0].capitalize()
        counters = {"Elements": "elements so far", "Bytes": "bytes so far", "Ready": "elements that are ready"}
        counts = {what: metrics.counter_value(f"{kind}{name}:{self._name}") for name, what in counters.items()}
        described = {
            "device": f"`{self._device}`",
            **self._described(),
            **{what: f"{n:,}" for what, n in counts.items() if n},
        }
        return small_page(f"{type(self).__name__} {self._name}", "", table(("", ""), list(described.items())))

    def _state(self) -> tf.Tensor:
        """The resource that names the queue to the program being traced."""
        if self._feed is None:
            assert self._handle is not None
            return self._handle
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return in_function(self._feed.state(self._device))
        if self._handle is None:
            self._handle = self._feed.state(self._device)
        return self._handle if tf.executing_eagerly() else in_function(self._handle)


def _destroy(states: dict[tuple[str, int, int], tf.Tensor]) -> None:
    if os.getpid() != _owner:
        return  # A forked child has none of the threads, one of which may have held a lock when the fork came.
    with devices.eagerly():  # The call may come during a trace.
        for state in states.values():
            tf.raw_ops.DestroyResourceOp(resource=state, ignore_lookup_error=True)


_LONGEST = 1e9  # Thirty years, in seconds. The kernels count nanoseconds in 64 bits.


def set_wait_limit(seconds: float | None) -> None:
    """Limits how many seconds a program may wait for one element of an infeed; None, the default, for no limit.

    A program that waits longer fails with `tf.errors.DeadlineExceededError`. Waits that have begun keep their limit.

    Raises:
      ValueError: `seconds` is not above 0, or no time that a clock can measure.
      TypeError: `seconds` is no number.
    """
    if seconds is None:
        native.ipu_set_wait_limit(0)
        return
    if not is_number(seconds):
        raise TypeError(f"`seconds` must be a number or None, but is {seconds!r}")
    if not 0 < seconds <= _LONGEST:
        raise ValueError(
            f"`seconds` must be above 0 and at most {_LONGEST:.0e}, but is {seconds!r}; None takes the limit away"
        )
    native.ipu_set_wait_limit(max(1, int(seconds * 1e9)))


def shut_down(timeout: float = 2.0) -> bool:
    """Ends all infeeds of the process, and the runs that wait for data; called at exit.

    Args:
      timeout: Seconds to wait for the threads that read datasets; code of a dataset may keep one from ending.

    Returns:
      Whether all have ended.
    """
    return bool(native.ipu_shut_down(int(timeout * 1e9)))


@atexit.register
def _at_exit() -> None:
    # A dataset may run Python code, for which it is too late a moment from now. A forked child has no such threads.
    if os.getpid() == _owner and not shut_down():
        native.ipu_end_process()
