"""What programs print: with its name, in their order, the replica before each line where there are several."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, scopes
from tensorflow_ipu import replicas as programs
from tensorflow_ipu.ops import internal_ops
from tensorflow_ipu.ops.replication_ops import replication_index

X = tf.constant([[1, 2], [3, 4]])


def test_prints_come_in_order_with_names(strategy: Any, capfd: Any) -> None:
    @tf.function(jit_compile=True)
    def program(x: Any) -> None:
        for step in tf.range(2):
            internal_ops.print_tensor(x + step, "x")
            tf.print("step", step, {"is": x[0, 0]}, output_stream=sys.stderr)
        internal_ops.print_tensor(tf.identity(x, "own")[0])

    strategy.run(program, (X,))
    assert capfd.readouterr().err.splitlines() == [
        "x: [[1 2]", " [3 4]]", "step 0 {'is': 1}", "x: [[2 3]", " [4 5]]", "step 1 {'is': 1}",
        "strided_slice: [1 2]",
    ]  # fmt: skip


def test_replica_is_before_each_line(replicas: Any, capfd: Any) -> None:
    strategy = replicas(2)

    @tf.function(jit_compile=True)
    def program(x: Any) -> None:
        internal_ops.print_tensor(x + replication_index(), "x")

    strategy.run(program, (X,))
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == ["replica 0:  [3 4]]", "replica 0: x: [[1 2]", "replica 1:  [4 5]]", "replica 1: x: [[2 3]"]


def test_print_is_an_operation_that_a_compiled_function_may_return(capfd: Any) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with scopes.ipu_scope("/device:IPU:0"):
            run = compiler.compile(lambda x: internal_ops.print_tensor(x, "x"), [tf.constant(5)])
        session.run(run)
        session.run(run)
    assert capfd.readouterr().err.splitlines() == ["x: 5", "x: 5"]


def test_outside_of_programs_print_is_tensorflows_own(capfd: Any) -> None:
    assert internal_ops.print_tensor(X, "x") is None
    tf.print("eager", output_stream=sys.stderr)

    @tf.function
    def in_a_graph() -> None:
        tf.print("graph", output_stream=sys.stderr)

    in_a_graph()
    assert capfd.readouterr().err.splitlines() == ["x: [[1 2]", " [3 4]]", "eager", "graph"]
    with pytest.raises(TypeError, match="`name` must be a string, but is 3"):
        internal_ops.print_tensor(X, 3)  # pyright: ignore[reportArgumentType]


def test_program_without_host_work_calls_none(strategy: ipu.IPUStrategy) -> None:
    program = tf.function(lambda x: x * 2, jit_compile=True)
    strategy.run(program, (X,))
    text = str(programs.hlo(program.get_concrete_function(X), [X], strategy.extended.ipu_device))
    assert "custom-call" not in text
