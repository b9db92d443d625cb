"""Fixtures that compile TensorFlow functions to HLO for the CPU, without running them."""

from collections.abc import Callable

import pytest
import tensorflow as tf

from tensorflow_ipu.machine import report_of, system_of

Serialize = Callable[..., bytes]


@pytest.fixture
def hlo():
    """Returns a function that compiles a function to serialized HLO: `hlo(function, *arguments)`."""

    def serialize(function, *arguments):
        compiled = tf.function(lambda *inputs: function(*inputs), jit_compile=True)
        return compiled.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")

    return serialize


@pytest.fixture
def report(hlo):
    """Returns a function that reports on a function for a GC200: `report(function, *arguments, **options)`."""

    def report_on(function, *arguments, machine="GC200", **options):
        return report_of(hlo(function, *arguments), system_of(machine), **options)

    return report_on
