"""Checks of the arguments of plans, and the base class of schedules. All errors of a call are reported together."""

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

# The recomputation modes that each schedule supports; `Auto` selects the first one.
SUPPORTED_MODES: dict[PipelineSchedule, tuple[RecomputationMode, ...]] = {
    PipelineSchedule.Grouped: (
        RecomputationMode.RecomputeThenBackpropagate,
        RecomputationMode.RecomputeAndBackpropagateInterleaved,
    ),
    PipelineSchedule.Interleaved: (RecomputationMode.RecomputeThenBackpropagate,),
    PipelineSchedule.Sequential: (RecomputationMode.RecomputeAndBackpropagateInterleaved,),
}


LARGEST_COUNT = 2**31 - 1
MOST_STAGES = 1024  # The ramps of a plan have a step for each stage, and each step has a task for each stage.
ALL_IPUS = -1  # A stage on all IPUs has this number in place of the number of an IPU.

Mapping = tuple[tuple[int, ...], ...]
FullMapping = tuple[Mapping, tuple[bool, ...]]  # The IPUs of each stage, and True if it was passed as a list of parts.


def checked_count(name: str, value: object, faults: Faults, largest: int = LARGEST_COUNT) -> None:
    """Records an error unless `value` is a whole number from 1 to `largest`."""
    if not is_int(value):
        faults.add(TypeError, f"`{name}` must be a whole number, but is {value!r}")
    elif not 1 <= value <= largest:
        faults.add(ValueError, f"`{name}` must be from 1 to {largest}, but is {value}")


def checked_product(counts: dict[str, Any], faults: Faults) -> None:
    """Records an error if the product of valid counts is above the largest int32."""
    if not all(is_int(count) and 1 <= count <= LARGEST_COUNT for count in counts.values()):
        return
    total = math.prod(counts.values())
    if total > LARGEST_COUNT:
        named = " and ".join(f"`{name}` is {count}" for name, count in counts.items())
        faults.add(ValueError, f"{named}: together {total} micro-batches, but at most {LARGEST_COUNT} are supported")


def checked_mapping(name: str, mapping: object, faults: Faults) -> FullMapping | None:
    """Returns a device mapping in its full form; records errors and returns None if it is not valid."""
    if not isinstance(mapping, list | tuple):
        faults.add(TypeError, f"`{name}` must be a list or a tuple, but is {mapping!r}")
        return None
    full_mapping: list[tuple[int, ...]] = []
    is_valid = True
    for stage, item in enumerate(mapping):
        ipus = tuple(item) if isinstance(item, list | tuple) else (item,)
        ipus = (0,) if is_int(item) and item == ALL_IPUS else ipus
        fault = _mapping_fault(f"{name}[{stage}]", item, ipus)
        if fault:
            faults.add(*fault)
            is_valid = False
        full_mapping.append(ipus)
    concurrent = tuple(isinstance(item, list | tuple) for item in mapping)
    return (tuple(full_mapping), concurrent) if is_valid else None


def _mapping_fault(name: str, item: object, ipus: tuple[Any, ...]) -> tuple[type[Exception], str] | None:
    if not all(is_int(ipu) for ipu in ipus):
        return TypeError, f"`{name}` must be an IPU's number, or a list of them for concurrent parts, but is {item!r}"
    if not ipus:
        return ValueError, f"`{name}` is an empty list; name the IPU of each concurrent part"
    if max(ipus) >= MOST_IPUS:
        return ValueError, f"`{name}` is {item!r}; IPUs are numbered from 0 to {MOST_IPUS - 1}"
    if min(ipus) < 0:
        return ValueError, f"`{name}` is {item!r}; IPUs are numbered from 0, and -1 means all IPUs"
    if len(set(ipus)) < len(ipus):
        return ValueError, f"`{name}` is {item!r}; concurrent parts need IPUs of their own"
    return None


def is_serialized(batch_serialization_iterations: object) -> bool:
    """Returns True if each micro-batch is cut into several elements of the infeed."""
    return is_int(batch_serialization_iterations) and batch_serialization_iterations > 1


def check_multiple(micro_batches: int, multiple: int, schedule: str, stages: int, training: bool) -> None:
    """Raises an error unless the number of micro-batches is a multiple of `multiple`."""
    if micro_batches % multiple == 0:
        return
    below = micro_batches // multiple * multiple
    nearest = [str(count) for count in (below, below + multiple) if count]
    prefix, suffix = message_of_multiple(schedule, stages, training, multiple)
    message = f"{prefix}{micro_batches}; use {' or '.join(nearest)}{suffix}"
    if "tensorflow" not in sys.modules:  # Then nobody can catch its errors, and its import takes seconds.
        raise ValueError(message)
    from tensorflow.errors import FailedPreconditionError  # pyright: ignore[reportMissingImports]

    raise FailedPreconditionError(None, None, message)


def message_of_multiple(schedule: str, stages: int, training: bool, multiple: int | str) -> tuple[str, str]:
    """Returns the error of a number of micro-batches that is not a multiple: the texts before and after the number."""
    trains = "trains" if training else "does not train"
    prefix = (
        f"the number of micro-batches of a {schedule} pipeline of {stages} stages that {trains} must be a multiple of"
        f" {multiple}, but is "
    )
    return prefix, (
        ". It is called `micro_batches`, `gradient_accumulation_count`, `gradient_accumulation_steps_per_replica` or"
        " `steps_per_execution`, depending on what you call"
    )


@dataclass(frozen=True)
class Schedule:
    """A schedule with its checks of the other arguments of a pipeline, and its plans."""

    enough: ClassVar[int]  # A plan of `enough * multiple` micro-batches has a steady section.

    value: PipelineSchedule | PhasedExecution

    @property
    def name(self) -> str:
        return self.value.name

    def default_mapping(self, parts: Sequence[int], batch_serialization_iterations: int) -> Mapping:
        """Returns the default IPUs of all stages, given the number of parts of each stage."""
        raise NotImplementedError

    def multiple(self, mapping: Mapping, training: bool) -> int:
        """Returns the number of which the number of micro-batches must be a multiple."""
        raise NotImplementedError

    def check(self, mapping: Mapping | None, training: bool, batch: int, faults: Faults, name: str) -> None:
        """Records an error for each argument that the schedule does not support; `name` is the argument with the schedule."""
        del mapping, training
        if is_serialized(batch) and self.value is not PipelineSchedule.Sequential:
            faults.add(
                NotImplementedError,
                f"`batch_serialization_iterations` is {batch} and `{name}` is {self.name}; batches can be serialized"
                " with `PipelineSchedule.Sequential` only",
            )

    def checked_mode(self, mode: object, training: bool, faults: Faults) -> RecomputationMode | None:
        """Returns the recomputation mode to use, never `Auto`; records an error if it is not supported."""
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
        """Returns the plan of arguments that were checked."""
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
        """Checks the arguments, raises all errors together, and returns the plan.

        `device_mapping` is None if its error is already in `faults`.
        """
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
