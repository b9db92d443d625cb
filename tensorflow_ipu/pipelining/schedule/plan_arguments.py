"""Checks of the arguments of plans, and what all schedules answer; all faults of a call are reported together."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tensorflow_ipu._base.checks import Faults, is_int, note_bool
from tensorflow_ipu._base.environment import MOST_IPUS
from tensorflow_ipu.pipelining.schedule.enums import PhasedExecution, PipelineSchedule, RecomputationMode

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.schedule.plan import Plan

# The modes that a schedule supports; the first one is its `Auto`.
SUPPORTED_MODES: dict[PipelineSchedule, tuple[RecomputationMode, ...]] = {
    PipelineSchedule.Grouped: (
        RecomputationMode.RecomputeThenBackpropagate,
        RecomputationMode.RecomputeAndBackpropagateInterleaved,
    ),
    PipelineSchedule.Interleaved: (RecomputationMode.RecomputeThenBackpropagate,),
    PipelineSchedule.Sequential: (RecomputationMode.RecomputeAndBackpropagateInterleaved,),
}


LARGEST_COUNT = 2**31 - 1
MOST_STAGES = 1024  # The steps of a plan are as many, and each has as many tasks.
ALL_IPUS = -1  # In the place of an IPU's number.

Mapping = tuple[tuple[int, ...], ...]
FullMapping = tuple[Mapping, tuple[bool, ...]]  # The IPUs of each stage, and whether it was passed as a list of parts.


def checked_count(name: str, value: object, faults: Faults, most: int = LARGEST_COUNT) -> None:
    """Records a fault where `value` is no whole number from 1 to the most that is possible."""
    if not is_int(value):
        faults.add(TypeError, f"`{name}` must be a whole number, but is {value!r}")
    elif not 1 <= value <= most:
        faults.add(ValueError, f"`{name}` must be from 1 to {most}, but is {value}")


def checked_product(counts: dict[str, Any], faults: Faults) -> None:
    """Records a fault where counts, by name, are sound one by one and more than the largest int32 in all."""
    if not all(is_int(count) and 1 <= count <= LARGEST_COUNT for count in counts.values()):
        return
    total = math.prod(counts.values())
    if total > LARGEST_COUNT:
        named = " and ".join(f"`{name}` is {count}" for name, count in counts.items())
        faults.add(ValueError, f"{named}: {total} micro-batches in all, and at most {LARGEST_COUNT} are possible")


def checked_mapping(name: str, mapping: object, faults: Faults) -> FullMapping | None:
    """Brings a device mapping into its full form."""
    if not isinstance(mapping, list | tuple):
        faults.add(TypeError, f"`{name}` must be a list or a tuple, but is {mapping!r}")
        return None
    found: list[tuple[int, ...]] = []
    sound = True
    for stage, item in enumerate(mapping):
        ipus = tuple(item) if isinstance(item, list | tuple) else (item,)
        ipus = (0,) if is_int(item) and item == ALL_IPUS else ipus
        fault = _mapping_fault(f"{name}[{stage}]", item, ipus)
        if fault:
            faults.add(*fault)
            sound = False
        found.append(ipus)
    concurrent = tuple(isinstance(item, list | tuple) for item in mapping)
    return (tuple(found), concurrent) if sound else None


def _mapping_fault(name: str, item: object, ipus: tuple[Any, ...]) -> tuple[type[Exception], str] | None:
    if not all(is_int(ipu) for ipu in ipus):
        return TypeError, f"`{name}` must be an IPU's number, or a list of them for concurrent parts, but is {item!r}"
    if not ipus:
        return ValueError, f"`{name}` is an empty list; name the IPU of each concurrent part"
    if max(ipus) >= MOST_IPUS:
        return ValueError, f"`{name}` is {item!r}; IPUs are numbered from 0 to {MOST_IPUS - 1}"
    if min(ipus) < 0:
        return ValueError, f"`{name}` is {item!r}; IPUs are numbered from 0, and -1 alone is all of them"
    if len(set(ipus)) < len(ipus):
        return ValueError, f"`{name}` is {item!r}; concurrent parts need IPUs of their own"
    return None


def is_serialized(batch_serialization_iterations: object) -> bool:
    """Returns True if several elements of the infeed take the place of a micro-batch."""
    return is_int(batch_serialization_iterations) and batch_serialization_iterations > 1


def check_multiple(micro_batches: int, multiple: int, schedule: str, stages: int, training: bool) -> None:
    """Raises an error if a number of micro-batches would leave the last cycle of a pipeline unfinished."""
    if micro_batches % multiple == 0:
        return
    below = micro_batches // multiple * multiple
    nearest = [str(count) for count in (below, below + multiple) if count]
    before, after = words_of_multiple(schedule, stages, training, multiple)
    message = f"{before}{micro_batches}; use {' or '.join(nearest)}{after}"
    if "tensorflow" not in sys.modules:  # Then nobody can name its kind of error, and its import would take seconds.
        raise ValueError(message)
    from tensorflow.errors import FailedPreconditionError  # pyright: ignore[reportMissingImports]

    raise FailedPreconditionError(None, None, message)


def words_of_multiple(schedule: str, stages: int, training: bool, multiple: int | str) -> tuple[str, str]:
    """What is said of a number of micro-batches that is no such multiple, before it and after it."""
    trains = "trains" if training else "does not train"
    before = (
        f"the number of micro-batches of a {schedule} pipeline of {stages} stages that {trains} must be a multiple of"
        f" {multiple}, but is "
    )
    return before, (
        ". It is called `micro_batches`, `gradient_accumulation_count`, `gradient_accumulation_steps_per_replica` or"
        " `steps_per_execution`, depending on what you call"
    )


@dataclass(frozen=True)
class Schedule:
    """Answers for a schedule: what it supports of a pipeline's other arguments, and its plans."""

    enough: ClassVar[int]  # So many times `multiple` micro-batches have a steady section.

    value: PipelineSchedule | PhasedExecution

    @property
    def name(self) -> str:
        return self.value.name

    def default_mapping(self, parts: Sequence[int], batch_serialization_iterations: int) -> Mapping:
        """Returns the IPUs of stages of so many parts."""
        raise NotImplementedError

    def multiple(self, mapping: Mapping, training: bool) -> int:
        """Returns what the number of micro-batches must be a multiple of."""
        raise NotImplementedError

    def check(self, mapping: Mapping | None, training: bool, batch: int, faults: Faults, name: str) -> None:
        """Records faults if the schedule, the argument `name`, does not support the other arguments."""
        del mapping, training
        if is_serialized(batch) and self.value is not PipelineSchedule.Sequential:
            faults.add(
                NotImplementedError,
                f"`batch_serialization_iterations` is {batch} and `{name}` is {self.name}; batches can be serialised with"
                " `PipelineSchedule.Sequential` only",
            )

    def checked_mode(self, mode: object, training: bool, faults: Faults) -> RecomputationMode | None:
        """Returns the recomputation mode that is used, never `Auto`; records a fault if it is not supported."""
        if mode is None:
            return None
        if isinstance(mode, RecomputationMode):
            used = self._supported(mode, faults)
            return used if training else None
        faults.add(TypeError, f"`recomputation_mode` must be a `RecomputationMode` or None, but is {mode!r}")
        return None

    def _supported(self, mode: RecomputationMode, faults: Faults) -> RecomputationMode:
        raise NotImplementedError

    def plan(
        self,
        full: FullMapping,
        micro_batches: int,
        *,
        training: bool,
        mode: RecomputationMode | None,
        repeat_count: int,
        batch: int = 1,
    ) -> Plan:
        """Makes a plan of arguments that were checked."""
        raise NotImplementedError

    def checked_plan(
        self,
        device_mapping: object,
        micro_batches: int,
        *,
        training: bool,
        mode: RecomputationMode | None = None,
        repeat_count: int,
        batch: int = 1,
        faults: Faults,
    ) -> Plan:
        """Checks arguments, raises all faults, and makes the plan. A mapping of None is a fault that is recorded."""
        counts = {"micro_batches": micro_batches, "batch_serialization_iterations": batch}
        for name, count in {**counts, "repeat_count": repeat_count}.items():
            checked_count(name, count, faults)
        checked_product(counts, faults)
        note_bool("training", training, faults)
        full = None if device_mapping is None else checked_mapping("device_mapping", device_mapping, faults)
        if full and not full[0]:
            faults.add(ValueError, "`device_mapping` is empty; name the IPU of each stage")
        self.check(full and full[0], training, batch, faults, "schedule")
        used = self.checked_mode(mode, training, faults)
        faults.raise_any()
        assert full is not None
        multiple = self.multiple(full[0], training)
        check_multiple(micro_batches, multiple, self.name, len(full[0]), training)
        return self.plan(
            full, micro_batches * batch, training=training, mode=used, repeat_count=repeat_count, batch=batch
        )
