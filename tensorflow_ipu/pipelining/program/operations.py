"""The instructions of a step as operations: what each one reads and changes, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.pipelining.program.layout import (
    CAPTURED,
    ELEMENT,
    HANDED,
    OUTPUT_GRADIENTS,
    OUTPUTS,
    SUMS,
    Key,
    Layout,
)
from tensorflow_ipu.pipelining.schedule.plan import Backward, Buffer, BufferKind, Forward, Recompute, Task
from tensorflow_ipu.pipelining.stages.part import Place, StagePart
from tensorflow_ipu.pipelining.weight_update import Accumulation

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.program.feeds import PipelineFeeds
    from tensorflow_ipu.pipelining.program.memory import MemoryView

Contents = dict[Key, list[tf.Tensor]]


@dataclass(frozen=True)
class Read:
    """What an operation reads of one thing in the memory."""

    key: Key
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Operation:
    """One instruction, as a change of the memory."""

    micro_batch: int
    reads: tuple[Read, ...]
    targets: tuple[Key, ...]
    body: Callable[[MemoryView], Contents]
    scratch: Mapping[Key, Sequence[tf.TensorSpec]] | None = None


# Stands for the tensors of the last stage that travel back with the gradients, where else an input's number is.
_CARRIED = -1


class Operations:
    """Makes the operations of one plan's steps."""

    def __init__(
        self,
        layout: Layout,
        parts: Mapping[Place, StagePart],
        feeds: PipelineFeeds,
        accumulation: Accumulation,
    ) -> None:
        """Takes what instructions need."""
        self._layout = layout
        self._plan = layout.plan
        self._parts = parts
        self._feeds = feeds
        self._accumulation = accumulation

    def of_step(self, tasks: Sequence[Task]) -> Iterator[Operation]:
        """The operations of a step's tasks, in the order in which they are run. Updates and transfers have none."""
        begun: set[tuple[int, int, int]] = set()  # Gradients that a part has already written in this step.
        elements: set[int] = set()
        for task in tasks:
            instruction = task.instruction
            if isinstance(instruction, Forward):
                if self._shares_element(instruction.stage) and instruction.micro_batch not in elements:
                    elements.add(instruction.micro_batch)
                    yield self._element(instruction.micro_batch)
                yield self._forward(instruction)
            elif isinstance(instruction, Recompute):
                # Where the backward pass comes next on its IPU, it is a part of that.
                if not self._layout.recomputes_within(instruction.stage):
                    yield self._recompute(instruction)
            elif isinstance(instruction, Backward):
                yield self._backward(instruction, frozenset(begun))
                numbers = self._parts[instruction.stage, instruction.part].input_gradients
                begun |= {(instruction.stage, instruction.micro_batch, number) for number in (*numbers, _CARRIED)}
        last = self._plan.stages - 1
        passes = (task.instruction for task in tasks if isinstance(task.instruction, Forward))
        done = next((each for each in passes if each.stage == last), None)
        if done is not None and len(self._plan.parts(last)) > 1:
            yield self._end_of_last_stage(done.micro_batch)

    def _shares_element(self, stage: int) -> bool:
        """Whether a stage is a first one of several parts, which all get the same element."""
        return stage == 0 and len(self._plan.parts(0)) > 1

    def _element(self, micro_batch: int) -> Operation:
        """Takes the element that the parts of the first stage share."""
        specs = self._parts[0, self._plan.parts(0)[0][0]].varying_input_specs
        return Operation(micro_batch, (), (ELEMENT,), lambda _: {ELEMENT: self._feeds.take()}, {ELEMENT: specs})

    def _forward(self, instruction: Forward) -> Operation:
        stage, part = instruction.stage, instruction.part
        runner = self._parts[stage, part]
        stash = self._layout.stash(stage, part)
        link = self._plan.buffer(BufferKind.FORWARD_LINK, stage, part)
        source = Read(ELEMENT) if self._shares_element(stage) else None if link is None else Read(link)
        targets: list[Key] = [] if stash is None else [stash]
        if stage < self._plan.stages - 1:
            targets += self._layout.links(BufferKind.FORWARD_LINK, stage + 1)
        else:
            targets += [SUMS, HANDED] if len(self._plan.parts(stage)) == 1 else [OUTPUTS]
        first, end = self._layout.range_of_outputs(stage, part)

        def body(view: MemoryView) -> Contents:
            inputs = view.settled(self._feeds.take()) if source is None else view.read(source)
            outputs, loss, handed, stashed = runner.forward(inputs, view.micro_batch)
            new: Contents = {}
            for key in targets:
                old = view.old(key)
                if stash is not None and key is stash:
                    new[key] = view.placed(stash, old, stashed)
                elif key == SUMS:
                    new[key] = self._feeds.give(outputs, loss, old)
                elif key == HANDED:
                    new[key] = handed
                else:
                    mine = view.placed(key, old[first:end], outputs) if isinstance(key, Buffer) else outputs
                    new[key] = [*old[:first], *mine, *old[end:]]
            return new

        return Operation(instruction.micro_batch, () if source is None else (source,), tuple(targets), body)

    def _recompute(self, instruction: Recompute) -> Operation:
        stage, part = instruction.stage, instruction.part
        source = Read(self._layout.buffer(BufferKind.INPUTS, stage, part))
        target = self._layout.buffer(BufferKind.RECOMPUTED, stage, part)
        runner = self._parts[stage, part]
        return Operation(
            instruction.micro_batch, (source,), (target,), lambda view: {target: runner.recompute(view.read(source))}
        )

    def _backward(self, instruction: Backward, begun: frozenset[tuple[int, int, int]]) -> Operation:
        """The backward pass of a part."""
        stage, part = instruction.stage, instruction.part
        runner = self._parts[stage, part]
        accumulator = self._layout.buffer(BufferKind.ACCUMULATOR, stage, part)
        source = Read(self._layout.residuals(stage, part))
        incoming = self._layout.incoming_gradients(stage, part)
        gradients_of = None if incoming is None else Read(*incoming)
        links = [] if stage == 0 else self._layout.links(BufferKind.BACKWARD_LINK, stage - 1)
        wanted = dict(self._layout.output_gradients(stage - 1)) if stage else {}
        first, end = self._layout.range_of_captures(stage, part)
        carried = [] if gradients_of is None else self._layout.carried(stage)
        carried_on = len(self._layout.carried(stage - 1)) if stage else 0
        number_of_step = instruction.micro_batch
        within = self._layout.recomputes_within(stage)

        def body(view: MemoryView) -> Contents:
            residuals = view.read(source)
            if within:
                residuals = runner.recompute(residuals)
            gradients = [] if gradients_of is None else view.read(gradients_of)
            arrived = gradients[len(gradients) - len(carried) :]
            used = {id(tensor): value for tensor, value in zip(carried, arrived, strict=True)}
            gradients[len(gradients) - len(carried) :] = [used[id(tensor)] for tensor in runner.carried]
            of_inputs, of_variables, captures, returned = runner.backward(residuals, gradients)
            carry = (arrived or returned)[:carried_on]
            by_number = dict(zip(runner.input_gradients, of_inputs, strict=True))
            new: Contents = {accumulator: self._accumulation.add(view.old(accumulator), of_variables, view.micro_batch)}
            for link in links:
                old = view.old(link)
                numbers = wanted[link.part]
                new[link] = []
                for number, before in zip(numbers, old[: len(numbers)], strict=True):
                    gradient = by_number.get(number)
                    if gradient is None:
                        new[link].append(before)
                    elif (stage, number_of_step, number) in begun:
                        new[link].append(before + gradient)  # The other parts' gradient of the same input.
                    else:
                        new[link] += view.placed(link, [before], [gradient])
                rest = old[len(numbers) :]
                new[link] += rest if (stage, number_of_step, _CARRIED) in begun else view.placed(link, rest, carry)
            if first < end:
                before = view.old(CAPTURED)
                mine = self._accumulation.captured(before[first:end], captures)
                new[CAPTURED] = [*before[:first], *mine, *before[end:]]
            return new

        reads = (source,) if gradients_of is None else (source, gradients_of)
        targets: list[Key] = [accumulator, *links, *([CAPTURED] if first < end else [])]
        return Operation(number_of_step, reads, tuple(targets), body)

    def _end_of_last_stage(self, micro_batch: int) -> Operation:
        """Hands on the outputs of a last stage of several parts, once all of them are there."""
        outputs_of, head = Read(OUTPUTS), self._layout.head

        def body(view: MemoryView) -> Contents:
            outputs = view.read(outputs_of)
            if head is None:
                return {SUMS: self._feeds.give(outputs, None, view.old(SUMS))}
            _, loss, handed, stash = head.forward(outputs, view.micro_batch)
            gradients, _, _, carried = head.backward(stash, [])
            sums = self._feeds.give(outputs, loss, view.old(SUMS))
            return {SUMS: sums, OUTPUT_GRADIENTS: [*gradients, *carried], HANDED: handed}

        targets = (SUMS,) if head is None else (SUMS, OUTPUT_GRADIENTS, HANDED)
        return Operation(micro_batch, (outputs_of,), targets, body)
