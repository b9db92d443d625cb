"""What Python counts and times of programs, for `tensorflow_ipu.metrics` to read. It needs no TensorFlow."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

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
        """Notes a time that began at `begin`, by `time.monotonic_ns`, and ends now; returns how long it was."""
        end = time.monotonic_ns()
        with self._lock:
            self._count += 1
            self._total += end - begin
            self._latest.append((end, end - begin))
        return end - begin

    def read(self) -> Summary:
        """All that was noted."""
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
        """Adds one."""
        with self._lock:
            self.value += 1


run_times = Times()
failed_runs = Counter()
trace_times = Times()
traces: deque[Trace] = deque(maxlen=_KEPT_TRACES)
