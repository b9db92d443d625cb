"""The block that is traced."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflow_ipu import metrics
from tensorflow_ipu._base import tracepoints
from tensorflow_ipu._tensorflow import profiler
from tensorflow_ipu.machine import Report
from tensorflow_ipu.tracing import _measured

if TYPE_CHECKING:
    FilePath = str | os.PathLike[str]


class Chrome:
    """A trace that is being made: processes of tracks of slices, and counters. Times are in nanoseconds."""

    def __init__(self, begin: int, processes: Sequence[str] = ()) -> None:
        """Makes an empty trace."""
        self._begin = begin
        self._order = {name: number for number, name in enumerate(processes)}
        self._processes: dict[str, int] = {}
        self._tracks: dict[tuple[str, str], int] = {}
        self._events: list[dict[str, Any]] = []
        # A group of tracks: when each of them is free again.
        self._free: dict[tuple[str, str], list[float]] = {}

    def add_slice(
        self,
        process: str,
        track: str,
        name: str,
        begin: float,
        duration: float,
        kind: str,
        *,
        colour: str = "",
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Adds a slice."""
        process_id = self._process(process)
        at, end = self._at(begin), self._at(begin + duration)
        event = {"ph": "X", "pid": process_id, "tid": self._track(process, track), "ts": at}
        event |= {"dur": round(end - at, 3), "name": name, "cat": kind}
        self._events.append(
            event | ({"cname": colour} if colour else {}) | ({"args": dict(details)} if details else {})
        )

    def add_beside(
        self, process: str, tracks: str, name: str, begin: float, duration: float, kind: str, **more: Any
    ) -> None:
        """Adds a slice on the first of several tracks that is free then: slices of one track must not overlap.

        The arguments are those of `add_slice`; all slices of a group of tracks come in the order of their begin.
        """
        free = self._free.setdefault((process, tracks), [])
        lane = next((at for at, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [begin + duration]
        track = f"{tracks} ({lane + 1})" if lane else tracks
        self.add_slice(process, track, name, begin, duration, kind, **more)

    def add_value(self, process: str, name: str, at: float, values: Mapping[str, float]) -> None:
        """Adds the values of a counter at a moment."""
        event = {"ph": "C", "pid": self._process(process), "name": name, "ts": self._at(at)}
        self._events.append(event | {"args": dict(values)})

    def trace(self) -> dict[str, Any]:
        """The trace, as what `json.dump` takes."""
        return {"traceEvents": self._events, "displayTimeUnit": "ms"}

    def _at(self, time: float) -> float:
        # In whole nanoseconds, as viewers keep it: slices that touch would overlap otherwise, and are dropped then.
        return round(time - self._begin) / 1e3

    def _process(self, name: str) -> int:
        number = self._processes.get(name)
        if number is None:
            number = self._processes[name] = len(self._processes)
            about = {"ph": "M", "pid": number, "tid": 0}
            place = self._order.get(name, len(self._order) + number)
            self._events.append({**about, "name": "process_name", "args": {"name": name}})
            self._events.append({**about, "name": "process_sort_index", "args": {"sort_index": place}})
        return number

    def _track(self, process: str, name: str) -> int:
        number = self._tracks.get((process, name))
        if number is None:
            number = self._tracks[process, name] = len(self._tracks) + 1
            where = {"ph": "M", "pid": self._processes[process], "tid": number}
            self._events.append(where | {"name": "thread_name", "args": {"name": name}})
            self._events.append(where | {"name": "thread_sort_index", "args": {"sort_index": number}})
        return number


@contextlib.contextmanager
def trace(path: FilePath, *, logdir: FilePath | None = None, report: Report | None = None) -> Iterator[None]:
    """A block whose runs are measured by TensorFlow's profiler, and written as a trace that Perfetto opens.

        with ipu.trace("trace.json"):
            strategy.run(program, (iterator,))

    The trace (https://ui.perfetto.dev, or chrome://tracing) has the operations of programs by thread, one slice each time
    that one ran; what programs waited for, on tracks of their own; the pumps, which read datasets; runs, traces and
    compilations; and what code marked through `libpvti`. Trace few runs: each operation of each iteration is in it.

    Args:
      path: The file to write; JSON, in Chrome's format.
      logdir: A folder that gets the profile as TensorFlow writes it, which TensorBoard's profile plugin opens. Without it,
        that is deleted.
      report: What a machine would make of the program, as `IPUStrategy.report` says it: the trace shows it beside the
        first run in the block, on the same axis.

    Raises:
      TypeError: An argument has the wrong type.
      FileNotFoundError: The folder of `path` does not exist.
      RuntimeError: Another trace is being recorded.
      tf.errors.AlreadyExistsError: TensorFlow's profiler is running.
    """
    for name, value in (("path", path), ("logdir", logdir)):
        if not isinstance(value, (str, os.PathLike)) and (name == "path" or value is not None):
            raise TypeError(f"`{name}` must be a path, and `{value!r}` is none")
    if report is not None and not isinstance(report, Report):
        raise TypeError(f"`report` must be what `IPUStrategy.report` returned, and `{report!r}` is not")
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"there is no folder `{file.parent}` for the trace `{path}`; make it first")
    with contextlib.ExitStack() as stack:
        folder = os.fspath(logdir) if logdir is not None else stack.enter_context(tempfile.TemporaryDirectory())
        recording = tracepoints.start()
        if recording is None:
            raise RuntimeError(f"the trace `{path}` cannot begin: another one is being recorded; end that block first")
        stack.callback(tracepoints.stop)
        begin, ahead = time.monotonic_ns(), _clocks_apart()
        profiler.start(folder)
        try:
            yield
        finally:
            profiler.stop()
            end = time.monotonic_ns()
            predicted = [] if report is None else [_measured.process_of(report)]
            # What is compared stands together: runs and their prediction, waits and the pumps.
            groups = [_measured.RUNS, *predicted, *_measured.GROUPS]
            chrome, times = Chrome(begin, groups), metrics.times_between(begin, end)
            _measured.note_runs_of_graphs(recording, times)
            _measured.add_runs(chrome, recording)
            _measured.add_waits(chrome, times)
            _measured.add_profile(chrome, profiler.measured(folder), ahead)
            _measured.add_marks(chrome, recording)
            if report is not None:
                _measured.add(chrome, report, recording)
            file.write_text(json.dumps(chrome.trace()))


def _clocks_apart() -> float:
    """How far the clock of the profiler is ahead of the monotonic one, which marks and waits have, in nanoseconds."""
    looks = []
    for _ in range(10):  # Another process may have the core between two looks.
        before, other, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        looks.append((after - before, other - (before + after) / 2))
    return min(looks)[1]
