"""A pass of a plan as a TensorFlow program: its steady section as a loop, with the ramps as further iterations of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.pipelining.program import memory
from tensorflow_ipu.pipelining.program.layout import CAPTURED, HANDED, SUMS, Layout
from tensorflow_ipu.pipelining.program.memory import ProgramMemory, cut
from tensorflow_ipu.pipelining.program.operations import Operation, Operations
from tensorflow_ipu.pipelining.schedule.plan import Backward, Buffer, BufferKind, Section, Step, Task
from tensorflow_ipu.pipelining.schedule.plan_arguments import folded_ramps
from tensorflow_ipu.pipelining.stages.part import Place

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Number


@dataclass(frozen=True)
class PassResults:
    """What a pass leaves."""

    accumulated: dict[Place, list[tf.Tensor]]
    sums: list[tf.Tensor]
    handed: list[tf.Tensor]
    captured: dict[str, list[tf.Tensor]]


class Lowering:
    """One pass of a plan."""

    def __init__(
        self, layout: Layout, operations: Operations, memory: ProgramMemory, tokens: memory.TokenThreading
    ) -> None:
        """Takes what a pass is made of."""
        self._layout = layout
        self._plan = layout.plan
        self._operations = operations
        self._memory = memory
        self._tokens = tokens

    def run(self, iterations: Number, micro_batches: Number) -> PassResults:
        """Runs the pass."""
        steady = self._plan.section("steady")
        ramps = folded_ramps(self._plan)
        if ramps is not None:
            self._folded(steady, ramps, iterations, micro_batches)
        else:
            self._steps(self._plan.section("ramp up"), 0, micro_batches)
            self._loop(steady, (0, iterations), micro_batches, all_there=True)
            self._steps(self._plan.section("ramp down"), iterations * steady.advance, micro_batches)
        contents = self._memory.contents
        return PassResults(
            accumulated={
                (key.stage, key.part): values
                for key, values in contents.items()
                if isinstance(key, Buffer) and key.kind is BufferKind.ACCUMULATOR
            },
            sums=contents[SUMS],
            handed=contents[HANDED],
            captured=self._layout.by_tag(contents[CAPTURED]),
        )

    def _folded(self, steady: Section, ramps: tuple[int, int], iterations: Number, micro_batches: Number) -> None:
        """Runs the steady section and the ramps as one loop, with an inner loop where each instruction has a micro-batch."""
        before, after = ramps
        first, end = -before, iterations + after
        if before == 0 and self._plan.unlooped_micro_batches == after * steady.advance:
            self._loop(steady, (0, end), micro_batches, all_there=True)  # No micro-batch is in two iterations.
            return
        if not self._side_by_side:
            self._loop(steady, (first, end), micro_batches, all_there=False)
            return
        if isinstance(iterations, int) and iterations < before:
            self._carrying(
                lambda iteration: iteration < end,
                lambda iteration: self._iteration_in_pairs(steady, iteration, micro_batches),
                tf.constant(first),
            )
            return

        def body(iteration: tf.Tensor) -> tf.Tensor:
            iteration = self._carrying(
                lambda at: (at >= 0) & (at < iterations),
                lambda at: self._iteration(steady, at, micro_batches, all_there=True),
                iteration,
            )
            return self._iteration(steady, iteration, micro_batches, all_there=False)

        self._carrying(lambda iteration: iteration < end, body, tf.constant(first))

    @property
    def _side_by_side(self) -> bool:
        """Whether instructions overlap: where they may, being passes of whole stages alone, and gain by it."""
        plan = self._plan
        whole = plan.recomputation is None and plan.batch_serialization_iterations == 1 and not any(plan.concurrent)
        return whole and self._layout.largest_bytes() < memory.LARGE

    def _loop(
        self, section: Section, range_of: tuple[Number, Number], micro_batches: Number, *, all_there: bool
    ) -> None:
        """Runs a section as a loop over a range of iterations."""
        begin, end = range_of
        self._carrying(
            lambda iteration: iteration < end,
            lambda iteration: self._iteration(section, iteration, micro_batches, all_there=all_there),
            tf.constant(begin),
        )

    def _iteration(
        self, section: Section, iteration: tf.Tensor, micro_batches: Number, *, all_there: bool
    ) -> tf.Tensor:
        """Runs one iteration of a section; returns the number of the next one."""
        self._memory.run_steps(
            self._operations_of(section),
            iteration * section.advance,
            micro_batches,
            all_there=all_there,
            overlapping=all_there and self._side_by_side,
        )
        return iteration + 1

    def _iteration_in_pairs(self, section: Section, iteration: tf.Tensor, micro_batches: Number) -> tf.Tensor:
        """The same with instructions that may be skipped, two at a time where both have a micro-batch."""
        self._memory.run_in_pairs(self._operations_of(section), iteration * section.advance, micro_batches)
        return iteration + 1

    def _carrying(
        self, condition: Callable[[tf.Tensor], tf.Tensor], body: Callable[[tf.Tensor], tf.Tensor], begin: tf.Tensor
    ) -> tf.Tensor:
        """A loop that carries a counter and all buffers; returns the counter."""
        keys = list(self._memory.contents)
        widths = [len(values) for values in self._memory.contents.values()]

        def carried(counter: tf.Tensor) -> list[tf.Tensor]:
            return [counter, self._tokens.token, *(one for key in keys for one in self._memory.contents[key])]

        def take(values: Sequence[tf.Tensor]) -> tf.Tensor:
            counter, self._tokens.token, *rest = values
            self._memory.contents = dict(zip(keys, cut(rest, widths), strict=True))
            return counter

        found = tf.while_loop(
            lambda counter, *_: condition(counter), lambda *values: carried(body(take(values))), carried(begin)
        )
        return take(found)

    def _steps(self, section: Section, base: Number, micro_batches: Number) -> None:
        """Runs the steps of a section once, with `base` added to the numbers of their micro-batches."""
        self._memory.run_steps(self._operations_of(section), base, micro_batches, all_there=True)

    def _operations_of(self, section: Section) -> Sequence[Sequence[Operation]]:
        """For each step of a section its operations."""
        return [list(self._operations.of_step(_in_order(step))) for step in section.steps]


def _in_order(step: Step) -> list[Task]:
    """The tasks of a step in order: in a slot, what reads a link comes before what writes it in place."""
    return sorted(
        step.tasks,
        key=lambda task: (
            task.slot,
            task.instruction.stage if isinstance(task.instruction, Backward) else -task.instruction.stage,
            task.instruction.part or 0,
        ),
    )
