"""The configuration in force, as one TensorFlow device has it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tensorflow_ipu.config._values import encode


@dataclass(frozen=True, repr=False)
class IpuOptions:
    """What the system was configured to, as `/device:IPU:<device_ordinal>` has it; it cannot change.

    Attributes:
      device_ordinal: The number of the TensorFlow device.
      ipu_count: How many IPUs the device has.
      options: Every attribute by its full name, with the value in force: where
        `floating_point_behaviour.set_all` was set, the attributes that it forces show it. Lists are tuples here.
    """

    __hash__ = None  # type: ignore[assignment]  # The mapping has no hash.

    device_ordinal: int
    ipu_count: int
    options: Mapping[str, Any]

    @classmethod
    def of(cls, device_ordinal: int, ipu_count: int, values: Mapping[str, object]) -> IpuOptions:
        """Freezes a copy of `values`."""
        return cls(
            device_ordinal, ipu_count, MappingProxyType({name: _frozen(value) for name, value in values.items()})
        )

    def to_dict(self) -> dict[str, Any]:
        """The options as plain data of its own, in the form of `IPUConfig.to_dict`."""
        return {name: encode(_thawed(value)) for name, value in self.options.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy can be neither copied nor pickled.
        values = {name: _thawed(value) for name, value in self.options.items()}
        return IpuOptions.of, (self.device_ordinal, self.ipu_count, values)

    def __repr__(self) -> str:
        return f"IpuOptions(device_ordinal={self.device_ordinal}, ipu_count={self.ipu_count})"


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return MappingProxyType(copy.deepcopy(value))
    return tuple(value) if isinstance(value, list) else value


def _thawed(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value
