"""Traces of blocks: runs, waits, operations, marks and predictions."""

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

# Each with the tracks, the name of its slices, and a colour of its own.
_TIMES = {
    "InfeedWaitTime": (_WAITS, "for data", "wait for data", "terrible"),
    "CollectiveWaitTime": (_WAITS, "for other replicas", "wait for a replica", "bad"),
    "CompileTime": (RUNS, "compilations", "XLA compiles", "yellow"),
}

_PUMP = "ipu-pump"
_READ = "Iterator::Root"


def note_runs_of_graphs(recording: Recording, times: Mapping[str, Sequence[Sample]]) -> None:
    """Adds the runs that sessions and functions of the host began, whose names are not known."""
    for end, duration in times.get("GraphRunTime", ()):
        recording.spans.append(TimedSpan(PROGRAMS, "run of a graph's program", end - duration, end, 0))


def add_runs(chrome: Chrome, recording: Recording) -> None:
    """Adds the runs and traces of programs, by thread."""
    for span in sorted(recording.spans, key=lambda span: span.begin):
        if span.channel == PROGRAMS:
            chrome.add_beside(RUNS, "programs", span.name, span.begin, span.end - span.begin, "run")


def add_waits(chrome: Chrome, times: Mapping[str, Sequence[Sample]]) -> None:
    """Adds waits and compilations, of metrics by name."""
    for metric, (process, track, name, colour) in _TIMES.items():
        begins = sorted((sample.end - sample.duration, sample.duration) for sample in times.get(metric, ()))
        for begin, duration in begins:
            chrome.add_beside(process, track, name, begin, duration, "wait", colour=colour)


def add_profile(chrome: Chrome, events: Iterable[Measured], ahead: float) -> None:
    """Adds the operations of programs, by the thread that ran them, and the reads of pumps."""
    seen: Counter[tuple[str, str]] = Counter()
    numbers: dict[tuple[str, int], int] = {}
    running: dict[
        int, list[float]
    ] = {}  # Of each thread: when the operations end that are under way, the latest first.
    for event in sorted(events, key=lambda event: (event.begin, -event.duration)):
        begin = event.begin - ahead
        own = event.line.rpartition("/")[0] or event.line
        if "hlo_op" in event.details:
            program = str(event.details.get("hlo_module", ""))
            key = program, event.name
            seen[key] += 1
            track = f"{own} {numbers.setdefault((own, event.thread), len(numbers) + 1)}"
            kind, details = _kind(event.name), {"program": program, "time": seen[key]}
            end = begin + event.duration
            begin = _begin_beside(running.setdefault(event.thread, []), begin, end)
            chrome.add_slice(_OPERATIONS, track, event.name, begin, end - begin, kind, details=details)
        elif own == _PUMP and event.name == _READ:
            track = f"pump {numbers.setdefault((own, event.thread), len(numbers) + 1)}"
            chrome.add_slice(_HOST, track, "read an element", begin, event.duration, "pump")


def _begin_beside(ends: list[float], begin: float, end: float) -> float:
    """When an operation begins: within those that are under way, or after them."""
    # Some end a few nanoseconds after the next one of their thread has begun, and viewers drop what overlaps.
    while ends and ends[-1] < end:
        begin = max(begin, min(ends.pop(), end))
    ends.append(end)
    return begin


def add_marks(chrome: Chrome, recording: Recording) -> None:
    """Adds what the user's code has marked."""
    threads: dict[str, dict[int, int]] = {}  # Of each channel, in the order in which they mark.
    for span in sorted(recording.spans, key=lambda span: (span.begin, -span.end)):
        if span.channel != PROGRAMS:
            own = threads.setdefault(span.channel, {})
            number = own.setdefault(span.thread, len(own) + 1)
            track, duration = span.channel if number == 1 else f"{span.channel}, thread {number}", span.end - span.begin
            chrome.add_slice(_MARKS, track, span.name, span.begin, duration, "mark", details=span.details)
    latest: dict[str, dict[str, float]] = {}
    for value in recording.values:
        numbers = latest.setdefault(value.graph, {})
        numbers[value.series] = value.value
        chrome.add_value(_MARKS, value.graph, value.at, numbers)


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
    """A block whose runs are measured by TensorFlow's profiler, and written as a trace that Perfetto opens.

        with ipu.trace("trace.json"):
            strategy.run(program, (iterator,))

    The trace (https://ui.perfetto.dev, or chrome://tracing) has the operations of programs by thread, their waits, the
    pumps that read datasets, runs, traces and compilations, and what code marked through `libpvti`. Trace few runs: each
    operation of each iteration is in it.

    Args:
      path: The file to write; JSON, in Chrome's format.
      logdir: A folder that gets the profile as TensorFlow writes it, for TensorBoard's profile plugin.
      report: A prediction of `IPUStrategy.report`, which the trace shows beside the first run in the block.

    Raises:
      TypeError: An argument has the wrong type.
      FileNotFoundError: The folder of `path` does not exist.
      RuntimeError: Another trace is being recorded.
      tf.errors.AlreadyExistsError: TensorFlow's profiler is running.
    """
    for name, value in (("path", path), ("logdir", logdir)):
        if not isinstance(value, (str, os.PathLike)) and (name == "path" or value is not None):
            raise TypeError(f"`{name}` must be a path, and `{value!r}` is none")
    if report is not None:
        from tensorflow_ipu.analysis import machine

        if not isinstance(report, machine.Report):
            raise TypeError(f"`report` must be what `IPUStrategy.report` returned, and `{report!r}` is not")
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"there is no folder `{file.parent}` for the trace `{path}`; make it first")
    with contextlib.ExitStack() as stack:
        # Of this process alone: others may write their profiles to `logdir`.
        folder = stack.enter_context(tempfile.TemporaryDirectory())
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
            predicted = [] if report is None else [f"prediction for {report.system.name}"]
            # What is compared stands together: runs and their prediction, waits and the pumps.
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
    """Copies what the profiler wrote to `logdir`, which may be remote, and where TensorBoard may be reading."""
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


def _clocks_apart() -> float:
    """How far the profiler's clock is ahead of the monotonic one, in nanoseconds."""
    looks = []
    for _ in range(10):  # Another process may have the core between two looks.
        before, other, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        looks.append((after - before, other - (before + after) / 2))
    return min(looks)[1]
