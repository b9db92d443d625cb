"""Prints of programs, delay lines, and indices of micro-batches in pipelines."""

import functools
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, pipelining, scopes
from tensorflow_ipu.ops import internal_ops
from tensorflow_ipu.ops.internal_ops import fifo, get_current_iteration_counter, remap, remap_deduce
from tensorflow_ipu.ops.replication_ops import replication_index

X = tf.constant([[1, 2], [3, 4]])


def test_prints_come_in_order_with_names_and_before_each_line_the_replica(strategy, replicas, capfd):
    @tf.function(jit_compile=True)
    def program(x):
        for step in tf.range(2):
            internal_ops.print_tensor(x + step, "x")
            tf.print("step", step, {"is": x[0, 0]}, output_stream=sys.stderr)
        internal_ops.print_tensor(tf.identity(x, "own")[0])

    strategy.run(program, (X,))
    assert capfd.readouterr().err.splitlines() == [
        "x: [[1 2]", " [3 4]]", "step 0 {'is': 1}", "x: [[2 3]", " [4 5]]", "step 1 {'is': 1}",
        "strided_slice: [1 2]",
    ]  # fmt: skip

    @tf.function(jit_compile=True)
    def replicated(x):
        internal_ops.print_tensor(x + replication_index(), "x")

    replicas(2).run(replicated, (X,))
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == ["replica 0:  [3 4]]", "replica 0: x: [[1 2]", "replica 1:  [4 5]]", "replica 1: x: [[2 3]"]


def test_print_is_an_operation_in_sessions_and_tensorflows_own_outside_of_programs(capfd, refused):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with scopes.ipu_scope("/device:IPU:0"):
            run = compiler.compile(lambda x: internal_ops.print_tensor(x, "x"), [tf.constant(5)])
        session.run(run)
        session.run(run)
    assert capfd.readouterr().err.splitlines() == ["x: 5", "x: 5"]
    assert internal_ops.print_tensor(X, "x") is None
    tf.print("eager", output_stream=sys.stderr)

    @tf.function
    def in_a_graph():
        tf.print("graph", output_stream=sys.stderr)

    in_a_graph()
    assert capfd.readouterr().err.splitlines() == ["x: [[1 2]", " [3 4]]", "eager", "graph"]
    refused(TypeError, "`name` must be a string, but is 3", internal_ops.print_tensor, X, 3)


def test_program_without_host_work_is_what_plain_tensorflow_makes_of_it(strategy, compiled_text):
    def train(weights, x):
        loss = tf.constant(0.0)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(x @ weights))
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    def instructions(hlo):
        # Removes source lines, and the numbers of functions in the names of loops. Renumbers instructions, which
        # TensorFlow 2.20 numbers in another way.
        text = re.sub(r", metadata=\{[^}]*\}|_\d+(?=_)", "", hlo.partition("\n")[2]).partition("\nFileNames")[0]
        numbers: dict[str, str] = {}
        return re.sub(
            r"([\w-]+)\.\d+\b", lambda match: numbers.setdefault(match[0], f"{match[1]}.{len(numbers)}"), text
        )

    def program_of(weights):
        return tf.function(functools.partial(train, weights), jit_compile=True)

    x = tf.ones([2, 2])
    reference = program_of(tf.Variable(x)).experimental_get_compiler_ir(x)(stage="optimized_hlo")
    with strategy.scope():
        program = program_of(tf.Variable(x))
    assert instructions(compiled_text(strategy, program, x)) == instructions(reference)


def test_value_comes_out_so_many_calls_later_in_the_next_run_too_on_each_replica(replicas):
    strategy = replicas(2)
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(begin):
        for step in tf.range(4):
            x = tf.fill([2], begin + step + 10 * replication_index())
            halves = fifo(tf.cast(x, tf.float16), 3)
            queue.enqueue(([fifo(x, 3)[0], fifo(x, 0)[0], fifo(x + 1, 1, offload=True)[0]], halves))

    for begin in (1, 5):
        strategy.run(program, (tf.constant(begin),))
    delays, halves = queue.dequeue()
    by_3, by_0, by_1 = (values.numpy() for values in delays)
    for replica in (0, 1):
        assert by_3[3:, replica].tolist() == (np.arange(1, 6) + 10 * replica).tolist()
        assert by_0[:, replica].tolist() == (np.arange(1, 9) + 10 * replica).tolist()
        assert by_1[1:, replica].tolist() == (np.arange(2, 9) + 10 * replica).tolist()
    assert not by_3[:3].any()
    assert not by_1[0].any()
    assert halves.dtype == tf.float16
    np.testing.assert_array_equal(halves[..., 1], by_3)


def test_calls_that_cannot_be_are_refused_and_hints_at_layouts_change_nothing(refused):
    for call, kind, message in (
        (lambda: fifo(1.0, 2), RuntimeError, "outside|program"),
        (lambda: fifo(1.0, 2.5), TypeError, "`depth` must be an int"),
        (lambda: fifo(1.0, 2, 1), TypeError, "`offload` must be"),
        (get_current_iteration_counter, RuntimeError, "`computational_stages`"),
        (lambda: get_current_iteration_counter(lower=1), TypeError, "no argument `lower`"),
    ):
        refused(kind, message, call)
    assert remap([1, 2]).numpy().tolist() == remap_deduce([1, 2]).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("recompute", [None, pipelining.RecomputationMode.RecomputeThenBackpropagate])
def test_stages_and_their_gradients_have_the_number_of_their_micro_batch(replicas, pipelined, recompute):
    strategy = replicas(2)
    data = np.arange(1, 9, dtype=np.float32)
    with strategy.scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(data))
        weight = tf.Variable(1.0)
    stages = [
        lambda x: x * weight * tf.cast(get_current_iteration_counter(), tf.float32),
        lambda x: (x, get_current_iteration_counter()),
    ]
    outfeed = pipelined(strategy, stages, infeed, 0.01, repeat_count=2, recomputation_mode=recompute)
    assert outfeed.dequeue()[1].numpy().tolist() == [0, 1, 2, 3] * 2
    np.testing.assert_allclose(weight.numpy(), 1 - 0.01 * np.sum(data * ([0, 1, 2, 3] * 2)), rtol=1e-5)
