"""The names of `libpvti`, by which programs mark phases for `tensorflow_ipu.trace`."""

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
    """A track of the trace; see `createTraceChannel`."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"`name` must be the name of a channel, and `{name!r}` is no string")
        self.name = name
        self.enabled = True

    def mark(self, label: str, begin: int, end: int | None = None) -> None:
        """Records a span of this thread, if a trace is being recorded and the channel is not disabled."""
        if self.enabled:
            tracepoints.mark(self.name, label, begin, end)


_channels: dict[str, TraceChannel] = {}  # In the order in which they were made.


def createTraceChannel(name: str) -> TraceChannel:  # noqa: N802  (The name that scripts call it by.)
    """The channel of this name, a track of the trace, made where there is none."""
    channel = TraceChannel(name)
    return _channels.setdefault(name, channel)


traceDrivers = createTraceChannel("Drivers")  # noqa: N816
tracePoplar = createTraceChannel("Poplar")  # noqa: N816


def enableTraceChannel(channel: TraceChannel) -> None:  # noqa: N802
    """Records marks of the channel from now on."""
    _check(channel)
    channel.enabled = True


def disableTraceChannel(channel: TraceChannel) -> None:  # noqa: N802
    """Records no marks of the channel from now on."""
    _check(channel)
    channel.enabled = False


def listTraceChannel() -> list[list[str | bool]]:  # noqa: N802
    """The name of each channel, and whether it is enabled."""
    return [[channel.name, channel.enabled] for channel in _channels.values()]


def checkTraceChannel(channel: TraceChannel) -> bool:  # noqa: N802
    """Whether marks of the channel are recorded now."""
    _check(channel)
    return channel.enabled and tracepoints.is_recording()


class _OpenSpan(threading.local):
    """The spans that a thread has begun, the innermost last: channel, label, time."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, int]] = []


_begun = _OpenSpan()


class Tracepoint:
    """Marks the time of a block: `with Tracepoint(channel, "epoch 3"): ...`."""

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
        """Begins a span, which `end` of the same channel and label ends, on the same thread."""
        _check(channel)
        _begun.spans.append((channel.name, label, time.monotonic_ns()))

    @staticmethod
    def end(channel: TraceChannel, label: str) -> None:
        """Ends the span that was begun last with this channel and label; does nothing where none was."""
        _check(channel)
        for at in reversed(range(len(_begun.spans))):
            if _begun.spans[at][:2] == (channel.name, label):
                channel.mark(*_begun.spans.pop(at)[1:])
                return

    @staticmethod
    def event(channel: TraceChannel, label: str) -> None:
        """Marks this moment."""
        _check(channel)
        now = time.monotonic_ns()
        channel.mark(label, now, now)


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


def instrument(obj: object, methods: Iterable[str], channel: TraceChannel) -> None:
    """Marks the calls of these methods of an object by name, from now on, unless Python calls them itself."""
    _check(channel)
    names = [methods] if isinstance(methods, str) else list(methods)
    if isinstance(methods, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`methods` must be a list of names of methods, but is {methods!r}")
    decorate = instrument_fn(channel)
    for name in names:
        method = getattr(obj, name)
        if not callable(method):
            raise TypeError(f"`methods` has {name!r}, but `{type(obj).__name__}.{name}` is {method!r}, no method")
        setattr(obj, name, decorate(method))


class GraphSeries:
    """A number of a graph; see `Graph.addSeries`."""

    def __init__(self, graph: str, name: str) -> None:
        self._graph = graph
        self._name = name

    def add(self, value: float) -> None:
        """Notes what the number is now."""
        tracepoints.note_value(self._graph, self._name, float(value))


class Graph:
    """Numbers over time, which the trace shows as a counter."""

    def __init__(self, name: str, unit: str = "") -> None:
        self._name = f"{name} [{unit}]" if unit else name

    def addSeries(self, name: str) -> GraphSeries:  # noqa: N802
        """Adds a number of this name."""
        return GraphSeries(self._name, name)


class HeatmapDouble:
    """The distribution of values over time: a counter of quantiles, and marks with the counts of bins."""

    _QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)

    def __init__(self, name: str, edges: Sequence[float], unit: str = "") -> None:
        """Takes the name, the edges of the bins in increasing order, and the unit of the values."""
        self._edges = [float(edge) for edge in edges]
        if len(self._edges) < 2 or any(a >= b for a, b in itertools.pairwise(self._edges)):
            raise ValueError(f"`edges` must be two or more numbers in increasing order, but is {list(edges)!r}")
        self._name = f"{name} [{unit}]" if unit else name

    def add(self, values: Iterable[float]) -> None:
        """Records the values of now; those outside of all bins are in none."""
        if not tracepoints.is_recording():
            return
        found = sorted(float(value) for value in values)
        for share in self._QUANTILES if found else ():
            # Viewers order the numbers of a counter by name.
            tracepoints.note_value(self._name, f"{share:04.0%}", found[round(share * (len(found) - 1))])
        places = [bisect.bisect_left(found, edge) for edge in self._edges]
        places[-1] = bisect.bisect_right(found, self._edges[-1])  # The last bin has both of its edges.
        bins = {
            f"{low:g} to {high:g}": end - begin
            for (low, high), (begin, end) in zip(
                itertools.pairwise(self._edges), itertools.pairwise(places), strict=True
            )
        }
        now = time.monotonic_ns()
        tracepoints.mark(self._name, f"{len(found)} values", now, now, bins)


def _check(channel: object) -> None:
    if not isinstance(channel, TraceChannel):
        raise TypeError(f"`channel` must be what `createTraceChannel` made, and `{channel!r}` is not")
