"""Programs as HLO: of a function of TensorFlow, compiled for the CPU, and never run."""

from collections.abc import Callable

import pytest
import tensorflow as tf

from tensorflow_ipu.machine import report_of, system_of

Serialize = Callable[..., bytes]


@pytest.fixture
def hlo():
    """Gives the HLO of a function and its arguments: `hlo(function, *arguments)`."""

    def serialize(function, *arguments):
        compiled = tf.function(lambda *each: function(*each), jit_compile=True)
        return compiled.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")

    return serialize


@pytest.fixture
def report(hlo):
    """Reports on a function and its arguments for a GC200: `report(function, *arguments, **options)`."""

    def of(function, *arguments, machine="GC200", **options):
        return report_of(hlo(function, *arguments), system_of(machine), **options)

    return of
