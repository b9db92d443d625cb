"""Random programs equal plain XLA bit by bit without host kernels, and plain TensorFlow up to rounding with them.

An operation of float16 rounds once here, but may round several times in plain XLA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rules  # noqa: F401  (It registers what programs consist of.)
import tensorflow as tf
import writing
from hypothesis import given, note
from hypothesis import strategies as st

import tensorflow_ipu as ipu
from tensorflow_ipu.programs import _host_kernels

SEEDS = st.integers(0, 10**6)
STATEMENTS = st.integers(1, 5)
TOLERANCES = {"float32": 1e-3, "float16": 0.1}

Results = dict[str, np.ndarray]


def run(program: writing.Program, strategy: ipu.IPUStrategy | None = None, *, compiled: bool = True) -> Results:
    """Runs a program, and returns its results and its variables."""
    space: dict[str, Any] = {"tf": tf}
    exec(compile(program.source, "<program>", "exec"), space)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        variables = {name: tf.Variable(value) for name, value in program.variables.items()}
    tensors = {name: tf.constant(value) for name, value in program.tensors.items()}

    def call(tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return space["program"](**tensors, **variables)

    function = tf.function(call, autograph=False, jit_compile=compiled)
    results = function(tensors) if strategy is None else strategy.run(function, (tensors,))
    return {name: value.numpy() for name, value in {**results, **variables}.items()}


def tried(call: Callable[[], Results]) -> Results | Exception:
    try:
        return call()
    except Exception as error:
        return error


def are_near(actual: Results, expected: Results) -> bool:
    """Returns True if floats are equal up to rounding and other values are equal."""
    tolerances = {name: TOLERANCES.get(value.dtype.name, 0) for name, value in expected.items()}
    pairs = (
        (actual[name].astype(np.float64), value.astype(np.float64), tolerances[name])
        for name, value in expected.items()
    )
    return all(
        np.allclose(actual_value, expected_value, tolerance, tolerance, equal_nan=True)
        for actual_value, expected_value, tolerance in pairs
    )


def check_near(actual: Results, expected: Results) -> None:
    for name, value in expected.items():
        tolerance = TOLERANCES.get(value.dtype.name, 0)
        np.testing.assert_allclose(actual[name], value, tolerance, tolerance, err_msg=name)


def test_random_programs_equal_plain_xla_by_bits_and_plain_tensorflow_to_rounding(examples):
    compared = {"bits": 0, "numbers": 0}
    bare, full = ipu.IPUStrategy(host_kernels=False), ipu.IPUStrategy()

    @examples(60)
    @given(seed=SEEDS, statements=STATEMENTS)
    def check(seed: int, statements: int) -> None:
        program = writing.write(seed, statements, draws=seed % 2 == 0)
        note(program.source)
        on_host = tried(lambda: run(program, compiled=False))
        # Plain TensorFlow fails for a few operations, such as some branches in mapped functions.
        if isinstance(on_host, Exception):
            return
        xla = tried(lambda: run(program))
        with _host_kernels.wherever_known():
            with_kernels = tried(lambda: run(program, full))
        if isinstance(with_kernels, Exception):
            assert isinstance(xla, Exception), f"plain XLA takes it: {with_kernels}"
            return
        check_near(with_kernels, on_host)
        compared["numbers"] += 1
        # XLA draws other random floats, and has errors of its own.
        if not isinstance(xla, Exception) and seed % 2 and are_near(xla, on_host):
            without = run(program, bare)
            check_near(without, on_host)
            if program.uses_half:
                return
            for name, value in xla.items():
                np.testing.assert_array_equal(without[name], value, err_msg=name, strict=True)
            compared["bits"] += 1

    check()
    assert compared["numbers"] >= 40
    assert compared["bits"] >= 10


def test_a_program_of_fewer_statements_is_the_beginning_of_a_longer_one():
    for seed in range(20):
        longer, begin = (writing.write(seed, count).source.splitlines() for count in (4, 2))
        assert longer[: len(begin) - 1] == begin[:-1]
        assert writing.write(seed, 4).source.splitlines() == longer


@pytest.mark.parametrize("draws", [False, True])
def test_random_programs_have_every_kind_of_operation(draws):
    text = "".join(writing.write(seed, 5, draws=draws).source for seed in range(150))
    names = ["while_loop", "cond(", "switch_case", "map_fn", "vectorized_map", "conv2d", "max_pool2d", "GradientTape"]
    names += ["float16", "tf.gather", "scatter_nd_add", "tf.matmul", "einsum", "tf.sort", "tf.concat", "tf.slice"]
    names += ["].assign(", "argmax"]
    assert [name for name in names if name not in text] == []
    assert ("stateless_normal" in text) == draws
