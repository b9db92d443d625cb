"""The order of a program: one state that threads all uses of feeds and collectives, as they were traced.

XLA runs what shares no data in any order. A feed's state keeps the uses of that feed in order; a host that answers what
one queue hands out with the next element of another one needs the order of both. So the ops that use feeds take the
order of the program besides, and advance that one.

The order is a variable of the device. TensorFlow locks a program's variables for as long as it runs, and programs of
several threads may wait for each other's data: so a run on another thread than the main one has that thread's order in
the place of the device's, and each step of a session has one of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tensorflow_ipu import replicas
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.feeds import _feed

if TYPE_CHECKING:
    import tensorflow as tf

_numbers = itertools.count(-1, -1)  # Those of feeds are above 0.
_thread = threading.local()
# A device: the order that its programs capture.
_captured: dict[str, _feed.Feed] = {}


def of(device: str) -> list[tf.Tensor]:
    """What an op that uses a feed takes for its input `order`: nothing, or the order of the program being traced.

    Nothing in the condition of a loop, where XLA lets nobody assign, and in a block of `unordered`.
    """
    if replicas.in_condition() or getattr(_thread, "unordered", False):
        return []
    return [replicas.in_function(shared(device))]


def shared(device: str) -> tf.Tensor:
    """The order that programs of a device capture."""
    if device not in _captured:
        _captured[device] = _new()
    state = _captured[device].state(device)
    if not hasattr(state, "graph"):
        state._ipu_of_thread = lambda: _of_thread(device)  # pyright: ignore[reportAttributeAccessIssue]
    return state


@contextlib.contextmanager
def unordered() -> Iterator[None]:
    """A block that traces uses of feeds which keep the order of each feed alone, so that more of them can overlap."""
    before = getattr(_thread, "unordered", False)
    _thread.unordered = True
    try:
        yield
    finally:
        _thread.unordered = before


@contextlib.contextmanager
def barrier(*queues: _feed.Queue | None) -> Iterator[None]:
    """A block of `unordered`: all before it comes before the uses of these queues in it, and they before all behind it."""
    used = [queue for queue in queues if queue is not None]
    _join(used)
    with unordered():
        yield
    _join(used)


def _join(queues: list[_feed.Queue]) -> None:
    order = of(queues[0]._device) if queues else []
    if order:
        ops.ipu_join_orders([*order, *(queue._state() for queue in queues)])


def _of_thread(device: str) -> tf.Tensor:
    """The order of this thread's runs on a device."""
    states = vars(_thread).setdefault("states", {})
    if device not in states:
        states[device] = _new().state(device)
    return states[device]


def _new() -> _feed.Feed:
    return _feed.Feed(next(_numbers), lambda _: None, per_step=True)
