"""Metrics count events, and report why a function was traced."""

import gc
import json
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base.tracepoints import Sample
from tensorflow_ipu._native.library import native
from tensorflow_ipu.metrics import _percentiles, _text


@pytest.fixture(autouse=True)
def cleared():
    ipu.clear_metrics()


def value(name):
    counted = ipu.counter_value(name)
    assert counted is not None, name
    return counted


def count(name):
    data = ipu.metric_data(name)
    assert data is not None, name
    return data[0]


def run_fed(strategy):
    """Runs a program on two replicas for 3 and for 5 steps, and checks the metrics of its queues before their end."""
    elements = tf.data.Dataset.range(100).map(lambda i: tf.fill([4], tf.cast(i, tf.float32)))
    infeed, outfeed = ipu.IPUInfeedQueue(elements), ipu.IPUOutfeedQueue()
    infeed.initializer  # noqa: B018  (The property starts it.)
    with strategy.scope():
        total = tf.Variable(tf.zeros(4))

    @tf.function(jit_compile=True)
    def program(n):
        for _ in tf.range(n):
            x = infeed._dequeue()
            outfeed.enqueue((x, x))
            total.assign_add(ipu.ops.cross_replica_ops.cross_replica_sum(x))

    for steps in (3, 5):
        strategy.run(program, (tf.constant(steps),))
    total.numpy()
    assert value(f"OutfeedReady:{outfeed._name}") == 8
    assert value(f"InfeedElements:{infeed._name}") == 16
    assert value(f"InfeedDepth:{infeed._name}") >= 3


def test_a_fed_program_on_replicas_is_counted(replicas):
    gc.collect()
    earlier = set(ipu.counter_names())  # Tracebacks or cycles of other tests may still hold queues.
    run_fed(replicas(2))
    gc.collect()
    # The elements of deleted queues stay counted.
    assert not [name for name in set(ipu.counter_names()) - earlier if ":" in name]
    assert (count("RunTime"), count("TraceTime"), count("CompileTime")) == (2, 1, 1)
    assert (value("InfeedElements"), value("InfeedBytes")) == (16, 16 * 16)
    assert (value("OutfeedElements"), value("OutfeedBytes")) == (16, 16 * 32)
    assert (value("Collectives"), value("CollectiveBytes"), count("CollectiveWaitTime")) == (8, 8 * 2 * 16, 8)
    assert value("VariableReads") >= 1
    data = ipu.metric_data("RunTime")
    assert data is not None
    assert data[1] == pytest.approx(sum(duration for _, duration in data[2]))
    assert all(0 < end <= time.monotonic() for end, _ in data[2])
    report = ipu.metrics_report()
    assert "Metric: CompileTime\n  TotalSamples: 1\n  Accumulator: " in report
    assert "Counter: InfeedElements\n  Value: 16\n" in report
    assert "Trace: program (test_metrics.py:" in report
    ipu.clear_metrics()
    assert (value("InfeedElements"), count("RunTime"), ipu.metric_data("RunTime")) == (0, 0, (0, 0.0, []))
    assert "Trace:" not in ipu.metrics_report()


def test_waits_for_data_are_timed(strategy):
    given_up = threading.Event()
    numbers = []  # The dataset of the queue must not reference the queue.

    def element():
        deadline = time.monotonic() + 60
        while native.ipu_infeed_waiting(numbers[0]) == 0 and time.monotonic() < deadline:
            if given_up.wait(0.001):
                break
        return np.float32(1)

    data = tf.data.Dataset.range(3).map(lambda _: tf.ensure_shape(tf.numpy_function(element, [], tf.float32), []))
    infeed = ipu.IPUInfeedQueue(data)
    assert infeed._feed is not None
    numbers.append(infeed._feed.number)
    infeed.initializer  # noqa: B018  (The property starts it.)

    @tf.function(jit_compile=True)
    def program():
        return infeed._dequeue() + infeed._dequeue() + infeed._dequeue()

    try:
        strategy.run(program)
    finally:
        given_up.set()
    assert count("InfeedWaitTime") == value(f"InfeedWaits:{infeed._name}") == 3
    waits = ipu.metric_data("InfeedWaitTime")
    assert waits is not None
    assert 0 < waits[1] * 1e9 == pytest.approx(value(f"InfeedWaitNanoseconds:{infeed._name}"))
    with pytest.raises(tf.errors.OutOfRangeError):
        strategy.run(program)
    assert (value("FailedRuns"), value("InfeedElements")) == (1, 3)


def test_runs_of_sessions_are_counted_and_timed(tmp_path):
    with tf.Graph().as_default():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.range(2).map(lambda i: tf.cast(i, tf.float32)))
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            (result,) = ipu.compiler.compile(lambda: [infeed._dequeue() + 1.0], [])
        with tf.compat.v1.Session() as session:
            session.run(infeed.initializer)
            session.run(result)
            with ipu.trace(tmp_path / "trace.json"):
                assert session.run(result) == 2.0
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(result)
    runs = ipu.metric_data("RunTime")
    assert runs is not None
    assert (runs[0], len(runs[2]), value("FailedRuns")) == (3, 3, 1)
    assert runs[1] == pytest.approx(sum(duration for _, duration in runs[2]))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (run,) = [event for event in events if event["name"] == "run of a graph's program"]
    assert run["dur"] == pytest.approx(1e6 * runs[2][1][1])


def test_names_that_nothing_has_give_none_and_no_names_are_refused(refused):
    assert ipu.counter_value("Nothing") is None
    assert ipu.metric_data("Nothing") is None
    assert {"CompileTime", "RunTime", "TraceTime", "InfeedWaitTime", "CollectiveWaitTime"} == set(ipu.metric_names())
    assert ipu.counter_names() == sorted(ipu.counter_names())
    for function in (ipu.counter_value, ipu.metric_data):
        refused(TypeError, "`name` must be the name of a metric or counter, but is 3", function, 3)
    assert [_text(time) for time in (999, 1500, 2_000_000, 3 * 10**9)] == ["999ns", "1.50us", "2.00ms", "3.00s"]
    shown = _percentiles(tuple(Sample(0, duration) for duration in range(100, 0, -1)))
    assert (shown[0], shown[4], shown[-1]) == ("1%=1ns", "50%=50ns", "99%=99ns")
