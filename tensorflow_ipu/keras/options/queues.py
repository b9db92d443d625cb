"""The options of a model's queues: what `set_infeed_queue_options` and `set_outfeed_queue_options` set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from tensorflow_ipu._faults import Faults
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.keras.options import checks
from tensorflow_ipu.keras.options.option_group import OptionGroup

_OF_INFEED = {
    **dict.fromkeys(("dataset", "infeed_spec", "element_spec"), "the model sets it"),
    "device_ordinal": "the strategy has the device",
}
_OF_OUTFEED = {"outfeed_mode": "the model sets it", "device_ordinal": "the strategy has the device"}


@dataclass(frozen=True)
class InfeedOptions(OptionGroup):
    """What a model's infeeds are made with, as `IPUInfeedQueue` has it."""

    title: ClassVar[str] = "infeed queue options"

    prefetch_depth: int | None = None
    optimise_latency: bool = False

    def in_effect(self) -> dict[str, Any]:
        """All options by name, with the depth that a queue takes where none is set."""
        return {**super().in_effect(), "prefetch_depth": _infeed(super().in_effect()).prefetch_depth}

    @classmethod
    def checked(cls, kwargs: Mapping[str, Any]) -> InfeedOptions:
        """The options that the arguments of `set_infeed_queue_options` say.

        Raises:
          ValueError: One of them is out of range, or set by the model.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        faults = Faults()
        checks.check_names("set_infeed_queue_options", kwargs, cls.names(), _OF_INFEED, faults)
        checks.check_queue(lambda: _infeed({name: kwargs[name] for name in cls.names() if name in kwargs}), faults)
        faults.raise_any()
        return cls(**kwargs)


@dataclass(frozen=True)
class OutfeedOptions(OptionGroup):
    """What a model's outfeeds are made with, as `IPUOutfeedQueue` has it."""

    title: ClassVar[str] = "outfeed queue options"

    buffer_depth: int = 3
    optimise_latency: bool = False

    @classmethod
    def checked(cls, kwargs: Mapping[str, Any]) -> OutfeedOptions:
        """The options that the arguments of `set_outfeed_queue_options` say.

        Raises:
          ValueError: One of them is out of range, or set by the model.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        faults = Faults()
        checks.check_names("set_outfeed_queue_options", kwargs, cls.names(), _OF_OUTFEED, faults)
        given: dict[str, Any] = {name: kwargs[name] for name in cls.names() if name in kwargs}
        checks.check_queue(lambda: IPUOutfeedQueue(device_ordinal=0, **given), faults)
        faults.raise_any()
        return cls(**kwargs)


def _infeed(options: Mapping[str, Any]) -> IPUInfeedQueue:
    """A queue of so little data that it costs nothing, since the queue knows what its arguments mean."""
    return IPUInfeedQueue(tf.data.Dataset.range(1), device_ordinal=0, **options)
