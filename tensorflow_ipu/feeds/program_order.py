"""The order of a program: a state that threads all uses of feeds and collectives, in the order of the trace."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.feeds import _feed

_numbers = itertools.count(-1, -1)  # Those of feeds are above 0.
_thread = threading.local()
# The order that the programs of a device capture. TensorFlow locks a program's variables while it runs, and programs of
# several threads may wait for each other's data: so a run on another thread than the main one has that thread's order
# instead, and each step of a session has one of its own.
_captured: dict[str, _feed.Feed] = {}


def of(device: str) -> list[tf.Tensor]:
    """The input `order` of an op that uses a feed: none in the condition of a loop or in a block of `unordered`."""
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
    """A block whose uses of feeds keep the order of each feed alone, so that more of them can overlap."""
    before = getattr(_thread, "unordered", False)
    _thread.unordered = True
    try:
        yield
    finally:
        _thread.unordered = before


@contextlib.contextmanager
def barrier(*queues: _feed.Queue | None) -> Iterator[None]:
    """A block of `unordered` in which the uses of these queues come after all before it, and before all after it."""
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
    states = vars(_thread).setdefault("states", {})
    if device not in states:
        states[device] = _new().state(device)
    return states[device]


def _new() -> _feed.Feed:
    return _feed.Feed(next(_numbers), lambda _: None, per_step=True)
