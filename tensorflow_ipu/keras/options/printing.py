"""What a model has set, as text, given to the function that prints."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.keras.options.metrics import ReplicatedMetricReductionMethod
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod


def print_text(text: str, print_fn: Callable[[str], object] | None) -> None:
    """Prints a text by one call, as `model.summary` does.

    Args:
      text: The text, of one line or several.
      print_fn: What prints; `print` if None.

    Raises:
      TypeError: `print_fn` cannot be called.
    """
    if print_fn is not None and not callable(print_fn):
        raise TypeError(f"`print_fn` must be a function of a text, such as `print`, or None, but is {print_fn!r}")
    (print_fn or print)(text)


def assignments(heading: str, rows: Iterable[tuple[str, object, str]]) -> str:
    """A heading, and a line for each value, one below the other.

    Args:
      heading: The first line.
      rows: For each value its name, itself, and a remark; an empty one for none.
    """
    rows = list(rows)
    width = max(len(name) for name, _, _ in rows)
    lines = [f"  {name:{width}} = {typed(value)}{f'  # {remark}' * bool(remark)}" for name, value, remark in rows]
    return "\n".join([heading, *lines])


def typed(value: object) -> str:
    """A value as one would type it; a function by its name."""
    if isinstance(value, GradientAccumulationReductionMethod):
        return f'"{value.name.lower()}"'
    if isinstance(value, ReplicatedMetricReductionMethod):
        return f'"{value.name}"'
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(typed, value))}]"
    if isinstance(value, (np.dtype, type)):
        dtype: Any = value
        return repr(tf.as_dtype(dtype))
    return getattr(value, "__name__", None) or repr(value)
