"""The order of a pipeline's passes: in which step a micro-batch is at which point of its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule
from tensorflow_ipu.pipelining.schedule.instructions import Instruction, Load, Save, micro_batch_of, shifted
from tensorflow_ipu.pipelining.schedule.plan import Plan, Step


@dataclass(frozen=True)
class Order:
    """The way of a micro-batch, and when each one sets out.

    A micro-batch visits `length` points, one a step: the stages forward, and in training the stages backward. A cycle
    is `length` steps; within each cycle micro-batches set out at the steps `offsets`:

        Grouped       0 1 2 3 ... length - 1    one a step
        Interleaved   0 2 4 ...                 as many as never need an IPU twice in a step
        Sequential    0                         one, when the one before is done

    With batch serialization, `batch` micro-batches take the place of one: they visit a point one after the other, and
    each step of the above becomes `batch` steps.
    """

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
    """What the number of micro-batches of a pipeline must be a multiple of.

    Args:
      schedule: The pipeline's schedule.
      mapping: The IPU of each stage, or the IPUs of its parts.
      training: Whether the pipeline trains.

    Returns:
      For `Grouped` the number of passes of a micro-batch: that of the stages, twice in training. For `Interleaved` how
      many rotations of the list of IPUs fit over each other without using an IPU twice at a time. For `Sequential` 1.
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


def folded_ramps(plan: Plan) -> tuple[int, int] | None:
    """How many iterations of the steady loop the ramps are."""
    steady = plan.section("steady")
    up, down = _contents(plan.section("ramp up").steps), _contents(plan.section("ramp down").steps)
    length = len(_contents(steady.steps))
    if not length or len(up) % length:
        return None
    before = len(up) // length
    behind = -(-len(down) // length)
    total = plan.unlooped_micro_batches
    rising = _iterations(steady.steps, range(-before, 0), steady.advance, total)
    falling = _iterations(steady.steps, range(behind), steady.advance, total)
    missing = [frozenset[Instruction]()] * (behind * length - len(down))
    if list(rising) != up or list(falling) != [*down, *missing]:
        return None
    return before, behind


def _contents(steps: Sequence[Step]) -> list[frozenset[Instruction]]:
    """What each step computes; steps that only transfer are left out."""
    found = []
    for step in steps:
        computed = frozenset(task.instruction for task in step.tasks if not isinstance(task.instruction, Load | Save))
        if computed or not step.tasks:
            found.append(computed)
    return found


def _iterations(
    steps: Sequence[Step], iterations: range, advance: int, micro_batches: int
) -> Iterator[frozenset[Instruction]]:
    """What the steps of these iterations do for the micro-batches that there are."""
    for iteration in iterations:
        for content in _contents(steps):
            moved = (shifted(instruction, iteration * advance) for instruction in content)
            yield frozenset(one for one in moved if 0 <= (micro_batch_of(one) or 0) < micro_batches)
