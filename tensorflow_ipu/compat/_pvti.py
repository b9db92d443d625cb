"""`libpvti`: the points by which a program marks its own phases, for `tensorflow_ipu.trace` to show."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tensorflow_ipu import _tracepoints

if TYPE_CHECKING:
    from typing_extensions import Self

_F = TypeVar("_F", bound=Callable[..., Any])


class TraceChannel:
    """A track of the trace; see `createTraceChannel`."""

    def __init__(self, name: str) -> None:
        """Names the track."""
        if not isinstance(name, str):
            raise TypeError(f"`name` must be the name of a channel, and `{name!r}` is no string")
        self.name = name


def createTraceChannel(name: str) -> TraceChannel:  # noqa: N802  (The name that scripts call it by.)
    """Makes a channel of this name, which is a track of the trace."""
    return TraceChannel(name)


def checkTraceChannel(channel: TraceChannel) -> bool:  # noqa: N802
    """Whether what is marked in the channel is recorded now."""
    _check(channel)
    return _tracepoints.is_recording()


class Tracepoint:
    """Marks the time of a block: `with Tracepoint(channel, "epoch 3"): ...`."""

    # A thread: what it has begun, the innermost last, as (channel, label, when).
    _begun = threading.local()

    def __init__(self, channel: TraceChannel, label: str) -> None:
        """Takes the channel, and what the block is called in the trace."""
        _check(channel)
        self._channel = channel
        self._label = label
        self._since = 0

    def __enter__(self) -> Self:
        """The block begins."""
        self._since = time.monotonic_ns()
        return self

    def __exit__(self, *error: object) -> None:
        """The block ends."""
        _tracepoints.mark(self._channel.name, self._label, self._since)

    @staticmethod
    def begin(channel: TraceChannel, label: str) -> None:
        """Begins a span, which `end` of the same channel and label ends, on the same thread."""
        _check(channel)
        Tracepoint._stack().append((channel.name, label, time.monotonic_ns()))

    @staticmethod
    def end(channel: TraceChannel, label: str) -> None:
        """Ends the span that was begun last with this channel and label; does nothing where none was."""
        _check(channel)
        stack = Tracepoint._stack()
        for at in range(len(stack) - 1, -1, -1):
            if stack[at][:2] == (channel.name, label):
                _tracepoints.mark(*stack.pop(at))
                return

    @staticmethod
    def event(channel: TraceChannel, label: str) -> None:
        """Marks this moment."""
        _check(channel)
        now = time.monotonic_ns()
        _tracepoints.mark(channel.name, label, now, now)

    @staticmethod
    def _stack() -> list[tuple[str, str, int]]:
        begun = Tracepoint._begun
        if not hasattr(begun, "stack"):
            begun.stack = []
        return begun.stack


def instrument_fn(channel: TraceChannel) -> Callable[[_F], _F]:
    """A decorator that marks the calls of a function, by its name."""
    _check(channel)

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with Tracepoint(channel, function.__name__):
                return function(*args, **kwargs)

        return marked  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    return decorate


class GraphSeries:
    """One of the numbers of a graph; see `Graph.addSeries`."""

    def __init__(self, graph: str, name: str) -> None:
        """Names the number."""
        self._graph = graph
        self._name = name

    def add(self, value: float) -> None:
        """Notes what the number is now."""
        _tracepoints.note_value(self._graph, self._name, float(value))


class Graph:
    """Numbers over time, which the trace shows as a counter."""

    def __init__(self, name: str, unit: str = "") -> None:
        """Takes the name of the counter and the unit of its numbers."""
        self._name = f"{name} [{unit}]" if unit else name

    def addSeries(self, name: str) -> GraphSeries:  # noqa: N802
        """Adds a number of this name."""
        return GraphSeries(self._name, name)


def _check(channel: object) -> None:
    if not isinstance(channel, TraceChannel):
        raise TypeError(f"`channel` must be what `createTraceChannel` made, and `{channel!r}` is not")
