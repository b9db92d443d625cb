"""One pass of a pipeline in time: which IPU does what when, and when it waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TaskTime:
    """What one IPU does for a while.

    Attributes:
      ipu: Its number within the replica.
      begin: Seconds from the begin of the pass.
      end: When it ends, likewise.
      kind: `forward`, `recompute`, `backward`, `update`, `load`, `save` or `exchange`.
      stage: The stage whose work it is; -1 for an exchange.
      label: As the plan has it, such as `2F0`: stage 2 forward on micro-batch 0.
    """

    ipu: int
    begin: float
    end: float
    kind: str
    stage: int
    label: str


@dataclass(frozen=True)
class Timeline:
    """How a pipeline passes its time.

    Attributes:
      seconds: The time of a pass, from the first micro-batch to the update, without the host.
      micro_batches: How many micro-batches a pass has.
      passes: How many passes a run has.
      bubble: The share of the time of all IPUs in which they wait for others.
      shown: How many micro-batches `tasks` are for: a pass of many is shown as one of few, with the same ramps.
      tasks: What the IPUs do, in the order of their begin.
    """

    seconds: float
    micro_batches: int
    passes: int
    bubble: float
    shown: int
    tasks: tuple[TaskTime, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Timeline:
        """The timeline whose fields JSON has held."""
        return cls(**{**values, "tasks": tuple(TaskTime(**each) for each in values["tasks"])})
