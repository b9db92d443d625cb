"""Reports on programs whose operations are on several IPUs."""

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import machine
from tensorflow_ipu.analysis.machine.hlo import read
from tensorflow_ipu.analysis.machine.sharding import Placement
from tensorflow_ipu.programs import placed_by_name
from tensorflow_ipu.scopes import ipu_shard

STEPS = 5


@pytest.fixture
def report(replicas):
    """Returns a report on sharded training on two replicas: `x @ narrow` and `tanh` on IPU 0, the rest on IPU 1."""
    strategy = replicas(4)
    with strategy.scope():
        narrow, wide = (tf.Variable(tf.ones([64, size])) for size in (64, 512))
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([32, 64])).repeat())

    def step(total, x):
        with ipu_shard(0):
            y = tf.tanh(x @ narrow)
        with ipu_shard(1):
            loss = tf.reduce_sum(tf.square(y @ wide))
        for variable, gradient in zip([narrow, wide], tf.gradients(loss, [narrow, wide]), strict=True):
            variable.assign_sub(0.1 * gradient)
        return total + loss

    @tf.function
    def program():
        return ipu.loops.repeat(STEPS, step, [0.0], infeed)

    return strategy.report(program)


def test_sharded_program_is_told_by_ipu(report, refused):
    assert (report.replicas, report.ipus_per_replica, report.steps) == (2, 2, STEPS)
    dots = {(row.ipu, row.shape) for row in report.operations if row.kind == "dot"}
    assert dots == {(0, "f32[32,64]"), (0, "f32[64,64]"), (1, "f32[32,512]"), (1, "f32[32,64]"), (1, "f32[64,512]")}
    assert {row.ipu for row in report.operations if row.kind in ("infeed", "tanh")} == {0}
    assert {row.ipu for row in report.operations if row.kind == "reduce"} == {1}

    # The activations are sent forward, and their gradients back.
    copies = [row for row in report.operations if row.kind == "inter-ipu-copy"]
    assert sorted((row.ipu, row.shape, row.count) for row in copies) == [(ipu, "f32[32,64]", STEPS) for ipu in (0, 1)]
    system = report.system
    seconds = STEPS * (4 * 32 * 64 / system.link_bytes_per_second + system.link_latency_seconds)
    assert [row.links for row in copies] == pytest.approx([seconds] * 2)

    first, second = report.memories
    assert (first.ipu, second.ipu) == (0, 1)
    states = 4 * 8 * 2  # The state variable of the queue, and the token.
    assert first.variables == 4 * 64 * 64 + states
    assert second.variables == 4 * 64 * 512
    # Values of the size of the wide layer's result are only on its IPU.
    assert 4 * 32 * 512 in {size for _, size in second.largest}
    assert 4 * 32 * 512 not in {size for _, size in first.largest}
    assert (first.feeds, second.feeds) == (4 * 32 * 64, 0)

    both = report.ipu_seconds(0) + report.ipu_seconds(1)
    assert both + report.part_seconds("host") == pytest.approx(report.seconds)
    refused(ValueError, "`ipu` is 2, and a replica has IPUs 0 to 1", report.ipu_seconds, 2)
    text = str(report)
    assert "memory of IPU 1" in text
    assert "IPUs work one after the other: IPU 0 " in text
    assert machine.Report.from_dict(report.to_dict()) == report


def test_what_functions_and_loops_do_is_where_they_are_called():
    @tf.function
    def called(x):
        return tf.sin(x)

    @tf.function(jit_compile=True)
    def program(x):
        with ipu_shard(0):
            x = tf.exp(x)
        with ipu_shard(1):
            x = called(x)
            return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.cos(x)), (0, x))[1]

    entry = read(program.experimental_get_compiler_ir(tf.zeros([4]))(stage="hlo_serialized"))
    placement = Placement(entry, 2, placed_by_name(program.get_concrete_function(tf.TensorSpec([4]))))
    ipus, todo = {}, [entry]
    while todo:
        for operation in todo.pop().operations:
            ipus[operation.opcode] = placement.of(operation)
            todo += operation.called
    assert (ipus["exponential"], ipus["sine"], ipus["cosine"]) == ((0,), (1,), (1,))


def test_operations_without_a_shard_go_with_their_operands_or_users():
    @tf.function(jit_compile=True)
    def program(x):
        with ipu_shard(2):
            y = tf.sin(x)
        z = tf.cos(y)  # On the IPU of its operand.
        with ipu_shard([0, 1]):
            return tf.tanh(z) + 1.0

    entry = read(program.experimental_get_compiler_ir(tf.zeros([4]))(stage="hlo_serialized"))
    placement = Placement(entry, 4, placed_by_name(program.get_concrete_function(tf.TensorSpec([4]))))
    ipus = {operation.opcode: placement.of(operation) for operation in entry.operations}
    assert (ipus["parameter"], ipus["sine"], ipus["cosine"]) == ((2,), (2,), (2,))
    assert ipus["tanh"] == ipus["add"] == (0, 1)
    (tanh,) = (operation for operation in entry.operations if operation.opcode == "tanh")
    assert [operation.opcode for operation in placement.received(tanh)] == ["cosine"]
