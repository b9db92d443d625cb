"""A native feed from Python's side: its number, its life, and the values that name it to programs."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import gen_resource_variable_ops

from tensorflow_ipu._library import ops

_serial = itertools.count()


def unique_name(kind: str) -> str:
    """A name that no other feed of this process has, for instance `"infeed_3"`."""
    return f"{kind}_{next(_serial)}"


class Feed:
    """Owns a native feed.

    The feed lives as long as anything can use it: the queue, or a program that captured its state. So this object hangs
    on both, and goes with the last of them.
    """

    def __init__(self, number: int, drop: Callable[[int], object], keep: object = None) -> None:
        """Takes a native feed over.

        Args:
          number: The feed's number.
          drop: Ends the native feed.
          keep: What must live as long as the feed does.
        """
        self.number = number
        self.keep = keep
        # A device: the state's handle, for eager execution. Weak, since the handle keeps this object.
        self._states: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._twins: dict[str, Any] = {}  # A device: another handle of the same state, to destroy it by.
        self._graph_states: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._drop = weakref.finalize(self, _drop, number, drop, self._twins)
        self._drop.atexit = False  # The package shuts all feeds down then.

    def drop(self) -> None:
        """Ends the feed now."""
        self._drop()

    def state(self, device: str) -> Any:
        """The resource that names this feed to a program on `device`, for the graph being built or eager execution."""
        with tf.init_scope():
            if tf.executing_eagerly():
                state = self._states.get(device)
                if state is None:
                    state = self._make_state(device)
                    state._ipu_feed = self
                    self._states[device] = state
                    if device not in self._twins:
                        self._twins[device] = self._make_state(device)
                return state
            graph = framework_ops.get_default_graph()
            states = self._graph_states.setdefault(graph, {})
            if device not in states:
                states[device] = self._make_state(device)
                graph.__dict__.setdefault("_ipu_feeds", []).append(self)
            return states[device]

    def _make_state(self, device: str) -> Any:
        lane, lanes, count = 0, 1, 0
        with tf.device(device):
            return ops.ipu_feed_state(initial=tf.constant([self.number, lane, lanes, count], tf.int64))


def _drop(number: int, drop: Callable[[int], object], states: dict[str, Any]) -> None:
    drop(number)
    # May run at any moment, a trace included: the collector decides.
    with context.eager_mode():
        for state in states.values():
            gen_resource_variable_ops.destroy_resource_op(state, ignore_lookup_error=True)
