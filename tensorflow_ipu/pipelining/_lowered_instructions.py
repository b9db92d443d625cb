"""The instructions of a plan as tensors: each one reads and changes the memory of the pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tensorflow_ipu.pipelining import _rings
from tensorflow_ipu.pipelining._accumulation import Accumulation
from tensorflow_ipu.pipelining._buffers import STASHES, Buffer, BufferKind
from tensorflow_ipu.pipelining._instructions import Backward, Forward, Instruction, Recompute
from tensorflow_ipu.pipelining._layout import Layout, Place
from tensorflow_ipu.pipelining._memory import (
    CAPTURED,
    HANDED,
    OUTPUT_GRADIENTS,
    OUTPUTS,
    SUMS,
    Contents,
    Key,
    Memory,
    Values,
)
from tensorflow_ipu.pipelining._plan import Plan, Task
from tensorflow_ipu.pipelining._stage import StagePart


class Feeds(Protocol):
    """Where the first stage's elements come from, and where the last stage's results go."""

    def take(self) -> list[Any]:
        """The next element, flat."""
        ...

    def give(self, outputs: Sequence[Any], loss: Any, sums: Sequence[Any]) -> list[Any]:
        """Hands on the results of a micro-batch; returns the new sums."""
        ...

    def empty_sums(self) -> list[Any]:
        """Sums of no micro-batch."""
        ...


# In the place of the number of an output whose gradient a part hands back: the last stage's tensors besides.
_CARRIED = -1


class LoweredInstructions:
    """The instructions of one pass of a plan."""

    def __init__(
        self,
        plan: Plan,
        parts: Mapping[Place, StagePart],
        feeds: Feeds,
        accumulation: Accumulation,
        order: _rings.Order,
        head: StagePart | None,
        memory: Memory,
    ) -> None:
        """Takes what `Lowering` does, and the memory of the pass."""
        self._plan = plan
        self._parts = parts
        self._feeds = feeds
        self._accumulation = accumulation
        self._order = order
        self._head = head
        self._memory = memory
        self._layout = Layout(plan, parts)
        self._begun: set[tuple[int, int, int]] = set()  # What a part has handed back in a step already.
        self._elements: dict[int, list[Any]] = {}

    def run_step(self, tasks: Sequence[Task], base: Any, active: Callable[[Any], Any]) -> None:
        """Runs the instructions of a step.

        Args:
          tasks: The tasks of the step, in the order in which they are run.
          base: What is added to the numbers of their micro-batches.
          active: Whether there is a micro-batch of a number: True, or a bool scalar.
        """
        for task in tasks:
            self._run(task.instruction, base, active)
        self._finish_last_stage(tasks, base, active)
        self._end_step()

    def run_step_in_pairs(self, tasks: Sequence[Task], base: Any, active: Callable[[Any], Any]) -> None:
        """Runs the instructions of a step, two at a time where both have a micro-batch.

        Args:
          tasks: The tasks of the step, in the order in which they are run: forward and backward passes of whole stages.
          base: What is added to the numbers of their micro-batches.
          active: Whether there is a micro-batch of a number: a bool scalar.
        """
        for first, second in itertools.zip_longest(tasks[::2], tasks[1::2]):
            if second is None:
                self._run(first.instruction, base, active)
            else:
                self._run_pair(first.instruction, second.instruction, base, active)
        self._end_step()

    def _run_pair(self, first: Any, second: Any, base: Any, active: Callable[[Any], Any]) -> None:
        """Runs two instructions at once, or the one that has a micro-batch."""
        one, other = active(base + first.micro_batch), active(base + second.micro_batch)

        def both() -> None:
            self._run(first, base, always)
            self._run(second, base, always)

        targets = dict.fromkeys([*self._targets(first), *self._targets(second)])
        self._memory.change_together(one & other, list(targets), both)
        self._begun.clear()  # It is that or one of these.
        self._run(first, base, lambda _: one & ~other)
        self._run(second, base, lambda _: other & ~one)

    def _run(self, instruction: Instruction, base: Any, active: Callable[[Any], Any]) -> None:
        if isinstance(instruction, Forward):
            self._forward(instruction, base, active)
        elif isinstance(instruction, Recompute):
            self._recompute(instruction, base, active)
        elif isinstance(instruction, Backward):
            self._backward(instruction, base, active)

    def _end_step(self) -> None:
        self._memory.end_step()
        self._elements.clear()
        self._begun.clear()

    def _targets(self, instruction: Forward | Backward) -> list[Key]:
        """What a pass of a stage changes."""
        stage, part = instruction.stage, instruction.part
        if isinstance(instruction, Backward):
            first, end = self._layout.range_of_captures(stage, part)
            links = self._plan.parts(stage - 1) if stage else ()
            return [
                self._layout.buffer(BufferKind.ACCUMULATOR, stage, part),
                *(self._layout.buffer(BufferKind.BACKWARD_LINK, stage - 1, each) for each, _ in links),
                *([CAPTURED] if first < end else []),
            ]
        stash = self._stash(stage, part)
        targets: list[Key] = [] if stash is None else [stash]
        if stage < self._plan.stages - 1:
            next_parts = self._plan.parts(stage + 1)
            return [
                *targets,
                *(self._layout.buffer(BufferKind.FORWARD_LINK, stage + 1, each) for each, _ in next_parts),
            ]
        return [*targets, SUMS, HANDED] if len(self._plan.parts(stage)) == 1 else [*targets, OUTPUTS]

    def _stash(self, stage: int, part: int | None) -> Buffer | None:
        return next((buffer for kind in STASHES if (buffer := self._plan.buffer(kind, stage, part))), None)

    def _forward(self, instruction: Forward, base: Any, active: Callable[[Any], Any]) -> None:
        stage, part = instruction.stage, instruction.part
        micro_batch = base + instruction.micro_batch
        runner = self._parts[stage, part]
        stash = self._stash(stage, part)
        targets = self._targets(instruction)
        first, end = self._layout.range_of_outputs(stage, part)
        several = stage == 0 and len(self._plan.parts(0)) > 1
        if several:
            element = self._element(instruction.micro_batch, active(micro_batch))
        link = self._plan.buffer(BufferKind.FORWARD_LINK, stage, part)
        reads = element if several else [] if link is None or link.depth > 1 else self._memory.contents[link]

        def body(order: Any, given: Values, state: Contents) -> Contents:
            if several:
                inputs = given
            elif link is None:
                inputs = self._feeds.take()
                if self._memory.overlap is not None:
                    _, inputs = self._order.fence(inputs, order)
            else:
                inputs = self._memory.read(link, micro_batch, order, given)
            outputs, loss, handed, stashed = runner.forward(list(inputs))
            new: Contents = {}
            for key in targets:
                if stash is not None and key is stash:
                    new[key] = self._memory.written(stash, state[key], micro_batch, order, stashed)
                elif key == SUMS:
                    new[key] = self._feeds.give(outputs, loss, state[key])
                elif key == HANDED:
                    new[key] = handed
                elif key == OUTPUTS:
                    new[key] = [*state[key][:first], *outputs, *state[key][end:]]
                else:
                    assert isinstance(key, Buffer)
                    whole = state[key]
                    mine = self._memory.written(key, whole[first:end], micro_batch, order, outputs)
                    new[key] = [*whole[:first], *mine, *whole[end:]]
            return new

        self._memory.change(active(micro_batch), reads, targets, body)

    def _recompute(self, instruction: Recompute, base: Any, active: Callable[[Any], Any]) -> None:
        """Recomputes what the backward pass needs; where that comes next on its IPU, as a part of it."""
        stage, part = instruction.stage, instruction.part
        if self._layout.recomputes_within(stage):
            return
        micro_batch = base + instruction.micro_batch
        source = self._layout.buffer(BufferKind.INPUTS, stage, part)
        target = self._layout.buffer(BufferKind.RECOMPUTED, stage, part)
        reads = self._memory.contents[source] if source.depth == 1 else []

        def body(order: Any, given: Values, _: Contents) -> Contents:
            stashed = self._memory.read(source, micro_batch, order, given)
            return {target: self._parts[stage, part].recompute(stashed)}

        self._memory.change(active(micro_batch), reads, [target], body)

    def _backward(self, instruction: Backward, base: Any, active: Callable[[Any], Any]) -> None:
        stage, part = instruction.stage, instruction.part
        micro_batch = base + instruction.micro_batch
        runner = self._parts[stage, part]
        accumulator = self._layout.buffer(BufferKind.ACCUMULATOR, stage, part)
        source = self._layout.residuals(stage, part)
        link = self._plan.buffer(BufferKind.BACKWARD_LINK, stage, part)
        targets = self._targets(instruction)
        first, end = self._layout.range_of_captures(stage, part)
        of_residuals = self._memory.contents[source] if source.depth == 1 else []
        of_link = self._head_gradients(stage, part)
        if link is not None and link.depth == 1:
            of_link = self._memory.contents[link]
        links = dict(self._layout.output_gradients(stage - 1)) if stage else {}
        number_of_step = instruction.micro_batch
        begun = set(self._begun)
        carried = [] if link is None and not of_link else self._layout.carried(stage)
        carried_on = len(self._layout.carried(stage - 1)) if stage else 0

        def body(order: Any, given: Values, state: Contents) -> Contents:
            residuals = self._memory.read(source, micro_batch, order, given[: len(of_residuals)])
            if self._layout.recomputes_within(stage):
                residuals = runner.recompute(residuals)
            gradients = list(given[len(of_residuals) :])
            if link is not None:
                gradients = self._memory.read(link, micro_batch, order, gradients)
            arrived = gradients[len(gradients) - len(carried) :]
            used = {id(tensor): value for tensor, value in zip(carried, arrived, strict=True)}
            gradients[len(gradients) - len(carried) :] = [used[id(tensor)] for tensor in runner.carried]
            of_inputs, of_variables, captures, returned = runner.backward(residuals, gradients)
            carry = (arrived or returned)[:carried_on]
            by_number = dict(zip(runner.input_gradients, of_inputs, strict=True))
            new: Contents = {accumulator: self._accumulation.add(state[accumulator], of_variables, micro_batch)}
            for key in targets[1:]:
                if not isinstance(key, Buffer):
                    before = state[key]
                    mine = self._accumulation.captured(before[first:end], captures)
                    new[key] = [*before[:first], *mine, *before[end:]]
                    continue
                new[key] = []
                numbers = links[key.part]
                for number, old in zip(numbers, state[key][: len(numbers)], strict=True):
                    gradient = by_number.get(number)
                    if gradient is None:
                        new[key].append(old)
                    elif (stage, number_of_step, number) in begun:
                        new[key].append(old + gradient)  # The other parts' gradient of the same input.
                    else:
                        new[key] += self._memory.written(key, [old], micro_batch, order, [gradient])
                behind = state[key][len(numbers) :]
                if (stage, number_of_step, _CARRIED) not in begun:
                    behind = self._memory.written(key, behind, micro_batch, order, carry)
                new[key] += behind
            return new

        self._memory.change(active(micro_batch), [*of_residuals, *of_link], targets, body)
        self._begun |= {(stage, number_of_step, number) for number in (*runner.input_gradients, _CARRIED)}

    def _finish_last_stage(self, tasks: Sequence[Task], base: Any, active: Callable[[Any], Any]) -> None:
        """Hands on the outputs of a last stage of several parts, once all of them are there."""
        last = self._plan.stages - 1
        if len(self._plan.parts(last)) == 1:
            return
        done = [
            one.instruction for one in tasks if isinstance(one.instruction, Forward) and one.instruction.stage == last
        ]
        if not done:
            return
        targets: list[Key] = [SUMS, *([] if self._head is None else [OUTPUT_GRADIENTS, HANDED])]

        def body(_: Any, outputs: Values, state: Contents) -> Contents:
            if self._head is None:
                return {SUMS: self._feeds.give(list(outputs), None, state[SUMS])}
            _, loss, handed, stash = self._head.forward(list(outputs))
            gradients, _, _, carried = self._head.backward(stash, [])
            sums = self._feeds.give(list(outputs), loss, state[SUMS])
            return {SUMS: sums, OUTPUT_GRADIENTS: [*gradients, *carried], HANDED: handed}

        self._memory.change(active(base + done[0].micro_batch), self._memory.contents[OUTPUTS], targets, body)

    def _element(self, micro_batch: int, active: Any) -> list[Any]:
        """The element that the parts of the first stage share."""
        if micro_batch not in self._elements:
            runner = self._parts[0, self._plan.parts(0)[0][0]]
            empty = _rings.empty_ring(runner.varying_input_specs, 1)
            self._elements[micro_batch] = self._order.once(active, [], empty, lambda *_: self._feeds.take())
        return self._elements[micro_batch]

    def _head_gradients(self, stage: int, part: int | None) -> list[Any]:
        if self._head is None:
            return []
        first, end = self._layout.range_of_outputs(stage, part)
        gradients = self._memory.contents[OUTPUT_GRADIENTS]
        width = len(self._head.input_gradients)
        numbered = zip(self._head.input_gradients, gradients[:width], strict=True)
        return [*(gradient for number, gradient in numbered if first <= number < end), *gradients[width:]]


def always(_: Any) -> bool:
    """What is active where every instruction has a micro-batch."""
    return True
