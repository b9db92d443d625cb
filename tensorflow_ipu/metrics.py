"""Counters and times of tracing, compilation, runs and feeds, named as in PyTorch/XLA's `torch_xla.debug.metrics`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tensorflow_ipu._base import tracepoints
from tensorflow_ipu._base.checks import check_instance
from tensorflow_ipu._base.notebook import Facts, NotebookText, Table
from tensorflow_ipu._base.tracepoints import KEPT, Sample, Summary
from tensorflow_ipu._native.library import native

__all__ = ["clear_metrics", "counter_names", "counter_value", "metric_data", "metric_names", "metrics_report"]

_MAXIMUM_SAMPLES = 16384  # The kernels store at most this number per metric.
_PERCENTS = (1, 5, 10, 20, 50, 80, 90, 95, 99)
_QUEUE_COUNTERS = ("Elements", "Bytes", "Waits", "WaitNanoseconds")
_QUEUE_LEVELS = ("Ready", "Depth")
_INFEED_ONLY = ("Waits", "WaitNanoseconds", "Depth")  # Programs never wait for an outfeed: it has no depth.
_GRAPH_RUNS = "GraphRunTime"
_HOST_KERNELS = "HostKernelCalls"
_QUEUE_KINDS = {"infeed": "Infeed", "outfeed": "Outfeed"}


@dataclass
class _Snapshot:
    """All counters and times at one moment. `counters` only grow; `levels` exist as long as their queues."""

    counters: dict[str, int] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, Summary] = field(default_factory=dict)
    graph_runs: Summary = field(default_factory=Summary)  # The runs of graphs, which `RunTime` includes.


# The values at the last `clear_metrics`, which are subtracted from later values, and its monotonic time in nanoseconds.
_cleared = _Snapshot()
_cleared_at = 0


def counter_names() -> list[str]:
    """Returns the sorted names of all counters.

    The name of a queue's counter ends with the name of the queue. It exists as long as the queue.
    """
    snapshot = _read()
    return sorted([*snapshot.counters, *snapshot.levels])


def counter_value(name: str) -> int | None:
    """Returns the value of a counter since the process began or `clear_metrics` was called; None if it does not exist.

    Raises:
      TypeError: `name` is not a string.
    """
    _check_name(name)
    snapshot = _read()
    if name in snapshot.levels:
        return snapshot.levels[name]
    return snapshot.counters[name] - _cleared.counters.get(name, 0) if name in snapshot.counters else None


def metric_names() -> list[str]:
    """Returns the sorted names of all metrics. A metric is a set of measured times."""
    return sorted(_read().metrics)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """Returns the times of a metric since the process began or `clear_metrics` was called.

    Returns:
      The number of times; their sum in seconds; and the latest 1,024 of them. Each of these is a pair of its end, by
      `time.monotonic()`, and its duration, both in seconds. None if there is no such metric.

    Raises:
      TypeError: `name` is not a string.
    """
    _check_name(name)
    summary = _read(KEPT).metrics.get(name)
    if summary is None:
        return None
    count, total, latest = _since(name, summary)
    return count, total / 1e9, [(end / 1e9, duration / 1e9) for end, duration in latest]


def clear_metrics() -> None:
    """Resets counters to 0, and drops times and traces. The current levels of queues do not change."""
    global _cleared, _cleared_at
    _cleared, _cleared_at = _read(), time.monotonic_ns()


def metrics_report() -> str:
    """Returns a text with all metrics and counters that are not 0, and the reason of each trace of a program.

    A notebook shows it as tables. Example:

        Metric: InfeedWaitTime
          TotalSamples: 40
          Accumulator: 812.40ms
          Percentiles: 1%=18.20ms; ...; 99%=24.11ms
        Counter: InfeedElements
          Value: 40
        Trace: step (train.py:12), 210.02ms
          Reason: `x`: shape (32, 4) became (16, 4)
    """
    snapshot = _read(KEPT)
    lines: list[str] = []
    times, counts, traces = [], [], []
    for name in sorted(snapshot.metrics):
        count, total, latest = _since(name, snapshot.metrics[name])
        if count == 0:
            continue
        lines += [f"Metric: {name}", f"  TotalSamples: {count}", f"  Accumulator: {_text(total)}"]
        if latest:
            lines.append(f"  Percentiles: {'; '.join(_percentiles(latest))}")
        median, highest = (_percentiles(latest)[index].partition("=")[2] if latest else "" for index in (4, -1))
        times.append((name, count, _text(total), median, highest))
    for name in sorted([*snapshot.counters, *snapshot.levels]):
        value = counter_value(name)
        if value:
            lines += [f"Counter: {name}", f"  Value: {value}"]
            counts.append((name, f"{value:,}"))
    for trace in list(tracepoints.traces):
        if trace.end > _cleared_at:
            lines += [f"Trace: {trace.function}, {_text(trace.duration)}", f"  Reason: {trace.reason}"]
            traces.append((trace.function, trace.reason, _text(trace.duration)))

    tables = (
        Table(times, ("times", "count", "in all", "median", "99 %"), 4),
        Table(counts, ("counters", ""), 1),
        Table(traces, ("traces", "why", "time"), 1),
    )
    nothing = "" if lines else "Nothing was traced or run yet."
    facts = Facts("Metrics", nothing, [table for table in tables if table.rows])
    return NotebookText("\n".join(lines) or nothing, facts)


def times_between(begin: int, end: int) -> dict[str, list[Sample]]:
    """Returns the stored times that ended between two monotonic times in nanoseconds, including the runs of graphs."""
    snapshot = _read(_MAXIMUM_SAMPLES)
    summaries = {**snapshot.metrics, _GRAPH_RUNS: snapshot.graph_runs}
    return {
        name: [sample for sample in summary.latest if begin <= sample.end <= end] for name, summary in summaries.items()
    }


def _since(name: str, summary: Summary) -> Summary:
    cleared = _cleared.metrics.get(name, Summary())
    latest = tuple(sample for sample in summary.latest if sample.end > _cleared_at)
    return Summary(summary.number - cleared.number, summary.total - cleared.total, latest)


def _percentiles(latest: tuple[Sample, ...]) -> list[str]:
    durations = sorted(sample.duration for sample in latest)
    return [f"{percent}%={_text(durations[(len(durations) - 1) * percent // 100])}" for percent in _PERCENTS]


def _text(nanoseconds: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f}{unit}"
    return f"{nanoseconds}ns"


def compilations() -> tuple[int, float]:
    """Returns the number of programs that XLA has compiled in this process, and the seconds it took.

    `clear_metrics` does not change them.
    """
    times = _read().metrics["CompileTime"]
    return times.number, times.total / 1e9


def _read(samples: int = 0) -> _Snapshot:
    snapshot = _Snapshot()
    snapshot.metrics["TraceTime"] = tracepoints.trace_times.read()
    for kind in _QUEUE_KINDS.values():
        snapshot.counters.update({f"{kind}Elements": 0, f"{kind}Bytes": 0})
    latest: dict[str, list[Sample]] = {}
    summaries: dict[str, tuple[int, int]] = {}
    for line in native.ipu_metrics(samples).decode(errors="replace").splitlines():
        kind, *fields = line.split(" ")
        if kind == "counter":
            snapshot.counters[fields[0]] = int(fields[1])
        elif kind == "metric":
            summaries[fields[0]] = int(fields[1]), int(fields[2])
        elif kind == "sample":
            latest.setdefault(fields[0], []).append(Sample(int(fields[1]), int(fields[2])))
        elif kind == "gone":
            _add_queue(snapshot, fields[0], None, fields[1:5])
        else:
            _add_queue(snapshot, kind, " ".join(fields[7:]), fields[1:7])
    for name, (count, total) in summaries.items():
        snapshot.metrics[name] = Summary(count, total, tuple(latest.get(name, ())))
    # The kernels record the runs of graphs, and Python records all other runs.
    snapshot.graph_runs = snapshot.metrics.pop(_GRAPH_RUNS)
    runs, graph_runs = tracepoints.run_times.read(), snapshot.graph_runs
    latest_runs = sorted([*runs.latest, *graph_runs.latest])[-samples:] if samples else []
    snapshot.metrics["RunTime"] = Summary(
        runs.number + graph_runs.number, runs.total + graph_runs.total, tuple(latest_runs)
    )
    snapshot.counters["FailedRuns"] = tracepoints.failed_runs.value + snapshot.counters.pop("FailedGraphRuns")
    snapshot.counters[_HOST_KERNELS] = sum(
        count for name, count in snapshot.counters.items() if name.startswith(_HOST_KERNELS)
    )
    return snapshot


def _add_queue(snapshot: _Snapshot, kind: str, name: str | None, values: list[str]) -> None:
    """Adds the values of a queue to the counters of all queues and, if it has a name, to its own counters."""
    for counter, value in zip((*_QUEUE_COUNTERS, *_QUEUE_LEVELS), map(int, values), strict=False):
        if kind == "outfeed" and counter in _INFEED_ONLY:
            continue
        sum_counter = f"{_QUEUE_KINDS[kind]}{counter}"
        queue_counter = f"{sum_counter}:{name}"
        if counter in _QUEUE_LEVELS:
            snapshot.levels[queue_counter] = snapshot.levels.get(queue_counter, 0) + value
            continue
        if not counter.startswith("Wait"):  # `InfeedWaitTime` has the waits of all queues.
            snapshot.counters[sum_counter] = snapshot.counters.get(sum_counter, 0) + value
        if name is not None:
            snapshot.counters[queue_counter] = snapshot.counters.get(queue_counter, 0) + value


def _check_name(name: object) -> None:
    check_instance("name", name, str, "the name of a metric or counter")
