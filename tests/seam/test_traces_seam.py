"""Canaries: what a trace was made for, and what the profiler has measured, can be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import functions, profiler


class Thing:
    """Compared by identity."""


def test_parts_of_arguments_are_told_apart() -> None:
    @tf.function
    def program(x: tf.Tensor, setting: Any, *, rest: Any) -> tf.Tensor:
        del setting, rest
        return x

    thing = Thing()
    traced: Any = program.get_concrete_function(tf.zeros([2, 3]), [1, thing], rest={"a": (tf.zeros([], tf.int32),)})
    assert functions.leaves_of(traced) == {
        "x": functions.Leaf("tensor", "float32(2, 3)", (2, 3), "float32"),
        "setting[0]": functions.Leaf("value", "1", dtype="int"),
        "setting[1]": functions.Leaf("object", str(id(thing)), dtype="Thing"),
        "rest['a'][0]": functions.Leaf("tensor", "int32()", (), "int32"),
    }
    unknown = {"x": tf.TensorSpec(None), "y": None}
    assert functions.leaves_of_spec("data", unknown) == {
        "data[0]": functions.Leaf("tensor", "float32<unknown>", None, "float32"),
        "data[1]": functions.Leaf("other", "None"),
    }


def test_profile_of_a_compiled_function_names_its_operations(tmp_path: Path) -> None:
    @tf.function(jit_compile=True)
    def program(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ x)

    x = tf.ones([8, 8])
    program(x)
    profiler.start(os.fspath(tmp_path))
    program(x)
    profiler.stop()
    operations = [event for event in profiler.measured(os.fspath(tmp_path)) if "hlo_op" in event.details]
    assert operations
    assert isinstance(operations[0], profiler.Measured)
    assert all(event.details["hlo_module"] and event.begin > 1e18 and event.duration >= 0 for event in operations)
    assert not list(profiler.measured(os.fspath(tmp_path / "nothing")))
