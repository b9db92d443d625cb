"""What programs print: with its name, in their order, the replica before each line where there are several."""

import functools
import re
import sys

import tensorflow as tf

from tensorflow_ipu import compiler, scopes
from tensorflow_ipu.ops import internal_ops
from tensorflow_ipu.ops.replication_ops import replication_index

X = tf.constant([[1, 2], [3, 4]])


def test_prints_come_in_order_with_names(strategy, capfd):
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


def test_replica_is_before_each_line(replicas, capfd):
    strategy = replicas(2)

    @tf.function(jit_compile=True)
    def program(x):
        internal_ops.print_tensor(x + replication_index(), "x")

    strategy.run(program, (X,))
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == ["replica 0:  [3 4]]", "replica 0: x: [[1 2]", "replica 1:  [4 5]]", "replica 1: x: [[2 3]"]


def test_print_is_an_operation_that_a_compiled_function_may_return(capfd):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with scopes.ipu_scope("/device:IPU:0"):
            run = compiler.compile(lambda x: internal_ops.print_tensor(x, "x"), [tf.constant(5)])
        session.run(run)
        session.run(run)
    assert capfd.readouterr().err.splitlines() == ["x: 5", "x: 5"]


def test_outside_of_programs_print_is_tensorflows_own(capfd, refused):
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
        # Without lines, and numbers of functions in the names of loops.
        return re.sub(r", metadata=\{[^}]*\}|_\d+(?=_)", "", hlo.partition("\n")[2]).partition("\nFileNames")[0]

    def made(weights):
        return tf.function(functools.partial(train, weights), jit_compile=True)

    x = tf.ones([2, 2])
    plain = made(tf.Variable(x)).experimental_get_compiler_ir(x)(stage="optimized_hlo")
    with strategy.scope():
        program = made(tf.Variable(x))
    assert instructions(compiled_text(strategy, program, x)) == instructions(plain)
