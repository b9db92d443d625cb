"""The context manager `trace`, which records the runs, waits, operations and marks of a block."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import metrics
from tensorflow_ipu._base import files, tracepoints
from tensorflow_ipu._base.chrome import Chrome
from tensorflow_ipu._base.tracepoints import PROGRAMS, Recording, Sample, TimedSpan
from tensorflow_ipu._tensorflow import profiler
from tensorflow_ipu._tensorflow.profiler import Measured

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine import Report

FilePath = str | os.PathLike[str]

RUNS = "runs"
_WAITS = "waits"
_OPERATIONS = "operations"
_HOST = "host"
_MARKS = "marks"
GROUPS = (_MARKS, _WAITS, _HOST, _OPERATIONS)

# For each metric: its group of tracks, its track, the name of its slices, and their colour.
_TIMES = {
    "InfeedWaitTime": (_WAITS, "for data", "wait for data", "terrible"),
    "CollectiveWaitTime": (_WAITS, "for other replicas", "wait for a replica", "bad"),
    "CompileTime": (RUNS, "compilations", "XLA compiles", "yellow"),
}

_PUMP = "ipu-pump"
_READ = "Iterator::Root"


def note_runs_of_graphs(recording: Recording, times: Mapping[str, Sequence[Sample]]) -> None:
    """Adds the runs that sessions and functions of the host started. Their names are unknown."""
    for end, duration in times.get("GraphRunTime", ()):
        recording.spans.append(TimedSpan(PROGRAMS, "run of a graph's program", end - duration, end, 0))


def add_runs(chrome: Chrome, recording: Recording) -> None:
    """Adds the runs and the tracing of programs, one track per thread."""
    for span in sorted(recording.spans, key=lambda span: span.begin):
        if span.channel == PROGRAMS:
            chrome.add_beside(RUNS, "programs", span.name, span.begin, span.end - span.begin, "run")


def add_waits(chrome: Chrome, times: Mapping[str, Sequence[Sample]]) -> None:
    """Adds waits and compilations from `times`, the samples of each metric."""
    for metric, (process, track, name, colour) in _TIMES.items():
        begins = sorted((sample.end - sample.duration, sample.duration) for sample in times.get(metric, ()))
        for begin, duration in begins:
            chrome.add_beside(process, track, name, begin, duration, "wait", colour=colour)


def add_profile(chrome: Chrome, events: Iterable[Measured], ahead: float) -> None:
    """Adds the operations of programs, with tracks by thread, and the reads of pumps.

    `ahead` is the offset of the profiler's clock from the monotonic clock, in nanoseconds.
    """
    occurrences: Counter[tuple[str, str]] = Counter()
    thread_numbers: dict[tuple[str, int], int] = {}
    running: dict[int, list[float]] = {}  # For each thread: the ends of its running operations, the latest first.
    for event in sorted(events, key=lambda event: (event.begin, -event.duration)):
        begin = event.begin - ahead
        line = event.line.rpartition("/")[0] or event.line
        if "hlo_op" in event.details:
            program = str(event.details.get("hlo_module", ""))
            key = program, event.name
            occurrences[key] += 1
            track = f"{line} {thread_numbers.setdefault((line, event.thread), len(thread_numbers) + 1)}"
            kind, details = _kind(event.name), {"program": program, "time": occurrences[key]}
            end = begin + event.duration
            begin = _begin_without_overlap(running.setdefault(event.thread, []), begin, end)
            chrome.add_slice(_OPERATIONS, track, event.name, begin, end - begin, kind, details=details)
        elif line == _PUMP and event.name == _READ:
            track = f"pump {thread_numbers.setdefault((line, event.thread), len(thread_numbers) + 1)}"
            chrome.add_slice(_HOST, track, "read an element", begin, event.duration, "pump")


def _begin_without_overlap(ends: list[float], begin: float, end: float) -> float:
    """Returns the begin of an operation's slice, later if it would overlap a slice of its thread without lying within it.

    `ends` has the ends of the thread's running operations, the latest first. An operation that ends after the innermost of
    them cannot lie within it, so it begins after it: `ends=[20, 10], begin=9, end=12 -> 10`, and `ends` becomes `[20, 12]`.
    """
    # Some operations end a few nanoseconds after the next one of their thread began. Viewers drop overlapping slices.
    while ends and ends[-1] < end:
        begin = max(begin, min(ends.pop(), end))
    ends.append(end)
    return begin


def add_marks(chrome: Chrome, recording: Recording) -> None:
    """Adds the marks and values that the user's code recorded."""
    threads: dict[str, dict[int, int]] = {}  # For each channel: its threads, numbered in order of their first mark.
    for span in sorted(recording.spans, key=lambda span: (span.begin, -span.end)):
        if span.channel != PROGRAMS:
            thread_numbers = threads.setdefault(span.channel, {})
            number = thread_numbers.setdefault(span.thread, len(thread_numbers) + 1)
            track, duration = span.channel if number == 1 else f"{span.channel}, thread {number}", span.end - span.begin
            chrome.add_slice(_MARKS, track, span.name, span.begin, duration, "mark", details=span.details)
    latest: dict[str, dict[str, float]] = {}
    for value in recording.values:
        series = latest.setdefault(value.graph, {})
        series[value.series] = value.value
        chrome.add_value(_MARKS, value.graph, value.at, series)


