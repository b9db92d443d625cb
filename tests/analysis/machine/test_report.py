"""Reports on programs: replicas, feeds, the machine, text and files, and reports on all programs of a script."""

import dataclasses
import json
import re

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.machine import GC200, Report, system_of, systems
from tensorflow_ipu.strategy import ipu_strategy


@pytest.fixture
def train(strategy):
    """Returns a program of 25 steps with an infeed, a sum over replicas and a variable; and the variable."""
    dataset = tf.data.Dataset.from_tensors((tf.zeros([16, 784]), tf.zeros([16], tf.int32))).repeat()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([784, 10]))
    infeed, outfeed = ipu.IPUInfeedQueue(dataset), ipu.IPUOutfeedQueue()

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weights)
            loss = tf.reduce_mean(losses)
        gradient = ipu.ops.cross_replica_ops.cross_replica_sum(tape.gradient(loss, weights))
        weights.assign_sub(0.1 * gradient)
        outfeed.enqueue(loss)

    @tf.function(jit_compile=True)
    def program():
        ipu.loops.repeat(25, step, infeed_queue=infeed)

    return program, weights


def test_a_report_counts_feeds_and_collectives_by_iteration(strategy, train, configure):
    configure(4)
    report = strategy.report(train[0], machine="IPU-POD16")
    system = systems()["IPU-POD16"]
    rows = {row.kind: row for row in report.operations}
    assert report.steps == 25
    assert rows["infeed"].host_bytes == 25 * 16 * (784 * 4 + 4)
    assert rows["outfeed"].host_bytes == 25 * 4
    assert rows["infeed"].host == pytest.approx(rows["infeed"].host_bytes / system.host_bytes_per_second)
    sent = 2 * 3 / 4 * 784 * 10 * 4
    seconds = sent / system.link_bytes_per_second + 6 * system.link_latency_seconds
    assert rows["all-reduce"].links == pytest.approx(25 * seconds)
    assert report.replicas == 4
    assert report.throughput(16) == pytest.approx(4 * 16 / report.step_seconds)
    # The largest errors of predictions: throughputs 11 percent too low, and 40 percent too high.
    low, high = report.step_seconds_range
    assert low < report.step_seconds * 0.89 < report.step_seconds * 1.40 < high


def test_a_convolution_that_a_kernel_of_the_host_computed_is_reported_as_one(strategy):
    @tf.function(jit_compile=True)
    def program(image, weights):
        return tf.nn.conv2d(image, weights, 1, "VALID")

    arguments = (tf.zeros([8, 40, 40, 4]), tf.zeros([3, 3, 4, 6]))
    strategy.run(program, arguments)
    (row,) = [row for row in strategy.report(program, arguments).operations if row.kind == "convolution"]
    assert row.flops == 2 * 8 * 38 * 38 * 6 * 3 * 3 * 4


def test_the_scope_or_a_new_strategy_serves_and_the_configuration_chooses_the_machine(strategy, configure):
    program, x = tf.function(lambda x: x @ x), tf.zeros([8, 8])
    with strategy.scope():
        inside = ipu.report(program, [x])
    assert ipu.report(program, [x]) == ipu.report(program, kwargs={"x": x}) == inside
    assert inside.system.machine == GC200
    configure(ipu_model__version="ipu1", ipu_model__tiles_per_ipu=100, io_tiles__num_io_tiles=10)
    machine = strategy.report(program, [x]).system.machine
    assert (machine.name, machine.tiles, machine.io_tiles) == ("GC2", 100, 10)
    assert strategy.report(program, [x], machine="Bow").system.machine.io_tiles == 10


def test_the_memory_proportion_of_the_configuration_is_heeded(strategy, configure):
    program = tf.function(tf.matmul)
    arguments = [tf.zeros([2048, 4096], tf.float16), tf.zeros([4096, 8192], tf.float16)]
    free = strategy.report(program, arguments)
    configure(matmuls__poplar_options={"availableMemoryProportion": "0.05"})
    tight = strategy.report(program, arguments)
    assert tight.memory.data < free.memory.data
    assert tight.seconds > free.seconds


