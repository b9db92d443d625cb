"""The ramps of a plan as iterations of its steady loop, in which what has no micro-batch is skipped.

Most plans' ramps are that, so that a program needs the code of each instruction but once. Transfers do not matter here:
a program has one memory, so there is nothing that it does for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorflow_ipu.pipelining.schedule.instructions import Instruction, Load, Save, micro_batch_of, shifted
from tensorflow_ipu.pipelining.schedule.plan import Plan, Step


def folded_ramps(plan: Plan) -> tuple[int, int] | None:
    """How many iterations of the steady loop the ramps are.

    Args:
      plan: The plan.

    Returns:
      The iterations of the ramp up and those of the ramp down; None if a ramp has other steps than such iterations.
    """
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
