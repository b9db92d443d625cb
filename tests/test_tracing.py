"""A trace has what ran and what it waited for, on one axis."""

import contextlib
import json
import os

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compat
from tensorflow_ipu._base import tracepoints
from tensorflow_ipu._base.tracepoints import Sample
from tensorflow_ipu._tensorflow.profiler import Measured
from tensorflow_ipu.analysis import predicted_trace
from tensorflow_ipu.machine import Memory, OperationTime, Report, system_of
from tensorflow_ipu.tracing._trace import Chrome, add_marks, add_profile, add_runs, add_waits


@pytest.fixture
def pvti():
    compat.install()
    import libpvti  # pyright: ignore[reportMissingImports]

    yield libpvti
    compat.uninstall()


@contextlib.contextmanager
def recording():
    recording = tracepoints.start()
    assert recording is not None
    try:
        yield recording
    finally:
        tracepoints.stop()


def slices(trace):
    """The slices of a trace, each with the names of its process and track."""
    about = [event for event in trace["traceEvents"] if event["ph"] == "M" and event["name"].endswith("_name")]
    names = {(one["name"], one["pid"], one["tid"]): one["args"]["name"] for one in about}
    found = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in found:
        event["process"] = names["process_name", event["pid"], 0]
        event["track"] = names["thread_name", event["pid"], event["tid"]]
    return found


