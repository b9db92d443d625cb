"""The base class of infeed and outfeed queues, and the shutdown of all queues."""

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
    """Returns a name that is unique in this process, such as `"infeed_3"`."""
    return f"{kind}_{next(_serial)}"


def check_old_arguments(queue: str, arguments: Mapping[str, object], old_names: frozenset[str], current: str) -> None:
    """Raises `TypeError` for arguments that no release of the SDK had; `current` lists the supported arguments."""
    unknown = sorted(set(arguments) - old_names)
    if unknown:
        raise TypeError(f"`{queue}` has no argument {', '.join(f'`{name}`' for name in unknown)}; it has {current}")


class NoOperation:
    """The result of an eager access to `initializer` or `deleter`, which had its effect and leaves nothing to run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<no operation: accessing `{self._name}` has run it>"

    def __call__(self, *_: object) -> NoReturn:
        raise TypeError(f"`{self._name}` is a property, and accessing it has run it: write it without brackets")


class QueueSpec(tf.TypeSpec):
    """The static type of a queue: a resource, and what subclasses add."""

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
    """The base class of infeed and outfeed queues.

    A queue either owns a native queue, or it is an argument of a traced program, and then has only a state variable.
    """

    _device: str
    _feed: NativeObject | None = None
    _handle: tf.Tensor | None = None
    _name = "a queue passed as an argument"
    _graph: tf.Graph | None = None

    def _own(self, feed: NativeObject) -> None:
        """Makes this queue the owner of a native queue, and remembers the graph of a session if one is being built."""
        self._feed = feed
        feed.queue = weakref.ref(self)
        self._graph = tf.compat.v1.get_default_graph() if in_plain_graph() else None

    def _in_its_graph(self) -> AbstractContextManager[object]:
        """Returns a context whose operations are added to the graph of the queue."""
        return nullcontext() if self._graph is None else self._graph.as_default()

    def _described(self) -> dict[str, object]:
        raise NotImplementedError

    def _facts(self) -> Facts:
        kind = self._name.partition("_")[0].capitalize()
        counters = {"Elements": "elements so far", "Bytes": "bytes so far", "Ready": "elements that are ready"}
        counts = {label: metrics.counter_value(f"{kind}{name}:{self._name}") for name, label in counters.items()}
        described = {
            "device": f"`{self._device}`",
            **self._described(),
            **{label: f"{count:,}" for label, count in counts.items() if count},
        }
        return Facts(f"{type(self).__name__} {self._name}", "", [Table(list(described.items()))])

    def _state(self) -> tf.Tensor:
        """Returns the state variable that names the queue to the program being traced."""
        if self._feed is None:
            assert self._handle is not None
            return self._handle
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return in_function(self._feed.state(self._device))
        if self._handle is None:
            self._handle = self._feed.state(self._device)
        return self._handle if tf.executing_eagerly() else in_function(self._handle)


_MAX_SECONDS = 1e9  # Thirty years. The native library counts nanoseconds in 64 bits.


def set_wait_limit(seconds: float | None) -> None:
    """Limits the time that a program may wait for one element of an infeed.

    A program that waits longer fails with `tf.errors.DeadlineExceededError`. Waits that have begun keep their limit.

    Args:
      seconds: The limit in seconds, above 0 and at most 1e9; None, the default, for no limit.

    Raises:
      ValueError: `seconds` is out of range.
      TypeError: `seconds` is not a number.
    """
    if seconds is None:
        native.ipu_set_wait_limit(0)
        return
    if not is_number(seconds):
        raise TypeError(f"`seconds` must be a number or None, but is {seconds!r}")
    if not 0 < seconds <= _MAX_SECONDS:
        raise ValueError(
            f"`seconds` must be above 0 and at most {_MAX_SECONDS:.0e}, but is {seconds!r}; None removes the limit"
        )
    native.ipu_set_wait_limit(max(1, int(seconds * 1e9)))


def shut_down(timeout: float = 2.0) -> bool:
    """Closes all infeeds of the process, and ends the runs that wait for data. It is called at exit.

    Args:
      timeout: The seconds to wait for the threads that read datasets. The code of a dataset may block a thread.

    Returns:
      True if all threads have ended.
    """
    return bool(native.ipu_shut_down(int(timeout * 1e9)))


@atexit.register
def _at_exit() -> None:
    # A dataset may run Python code, which must not run once the interpreter shuts down. If a thread does not end, the
    # process is ended at once. A forked child has no such threads.
    if os.getpid() == _owner and not shut_down():
        native.ipu_end_process()
