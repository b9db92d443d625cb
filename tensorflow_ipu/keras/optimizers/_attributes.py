"""Which numbers of an optimizer its programs have as constants, and which they read from variables at each run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._checks import is_number

if TYPE_CHECKING:
    import keras


class Attributes:
    """The marks of one optimizer.

    Attributes:
      changeable: The names that can be marked.
      variable: Those that are.
      values: Their variables, once the optimizer is built.
      compiled: Constants that are in programs by now.
    """

    def __init__(self, changeable: Iterable[str], variable: Iterable[str]) -> None:
        """Takes the names that can be marked, and those that are.

        Raises:
          ValueError: One that cannot be is.
          TypeError: `variable` is no list of names.
        """
        self.changeable = frozenset(changeable)
        self.variable: set[str] = set()
        self.values: dict[str, keras.Variable] = {}
        self.compiled: set[str] = set()
        if isinstance(variable, str):
            raise TypeError(
                f"`variable_attributes` must be a list of names, but is {variable!r}: write `[{variable!r}]`"
            )
        self.mark("variable_attributes", variable, is_variable=True)

    def mark(self, argument: str, names: Iterable[str], is_variable: bool) -> None:
        """Marks attributes as variable or constant.

        Raises:
          ValueError: One is none that can be marked.
          RuntimeError: The optimizer is built.
        """
        for name in names:
            if name == "learning_rate":
                if is_variable:
                    continue  # It always is.
                raise ValueError(f"`{argument}` has `learning_rate`, which always is a variable")
            if name not in self.changeable:
                known = ", ".join(f"`{each}`" for each in sorted(self.changeable)) or "none"
                raise ValueError(
                    f"`{argument}` has {name!r}; the attributes of this optimizer that can be marked: {known}"
                )
            if self.values or self.compiled:
                raise RuntimeError(
                    f"`{name}` was to be marked when the optimizer was built already: mark attributes before the first step,"
                    " best by `variable_attributes` of the constructor"
                )
            (self.variable.add if is_variable else self.variable.discard)(name)

    def check_set(self, name: str, before: object, value: object) -> None:
        """Refuses a new value for what programs have as a constant.

        Raises:
          ValueError: They have, and it is another one.
        """
        if name in self.compiled and before != value:
            way = (
                f"the optimizer with `variable_attributes=[{name!r}]`"
                if name in self.changeable
                else "another optimizer"
            )
            raise ValueError(
                f"`{name}` was to become {value!r}, and programs were compiled with {before!r}, which they keep: make {way}"
            )

    def read(self, name: str) -> float | tf.Tensor:
        """The value of a variable attribute: a number, or a tensor in the midst of a function."""
        variable = self.values[name]
        return float(variable.numpy()) if tf.executing_eagerly() else tf.convert_to_tensor(variable)


def number(name: str, value: object) -> float:
    """The number that an attribute is to be.

    Raises:
      TypeError: It is none.
      ValueError: It is infinite or no number at all.
    """
    if not is_number(value):
        raise TypeError(f"`{name}` is a variable of programs, and must be a number, but is {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, but is {value!r}")
    return float(value)
