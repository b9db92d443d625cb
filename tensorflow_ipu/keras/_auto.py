"""Keeps Keras's choice of `jit_compile="auto"` what it is without the devices of this package."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_MARK = "_ipu_looks_past_ipus"


def look_past_ipus() -> None:
    """Has Keras not take IPUs for a reason to compile models by itself.

    It compiles where TensorFlow lists anything but CPUs. That is for models outside of a strategy's scope, which stay on
    the CPU and behave as ever; those of the scope are compiled whatever they ask for. Does nothing where Keras is not
    imported; TensorFlow imports it by itself.
    """
    module = sys.modules.get("keras.src.trainers.trainer")
    if module is not None and not hasattr(module.Trainer._resolve_auto_jit_compile, _MARK):
        module.Trainer._resolve_auto_jit_compile = _past_ipus(module.Trainer._resolve_auto_jit_compile)


def _past_ipus(plain: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(plain)
    def resolve(self: Any) -> bool:
        kinds = {device.device_type for device in tf.config.list_physical_devices()}
        if kinds == {"CPU", "IPU"} and sys.modules["keras.src.backend"].backend() == "tensorflow":
            return False  # As for `{"CPU"}`.
        return plain(self)

    setattr(resolve, _MARK, True)
    return resolve