def test_io_tiles_let_data_pass_beside_the_computation(strategy, train):
    system = dataclasses.replace(system_of("GC200"), machine=dataclasses.replace(GC200, io_tiles=64))
    without_tiles, with_tiles = strategy.report(train[0]), strategy.report(train[0], machine=system)
    host = with_tiles.part_seconds("host")
    assert without_tiles.seconds == pytest.approx(sum(row.seconds for row in without_tiles.operations))
    assert with_tiles.seconds == pytest.approx(max(host, sum(row.seconds for row in with_tiles.operations) - host))


def test_text_has_the_bars_the_table_and_what_cannot_be_known_and_nothing_is_run(strategy, train, tmp_path, refused):
    program, weights = train
    report = strategy.report(program, machine="Bow Pod16")
    assert not weights.numpy().any()
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report
    refused(ValueError, "must end in `.json`", report.save, tmp_path / "report.txt")
    text = str(report)
    assert "program on Bow in Bow Pod16: a prediction; nothing was run" in text
    assert "the overflow of a single tile" in text
    assert "897 MiB: fits" in text
    assert "time of a step of 25" in text
    assert re.search(r"MatMul \(gradient\) +dot +25 .*test_report\.py:\d+", text)
    assert not re.search("XLA_|Ipu|ipu_[^r]|PartitionedCall|while/", text)
    assert max(map(len, text.splitlines())) < 130


def test_a_wrong_batch_size_and_a_plain_function_are_refused(strategy, refused):
    report = strategy.report(tf.function(lambda: tf.constant(1.0)))
    for size in (0, 1.5, True):
        refused(ValueError, "`batch_size` must be the samples of a step, 1 or more", report.throughput, size)
    refused(ValueError, r"`fn` must be a `tf\.function`, but is <function", strategy.report, lambda: 1)


@pytest.fixture
def reporting(tmp_path, monkeypatch):
    """Returns the folder in which the environment requests reports."""
    folder = tmp_path / "a" / "reports"
    options = {"autoReport.all": "true", "autoReport.directory": str(folder)}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(options))
    monkeypatch.setattr(ipu_strategy, "_has_warned", False)
    return folder


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_each_program_has_one_under_its_name(reporting):
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def add(x):
        total.assign_add(tf.reduce_sum(x))
        return total.read_value()

    for size in (2, 2, 3):
        strategy.run(add, (tf.ones([size]),))
    assert float(total) == 7.0  # Each program ran once, and reports did not run it.
    assert files(reporting) == ["add.html", "add.json", "add_2.html", "add_2.json"]
    assert Report.load(reporting / "add_2.json").program == "add"


def test_fit_has_one_under_the_name_of_its_model(reporting):
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)], name="small")
        model.compile("sgd", "mse", steps_per_execution=2)
    data = tf.ones([8, 4]), tf.ones([8, 2])
    model.fit(*data, batch_size=2, epochs=2, verbose=0)
    assert [name for name in files(reporting) if name.endswith("json")] == ["train_small.json"]


def test_a_run_does_not_fail_for_its_report_and_says_why_once(reporting):
    strategy = ipu.IPUStrategy()
    reporting.parent.mkdir()
    reporting.write_text("a file, where a folder should be")
    double = tf.function(lambda x: 2.0 * x)
    with pytest.warns(UserWarning, match="`POPLAR_ENGINE_OPTIONS` requests reports, but a program has none: .*Error"):
        assert float(strategy.run(double, (tf.constant(2.0),))) == 4.0
    assert strategy.run(double, (tf.ones([2]),)).shape == [2]


def test_a_malformed_variable_is_named_when_the_strategy_is_made(monkeypatch, refused):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "autoReport.all=true")
    refused(ValueError, "`POPLAR_ENGINE_OPTIONS=autoReport.all=true` is not valid JSON", ipu.IPUStrategy)
