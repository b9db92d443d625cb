"""Checks in programs, which XLA leaves out, end the run with TensorFlow's message."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu import IPUStrategy
from tensorflow_ipu.ops.replication_ops import replication_index

X = tf.constant([1.0, -2.0, 3.0])


def positive(x: Any) -> Any:
    tf.debugging.assert_positive(x, "too low")
    return x + 1


def plainly(x: Any) -> Any:
    tf.Assert(tf.reduce_all(x > 0), ["low:", tf.cast(x, tf.int32)], summarize=2)
    return x + 1


def equal(x: Any) -> Any:
    tf.debugging.assert_equal(tf.cast(x, tf.int32), [1, 2, 3])
    return x + 1


def numeric(x: Any) -> Any:
    tf.debugging.check_numerics(tf.math.log(x), "of x")  # Nothing uses it.
    return x + 1


def used(x: Any) -> Any:
    return tf.exp(tf.debugging.check_numerics(tf.math.log(x), "of y"))


def in_a_loop(x: Any) -> Any:
    for _ in tf.range(3):
        positive(x)
        x -= 1.0
    return x


CASES = [
    (positive, [1, 2, 3], X, r"assertion failed: \[too low.*\[1 -2 3\]"),
    (plainly, [1, 2, 3], X, r"assertion failed: \[low:\] \[1 -2...\]"),
    (equal, [1, 2, 3], X, r"assertion failed: .*\[1 -2 3\].*\[1 2 3\]"),
    (numeric, [1, 2, 3], X, r"of x : Tensor had NaN values"),
    (used, [1, 2, 3], X, r"of y : Tensor had NaN values"),
    (in_a_loop, [4, 5, 6], [2, 3, 4], r"assertion failed: \[too low.*\[0 1 2\]"),
]


@pytest.mark.parametrize(
    ("function", "good", "bad", "message", "host_kernels"),
    [*((*case, True) for case in CASES), (*CASES[0], False), (*CASES[4], False)],
)
def test_check_ends_the_run_with_its_message(
    function: Any, good: Any, bad: Any, message: str, host_kernels: bool
) -> None:
    strategy = IPUStrategy(host_kernels=host_kernels)
    program = tf.function(function)
    good = tf.constant(good, tf.float32)
    np.testing.assert_allclose(strategy.run(program, (good,)), program(good), rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s){message}") as failure:
        strategy.run(program, (tf.constant(bad, tf.float32),))
    assert re.search(r"(Assert|CheckNumerics\w*) `\S+` \(\S*test_assertions.py:\d+\)", str(failure.value))


def test_check_of_one_replica_ends_the_run_of_all(replicas: Any) -> None:
    strategy = replicas(2)

    @tf.function(jit_compile=True)
    def program() -> None:
        tf.debugging.assert_less(replication_index(), 1, "of a replica")

    with pytest.raises(tf.errors.InvalidArgumentError, match="of a replica"):
        strategy.run(program)


def test_variables_hold_what_they_had_at_some_step_when_a_check_ends_the_run(strategy: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(1.0)

    @tf.function(jit_compile=True)
    def program(most: Any) -> None:
        for _ in tf.range(4):
            variable.assign_add(1.0)
            tf.debugging.assert_less(variable, most)

    strategy.run(program, (tf.constant(9.0),))
    assert variable.numpy() == 5
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        strategy.run(program, (tf.constant(7.0),))
    assert variable.numpy() in (5, 6, 7)
    variable.assign(0.0)
    strategy.run(program, (tf.constant(9.0),))
    assert variable.numpy() == 4
