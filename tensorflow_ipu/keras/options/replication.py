"""The options of replicas: what `set_replication_options` sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tensorflow_ipu.keras.options.metrics import ReplicatedMetricReductionMethod
from tensorflow_ipu.keras.options.option_group import OptionGroup


@dataclass(frozen=True)
class ReplicationOptions(OptionGroup):
    """What logs show of the metrics of several replicas."""

    title: ClassVar[str] = "replication options"

    replicated_metric_reduction_method: ReplicatedMetricReductionMethod = ReplicatedMetricReductionMethod.NONE

    @classmethod
    def checked(cls, method: object) -> ReplicationOptions:
        """The options that the argument of `set_replication_options` says.

        Raises:
          ValueError: It is no method, and the name of none.
        """
        return cls(ReplicatedMetricReductionMethod.parse(method))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ReplicationOptions:
        """The group in which these options are set; see the class above."""
        return cls.checked(given.get("replicated_metric_reduction_method", ReplicatedMetricReductionMethod.NONE))
