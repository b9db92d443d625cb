"""The order of a program: a state that threads all uses of feeds and collectives, in the order of the trace."""

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

_numbers = itertools.count(-1, -1)  # Those of objects of the kernels are above 0.
_thread = threading.local()
_orders = SharedObjects()


def of(device: str) -> list[tf.Tensor]:
    """Returns the input `order` of an op that uses a feed: nothing in the condition of a loop or a block of `unordered`."""
    if programs.in_condition() or getattr(_thread, "unordered", False):
        return []
    return [programs.in_function(shared(device))]


def shared(device: str) -> tf.Tensor:
    """Returns the order that programs of a device capture."""
    return _orders.get((device,), new).state(device)


@contextlib.contextmanager
def unordered() -> Iterator[None]:
    """Opens a block whose uses of feeds keep the order of each feed alone, so that more of them can overlap."""
    before = getattr(_thread, "unordered", False)
    _thread.unordered = True
    try:
        yield
    finally:
        _thread.unordered = before


@contextlib.contextmanager
def barrier(*queues: _queue.Queue | None) -> Iterator[None]:
    """Opens a block of `unordered` whose uses of these queues come after all before it, and before all after it."""
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
    """Creates an order for programs that run beside those of the device, such as an application's."""
    return NativeObject(next(_numbers), None)
