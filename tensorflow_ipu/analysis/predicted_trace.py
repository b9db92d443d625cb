"""Predicted runs in traces, next to measured runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow_ipu._base.tracepoints import PROGRAMS
from tensorflow_ipu._base.units import format_seconds

if TYPE_CHECKING:
    from tensorflow_ipu._base.chrome import Chrome
    from tensorflow_ipu._base.tracepoints import Recording
    from tensorflow_ipu.analysis.machine import Report

# All steps of a run are equal, so a trace of thousands of steps shows the first ones.
_MOST_STEPS = 100


def add(chrome: Chrome, process: str, report: Report, recording: Recording) -> None:
    """Adds a predicted run as a group of tracks that begins with the first measured run."""
    runs = [span for span in recording.spans if span.channel == PROGRAMS and span.name.startswith("run of ")]
    if not runs:
        return
    first = min(runs, key=lambda span: span.begin)
    begin = first.begin
    times = {"predicted": format_seconds(report.seconds), "measured here": format_seconds((first.end - begin) / 1e9)}
    name = f"run of {report.program}"
    chrome.add_slice(process, "run", name, begin, report.seconds * 1e9, "prediction", details=times)
    if report.timeline is not None:
        for task in report.timeline.tasks:
            start, duration = begin + task.begin * 1e9, (task.end - task.begin) * 1e9
            chrome.add_slice(process, f"IPU {task.ipu}", f"{task.label} {task.kind}", start, duration, task.kind)
        return
    step = report.seconds / report.steps * 1e9
    for number in range(min(report.steps, _MOST_STEPS)):
        chrome.add_slice(process, "steps", f"step {number}", begin + number * step, step, "prediction")
        # The link to the host is a separate track, because transfers may overlap the work of the chip.
        ends = {"chip": begin + number * step, "link to the host": begin + number * step}
        for operation in report.operations:
            for track, seconds in (("chip", operation.seconds - operation.host), ("link to the host", operation.host)):
                duration = seconds / report.steps * 1e9
                if round(ends[track] + duration) > round(ends[track]):  # Viewers do not show shorter slices.
                    chrome.add_slice(process, track, operation.name, ends[track], duration, operation.kind)
                ends[track] += duration
