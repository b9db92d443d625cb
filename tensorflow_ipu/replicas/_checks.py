"""What a program must hold to before it runs: types that an IPU has, and state on its device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow import functions

# The program, the device, and the positions of inputs that are handles of state.
_Passed = tuple[weakref.ref[Any], str, tuple[int, ...]]

# Programs that passed, each with the device that it passed for and the positions of its inputs that are handles of state.
# By number: a `WeakKeyDictionary` would cost more at each run.
_passed: dict[int, _Passed] = {}


def check(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> None:
    """Checks a program, once for a device, and what it is called with.

    Args:
      program: The concrete function.
      inputs: Its flat inputs of this call, without the captured ones.
      device: The full name of the IPU device that it is to run on.

    Raises:
      TypeError: An input or output is float64 or strings, which an IPU does not have.
      ValueError: The program uses variables or other state of another device. All of it is named.
    """
    known = _passed.get(id(program))
    if known is None or known[0]() is not program or known[1] != device:
        known = _check_program(program, len(inputs), device)
    handles = known[2]
    if handles:
        _check_places([(program.inputs[at].op.name, inputs[at].device) for at in handles], device)


def _check_program(program: functions.ConcreteFunction, count: int, device: str) -> _Passed:
    _check_types("input", program.inputs)
    _check_types("output", program.outputs)
    places = {id(variable.handle): (variable.name, variable.device) for variable in program.variables}
    for at, tensor in enumerate(program.captured_inputs):
        if tensor.dtype == tf.resource:
            places.setdefault(id(tensor), (f"captured state {at}", tensor.device))
    _check_places(places.values(), device)
    handles = tuple(at for at, tensor in enumerate(program.inputs[:count]) if tensor.dtype == tf.resource)
    key = id(program)
    known = _passed[key] = (weakref.ref(program, lambda _: _passed.pop(key, None)), device, handles)
    return known


def _check_types(kind: str, tensors: list[tf.Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype == tf.float64:
            raise TypeError(
                f"Unsupported data type for {kind}: float64 (`{tensor.name}` of shape {tensor.shape}). An IPU has no"
                f" float64: `tf.cast` the {kind} to float32 or float16"
            )
        if tensor.dtype == tf.string:
            raise TypeError(
                f"Unsupported data type for {kind}: string (`{tensor.name}` of shape {tensor.shape}). An IPU has no strings:"
                " turn them to numbers on the host, where the data is made (`dataset.map`)"
            )


def _check_places(places: Iterable[tuple[str, str]], device: str) -> None:
    elsewhere = [f"`{name}` on `{place}`" for name, place in sorted(places) if place and not _same(place, device)]
    if elsewhere:
        raise ValueError(
            f"the program runs on `{device}`, but uses variables (or iterators, or queues) of another device:"
            f" {', '.join(elsewhere)}. Make them, as the model and the optimizer, inside `strategy.scope()` of the strategy"
            " that runs the program; a lookup table stays on the host, so look up where the dataset is made"
        )


def _same(place: str, device: str) -> bool:
    """Whether two names are of one device: a graph may leave out what goes without saying."""
    if place == device:
        return True
    one, other = tf.DeviceSpec.from_string(place), tf.DeviceSpec.from_string(device)
    return (one.device_type, one.device_index or 0) == (other.device_type, other.device_index or 0)
