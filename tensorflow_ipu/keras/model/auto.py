"""Keeps Keras's choice of `jit_compile="auto"` what it is without the devices of this package."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import tensorflow as tf

from tensorflow_ipu._tensorflow import patches


def look_past_ipus() -> None:
    """Has Keras not take IPUs for a reason to compile models by itself.

    It compiles where TensorFlow lists anything but CPUs. That is for models outside of a strategy's scope, which stay on
    the CPU and behave as ever; those of the scope are compiled whatever they ask for. Does nothing where Keras is not
    imported; TensorFlow imports it by itself.
    """
    if patches.JIT_COMPILE_AUTO.is_loaded:
        patches.JIT_COMPILE_AUTO.apply_for_good()


def _past_ipus(plain: Callable[[object], bool]) -> Callable[[object], bool]:
    @functools.wraps(plain)
    def resolve(self: object) -> bool:
        kinds = {device.device_type for device in tf.config.list_physical_devices()}
        if kinds == {"CPU", "IPU"} and sys.modules["keras"].backend.backend() == "tensorflow":
            return False  # As for `{"CPU"}`.
        return plain(self)

    return resolve


patches.JIT_COMPILE_AUTO.by(_past_ipus)
