"""A plan as a TensorFlow program: its sections and their steps, one for one.

The steady section is a loop, whose body is what the plan has as the section's steps. The ramps are further iterations of
it, in which instructions without a micro-batch are skipped; where a plan's ramps are something else, they are written
out. Instructions that may be skipped run one after the other, or in pairs; others a few at a time (see `Overlap`). The
memory of the pass is handed on from instruction to instruction, and around the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensorflow_ipu.pipelining import _rings
from tensorflow_ipu.pipelining._accumulation import Accumulation
from tensorflow_ipu.pipelining._buffers import Buffer, BufferKind
from tensorflow_ipu.pipelining._folding import folded_ramps
from tensorflow_ipu.pipelining._instructions import Backward
from tensorflow_ipu.pipelining._layout import Place
from tensorflow_ipu.pipelining._lowered_instructions import Feeds, LoweredInstructions, always
from tensorflow_ipu.pipelining._memory import CAPTURED, HANDED, SUMS, Memory, empty_contents
from tensorflow_ipu.pipelining._overlap import Overlap
from tensorflow_ipu.pipelining._plan import Plan, Section, Step, Task
from tensorflow_ipu.pipelining._stage import StagePart


class Lowering:
    """One pass of a plan."""

    def __init__(
        self,
        plan: Plan,
        parts: dict[Place, StagePart],
        feeds: Feeds,
        accumulation: Accumulation,
        order: _rings.Order,
        head: StagePart | None = None,
    ) -> None:
        """Takes what a pass is made of.

        Args:
          plan: The plan.
          parts: The stages' functions, by stage and part.
          feeds: The queues.
          accumulation: How gradients are accumulated.
          order: The order of the instructions.
          head: For a last stage of several parts that trains, what computes the loss from the outputs of all of them.
        """
        self._plan = plan
        self._parts = parts
        self._order = order
        self._memory = Memory(empty_contents(plan, parts, feeds.empty_sums(), accumulation, head), order)
        self._instructions = LoweredInstructions(plan, parts, feeds, accumulation, order, head, self._memory)

    def run(self, iterations: Any, micro_batches: Any) -> dict[Place, list[Any]]:
        """Runs the pass.

        Args:
          iterations: How often the steady section is run, as a whole number or an int32 scalar.
          micro_batches: How many micro-batches there are, likewise.

        Returns:
          For each part of each stage, the accumulated gradients of its variables. Nothing in inference.
        """
        steady = self._plan.section("steady")
        ramps = folded_ramps(self._plan)
        if ramps is not None:

            def active(micro_batch: Any) -> Any:
                return (micro_batch >= 0) & (micro_batch < micro_batches)

            self._folded(steady, ramps, iterations, active)
        else:
            self._steps(self._plan.section("ramp up"), 0, always)
            self._loop(steady, range_of=(0, iterations), active=always)
            self._steps(self._plan.section("ramp down"), iterations * steady.advance, always)
        return {
            (buffer.stage, buffer.part): values
            for buffer, values in self._memory.contents.items()
            if isinstance(buffer, Buffer) and buffer.kind is BufferKind.ACCUMULATOR
        }

    @property
    def sums(self) -> list[Any]:
        """What the outfeed's results sum up to, where they are accumulated."""
        return self._memory.contents[SUMS]

    @property
    def handed(self) -> list[Any]:
        """What the last micro-batch hands to the update."""
        return self._memory.contents[HANDED]

    @property
    def captured(self) -> dict[str, list[Any]]:
        """The captured gradients of the pass, by their tags."""
        found: dict[str, list[Any]] = {}
        values = iter(self._memory.contents[CAPTURED])
        for runner in self._parts.values():
            for tag, specs in runner.captures.items():
                found.setdefault(tag, []).extend(next(values) for _ in specs)
        return found

    def _folded(self, steady: Section, ramps: tuple[int, int], iterations: Any, active: Callable[[Any], Any]) -> None:
        """Runs the steady section and the ramps, which are further iterations of it.

        Those in which each instruction has a micro-batch are a loop of their own within the loop, since there nothing has
        to wait to be skipped. Where they are few, most have a micro-batch for both of two instructions, or for none: so
        the code that a program has twice is that of pairs.
        """
        before, behind = ramps
        first, end = -before, iterations + behind
        if before == 0 and self._plan.unlooped_micro_batches == behind * steady.advance:
            self._loop(steady, (0, end), always)  # No micro-batch is in two iterations.
            return
        if not self._side_by_side:
            self._loop(steady, (first, end), active)
            return
        if isinstance(iterations, int) and iterations < before:
            self._carrying(
                lambda iteration: iteration < end,
                lambda iteration: self._iteration_in_pairs(steady, iteration, active),
                tf.constant(first),
            )
            return

        def body(iteration: Any) -> Any:
            iteration = self._carrying(
                lambda at: (at >= 0) & (at < iterations), lambda at: self._iteration(steady, at, always), iteration
            )
            return self._iteration(steady, iteration, active)

        self._carrying(lambda iteration: iteration < end, body, tf.constant(first))

    @property
    def _side_by_side(self) -> bool:
        """Whether instructions may overlap: where none but forward and backward passes of whole stages are."""
        plan = self._plan
        return plan.recomputation is None and plan.batch_serialization_iterations == 1 and not any(plan.concurrent)

    def _loop(self, section: Section, range_of: tuple[Any, Any], active: Callable[[Any], Any]) -> None:
        """Runs a section as a loop over a range of iterations."""
        begin, end = range_of
        self._carrying(
            lambda iteration: iteration < end,
            lambda iteration: self._iteration(section, iteration, active),
            tf.constant(begin),
        )

    def _iteration(self, section: Section, iteration: Any, active: Callable[[Any], Any]) -> Any:
        """Runs one iteration of a section; returns the number of the next one."""
        self._memory.overlap = Overlap(self._order) if active is always and self._side_by_side else None
        self._steps(section, iteration * section.advance, active)
        self._memory.overlap = None
        return iteration + 1

    def _iteration_in_pairs(self, section: Section, iteration: Any, active: Callable[[Any], Any]) -> Any:
        """The same with instructions that may be skipped, two at a time where both have a micro-batch."""
        for step in section.steps:
            self._instructions.run_step_in_pairs(_in_order(step), iteration * section.advance, active)
        return iteration + 1

    def _carrying(self, condition: Callable[[Any], Any], body: Callable[[Any], Any], begin: Any) -> Any:
        """A loop that carries a counter and all buffers; returns the counter."""
        keys = list(self._memory.contents)

        def iteration(counter: Any, now: Any, values: Any) -> tuple[Any, Any, Any]:
            self._order.now = now
            self._memory.contents = dict(zip(keys, values, strict=True))
            counter = body(counter)
            return counter, self._order.now, [self._memory.contents[key] for key in keys]

        counter, now, values = tf.while_loop(
            lambda counter, *_: condition(counter),
            iteration,
            (begin, self._order.now, list(self._memory.contents.values())),
            parallel_iterations=1,
        )
        self._order.now = now
        self._memory.contents = dict(zip(keys, values, strict=True))
        return counter

    def _steps(self, section: Section, base: Any, active: Callable[[Any], Any]) -> None:
        """Runs the steps of a section once, with `base` added to the numbers of their micro-batches."""
        for step in section.steps:
            self._instructions.run_step(_in_order(step), base, active)


def _in_order(step: Step) -> list[Task]:
    """The tasks of a step, one after the other.

    Of those in one slot, what reads a link comes before what is going to write it, so that it can be written in place.
    """
    return sorted(
        step.tasks,
        key=lambda task: (
            task.slot,
            task.instruction.stage if isinstance(task.instruction, Backward) else -task.instruction.stage,
            task.instruction.part or 0,
        ),
    )
