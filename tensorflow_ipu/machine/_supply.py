"""Whether a machine would wait for its data: what a program takes a second beside what a dataset gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.machine._text import count_text

if TYPE_CHECKING:
    from tensorflow_ipu.machine._report import Report


@dataclass(frozen=True)
class SupplyAndDemand:
    """What a program takes, and what a dataset gives.

    Attributes:
      demand: Elements a second that all replicas take together, as predicted.
      demand_bytes: Bytes a second, likewise.
      supply: Elements a second that the dataset gave on this host, as measured.
    """

    demand: float
    demand_bytes: float
    supply: float

    @property
    def is_bound(self) -> bool:
        """Whether the machine would wait for the dataset."""
        return self.supply < self.demand

    def __str__(self) -> str:
        words = (
            f"the program takes {self.demand:,.0f} elements/s ({count_text(self.demand_bytes)}B/s), the dataset gives"
        )
        words += f" {self.supply:,.0f} elements/s: "
        if self.is_bound:
            return words + f"bound by data, {self.demand / self.supply:.1f} times too slow"
        return words + f"not bound by data, with room for {self.supply / self.demand:.1f} times as much"


def balance_of(report: Report, benchmark: str | bytes | Mapping[str, Any]) -> SupplyAndDemand:
    """Compares what a program takes with what `dataset_benchmark` measured."""
    rows = [each for each in report.operations if each.kind == "infeed"]
    if not rows:
        raise ValueError(f"`{report.program}` reads no infeed, so no dataset can keep it waiting")
    try:
        values: Any = benchmark if isinstance(benchmark, Mapping) else json.loads(benchmark)
        supply = float(values["epochs"][-1]["elements_per_second"])
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        raise ValueError(
            "`benchmark` must be the JSON that `dataset_benchmark` returns (`result.numpy()[0]`), with `elements_per_second`"
            f" of each of its `epochs`, but is {benchmark!r}"
        ) from exc
    taken = sum(each.host_bytes for each in rows) / report.seconds
    return SupplyAndDemand(report.throughput(1), report.replicas * taken, supply)


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
