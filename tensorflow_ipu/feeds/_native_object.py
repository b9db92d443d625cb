"""Owns objects of the native library: manages their lifetimes and state variables."""

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
# Guards the state variables and the shared objects, because several threads may trace their first programs at once.
# Reentrant, because the function that creates a shared object may create another.
_lock = threading.RLock()


class NativeObject:
    """Owns an object of the native library, such as a queue, a call site or a table.

    The native object lives as long as this owner, which programs that captured the state variable keep alive.
    """

    def __init__(self, number: int, drop: Callable[[int], object] | None, keep: object = None) -> None:
        """Takes ownership of the object `number`.

        Args:
          number: The number of the native object.
          drop: The C function that deletes the object. None for a program order, which has a number and no object.
          keep: A Python object that has to live as long as the native object.
        """
        self.number = number
        self.keep = keep
        self.queue: weakref.ref[Queue] | None = None  # Set by the queue that owns this object.
        # The handle of the state variable on each device, for eager execution. The handle refers to this object, so
        # this reference is weak.
        self._states: dict[str, weakref.ref[tf.Tensor]] = {}
        # Handles by device, replica and number of replicas. Each handle destroys its state variable when it is deleted.
        self._replica_states: dict[tuple[str, int, int], tf.Tensor] = {}
        self._drop = drop
        states = self._replica_states
        self.drop_with(self)
        lifetimes.call_later(self, lambda: _destroy(states))

    def drop_with(self, owner: object) -> None:
        """Deletes the native object when `owner` is deleted. Programs with its state variable then fail."""
        if self._drop is not None:
            lifetimes.call_native(owner, self._drop, self.number)

    def state(self, device: str, replica: int = 0, replicas: int = 1) -> tf.Tensor:
        """Returns the state variable that names the object to programs on `device`, in the current graph or eagerly."""
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
            # A graph accepts new attributes, though it has no `__dict__`. The key keeps this object alive as long as
            # the graph.
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
    """The native objects that all programs of a device, or of a library, share. Thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, ...], NativeObject] = {}  # Guarded by `_lock`.

    def get(self, key: tuple[str, ...], make: Callable[[], NativeObject]) -> NativeObject:
        """Returns the object of a key; the first call for a key creates it."""
        with _lock:
            if key not in self._objects:
                self._objects[key] = make()
            return self._objects[key]

    def key_of(self, shared: object) -> tuple[str, ...] | None:
        """Returns the key of an object, or None for one that is not shared here."""
        with _lock:
            return next((key for key, candidate in self._objects.items() if candidate is shared), None)


def _destroy(states: dict[tuple[str, int, int], tf.Tensor]) -> None:
    if os.getpid() != _owner:
        return  # A lock may be held for ever in a forked child, because the thread that held it does not exist there.
    with devices.eagerly():  # A trace may be in progress.
        for state in states.values():
            tf.raw_ops.DestroyResourceOp(resource=state, ignore_lookup_error=True)
