"""Counts and times of traces, compilations, runs and feeds, named as in PyTorch/XLA's `torch_xla.debug.metrics`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tensorflow_ipu._base import tracepoints
from tensorflow_ipu._base.checks import check_instance
from tensorflow_ipu._base.notebook import Facts, NotebookText, Table
from tensorflow_ipu._base.tracepoints import KEPT, Sample, Summary
from tensorflow_ipu._native.library import native

__all__ = ["clear_metrics", "counter_names", "counter_value", "metric_data", "metric_names", "metrics_report"]

_MOST = 16384  # The kernels keep no more.
_PERCENTS = (1, 5, 10, 20, 50, 80, 90, 95, 99)
_OF_QUEUE = ("Elements", "Bytes", "Waits", "WaitNanoseconds")
_LEVELS = ("Ready", "Depth")
_OF_INFEEDS = ("Waits", "WaitNanoseconds", "Depth")  # Programs never wait for an outfeed, which has no depth.
_GRAPH_RUNS = "GraphRunTime"
_HOST_KERNELS = "HostKernelCalls"
_KINDS = {"infeed": "Infeed", "outfeed": "Outfeed"}


@dataclass
class _Snapshot:
    """All numbers at one moment; `counters` only grow, `levels` come and go with their queues."""

    counters: dict[str, int] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, Summary] = field(default_factory=dict)
    graph_runs: Summary = field(default_factory=Summary)  # Those of `RunTime` that graphs ran.


# What is taken off the counters, and when that was, by the monotonic clock in nanoseconds.
_cleared = _Snapshot()
_cleared_at = 0


def counter_names() -> list[str]:
    """Returns the names of all counters, sorted; those of a queue end with its name, and disappear with it."""
    now = _read()
    return sorted([*now.counters, *now.levels])


def counter_value(name: str) -> int | None:
    """Returns one of `counter_names()` since the process began, or since `clear_metrics`; None for no such counter.

    Raises:
      TypeError: `name` is no string.
    """
    _check_name(name)
    now = _read()
    if name in now.levels:
        return now.levels[name]
    return now.counters[name] - _cleared.counters.get(name, 0) if name in now.counters else None


def metric_names() -> list[str]:
    """Returns the names of all metrics, sorted: times that were measured, each with their number."""
    return sorted(_read().metrics)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """Returns the times of one of `metric_names()` since the process began, or since `clear_metrics`.

    Returns:
      How many there were; their sum, in seconds; the latest of them (1,024 at most), each as when it ended, by
      `time.monotonic()`, and how long it was, both in seconds. None where there is no such metric.

    Raises:
      TypeError: `name` is no string.
    """
    _check_name(name)
    summary = _read(KEPT).metrics.get(name)
    if summary is None:
        return None
    count, total, latest = _since(name, summary)
    return count, total / 1e9, [(end / 1e9, duration / 1e9) for end, duration in latest]


def clear_metrics() -> None:
    """Resets counters to 0, and drops times and traces. What queues hold ready stays what it is."""
    global _cleared, _cleared_at
    _cleared, _cleared_at = _read(), time.monotonic_ns()


def metrics_report() -> str:
    """Formats all metrics and counters that are not 0, and why each program was traced, as text for people to read.

    A notebook shows it as tables.

    Metric: InfeedWaitTime
      TotalSamples: 40
      Accumulator: 812.40ms
      Percentiles: 1%=18.20ms; ...; 99%=24.11ms
    Counter: InfeedElements
      Value: 40
    Trace: step (train.py:12), 210.02ms
      Reason: `x`: shape (32, 4) became (16, 4)
    """
    now = _read(KEPT)
    lines: list[str] = []
    times, counts, traces = [], [], []
    for name in sorted(now.metrics):
        count, total, latest = _since(name, now.metrics[name])
        if count == 0:
            continue
        lines += [f"Metric: {name}", f"  TotalSamples: {count}", f"  Accumulator: {_text(total)}"]
        if latest:
            lines.append(f"  Percentiles: {'; '.join(_percentiles(latest))}")
        middle, most = (_percentiles(latest)[at].partition("=")[2] if latest else "" for at in (4, -1))
        times.append((name, count, _text(total), middle, most))
    for name in sorted([*now.counters, *now.levels]):
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
    """Returns the kept times that ended between two moments of the monotonic clock in ns, with those of graphs."""
    now = _read(_MOST)
    summaries = {**now.metrics, _GRAPH_RUNS: now.graph_runs}
    return {
        name: [sample for sample in summary.latest if begin <= sample.end <= end] for name, summary in summaries.items()
    }


def _since(name: str, summary: Summary) -> Summary:
    before = _cleared.metrics.get(name, Summary())
    latest = tuple(sample for sample in summary.latest if sample.end > _cleared_at)
    return Summary(summary.number - before.number, summary.total - before.total, latest)


def _percentiles(latest: tuple[Sample, ...]) -> list[str]:
    durations = sorted(sample.duration for sample in latest)
    return [f"{percent}%={_text(durations[(len(durations) - 1) * percent // 100])}" for percent in _PERCENTS]


def _text(nanoseconds: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f}{unit}"
    return f"{nanoseconds}ns"


def compilations() -> tuple[int, float]:
    """Returns how many programs XLA has compiled in this process, and in how many seconds; `clear_metrics` changes neither."""
    times = _read().metrics["CompileTime"]
    return times.number, times.total / 1e9


def _read(samples: int = 0) -> _Snapshot:
    now = _Snapshot()
    now.metrics["TraceTime"] = tracepoints.trace_times.read()
    for kind in _KINDS.values():
        now.counters.update({f"{kind}Elements": 0, f"{kind}Bytes": 0})
    latest: dict[str, list[Sample]] = {}
    summaries: dict[str, tuple[int, int]] = {}
    for line in native.ipu_metrics(samples).decode(errors="replace").splitlines():
        kind, *fields = line.split(" ")
        if kind == "counter":
            now.counters[fields[0]] = int(fields[1])
        elif kind == "metric":
            summaries[fields[0]] = int(fields[1]), int(fields[2])
        elif kind == "sample":
            latest.setdefault(fields[0], []).append(Sample(int(fields[1]), int(fields[2])))
        elif kind == "gone":
            _add_queue(now, fields[0], None, fields[1:5])
        else:
            _add_queue(now, kind, " ".join(fields[7:]), fields[1:7])
    for name, (count, total) in summaries.items():
        now.metrics[name] = Summary(count, total, tuple(latest.get(name, ())))
    # Runs of graphs are noted where they run; all others, by Python.
    now.graph_runs = now.metrics.pop(_GRAPH_RUNS)
    runs, graph_runs = tracepoints.run_times.read(), now.graph_runs
    both = sorted([*runs.latest, *graph_runs.latest])[-samples:] if samples else []
    now.metrics["RunTime"] = Summary(runs.number + graph_runs.number, runs.total + graph_runs.total, tuple(both))
    now.counters["FailedRuns"] = tracepoints.failed_runs.value + now.counters.pop("FailedGraphRuns")
    now.counters[_HOST_KERNELS] = sum(count for name, count in now.counters.items() if name.startswith(_HOST_KERNELS))
    return now


def _add_queue(now: _Snapshot, kind: str, name: str | None, values: list[str]) -> None:
    """Adds what passed through a queue to the counters of all queues, and where it has a name, to its own."""
    for what, value in zip((*_OF_QUEUE, *_LEVELS), map(int, values), strict=False):
        if kind == "outfeed" and what in _OF_INFEEDS:
            continue
        total = f"{_KINDS[kind]}{what}"
        own = f"{total}:{name}"
        if what in _LEVELS:
            now.levels[own] = now.levels.get(own, 0) + value
            continue
        if not what.startswith("Wait"):  # `InfeedWaitTime` has the waits of all.
            now.counters[total] = now.counters.get(total, 0) + value
        if name is not None:
            now.counters[own] = now.counters.get(own, 0) + value


def _check_name(name: object) -> None:
    check_instance("name", name, str, "the name of a metric or counter")
