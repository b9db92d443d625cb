"""The base of infeed and outfeed queues, and the end of all of them."""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import tensorflow as tf

from tensorflow_ipu import metrics
from tensorflow_ipu._base.checks import is_number
from tensorflow_ipu._base.notebook import Facts, NotebookView, Table
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds._native_object import NativeObject
from tensorflow_ipu.programs import in_function, in_plain_graph

_serial = itertools.count()
_owner = os.getpid()


def unique_name(kind: str) -> str:
    """Makes a name that no other feed of this process has, for instance `"infeed_3"`."""
    return f"{kind}_{next(_serial)}"


def check_old_arguments(queue: str, arguments: Mapping[str, object], known: frozenset[str], others: str) -> None:
    """Raises `TypeError` for arguments that no release of the SDK had; `others` names those of today."""
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise TypeError(f"`{queue}` has no argument {', '.join(f'`{name}`' for name in unknown)}; it has {others}")


class NoOperation:
    """The result of an eager access to `initializer` or `deleter`, which has acted: there is nothing to call or to run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<no operation: `{self._name}` acted as it was accessed>"

    def __call__(self, *_: object) -> NoReturn:
        raise TypeError(f"`{self._name}` is a property, which has acted by now: write it without brackets")


class QueueSpec(tf.TypeSpec):
    """The static type of a queue: a resource, and the attributes of subclasses."""

    __slots__ = ("_device",)

    @property
    def _component_specs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([], tf.resource)]

    def _to_components(self, value: Any) -> list[tf.Tensor]:
        return [value._state()]

    def _from_components(self, components: Sequence[tf.Tensor]) -> Any:
        queue = self.value_type.__new__(self.value_type)
        queue._device, queue._handle = self._device, components[0]
        queue._become_argument(self)
        return queue


class Queue(NotebookView):
    """An infeed or outfeed: the feed that it owns, or as an argument of a traced program, the state that it stands for."""

    _device: str
    _feed: NativeObject | None = None
    _handle: tf.Tensor | None = None
    _name = "a queue passed as an argument"
    _graph: tf.Graph | None = None

    def _own(self, feed: NativeObject) -> None:
        """Makes this the queue of a native object, in the graph of a session if one is being built."""
        self._feed = feed
        feed.queue = weakref.ref(self)
        self._graph = tf.compat.v1.get_default_graph() if in_plain_graph() else None

    def _in_its_graph(self) -> AbstractContextManager[object]:
        """Returns a block whose operations are added to the graph that the queue was made in."""
        return nullcontext() if self._graph is None else self._graph.as_default()

    def _described(self) -> dict[str, object]:
        raise NotImplementedError

    def _facts(self) -> Facts:
        kind = self._name.partition("_")[0].capitalize()
        counters = {"Elements": "elements so far", "Bytes": "bytes so far", "Ready": "elements that are ready"}
        counts = {what: metrics.counter_value(f"{kind}{name}:{self._name}") for name, what in counters.items()}
        described = {
            "device": f"`{self._device}`",
            **self._described(),
            **{what: f"{n:,}" for what, n in counts.items() if n},
        }
        return Facts(f"{type(self).__name__} {self._name}", "", [Table(list(described.items()))])

    def _state(self) -> tf.Tensor:
        """Returns the resource that names the queue to the program being traced."""
        if self._feed is None:
            assert self._handle is not None
            return self._handle
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return in_function(self._feed.state(self._device))
        if self._handle is None:
            self._handle = self._feed.state(self._device)
        return self._handle if tf.executing_eagerly() else in_function(self._handle)


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
