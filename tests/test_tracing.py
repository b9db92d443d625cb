"""A trace shows runs and waits on one time axis."""

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
    """Returns the slices of a trace, with the names of their processes and tracks."""
    name_events = [event for event in trace["traceEvents"] if event["ph"] == "M" and event["name"].endswith("_name")]
    names = {(metadata["name"], metadata["pid"], metadata["tid"]): metadata["args"]["name"] for metadata in name_events}
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in complete:
        event["process"] = names["process_name", event["pid"], 0]
        event["track"] = names["thread_name", event["pid"], event["tid"]]
    return complete


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
    other_file = tmp_path / "log" / "plugins" / "profile" / "later" / "other.xplane.pb"
    other_file.parent.mkdir(parents=True)
    other_file.write_text("what another process writes to the same folder")
    os.utime(other_file, (2**32, 2**32))
    with ipu.trace(file, logdir=tmp_path / "log", report=report):
        assert pvti.checkTraceChannel(channel)
        with pvti.Tracepoint(channel, "epoch 0"):
            strategy.run(program, (iterator,))
        series.add(0.5)
    profiles = (tmp_path / "log" / "plugins" / "profile").glob("*/*")
    assert [profile.name.endswith(".xplane.pb") for profile in profiles] == [True, True]
    trace = json.loads(file.read_text())
    all_slices = slices(trace)
    operations = [event for event in all_slices if event["process"] == "operations"]
    sums = [event for event in operations if event["cat"] == "collective"]
    assert len(sums) == 10  # Each of the replicas adds one in each iteration.
    assert len([event for event in operations if event["name"].startswith("IpuInfeedDequeue")]) == 10
    (run,) = [event for event in all_slices if event["name"] == "run of program" and event["process"] == "runs"]
    (mark,) = [event for event in all_slices if event["process"] == "marks"]
    assert mark["name"] == "epoch 0"
    # Operations are within the run, and the run is within its mark, up to a millisecond for adjusted clocks.
    for inner, outer in [(run, mark), *((event, run) for event in operations)]:
        assert outer["ts"] <= inner["ts"] + 1000
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1000
    waits = [event for event in all_slices if event["process"] == "waits"]
    assert {event["name"] for event in waits} >= {"wait for a replica"}
    assert all(event["cname"] in ("terrible", "bad") for event in waits)
    predicted = [event for event in all_slices if event["process"] == f"prediction for {report.system.name}"]
    (predicted_run,) = [event for event in predicted if event["track"] == "run"]
    assert predicted_run["ts"] == run["ts"]
    assert predicted_run["dur"] == pytest.approx(report.seconds * 1e6, abs=1e-3)  # The trace has whole nanoseconds.
    assert len([event for event in predicted if event["track"] == "steps"]) == report.steps == 5
    (counter,) = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("loss [nats]", {"training": 0.5})


def test_wrong_arguments_and_a_trace_within_a_trace_are_refused(tmp_path):
    for path, report, error, words in (
        (3, None, TypeError, "`path` must be a path, but is `3`"),
        (tmp_path / "a" / "b.json", None, FileNotFoundError, "there is no folder"),
        ("a.json", "GC200", TypeError, "`report` must be a report"),
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
    on_tracks = slices(chrome.trace())
    assert [event["track"] for event in on_tracks] == ["for data", "for data (2)", "for data"]
    assert [(event["ts"], event["dur"]) for event in on_tracks] == [(0, 0.03), (0.01, 0.03), (0.035, 0.025)]
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
    on_tracks = [(event["name"], event["ts"], event["dur"]) for event in slices(chrome.trace())]
    assert on_tracks == [("loop", 0.1, 0.9), ("first", 0.15, 0.05), ("second", 0.2, 0.028), ("other", 0.199, 0.03)]


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
    order = [event for event in trace["traceEvents"] if event["name"] == "process_sort_index"]
    assert {event["pid"]: event["args"]["sort_index"] for event in order} == {0: 0, 1: 1}
    all_slices = slices(trace)
    assert [event["name"] for event in all_slices if event["track"] == "chip"] == ["product", "product"]
    (run,) = [event for event in all_slices if event["track"] == "run"]
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
    inner, outer, moment = recorded.spans[1:]
    assert outer.begin <= inner.begin <= inner.end <= outer.end <= moment.begin == moment.end
    pvti.disableTraceChannel(channel)
    assert ["application", False] in pvti.listTraceChannel()
    with recording():
        assert not pvti.checkTraceChannel(channel)
        pvti.enableTraceChannel(pvti.createTraceChannel("application"))
        assert pvti.checkTraceChannel(channel)
    for call in (lambda: pvti.Tracepoint("application", "a"), lambda: pvti.instrument_fn("application")):
        refused(TypeError, "`channel` must be a channel of `createTraceChannel`", call)


def test_methods_of_an_object_are_instrumented_and_heat_maps_are_bands(pvti, refused):
    class Loader:
        def load(self, number):
            return number + 1

    loader, channel = Loader(), pvti.createTraceChannel("data")
    pvti.instrument(loader, ["load"], channel)
    weights = pvti.HeatmapDouble("weights", [-1, 0, 1], "2^x")
    weights.add([5.0])  # No trace is being recorded.
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
    refused(TypeError, "must name methods", pvti.instrument, loader, ["__dict__"], channel)
    with pytest.raises(ValueError, match="`edges` must be two or more numbers in increasing order"):
        pvti.HeatmapDouble("weights", [1, 0])
