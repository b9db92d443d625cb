"""The names of `libpvti`, with which programs mark phases in a trace of `tensorflow_ipu.trace`."""

from __future__ import annotations

import bisect
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tensorflow_ipu._base import tracepoints

if TYPE_CHECKING:
    from typing_extensions import Self

_F = TypeVar("_F", bound=Callable[..., Any])


class TraceChannel:
    """A track of the trace; `createTraceChannel` returns one."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a string, but is {name!r}")
        self.name = name
        self.enabled = True

    def mark(self, label: str, begin: int, end: int | None = None) -> None:
        """Records a span on this thread if a trace is being recorded and the channel is enabled."""
        if self.enabled:
            tracepoints.mark(self.name, label, begin, end)


_channels: dict[str, TraceChannel] = {}  # In the order of their creation.


def createTraceChannel(name: str) -> TraceChannel:  # noqa: N802  (The name that scripts call it by.)
    """Returns the channel with this name, which is a track of the trace. Creates it if it does not exist."""
    channel = TraceChannel(name)
    return _channels.setdefault(name, channel)


traceDrivers = createTraceChannel("Drivers")  # noqa: N816
tracePoplar = createTraceChannel("Poplar")  # noqa: N816


def enableTraceChannel(channel: TraceChannel) -> None:  # noqa: N802
    """Makes the trace record marks of the channel from now on."""
    _check(channel)
    channel.enabled = True


def disableTraceChannel(channel: TraceChannel) -> None:  # noqa: N802
    """Makes the trace ignore marks of the channel from now on."""
    _check(channel)
    channel.enabled = False


def listTraceChannel() -> list[list[str | bool]]:  # noqa: N802
    """Returns the name of each channel, and True if it is enabled."""
    return [[channel.name, channel.enabled] for channel in _channels.values()]


def checkTraceChannel(channel: TraceChannel) -> bool:  # noqa: N802
    """Returns True if the channel is enabled and a trace is being recorded."""
    _check(channel)
    return channel.enabled and tracepoints.is_recording()


class _OpenSpans(threading.local):
    """The open spans of a thread as (channel, label, start in ns), the innermost last."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, int]] = []


_open = _OpenSpans()


class Tracepoint:
    """Records the time of a block: `with Tracepoint(channel, "epoch 3"): ...`."""

    def __init__(self, channel: TraceChannel, label: str) -> None:
        _check(channel)
        self._channel = channel
        self._label = label
        self._since = 0

    def __enter__(self) -> Self:
        self._since = time.monotonic_ns()
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.mark(self._label, self._since)

    @staticmethod
    def begin(channel: TraceChannel, label: str) -> None:
        """Begins a span. `end` with the same channel and label ends it on the same thread."""
        _check(channel)
        _open.spans.append((channel.name, label, time.monotonic_ns()))

    @staticmethod
    def end(channel: TraceChannel, label: str) -> None:
        """Ends the latest open span with this channel and label; does nothing if there is none."""
        _check(channel)
        for index in reversed(range(len(_open.spans))):
            if _open.spans[index][:2] == (channel.name, label):
                channel.mark(*_open.spans.pop(index)[1:])
                return

    @staticmethod
    def event(channel: TraceChannel, label: str) -> None:
        """Records this moment."""
        _check(channel)
        moment = time.monotonic_ns()
        channel.mark(label, moment, moment)


def instrument_fn(channel: TraceChannel) -> Callable[[_F], _F]:
    """Returns a decorator that records each call of a function under the name of the function."""
    _check(channel)

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with Tracepoint(channel, function.__name__):
                return function(*args, **kwargs)

        return marked  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    return decorate


def instrument(obj: object, methods: Iterable[str], channel: TraceChannel) -> None:
    """Records later calls of these methods of an object, except calls by Python itself, such as `__len__` by `len`."""
    _check(channel)
    names = [methods] if isinstance(methods, str) else list(methods)
    if isinstance(methods, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`methods` must be a list of names of methods, but is {methods!r}")
    decorate = instrument_fn(channel)
    for name in names:
        method = getattr(obj, name)
        if not callable(method):
            raise TypeError(f"`methods` must name methods, but `{type(obj).__name__}.{name}` is {method!r}")
        setattr(obj, name, decorate(method))


class GraphSeries:
    """A value of a graph over time; `Graph.addSeries` returns one."""

    def __init__(self, graph: str, name: str) -> None:
        self._graph = graph
        self._name = name

    def add(self, value: float) -> None:
        """Records the current value."""
        tracepoints.note_value(self._graph, self._name, float(value))


class Graph:
    """Values over time that the trace shows as a counter."""

    def __init__(self, name: str, unit: str = "") -> None:
        self._name = f"{name} [{unit}]" if unit else name

    def addSeries(self, name: str) -> GraphSeries:  # noqa: N802
        """Adds a series with this name."""
        return GraphSeries(self._name, name)


class HeatmapDouble:
    """The distribution of values over time: a counter of quantiles, and marks with the counts of bins.

    `edges` are the edges of the bins in increasing order; `unit` is the unit of the values.
    """

    _QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)

    def __init__(self, name: str, edges: Sequence[float], unit: str = "") -> None:
        self._edges = [float(edge) for edge in edges]
        if len(self._edges) < 2 or any(a >= b for a, b in itertools.pairwise(self._edges)):
            raise ValueError(f"`edges` must be two or more numbers in increasing order, but is {list(edges)!r}")
        self._name = f"{name} [{unit}]" if unit else name

    def add(self, values: Iterable[float]) -> None:
        """Records the distribution of `values` now. Values outside of the bins count only in the quantiles."""
        if not tracepoints.is_recording():
            return
        ordered = sorted(float(value) for value in values)
        for share in self._QUANTILES if ordered else ():
            # Viewers sort the values of a counter by name, so names begin with zeros: `005%`.
            tracepoints.note_value(self._name, f"{share:04.0%}", ordered[round(share * (len(ordered) - 1))])
        positions = [bisect.bisect_left(ordered, edge) for edge in self._edges]
        positions[-1] = bisect.bisect_right(ordered, self._edges[-1])  # The last bin includes both of its edges.
        bins = {
            f"{low:g} to {high:g}": end - begin
            for (low, high), (begin, end) in zip(
                itertools.pairwise(self._edges), itertools.pairwise(positions), strict=True
            )
        }
        moment = time.monotonic_ns()
        tracepoints.mark(self._name, f"{len(ordered)} values", moment, moment, bins)


def _check(channel: object) -> None:
    if not isinstance(channel, TraceChannel):
        raise TypeError(f"`channel` must be a channel of `createTraceChannel`, but is {channel!r}")
