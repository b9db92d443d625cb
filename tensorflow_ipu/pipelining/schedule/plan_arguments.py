"""Checks of what a plan is asked for; all faults of a call are reported together."""

from __future__ import annotations

import math
import sys
from typing import Any, TypeGuard

from tensorflow_ipu._base.checks import Faults, is_int
from tensorflow_ipu._base.environment import MOST_IPUS
from tensorflow_ipu.pipelining.schedule.enums import PhasedExecution, PipelineSchedule, RecomputationMode

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


def check_serialization(
    schedule: PipelineSchedule | PhasedExecution, batch_serialization_iterations: int, faults: Faults, name: str
) -> None:
    """Records a fault if batches are serialized and the schedule, the argument `name`, is not Sequential."""
    if is_serialized(batch_serialization_iterations) and schedule is not PipelineSchedule.Sequential:
        faults.add(
            NotImplementedError,
            f"`batch_serialization_iterations` is {batch_serialization_iterations} and `{name}` is {schedule.name};"
            " batches can be serialised with `PipelineSchedule.Sequential` only",
        )


def is_mode(mode: object, faults: Faults) -> TypeGuard[RecomputationMode]:
    """Returns True for a recomputation mode, and False for None; records a fault of anything else."""
    if mode is not None and not isinstance(mode, RecomputationMode):
        faults.add(TypeError, f"`recomputation_mode` must be a `RecomputationMode` or None, but is {mode!r}")
    return isinstance(mode, RecomputationMode)


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
