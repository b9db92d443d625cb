"""Spans and values that code marks for a trace."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

# The channel of what the package itself marks.
PROGRAMS = "tensorflow_ipu.programs"


class TimedSpan(NamedTuple):
    """Something that took time; an instant where both times are the same. Nanoseconds of the monotonic clock."""

    channel: str
    name: str
    begin: int
    end: int
    thread: int
    details: Mapping[str, int] = {}


class Value(NamedTuple):
    """A number at a moment."""

    graph: str
    series: str
    at: int
    value: float


class Recording:
    """What was marked between `start` and `stop`."""

    def __init__(self) -> None:
        self.spans: list[TimedSpan] = []
        self.values: list[Value] = []


_lock = threading.Lock()
_recordings: list[Recording] = []  # One at most.


def start() -> Recording | None:
    """Begins to record; returns None if a recording is under way."""
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
    """Records a span of this thread that began then, by `time.monotonic_ns`, and ended then, or now."""
    for recording in _recordings:
        ended = time.monotonic_ns() if end is None else end
        recording.spans.append(TimedSpan(channel, name, begin, ended, threading.get_ident(), details or {}))


def note_value(graph: str, series: str, value: float) -> None:
    for recording in _recordings:
        recording.values.append(Value(graph, series, time.monotonic_ns(), value))


KEPT = 1024  # So many of the latest times of a kind are told.
_KEPT_TRACES = 256


class Sample(NamedTuple):
    """One measured time."""

    end: int
    duration: int


class Summary(NamedTuple):
    """Measured times of one kind, in nanoseconds."""

    number: int = 0
    total: int = 0
    latest: tuple[Sample, ...] = ()


class Times:
    """Measured times of one kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = self._total = 0
        self._latest: deque[tuple[int, int]] = deque(maxlen=KEPT)  # A `Sample` takes longer to make, at each run.

    def add(self, begin: int) -> int:
        """Adds a time that began at `begin`, by `time.monotonic_ns`, and ends now; returns its duration."""
        end = time.monotonic_ns()
        with self._lock:
            self._count += 1
            self._total += end - begin
            self._latest.append((end, end - begin))
        return end - begin

    def read(self) -> Summary:
        with self._lock:
            return Summary(self._count, self._total, tuple(Sample(*each) for each in self._latest))


class Trace(NamedTuple):
    """One trace of a function to a program."""

    end: int
    duration: int
    function: str
    reason: str


class Counter:
    """A number that only grows. Thread-safe."""

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