def _kind(operation: str) -> str:
    if operation.startswith(("IpuInfeed", "IpuOutfeed")):
        return "feed"
    if operation.startswith(("IpuAll", "IpuReduce", "IpuBroadcast", "IpuCollective")):
        return "collective"
    if operation.startswith(("while", "conditional", "call")):
        return "control"
    return "host" if operation.startswith("Ipu") else "operation"


@contextlib.contextmanager
def trace(path: FilePath, *, logdir: FilePath | None = None, report: Report | None = None) -> Iterator[None]:
    """Records the block with TensorFlow's profiler, and writes a trace for Perfetto.

        with ipu.trace("trace.json"):
            strategy.run(program, (iterator,))

    Open the trace at https://ui.perfetto.dev or chrome://tracing. It shows the operations of programs by thread, their
    waits, the pumps that read datasets, runs, tracing and compilations, and the marks of `libpvti`. Trace only a few runs:
    the file holds each operation of each iteration.

    Args:
      path: The file to write, in Chrome's JSON format.
      logdir: A folder for the profile in TensorFlow's format, for TensorBoard's profile plugin.
      report: A prediction of `IPUStrategy.report`, which the trace shows next to the first run in the block.

    Raises:
      TypeError: An argument has the wrong type.
      FileNotFoundError: The folder of `path` does not exist.
      RuntimeError: Another trace is being recorded.
      tf.errors.AlreadyExistsError: TensorFlow's profiler is already running.
    """
    for name, value in (("path", path), ("logdir", logdir)):
        if not isinstance(value, (str, os.PathLike)) and (name == "path" or value is not None):
            raise TypeError(f"`{name}` must be a path, but is `{value!r}`")
    if report is not None:
        from tensorflow_ipu.analysis import machine

        if not isinstance(report, machine.Report):
            raise TypeError(f"`report` must be a report of `IPUStrategy.report`, but is `{report!r}`")
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"there is no folder `{file.parent}` for the trace `{path}`; make it first")
    with contextlib.ExitStack() as stack:
        # A folder of this process only, since other processes may write their profiles to `logdir`.
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        recording = tracepoints.start()
        if recording is None:
            raise RuntimeError(f"the trace `{path}` cannot begin: another one is being recorded; end that block first")
        stack.callback(tracepoints.stop)
        begin, ahead = time.monotonic_ns(), _clock_offset()
        profiler.start(folder)
        try:
            yield
        finally:
            profiler.stop()
            end = time.monotonic_ns()
            predicted = [] if report is None else [f"prediction for {report.system.name}"]
            # Groups to compare are next to each other: runs and their prediction, waits and pumps.
            groups = [RUNS, *predicted, *GROUPS]
            chrome, times = Chrome(begin, groups), metrics.times_between(begin, end)
            note_runs_of_graphs(recording, times)
            add_runs(chrome, recording)
            add_waits(chrome, times)
            add_profile(chrome, profiler.measured(folder), ahead)
            add_marks(chrome, recording)
            if report is not None:
                from tensorflow_ipu.analysis import predicted_trace

                predicted_trace.add(chrome, predicted[0], report, recording)
            files.write(file, json.dumps(chrome.trace()))
            if logdir is not None:
                _copy(folder, os.fspath(logdir))


def _copy(folder: str, logdir: str) -> None:
    """Copies the profiler's files to `logdir`, which may be remote. TensorBoard never reads an unfinished copy."""
    for file in Path(folder).rglob("*"):
        if file.is_file():
            target = f"{logdir}/{file.relative_to(folder)}"
            unfinished = f"{target}.{os.urandom(8).hex()}.unfinished"
            tf.io.gfile.makedirs(os.path.dirname(target))
            try:
                tf.io.gfile.copy(str(file), unfinished)
                tf.io.gfile.rename(unfinished, target, overwrite=True)
            except BaseException:
                if tf.io.gfile.exists(unfinished):
                    tf.io.gfile.remove(unfinished)
                raise


def _clock_offset() -> float:
    """Returns the offset of the profiler's clock from the monotonic clock, in nanoseconds."""
    measurements = []
    for _ in range(10):  # The shortest measurement is the best: another process may interrupt the others.
        start, profiler_time, stop = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        measurements.append((stop - start, profiler_time - (start + stop) / 2))
    return min(measurements)[1]
