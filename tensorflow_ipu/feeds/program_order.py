"""The token of a program, here called its order: it makes feeds and collectives run in the order of the trace.

Each operation that uses a feed or a collective takes and returns the token, a state variable. So XLA cannot reorder
them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.feeds import _queue
from tensorflow_ipu.feeds._native_object import NativeObject, SharedObjects

_numbers = itertools.count(-1, -1)  # Negative, because native objects have numbers above 0.
_thread = threading.local()
_orders = SharedObjects()


def of(device: str) -> list[tf.Tensor]:
    """Returns the input `order` of an op that uses a feed. It is empty in loop conditions and inside `unordered`."""
    if programs.in_condition() or getattr(_thread, "unordered", False):
        return []
    return [programs.in_function(shared(device))]


def shared(device: str) -> tf.Tensor:
    """Returns the order that the programs of a device share."""
    return _orders.get((device,), new).state(device)


@contextlib.contextmanager
def unordered() -> Iterator[None]:
    """Runs the block without an order between different feeds, so that their operations can overlap.

    The operations of each feed stay in order.
    """
    was_unordered = getattr(_thread, "unordered", False)
    _thread.unordered = True
    try:
        yield
    finally:
        _thread.unordered = was_unordered


@contextlib.contextmanager
def barrier(*queues: _queue.Queue | None) -> Iterator[None]:
    """Runs the block as `unordered` does, but orders its uses of `queues` after and before all code outside it."""
    used = [queue for queue in queues if queue is not None]
    _join(used)
    with unordered():
        yield
    _join(used)


def _join(queues: list[_queue.Queue]) -> None:
    order = of(queues[0]._device) if queues else []
    if order:
        ops.ipu_join_orders([*order, *(queue._state() for queue in queues)])


def new() -> NativeObject:
    """Creates an order for programs that run concurrently with other programs of the device, as in applications."""
    return NativeObject(next(_numbers), None)
