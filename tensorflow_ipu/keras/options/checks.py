"""Checks of arguments that several of a model's `set_..._options` methods have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tensorflow_ipu._checks import as_int, note_bool
from tensorflow_ipu._faults import Faults
from tensorflow_ipu._tensors import is_function
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod as Method

NORMALIZATION = {
    "experimental_normalize_gradients": "set `gradient_accumulation_reduction_method` to 'sum', 'mean' or 'running_mean'"
    " instead"
}


def check_steps(steps: object, faults: Faults) -> int | None:
    """Checks `gradient_accumulation_steps_per_replica`, and gives it as an int or None."""
    if steps is None:
        return None
    count = as_int(steps)
    if count is None or count < 1:
        message = f"Expected `gradient_accumulation_steps_per_replica` to be a positive integer, but got {steps!r}"
        faults.add(ValueError, message)
        return None
    if count > tf.int32.max:
        faults.add(
            ValueError, f"`gradient_accumulation_steps_per_replica` must be at most {tf.int32.max}, but is {steps}"
        )
        return None
    return count


def check_method(method: Method | str, faults: Faults) -> Method:
    """Checks `gradient_accumulation_reduction_method`, and gives it parsed."""
    try:
        return Method.parse(method)
    except ValueError as exc:
        faults.add(ValueError, f"`gradient_accumulation_reduction_method` is no such method: {exc}")
        return Method.SUM


def check_flag(name: str, value: object, faults: Faults, *, optional: bool = False) -> None:
    """Checks that an argument is a bool; None will do where it is `optional`."""
    note_bool(name, value, faults, optional=optional)


def check_names(
    method: str, given: Iterable[str], known: Iterable[str], refused: Mapping[str, str], faults: Faults
) -> None:
    """Checks which options are given by name.

    Args:
      method: The name of the method that they are given to.
      given: Their names.
      known: The names of the options that it has.
      refused: Names of options that are set elsewhere, or never, with the reason.
      faults: Gets what is wrong.
    """
    for name in given:
        if name in refused:
            faults.add(ValueError, f"`{name}` cannot be set here: {refused[name]}")
    unknown = sorted(set(given) - set(known) - set(refused))
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        faults.add(TypeError, f"`{method}` has no option {names}; the options by name are {', '.join(sorted(known))}")


def check_dtype(name: str, value: object, faults: Faults) -> None:
    """Checks that an argument is a dtype, a function that returns one, or None."""
    if value is None or is_function(value):
        return
    dtype: Any = value
    try:
        tf.as_dtype(dtype)
    except TypeError:
        faults.add(TypeError, f"`{name}` must be a dtype, a function that returns one, or None, but is {value!r}")


def check_sharding(given: Mapping[str, Any], faults: Faults) -> None:
    """Checks that the optimizer's state is shared out by replicas only where it is off the chip."""
    if given.get("replicated_optimizer_state_sharding") and not given.get("offload_weight_update_variables"):
        faults.add(
            ValueError,
            "`replicated_optimizer_state_sharding=True` wants the optimizer's state offloaded: set"
            " `offload_weight_update_variables=True` too",
        )


def check_queue(make: Callable[[], object], faults: Faults) -> None:
    """Has a queue check its arguments, by making one."""
    try:
        make()
    except (TypeError, ValueError) as exc:
        faults.add(type(exc), str(exc))
