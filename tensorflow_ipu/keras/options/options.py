"""The options of a model, in groups that are set and reset as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from tensorflow_ipu.keras.options.accumulation import GradientAccumulationOptions
from tensorflow_ipu.keras.options.option_group import OptionGroup
from tensorflow_ipu.keras.options.pipelining import PipeliningOptions
from tensorflow_ipu.keras.options.queues import InfeedOptions, OutfeedOptions
from tensorflow_ipu.keras.options.replication import ReplicationOptions
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod as Method

_Reducing = TypeVar("_Reducing", GradientAccumulationOptions, PipeliningOptions)


@dataclass
class Options:
    """What the `set_...` methods of a model have set."""

    accumulation: GradientAccumulationOptions = field(default_factory=GradientAccumulationOptions)
    pipelining: PipeliningOptions = field(default_factory=PipeliningOptions)
    infeed: InfeedOptions = field(default_factory=InfeedOptions)
    outfeed: OutfeedOptions = field(default_factory=OutfeedOptions)
    replication: ReplicationOptions = field(default_factory=ReplicationOptions)
    asynchronous_callbacks: bool = False

    def groups(self) -> Iterator[tuple[str, OptionGroup]]:
        """The name of each group, and the group."""
        for one in fields(self):
            if isinstance(getattr(self, one.name), OptionGroup):
                yield one.name, getattr(self, one.name)

    def set_accumulation(self, group: GradientAccumulationOptions) -> None:
        """Sets a group, and for pipelines the reduction method that it has: the latest call says it for both."""
        self.accumulation = group
        self.pipelining = _reducing_by(group.gradient_accumulation_reduction_method, self.pipelining)

    def set_pipelining(self, group: PipeliningOptions) -> None:
        """Sets a group, and for gradient accumulation the reduction method that it has: the latest call says it for both."""
        self.pipelining = group
        self.accumulation = _reducing_by(group.gradient_accumulation_reduction_method, self.accumulation)

    def reset(self, name: str) -> bool:
        """Puts a group back to its defaults.

        Args:
          name: Its name.

        Returns:
          Whether an option changed by it.
        """
        before = replace(self)
        setattr(self, name, type(getattr(self, name))())
        if name == "accumulation":
            self.pipelining = _taken_back(self.pipelining)
        if name == "pipelining":
            self.accumulation = _taken_back(self.accumulation)
        return self != before


def _reducing_by(method: Method, group: _Reducing) -> _Reducing:
    return replace(group, gradient_accumulation_reduction_method=method)


def _taken_back(group: _Reducing) -> _Reducing:
    """Drops a reduction method that the group has of the other one, as it does where it has no steps to reduce."""
    if group.gradient_accumulation_steps_per_replica is not None:
        return group
    return _reducing_by(Method.SUM, group)
