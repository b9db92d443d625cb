"""The example of metrics and traces finds what its loop waits for."""

from __future__ import annotations

import json
import re


def test_observing_prints_its_metrics_and_writes_a_trace(run_example, tmp_path):
    *report, waited, _ = run_example("observing", "--steps", "5", "--trace", str(tmp_path / "trace.json"))
    assert "Metric: RunTime" in report
    assert report[report.index("Counter: InfeedElements") + 1] == "  Value: 5"
    assert re.fullmatch(r"5 steps waited \d+ times for data: \d+% of the run", waited)
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert "run of program" in names
