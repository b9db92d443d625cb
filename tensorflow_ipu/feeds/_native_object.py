"""An object of the kernels on Python's side: its number, its lifetime and its states."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base import lifetimes
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import devices

if TYPE_CHECKING:
    from tensorflow_ipu.feeds._queue import Queue

_owner = os.getpid()
# Guards the states of all objects and those that programs share: several threads may trace their first programs at once.
# Reentrant, since the function that creates a shared object may create another one.
_lock = threading.RLock()


class NativeObject:
    """Owns an object of the kernels, such as a queue, a call site or a table.

    It lives as long as its owner in Python, or a program that captured its state.
    """

    def __init__(self, number: int, drop: Callable[[int], object] | None, keep: object = None) -> None:
        """Owns the object of a number, which the C function `drop` ends; None for an order, which is a number alone."""
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
        """Ends the object when `owner` ends; programs that have its state fail from then on."""
        if self._drop is not None:
            lifetimes.call_native(owner, self._drop, self.number)

    def state(self, device: str, replica: int = 0, replicas: int = 1) -> tf.Tensor:
        """Returns the resource that names the object to a program on `device`, in the graph being built or eagerly."""
        if replicas > 1:
            return self._state_of_replica(device, replica, replicas)
        with tf.init_scope(), _lock:
            if tf.executing_eagerly():
                reference = self._states.get(device)
                state = None if reference is None else reference()
                if state is None:
                    state = self._make_state(device, 0, 1)
                    state._ipu_native = self  # pyright: ignore[reportAttributeAccessIssue]
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


class SharedObjects:
    """The objects that all programs of a device, or of a library, share; thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, ...], NativeObject] = {}  # Guarded by `_lock`.

    def get(self, key: tuple[str, ...], make: Callable[[], NativeObject]) -> NativeObject:
        """Returns the object of a key, which the first call for the key makes."""
        with _lock:
            if key not in self._objects:
                self._objects[key] = make()
            return self._objects[key]

    def key_of(self, shared: object) -> tuple[str, ...] | None:
        """Returns the key of an object, or None for one that is not shared here."""
        with _lock:
            return next((key for key, known in self._objects.items() if known is shared), None)


def _destroy(states: dict[tuple[str, int, int], tf.Tensor]) -> None:
    if os.getpid() != _owner:
        return  # A forked child has none of the threads, one of which may have held a lock when the fork came.
    with devices.eagerly():  # The call may come during a trace.
        for state in states.values():
            tf.raw_ops.DestroyResourceOp(resource=state, ignore_lookup_error=True)
