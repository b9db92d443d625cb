"""What a program must hold to before it runs: types that an IPU has, and variables on its device."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

# Programs that passed, each with the device that it passed for. Programs compare by what they do, so by identity here.
_passed: dict[int, tuple[weakref.ref[Any], str]] = {}


def check(program: Any, device: str) -> None:
    """Checks a program once for a device.

    Args:
      program: The concrete function.
      device: The full name of the IPU device that it is to run on.

    Raises:
      TypeError: An input or output is float64, which an IPU does not have.
      ValueError: The program uses variables of another device. All of them are named.
    """
    known = _passed.get(id(program))
    if known is not None and known[0]() is program and known[1] == device:
        return
    _check_types("input", program.inputs)
    _check_types("output", program.outputs)
    _check_variables(program, device)
    key = id(program)
    _passed[key] = (weakref.ref(program, lambda _: _passed.pop(key, None)), device)


def _check_types(kind: str, tensors: list[Any]) -> None:
    for tensor in tensors:
        if tensor.dtype == tf.float64:
            raise TypeError(
                f"Unsupported data type for {kind}: float64 (`{tensor.name}` of shape {tensor.shape}). An IPU has no"
                f" float64: `tf.cast` the {kind} to float32 or float16"
            )


def _check_variables(program: Any, device: str) -> None:
    elsewhere = {
        variable.name: variable.device
        for variable in program.variables
        if variable.device and variable.device != device
    }
    if elsewhere:
        places = ", ".join(f"`{name}` on `{place}`" for name, place in sorted(elsewhere.items()))
        raise ValueError(
            f"the program runs on `{device}`, but uses variables of another device: {places}. Make the variables (the"
            " model, the optimizer) inside `strategy.scope()` of the strategy that runs the program"
        )
