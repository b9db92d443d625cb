"""Reports of programs: on replicas, with feeds, from the strategy; printed, saved and read again."""

import dataclasses
import re

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.machine import GC200, Report, system_of, systems


@pytest.fixture
def train(strategy):
    """A program of 25 steps that reads an infeed, sums over replicas and changes a variable; and the variable."""
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
    made = strategy.report(train[0], machine="IPU-POD16")
    system = systems()["IPU-POD16"]
    rows = {row.kind: row for row in made.operations}
    assert made.steps == 25
    assert rows["infeed"].host_bytes == 25 * 16 * (784 * 4 + 4)
    assert rows["outfeed"].host_bytes == 25 * 4
    assert rows["infeed"].host == pytest.approx(rows["infeed"].host_bytes / system.host_bytes_per_second)
    sent = 2 * 3 / 4 * 784 * 10 * 4
    each = sent / system.link_bytes_per_second + 6 * system.link_latency_seconds
    assert rows["all-reduce"].links == pytest.approx(25 * each)
    assert made.replicas == 4
    assert made.throughput(16) == pytest.approx(4 * 16 / made.step_seconds)
    # The farthest that predictions were off: throughputs 11 percent too low, and 40 percent too high.
    low, high = made.step_seconds_range
    assert low < made.step_seconds * 0.89 < made.step_seconds * 1.40 < high


def test_a_convolution_that_a_kernel_of_the_host_computed_is_reported_as_one(strategy):
    @tf.function(jit_compile=True)
    def program(image, weights):
        return tf.nn.conv2d(image, weights, 1, "VALID")

    arguments = (tf.zeros([8, 40, 40, 4]), tf.zeros([3, 3, 4, 6]))
    strategy.run(program, arguments)
    (row,) = [row for row in strategy.report(program, arguments).operations if row.kind == "convolution"]
    assert row.flops == 2 * 8 * 38 * 38 * 6 * 3 * 3 * 4


def test_the_scope_or_a_new_strategy_serves(strategy):
    program, x = tf.function(lambda x: x @ x), tf.zeros([8, 8])
    with strategy.scope():
        inside = ipu.report(program, [x])
    assert ipu.report(program, [x]) == inside
    assert ipu.report(program, kwargs={"x": x}) == inside


def test_the_configuration_chooses_the_machine(strategy, configure):
    program, x = tf.function(lambda x: x @ x), tf.zeros([8, 8])
    assert strategy.report(program, [x]).system.machine == GC200
    configure(ipu_model__version="ipu1", ipu_model__tiles_per_ipu=100, io_tiles__num_io_tiles=10)
    machine = strategy.report(program, [x]).system.machine
    assert (machine.name, machine.tiles, machine.io_tiles) == ("GC2", 100, 10)
    assert strategy.report(program, [x], machine="Bow").system.machine.io_tiles == 10


def test_io_tiles_let_data_pass_beside_the_computation(strategy, train):
    system = dataclasses.replace(system_of("GC200"), machine=dataclasses.replace(GC200, io_tiles=64))
    plain, beside = strategy.report(train[0]), strategy.report(train[0], machine=system)
    host = beside.part_seconds("host")
    assert plain.seconds == pytest.approx(sum(row.seconds for row in plain.operations))
    assert beside.seconds == pytest.approx(max(host, sum(row.seconds for row in beside.operations) - host))


def test_the_memory_proportion_of_the_configuration_is_heeded(strategy, configure):
    @tf.function
    def program(x, y):
        return tf.matmul(x, y)

    arguments = [tf.zeros([2048, 4096], tf.float16), tf.zeros([4096, 8192], tf.float16)]
    free = strategy.report(program, arguments)
    configure(matmuls__poplar_options={"availableMemoryProportion": "0.05"})
    tight = strategy.report(program, arguments)
    assert tight.memory.data < free.memory.data
    assert tight.seconds > free.seconds


def test_text_has_the_bars_the_table_and_what_cannot_be_known_and_nothing_is_run(strategy, train, tmp_path):
    program, weights = train
    made = strategy.report(program, machine="Bow Pod16")
    assert not weights.numpy().any()
    made.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == made
    with pytest.raises(ValueError, match="a name that ends in `.json`"):
        made.save(tmp_path / "report.txt")
    text = str(made)
    assert "program on Bow in Bow Pod16: a prediction; nothing was run" in text
    assert "one tile alone" in text
    assert "897 MiB: fits" in text
    assert "time of a step of 25" in text
    assert re.search(r"MatMul +dot +25 .*test_report\.py:\d+", text)
    assert max(map(len, text.splitlines())) < 130


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_a_wrong_batch_size_and_a_plain_function_are_refused(strategy, size):
    made = strategy.report(tf.function(lambda: tf.constant(1.0)))
    with pytest.raises(ValueError, match="`batch_size` must be the samples of a step, 1 or more"):
        made.throughput(size)
    with pytest.raises(ValueError, match=r"`fn` must be a `tf\.function`, but is <function"):
        strategy.report(lambda: 1)
