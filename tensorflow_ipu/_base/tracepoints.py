"""Spans and values that code marks for a trace. Where no trace is being recorded, a mark costs next to nothing."""

from __future__ import annotations

import threading
import time
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
        """Nothing is marked yet."""
        self.spans: list[TimedSpan] = []
        self.values: list[Value] = []


_lock = threading.Lock()
_recordings: list[Recording] = []  # One at most.


def start() -> Recording | None:
    """Begins to record; None where somebody records already."""
    with _lock:
        if _recordings:
            return None
        _recordings.append(Recording())
        return _recordings[0]


def stop() -> None:
    """Ends the recording."""
    with _lock:
        _recordings.clear()


def is_recording() -> bool:
    """Whether marks are recorded now."""
    return bool(_recordings)


def mark(channel: str, name: str, begin: int, end: int | None = None, details: Mapping[str, int] | None = None) -> None:
    """Records a span of this thread that began then, by `time.monotonic_ns`, and ended then, or now."""
    for recording in _recordings:
        ended = time.monotonic_ns() if end is None else end
        recording.spans.append(TimedSpan(channel, name, begin, ended, threading.get_ident(), details or {}))


def note_value(graph: str, series: str, value: float) -> None:
    """Records a number."""
    for recording in _recordings:
        recording.values.append(Value(graph, series, time.monotonic_ns(), value))
