"""Checks of what a plan is asked for; all faults of a call are reported together."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Order:
    """When micro-batches set out, at `offsets` of each cycle of `length` steps, to visit `length` points, one a step."""

    length: int
    offsets: tuple[int, ...]
    batch: int = 1

    def step(self, micro_batch: int, point: int) -> int:
        """The step in which a micro-batch is at a point."""
        together, within = divmod(micro_batch, self.batch)
        cycle, index = divmod(together, len(self.offsets))
        return (self.length * cycle + self.offsets[index] + point) * self.batch + within

    @property
    def multiple(self) -> int:
        """What the number of micro-batches must be a multiple of, so that the last cycle is whole."""
        return len(self.offsets) * self.batch

    @property
    def period(self) -> tuple[int, int]:
        """The shortest steady loop: after so many steps, everything happens again so many micro-batches on."""
        times = set(self.offsets)
        for steps in range(1, self.length):
            if self.length % steps == 0 and all((offset + steps) % self.length in times for offset in times):
                break
        else:
            steps = self.length
        return steps * self.batch, len(times) * steps * self.batch // self.length

    @property
    def full_from(self) -> int:
        """The step from which on each point is visited as often as it ever is."""
        return self.offsets[-1] * self.batch


def order_of(
    schedule: PipelineSchedule,
    mapping: Sequence[Sequence[int]],
    training: bool,
    batch_serialization_iterations: int = 1,
) -> Order:
    """The order of a schedule."""
    way = [frozenset(ipus) for ipus in mapping]
    if training:
        way += reversed(way)
    if schedule is PipelineSchedule.Grouped:
        offsets = tuple(range(len(way)))
    elif schedule is PipelineSchedule.Interleaved:
        offsets = _rotations(way)
    else:
        offsets = (0,)
    return Order(len(way), offsets, batch_serialization_iterations)


def overlap_length(schedule: PipelineSchedule, mapping: Sequence[int | Sequence[int]], training: bool) -> int:
    """What the number of micro-batches of a pipeline must be a multiple of, by the IPU or IPUs of each stage.

    For `Grouped` it is the number of stages, twice in training; for `Interleaved` how many rotations of the list of IPUs
    overlap without using an IPU twice at a time; for `Sequential` 1.
    """
    groups = [[item] if isinstance(item, int) else list(item) for item in mapping]
    return order_of(schedule, groups, training).multiple


def _rotations(way: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """The rotations of a circular way that share no IPU in any step, chosen greedily from 0 on."""
    length = len(way)
    # Two of them share none if their difference does, so each difference is looked at once.
    apart = [all(way[at].isdisjoint(way[(at + by) % length]) for at in range(length)) for by in range(length)]
    chosen = [0]
    for rotation in range(1, length):
        if all(apart[rotation - other] for other in chosen):
            chosen.append(rotation)
    return tuple(chosen)
