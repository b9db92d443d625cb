"""Programs as HLO: of a function of TensorFlow, compiled for the CPU, and never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tensorflow_ipu.machine import Report, report_of, system_of

Serialize = Callable[..., bytes]


@pytest.fixture
def hlo() -> Serialize:
    """Gives the HLO of a function and its arguments: `hlo(function, *arguments)`."""

    def serialize(function: Callable[..., Any], *arguments: Any) -> bytes:
        compiled = tf.function(lambda *each: function(*each), jit_compile=True)
        return compiled.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")

    return serialize


@pytest.fixture
def report(hlo: Serialize) -> Callable[..., Report]:
    """Reports on a function and its arguments for a GC200: `report(function, *arguments, **options)`."""

    def of(function: Callable[..., Any], *arguments: Any, machine: Any = "GC200", **options: Any) -> Report:
        return report_of(hlo(function, *arguments), system_of(machine), **options)

    return of
