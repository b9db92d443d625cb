"""Plans as text, as pictures and as traces."""

import json
import sys
from typing import Any

import pytest

from tensorflow_ipu import pipelining
from tensorflow_ipu.analysis.pipelines.picture import EXCHANGE
from tensorflow_ipu.pipelining import StageCost, draw_plan, parallel_phases_plan, pipeline_plan, plan_text, plan_trace

PNG = b"\x89PNG\r\n\x1a\n"


def size(path):
    """Returns the width and height of a PNG file in pixels."""
    head = path.read_bytes()[:24]
    assert head.startswith(PNG)
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_the_text_of_a_plan_fits_its_width_and_says_what_its_letters_mean():
    plan = pipeline_plan(6, 24)
    for width in (60, 120, 200):
        assert max(map(len, plan_text(plan, width).splitlines())) <= width
    assert str(plan) == plan_text(plan)
    text = plan_text(pipeline_plan(4, 4096))  # Long plans are written as sections.
    assert "steady, micro-batches from 0, 4089 times, each 1 on" in text
    assert "0B+0 0F+7" in text
    assert len(text) < 3000
    legend = plan_text(pipeline_plan(3, 6)).rpartition("\n\n")[2]
    assert "B backward; U weight update; . is idle; | ends a step; A is stage 0" in legend
    assert "recomputation" not in legend
    phases = " ".join(plan_text(parallel_phases_plan([0, 1, 0])).rpartition("\n\n")[2].split())
    assert "L load before a pass; S save after it" in phases
    assert "backward" not in plan_text(pipeline_plan(3, 3, training=False))


def test_pictures_of_plans_are_written_or_refused(tmp_path, monkeypatch, refused):
    def drawn(*plans, **options):
        pipelining.draw_plans(list(plans), tmp_path / "plan.png", **options)
        return size(tmp_path / "plan.png")

    draw_plan(pipeline_plan(2, 4096), tmp_path / "long.png")
    width, height = size(tmp_path / "long.png")
    assert 100 < height < width < 4000  # Most iterations of the steady section are omitted.
    plans = [pipeline_plan(2, 4, recomputation_mode=mode) for mode in (None, pipelining.RecomputationMode.Auto)]
    several = drawn(*plans, parallel_phases_plan([[0, 2], [1, 3]]), titles=["a", "b", "c"])
    assert several[1] > 2 * drawn(plans[0])[1]
    refused(ValueError, "`plans` is empty", drawn)
    refused(ValueError, "`titles` has 2 items, but there are 1 plans", drawn, pipeline_plan(2, 4), titles=["a", "b"])
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    refused(ImportError, r"tensorflow-ipu\[report\]", drawn, pipeline_plan(2, 4))


@pytest.mark.parametrize("recompute", [None, pipelining.RecomputationMode.Auto])
def test_a_trace_has_each_task_at_its_time(recompute):
    plan = pipeline_plan(3, 6, recomputation_mode=recompute)
    costs = StageCost(forward=2, backward=3)
    trace = plan_trace(plan, costs, microseconds=10)
    tracks = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert tracks == {1: "sections", 2: "IPU 0", 3: "IPU 1", 4: "IPU 2"}
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] > 1]
    assert len(slices) == len(plan.table().step)
    for event in slices:
        instruction: Any = pipelining.parse_instruction(event["args"]["instruction"])
        assert event["dur"] == pytest.approx(10 * costs.time(instruction))
        assert tracks[event["tid"]] == f"IPU {instruction.stage}"
    sections = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == 1]
    assert [event["name"] for event in sections] == [section.name for section in plan.sections]
    assert sum(event["dur"] for event in sections) == pytest.approx(10 * pipelining.plan_cost(plan, costs).time)


@pytest.mark.parametrize("schedule", pipelining.PipelineSchedule, ids=lambda schedule: schedule.name)
def test_the_counter_of_a_trace_reaches_the_stash_depth_and_ends_empty(schedule):
    plan = pipeline_plan(3, 6, schedule)
    counters = [event for event in plan_trace(plan)["traceEvents"] if event["ph"] == "C"]
    for stage in range(3):
        counts = [event["args"]["micro-batches"] for event in counters if event["name"] == f"stash of IPU {stage}"]
        assert max(counts) == plan.stash_depth(stage)
        assert counts[-1] == 0


def test_a_trace_is_written_as_json(tmp_path):
    plan = parallel_phases_plan([0, 1])
    pipelining.write_trace(plan, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"A forward 0", "A load (forward) 0", "B save (update)", "A update"} <= names
    assert trace["otherData"]["steps"] == plan.step_count


def test_with_a_machine_traces_and_pictures_are_in_seconds_and_show_exchanges(tmp_path):
    plan = pipeline_plan(3, 6)
    costs = StageCost(forward=2e-3, input_bytes=2**20, update=1e-3)
    cost = pipelining.plan_cost(plan, costs, machine="GC200")
    events = plan_trace(plan, costs, machine="GC200")["traceEvents"]
    sections = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert sum(event["dur"] for event in sections) == pytest.approx(1e6 * cost.time, rel=1e-4)
    exchanges = [event["dur"] for event in events if event.get("cat") == "exchange"]
    assert sum(exchanges) == pytest.approx(1e6 * cost.time * cost.exchange_share, rel=1e-3)
    assert exchanges
    costs = StageCost(forward=1e-4, input_bytes=2**22, update=1e-4)
    draw_plan(plan, tmp_path / "plan.svg", costs, machine="GC200")
    draw_plan(plan, tmp_path / "plain.svg", costs)
    drawn, without_machine = ((tmp_path / name).read_text() for name in ("plan.svg", "plain.svg"))
    assert drawn.count(EXCHANGE.lower()) > 5
    assert EXCHANGE.lower() not in without_machine
    for text in ("exchange between IPUs", "500 us", "a micro-batch"):
        assert text in drawn
        assert text not in without_machine
