"""Records spans, values and run times, for traces and metrics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

# The channel of the spans that the package itself records.
PROGRAMS = "tensorflow_ipu.programs"


class TimedSpan(NamedTuple):
    """A named span of time, or an instant if both times are equal. Times are `time.monotonic_ns()`."""

    channel: str
    name: str
    begin: int
    end: int
    thread: int
    details: Mapping[str, int] = {}


class Value(NamedTuple):
    """A value of a series at a time, which is `time.monotonic_ns()`."""

    graph: str
    series: str
    at: int
    value: float


class Recording:
    """The spans and values that were recorded between `start` and `stop`."""

    def __init__(self) -> None:
        self.spans: list[TimedSpan] = []
        self.values: list[Value] = []


_lock = threading.Lock()
_recordings: list[Recording] = []  # One at most.


def start() -> Recording | None:
    """Starts a recording and returns it; returns None if there is one already."""
    with _lock:
        if _recordings:
            return None
        _recordings.append(Recording())
        return _recordings[0]


def stop() -> None:
    with _lock:
        _recordings.clear()


def is_recording() -> bool:
    return bool(_recordings)


def mark(channel: str, name: str, begin: int, end: int | None = None, details: Mapping[str, int] | None = None) -> None:
    """Records a span of this thread from `begin` to `end`, by default until now, in `time.monotonic_ns()`."""
    for recording in _recordings:
        end_time = time.monotonic_ns() if end is None else end
        recording.spans.append(TimedSpan(channel, name, begin, end_time, threading.get_ident(), details or {}))


def note_value(graph: str, series: str, value: float) -> None:
    for recording in _recordings:
        recording.values.append(Value(graph, series, time.monotonic_ns(), value))


KEPT = 1024  # The number of latest measurements that `Times` stores.
_KEPT_TRACES = 256


class Sample(NamedTuple):
    """A measured duration and its end (`time.monotonic_ns()`), in nanoseconds."""

    end: int
    duration: int


class Summary(NamedTuple):
    """The number, total and latest samples of measured durations, in nanoseconds."""

    number: int = 0
    total: int = 0
    latest: tuple[Sample, ...] = ()


class Times:
    """Collects measured durations. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = self._total = 0
        self._latest: deque[tuple[int, int]] = deque(
            maxlen=KEPT
        )  # Plain tuples, since a `Sample` takes longer to create.

    def add(self, begin: int) -> int:
        """Adds the time from `begin`, a `time.monotonic_ns()`, until now, and returns it."""
        end = time.monotonic_ns()
        with self._lock:
            self._count += 1
            self._total += end - begin
            self._latest.append((end, end - begin))
        return end - begin

    def read(self) -> Summary:
        with self._lock:
            return Summary(self._count, self._total, tuple(Sample(*sample) for sample in self._latest))


class Trace(NamedTuple):
    """The trace of a function into a program, with the reason why it was traced."""

    end: int
    duration: int
    function: str
    reason: str


class Counter:
    """A counter. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self) -> None:
        with self._lock:
            self.value += 1


run_times = Times()
failed_runs = Counter()
trace_times = Times()
traces: deque[Trace] = deque(maxlen=_KEPT_TRACES)
