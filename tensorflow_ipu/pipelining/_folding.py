"""The ramps of a plan as iterations of its steady loop, in which what has no micro-batch is skipped.

Most plans' ramps are that, so that a program needs the code of each instruction but once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorflow_ipu.pipelining._instructions import Instruction, micro_batch_of, shifted
from tensorflow_ipu.pipelining._plan import Plan, Step


def folded_ramps(plan: Plan) -> tuple[int, int] | None:
    """How many iterations of the steady loop the ramps are.

    Args:
      plan: The plan.

    Returns:
      The iterations of the ramp up and those of the ramp down; None if a ramp has other steps than such iterations.
    """
    steady = plan.section("steady")
    up, down = plan.section("ramp up"), plan.section("ramp down")
    length = len(steady.steps)
    if not length or len(up.steps) % length:
        return None
    before = len(up.steps) // length
    behind = -(-len(down.steps) // length)
    total = plan.unlooped_micro_batches
    rising = _iterations(steady.steps, range(-before, 0), steady.advance, total)
    falling = _iterations(steady.steps, range(behind), steady.advance, total)
    missing = [frozenset[Instruction]()] * (behind * length - len(down.steps))
    if list(rising) != _contents(up.steps) or list(falling) != [*_contents(down.steps), *missing]:
        return None
    return before, behind


def _contents(steps: Sequence[Step]) -> list[frozenset[Instruction]]:
    return [frozenset(task.instruction for task in step.tasks) for step in steps]


def _iterations(
    steps: Sequence[Step], iterations: range, advance: int, micro_batches: int
) -> Iterator[frozenset[Instruction]]:
    """What the steps of these iterations do for the micro-batches that there are."""
    for iteration in iterations:
        for content in _contents(steps):
            moved = (shifted(instruction, iteration * advance) for instruction in content)
            yield frozenset(one for one in moved if 0 <= (micro_batch_of(one) or 0) < micro_batches)
