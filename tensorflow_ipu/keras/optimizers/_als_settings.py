"""The settings of automatic loss scaling, and what they must hold to."""

from __future__ import annotations

import math
from typing import Any

from tensorflow_ipu._checks import is_number, note_bool
from tensorflow_ipu._faults import Faults


class ALSDefaults:
    """The defaults of automatic loss scaling. `ALSOptimizer` says what they mean."""

    initial_loss_scaling_factor = 1
    update_frequency = 8
    increase_factor = 2
    max_loss_scaling_factor = 32768
    accumulate_statistics_over_update_period = True
    ratio_threshold = 1e-05
    captured_grads_only = False
    lpf_alpha = 0
    histogram_bin_edge = 2**13


class ALSSettings:
    """The settings that can be changed after construction: each is checked, alone and against the others."""

    def __init__(
        self,
        initial_loss_scaling_factor: float,
        update_frequency: int,
        increase_factor: float,
        max_loss_scaling_factor: float,
        accumulate_statistics_over_update_period: bool,
        ratio_threshold: float,
        captured_grads_only: bool,
        lpf_alpha: float,
        histogram_bin_edge: float,
    ) -> None:
        """Checks and keeps them.

        Raises:
          ValueError: A value is out of range. All faults are reported together.
          TypeError: A value is of a wrong type.
        """
        self.values: dict[str, float] = {}
        faults = Faults()
        self.values = {
            "initial_loss_scaling_factor": initial_loss_scaling_factor,
            "update_frequency": update_frequency,
            "increase_factor": increase_factor,
            "max_loss_scaling_factor": max_loss_scaling_factor,
            "accumulate_statistics_over_update_period": accumulate_statistics_over_update_period,
            "ratio_threshold": ratio_threshold,
            "captured_grads_only": captured_grads_only,
            "lpf_alpha": lpf_alpha,
            "histogram_bin_edge": histogram_bin_edge,
        }
        _check(self.values, faults)
        faults.raise_any()

    def change(self, name: str, value: float) -> None:
        """Changes one setting.

        Raises:
          ValueError: The value is out of range, or does not go with the other settings, which then stay as they were.
          TypeError: The value is of a wrong type.
        """
        changed = {**self.values, name: value}
        faults = Faults()
        _check(changed, faults)
        faults.raise_any()
        self.values = changed


class setting:  # noqa: N801  (It reads as `property` does.)
    """An attribute of an optimizer that is one of its `_settings`: read, and set if the value is right."""

    def __init__(self, doc: str, resets: bool = False) -> None:
        """Makes the attribute; with `resets`, another value has the optimizer begin anew."""
        self.__doc__ = doc
        self._resets = resets

    def __set_name__(self, owner: type, name: str) -> None:
        """Notes of which setting it is."""
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        """The setting; the attribute itself where the class is asked."""
        return self if optimizer is None else optimizer._settings.values[self._name]

    def __set__(self, optimizer: Any, value: float) -> None:
        """Changes the setting."""
        before = optimizer._settings.values[self._name]
        optimizer._settings.change(self._name, value)
        if self._resets and value != before:
            optimizer.reset()


class read_only(property):  # noqa: N801
    """A property that says so where it is set."""

    def __set__(self, instance: object, value: object) -> None:
        """Refuses.

        Raises:
          ValueError: Always.
        """
        assert self.fget is not None
        raise ValueError(
            f"`{self.fget.__name__}` is a read-only property: it follows from the training and the settings"
        )


def _check(values: dict[str, float], faults: Faults) -> None:
    numbers = [
        name for name in values if name not in ("accumulate_statistics_over_update_period", "captured_grads_only")
    ]
    for name, value in values.items():
        if name not in numbers:
            note_bool(name, value, faults)
    wrong = [name for name in numbers if not is_number(values[name])]
    for name in wrong:
        faults.add(TypeError, f"`{name}` must be a number, but is {values[name]!r}")
    if wrong:
        return
    if values["update_frequency"] < 1 or values["update_frequency"] != int(values["update_frequency"]):
        faults.add(
            ValueError, f"`update_frequency` must be a whole number of 1 or more, but is {values['update_frequency']}"
        )
    for name in ("initial_loss_scaling_factor", "increase_factor", "max_loss_scaling_factor"):
        if values[name] <= 0 or math.frexp(values[name])[0] != 0.5:
            faults.add(ValueError, f"`{name}` must be a power of two, but is {values[name]}")
    if values["increase_factor"] <= 1:
        faults.add(ValueError, f"`increase_factor` must be above 1, but is {values['increase_factor']}")
    initial, limit = values["initial_loss_scaling_factor"], values["max_loss_scaling_factor"]
    if initial >= limit:
        faults.add(
            ValueError,
            f"`initial_loss_scaling_factor` must be less than `max_loss_scaling_factor`, but they are {initial} and"
            f" {limit}",
        )
    elif initial * values["increase_factor"] >= limit:
        faults.add(
            ValueError,
            "`initial_loss_scaling_factor` x `increase_factor` must be less than `max_loss_scaling_factor`, but they are"
            f" {initial} x {values['increase_factor']} and {limit}: there would be nothing to increase",
        )
    if not 0 < values["ratio_threshold"] < 1:
        faults.add(
            ValueError,
            f"`ratio_threshold` must be greater than zero and less than one, but is {values['ratio_threshold']}",
        )
    if not 0 <= values["lpf_alpha"] < 1:
        faults.add(ValueError, f"`lpf_alpha` must be at least zero and less than one, but is {values['lpf_alpha']}")
    if values["histogram_bin_edge"] <= 0:
        faults.add(ValueError, f"`histogram_bin_edge` must be above zero, but is {values['histogram_bin_edge']}")