@pytest.mark.skipif(
    tf.__version__.startswith("2.20."), reason="XLA of TensorFlow 2.20 names operations otherwise: docs/install.md"
)
def test_fed_program_is_traced_with_its_waits_marks_and_prediction(replicas, pvti, tmp_path):
    strategy = replicas(2)
    with strategy.scope():
        total = tf.Variable(tf.zeros([4, 4]))
        iterator = iter(tf.data.Dataset.range(100).map(lambda i: tf.fill([4, 4], tf.cast(i, tf.float32))))

    @tf.function(jit_compile=True)
    def program(iterator):
        for _ in tf.range(5):
            total.assign_add(ipu.ops.cross_replica_ops.cross_replica_sum(tf.tanh(next(iterator) @ total)))

    report = strategy.report(program, (iterator,), machine="GC200")
    channel, graph = pvti.createTraceChannel("application"), pvti.Graph("loss", "nats")
    series = graph.addSeries("training")
    file = tmp_path / "trace.json"
    other = tmp_path / "log" / "plugins" / "profile" / "later" / "other.xplane.pb"
    other.parent.mkdir(parents=True)
    other.write_text("what another process writes to the same folder")
    os.utime(other, (2**32, 2**32))
    with ipu.trace(file, logdir=tmp_path / "log", report=report):
        assert pvti.checkTraceChannel(channel)
        with pvti.Tracepoint(channel, "epoch 0"):
            strategy.run(program, (iterator,))
        series.add(0.5)
    profiles = (tmp_path / "log" / "plugins" / "profile").glob("*/*")
    assert [one.name.endswith(".xplane.pb") for one in profiles] == [True, True]
    trace = json.loads(file.read_text())
    found = slices(trace)
    operations = [one for one in found if one["process"] == "operations"]
    sums = [one for one in operations if one["cat"] == "collective"]
    assert len(sums) == 10  # Of each replica, in each iteration.
    assert len([one for one in operations if one["name"].startswith("IpuInfeedDequeue")]) == 10
    (run,) = [one for one in found if one["name"] == "run of program" and one["process"] == "runs"]
    (mark,) = [one for one in found if one["process"] == "marks"]
    assert mark["name"] == "epoch 0"
    # One axis: what ran is within the run, and that within its mark; a millisecond more, for clocks that are being set.
    for inner, outer in [(run, mark), *((one, run) for one in operations)]:
        assert outer["ts"] <= inner["ts"] + 1000
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1000
    waits = [one for one in found if one["process"] == "waits"]
    assert {one["name"] for one in waits} >= {"wait for a replica"}
    assert all(one["cname"] in ("terrible", "bad") for one in waits)
    predicted = [one for one in found if one["process"] == f"prediction for {report.system.name}"]
    (whole,) = [one for one in predicted if one["track"] == "run"]
    assert whole["ts"] == run["ts"]
    assert whole["dur"] == pytest.approx(report.seconds * 1e6, abs=1e-3)  # In whole nanoseconds.
    assert len([one for one in predicted if one["track"] == "steps"]) == report.steps == 5
    (counter,) = [one for one in trace["traceEvents"] if one["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("loss [nats]", {"training": 0.5})


def test_wrong_arguments_and_a_trace_within_a_trace_are_refused(tmp_path):
    for path, report, error, words in (
        (3, None, TypeError, "`path` must be a path, and `3` is none"),
        (tmp_path / "a" / "b.json", None, FileNotFoundError, "there is no folder"),
        ("a.json", "GC200", TypeError, "`report` must be what"),
    ):
        with pytest.raises(error, match=words), ipu.trace(path, report=report):
            pass
    with recording(), pytest.raises(RuntimeError, match="another one is"), ipu.trace(tmp_path / "a.json"):
        pass


def test_trace_of_a_block_that_raises_is_written(tmp_path):
    with pytest.raises(ZeroDivisionError), ipu.trace(tmp_path / "a.json"):
        raise ZeroDivisionError
    assert json.loads((tmp_path / "a.json").read_text())["displayTimeUnit"] == "ms"
    assert not tracepoints.is_recording()


def test_slices_that_overlap_are_on_tracks_of_their_own_and_operations_one_after_the_other():
    chrome = Chrome(0)
    add_waits(chrome, {"InfeedWaitTime": [Sample(30, 30), Sample(40, 30), Sample(60, 25)]})
    found = slices(chrome.trace())
    assert [one["track"] for one in found] == ["for data", "for data (2)", "for data"]
    assert [(one["ts"], one["dur"]) for one in found] == [(0, 0.03), (0.01, 0.03), (0.035, 0.025)]
    times = {
        "loop": (7, 100.0, 900.0),
        "first": (7, 150.0, 50.4),
        "second": (7, 198.0, 30.0),
        "other": (8, 199.0, 30.0),
    }
    events = [
        Measured(thread, f"ipu-program/{thread}", name, begin, duration, {"hlo_op": name, "hlo_module": "m"})
        for name, (thread, begin, duration) in times.items()
    ]
    chrome = Chrome(0)
    add_profile(chrome, events, 0.0)
    found = [(one["name"], one["ts"], one["dur"]) for one in slices(chrome.trace())]
    assert found == [("loop", 0.1, 0.9), ("first", 0.15, 0.05), ("second", 0.2, 0.028), ("other", 0.199, 0.03)]


def test_groups_have_an_order_and_what_no_viewer_can_show_is_left_out():
    row = OperationTime("product", "dot", "f32[4]", 2, compute=4e-6)
    tiny = OperationTime("tiny", "add", "f32[4]", 2, compute=1e-10)
    memory = Memory(0, 0, 0, 0, 0, 2**30)
    report = Report("p", system_of("GC200"), 1, (row, tiny, row), (memory,), (), overlaps_host=False)
    recorded = tracepoints.Recording()
    recorded.spans.append(tracepoints.TimedSpan(tracepoints.PROGRAMS, "run of p", 1000, 2_001_000, 1))
    chrome = Chrome(0, ["runs", "prediction"])
    add_runs(chrome, recorded)
    predicted_trace.add(chrome, "prediction", report, recorded)
    trace = chrome.trace()
    order = [one for one in trace["traceEvents"] if one["name"] == "process_sort_index"]
    assert {one["pid"]: one["args"]["sort_index"] for one in order} == {0: 0, 1: 1}
    found = slices(trace)
    assert [one["name"] for one in found if one["track"] == "chip"] == ["product", "product"]
    (run,) = [one for one in found if one["track"] == "run"]
    assert run["args"] == {"predicted": "8 us", "measured here": "2 ms"}


def test_points_of_libpvti_are_marked_by_blocks_calls_and_functions(pvti, refused):
    channel = pvti.createTraceChannel("application")

    @pvti.instrument_fn(channel)
    def work(x):
        return x + 1

    assert not pvti.checkTraceChannel(channel)
    with pvti.Tracepoint(channel, "unseen"):
        pass
    with recording() as recorded:
        assert work(1) == 2
        pvti.Tracepoint.begin(channel, "outer")
        pvti.Tracepoint.begin(channel, "inner")
        pvti.Tracepoint.end(channel, "inner")
        pvti.Tracepoint.end(channel, "outer")
        pvti.Tracepoint.end(channel, "nothing")
        pvti.Tracepoint.event(channel, "now")
    assert {span.channel for span in recorded.spans} == {"application"}
    assert [span.name for span in recorded.spans] == ["work", "inner", "outer", "now"]
    inner, outer, now = recorded.spans[1:]
    assert outer.begin <= inner.begin <= inner.end <= outer.end <= now.begin == now.end
    pvti.disableTraceChannel(channel)
    assert ["application", False] in pvti.listTraceChannel()
    with recording():
        assert not pvti.checkTraceChannel(channel)
        pvti.enableTraceChannel(pvti.createTraceChannel("application"))
        assert pvti.checkTraceChannel(channel)
    for call in (lambda: pvti.Tracepoint("application", "a"), lambda: pvti.instrument_fn("application")):
        refused(TypeError, "`channel` must be what `createTraceChannel` made", call)


def test_methods_of_an_object_are_instrumented_and_heat_maps_are_bands(pvti, refused):
    class Loader:
        def load(self, number):
            return number + 1

    loader, channel = Loader(), pvti.createTraceChannel("data")
    pvti.instrument(loader, ["load"], channel)
    weights = pvti.HeatmapDouble("weights", [-1, 0, 1], "2^x")
    weights.add([5.0])  # Nobody records.
    with recording() as recorded:
        assert (loader.load(1), Loader().load(1)) == (2, 2)
        weights.add([1.0, -1.0, 0.0, 0.5, 7.0])
        weights.add([])
    call, full, empty = recorded.spans
    assert (call.channel, call.name) == ("data", "load")
    assert (full.name, dict(full.details)) == ("5 values", {"-1 to 0": 1, "0 to 1": 3})
    assert dict(empty.details) == {"-1 to 0": 0, "0 to 1": 0}
    values = {value.series: value.value for value in recorded.values}
    assert values == {"000%": -1.0, "010%": -1.0, "050%": 0.5, "090%": 7.0, "100%": 7.0}
    assert {value.graph for value in recorded.values} == {"weights [2^x]"}
    chrome = Chrome(0)
    add_marks(chrome, recorded)
    assert slices(chrome.trace())[-2]["args"] == {"-1 to 0": 1, "0 to 1": 3}
    with pytest.raises(AttributeError):
        pvti.instrument(loader, ["save"], channel)
    for wrong in ("load", [3]):
        refused(TypeError, "`methods` must be a list of names", pvti.instrument, loader, wrong, channel)
    refused(TypeError, "no method", pvti.instrument, loader, ["__dict__"], channel)
    with pytest.raises(ValueError, match="`edges` must be two or more numbers in increasing order"):
        pvti.HeatmapDouble("weights", [1, 0])
