"""A plan as a TensorFlow program: its sections, its buffers and its instructions, one for one.

The steady section is a loop, whose body is what the plan has as the section's steps. The ramps are further iterations of
it, in which instructions without a micro-batch are skipped; where a plan's ramps are something else, they are written
out. Each buffer of the plan is a tensor that is handed on from instruction to instruction, and around the loop: `[depth,
...]` for each thing that it holds, or `[...]` where it holds one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tensorflow_ipu.pipelining import _rings
from tensorflow_ipu.pipelining._accumulation import Accumulation
from tensorflow_ipu.pipelining._buffers import STASHES, Buffer, BufferKind
from tensorflow_ipu.pipelining._folding import folded_ramps
from tensorflow_ipu.pipelining._instructions import Backward, Forward, Recompute
from tensorflow_ipu.pipelining._layout import Layout, Place
from tensorflow_ipu.pipelining._plan import Plan, Section, Step, Task
from tensorflow_ipu.pipelining._stage import StagePart

# What a program keeps besides the plan's buffers: sums for the outfeed; of a last stage of several parts the outputs and
# their gradients, for one micro-batch; gradients that were captured.
_SUMS, _OUTPUTS, _OUTPUT_GRADIENTS, _CAPTURED = "sums", "outputs", "output gradients", "captured"
_Key = Buffer | str
_State = dict[_Key, list[Any]]
_Values = Sequence[Any]


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
        self._feeds = feeds
        self._accumulation = accumulation
        self._order = order
        self._head = head
        self._layout = Layout(plan, parts)
        self._state: _State = {}
        self._exchanged: _State = {}  # What a step writes to links: there when the step ends.
        self._begun: set[tuple[int, int, int]] = set()  # Gradients of a step that a part has handed back already.
        self._elements: dict[int, list[Any]] = {}

    def run(self, iterations: Any, micro_batches: Any) -> dict[Place, list[Any]]:
        """Runs the pass.

        Args:
          iterations: How often the steady section is run, as a whole number or an int32 scalar.
          micro_batches: How many micro-batches there are, likewise.

        Returns:
          For each part of each stage, the accumulated gradients of its variables. Nothing in inference.
        """
        self._state = self._empty_state()
        steady = self._plan.section("steady")
        ramps = folded_ramps(self._plan)
        if ramps is not None:
            self._loop(
                steady,
                range_of=(-ramps[0], iterations + ramps[1]),
                active=lambda micro_batch: (micro_batch >= 0) & (micro_batch < micro_batches),
            )
        else:
            self._steps(self._plan.section("ramp up"), 0, _always)
            self._loop(steady, range_of=(0, iterations), active=_always)
            self._steps(self._plan.section("ramp down"), iterations * steady.advance, _always)
        return {
            (buffer.stage, buffer.part): values
            for buffer, values in self._state.items()
            if isinstance(buffer, Buffer) and buffer.kind is BufferKind.ACCUMULATOR
        }

    @property
    def sums(self) -> list[Any]:
        """What the outfeed's results sum up to, where they are accumulated."""
        return self._state[_SUMS]

    @property
    def captured(self) -> dict[str, list[Any]]:
        """The captured gradients of the pass, by their tags."""
        found: dict[str, list[Any]] = {}
        values = iter(self._state[_CAPTURED])
        for runner in self._parts.values():
            for tag, specs in runner.captures.items():
                found.setdefault(tag, []).extend(next(values) for _ in specs)
        return found

    # Sections and steps.

    def _loop(self, section: Section, range_of: tuple[Any, Any], active: Callable[[Any], Any]) -> None:
        """Runs a section as a loop, which carries all buffers."""
        keys = list(self._state)
        begin, end = range_of

        def body(iteration: Any, now: Any, values: Any) -> tuple[Any, Any, Any]:
            self._order.now = now
            self._state = dict(zip(keys, values, strict=True))
            self._steps(section, iteration * section.advance, active)
            return iteration + 1, self._order.now, [self._state[key] for key in keys]

        _, now, values = tf.while_loop(
            lambda iteration, *_: iteration < end,
            body,
            (tf.constant(begin), self._order.now, list(self._state.values())),
            parallel_iterations=1,
        )
        self._order.now = now
        self._state = dict(zip(keys, values, strict=True))

    def _steps(self, section: Section, base: Any, active: Callable[[Any], Any]) -> None:
        for step in section.steps:
            tasks = _in_order(step)
            for task in tasks:
                instruction = task.instruction
                if isinstance(instruction, Forward):
                    self._forward(instruction, base, active)
                elif isinstance(instruction, Recompute):
                    self._recompute(instruction, base, active)
                elif isinstance(instruction, Backward):
                    self._backward(instruction, base, active)
            self._finish_last_stage(tasks, base, active)
            self._state.update(self._exchanged)
            self._exchanged.clear()
            self._elements.clear()
            self._begun.clear()

    # Instructions.

    def _forward(self, instruction: Forward, base: Any, active: Callable[[Any], Any]) -> None:
        stage, part = instruction.stage, instruction.part
        micro_batch = base + instruction.micro_batch
        runner = self._parts[stage, part]
        stash = next((buffer for kind in STASHES if (buffer := self._plan.buffer(kind, stage, part))), None)
        targets: list[_Key] = [] if stash is None else [stash]
        last = stage == self._plan.stages - 1
        alone = last and len(self._plan.parts(stage)) == 1
        if alone:
            targets.append(_SUMS)
        elif last:
            targets.append(_OUTPUTS)
        else:
            targets += [
                self._layout.buffer(BufferKind.FORWARD_LINK, stage + 1, each) for each, _ in self._plan.parts(stage + 1)
            ]
        first, end = self._layout.range_of_outputs(stage, part)
        several = stage == 0 and len(self._plan.parts(0)) > 1
        if several:
            element = self._element(instruction.micro_batch, active(micro_batch))
        link = self._plan.buffer(BufferKind.FORWARD_LINK, stage, part)
        reads = element if several else [] if link is None or link.depth > 1 else self._state[link]

        def body(order: Any, given: _Values, state: _State) -> _State:
            if several:
                inputs = given
            elif link is None:
                inputs = self._feeds.take()
            else:
                inputs = self._read(link, micro_batch, order, given)
            outputs, loss, stashed = runner.forward(list(inputs))
            new: _State = {}
            for key in targets:
                if stash is not None and key is stash:
                    new[key] = self._written(stash, state[key], micro_batch, order, stashed)
                elif key == _SUMS:
                    new[key] = self._feeds.give(outputs, loss, state[key])
                elif key == _OUTPUTS:
                    new[key] = [*state[key][:first], *outputs, *state[key][end:]]
                else:
                    assert isinstance(key, Buffer)
                    whole = state[key]
                    mine = self._written(key, whole[first:end], micro_batch, order, outputs)
                    new[key] = [*whole[:first], *mine, *whole[end:]]
            return new

        self._do(active(micro_batch), reads, targets, body)

    def _recompute(self, instruction: Recompute, base: Any, active: Callable[[Any], Any]) -> None:
        """Recomputes what the backward pass needs; where that comes next on its IPU, as a part of it."""
        stage, part = instruction.stage, instruction.part
        if self._layout.recomputes_within(stage):
            return
        micro_batch = base + instruction.micro_batch
        source = self._layout.buffer(BufferKind.INPUTS, stage, part)
        target = self._layout.buffer(BufferKind.RECOMPUTED, stage, part)
        reads = self._state[source] if source.depth == 1 else []

        def body(order: Any, given: _Values, _: _State) -> _State:
            stashed = self._read(source, micro_batch, order, given)
            return {target: self._parts[stage, part].recompute(stashed)}

        self._do(active(micro_batch), reads, [target], body)

    def _backward(self, instruction: Backward, base: Any, active: Callable[[Any], Any]) -> None:
        stage, part = instruction.stage, instruction.part
        micro_batch = base + instruction.micro_batch
        runner = self._parts[stage, part]
        accumulator = self._layout.buffer(BufferKind.ACCUMULATOR, stage, part)
        source = self._layout.residuals(stage, part)
        link = self._plan.buffer(BufferKind.BACKWARD_LINK, stage, part)
        targets: list[_Key] = [accumulator]
        if stage:
            targets += [
                self._layout.buffer(BufferKind.BACKWARD_LINK, stage - 1, each)
                for each, _ in self._plan.parts(stage - 1)
            ]
        first, end = self._layout.range_of_captures(stage, part)
        if first < end:
            targets.append(_CAPTURED)
        of_residuals = self._state[source] if source.depth == 1 else []
        of_link = self._head_gradients(stage, part)
        if link is not None and link.depth == 1:
            of_link = self._state[link]
        links = dict(self._layout.output_gradients(stage - 1)) if stage else {}
        number_of_step = instruction.micro_batch
        begun = set(self._begun)

        def body(order: Any, given: _Values, state: _State) -> _State:
            residuals = self._read(source, micro_batch, order, given[: len(of_residuals)])
            if self._layout.recomputes_within(stage):
                residuals = runner.recompute(residuals)
            gradients = given[len(of_residuals) :]
            if link is not None:
                gradients = self._read(link, micro_batch, order, gradients)
            of_inputs, of_variables, captures = runner.backward(residuals, list(gradients))
            by_number = dict(zip(runner.input_gradients, of_inputs, strict=True))
            new: _State = {accumulator: self._accumulation.add(state[accumulator], of_variables, micro_batch)}
            for key in targets[1:]:
                if not isinstance(key, Buffer):
                    before = state[key]
                    mine = self._accumulation.captured(before[first:end], captures)
                    new[key] = [*before[:first], *mine, *before[end:]]
                    continue
                new[key] = []
                for number, old in zip(links[key.part], state[key], strict=True):
                    gradient = by_number.get(number)
                    if gradient is None:
                        new[key].append(old)
                    elif (stage, number_of_step, number) in begun:
                        new[key].append(old + gradient)  # The other parts' gradient of the same input.
                    else:
                        new[key] += self._written(key, [old], micro_batch, order, [gradient])
            return new

        self._do(active(micro_batch), [*of_residuals, *of_link], targets, body)
        self._begun |= {(stage, number_of_step, number) for number in runner.input_gradients}

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
        targets: list[_Key] = [_SUMS, *([] if self._head is None else [_OUTPUT_GRADIENTS])]

        def body(_: Any, outputs: _Values, state: _State) -> _State:
            if self._head is None:
                return {_SUMS: self._feeds.give(list(outputs), None, state[_SUMS])}
            _, loss, stash = self._head.forward(list(outputs))
            gradients, _, _ = self._head.backward(stash, [])
            return {_SUMS: self._feeds.give(list(outputs), loss, state[_SUMS]), _OUTPUT_GRADIENTS: gradients}

        self._do(active(base + done[0].micro_batch), self._state[_OUTPUTS], targets, body)

    def _element(self, micro_batch: int, active: Any) -> list[Any]:
        """The element that the parts of the first stage share."""
        if micro_batch not in self._elements:
            runner = self._parts[0, self._plan.parts(0)[0][0]]
            empty = _rings.empty_ring(runner.varying_input_specs, 1)
            self._elements[micro_batch] = self._order.once(active, [], empty, lambda *_: self._feeds.take())
        return self._elements[micro_batch]

    # State.

    def _do(
        self,
        active: Any,
        reads: Sequence[Any],
        targets: Sequence[_Key],
        body: Callable[[Any, _Values, _State], _State],
    ) -> None:
        """Runs what changes some of the state; links change as the step ends."""
        before = [self._exchanged.get(key, self._state[key]) for key in targets]
        widths = [len(values) for values in before]

        def flat(order: Any, given: _Values, values: _Values) -> list[Any]:
            new = body(order, given, dict(zip(targets, _cut(values, widths), strict=True)))
            return [one for key in targets for one in new[key]]

        results = self._order.once(active, reads, [one for values in before for one in values], flat)
        for key, values in zip(targets, _cut(results, widths), strict=True):
            is_link = isinstance(key, Buffer) and key.kind in (BufferKind.FORWARD_LINK, BufferKind.BACKWARD_LINK)
            (self._exchanged if is_link else self._state)[key] = list(values)

    def _empty_state(self) -> _State:
        captures = [spec for runner in self._parts.values() for specs in runner.captures.values() for spec in specs]
        state: _State = {_SUMS: self._feeds.empty_sums(), _CAPTURED: _rings.empty_ring(captures, 1)}
        for buffer in self._plan.buffers:
            if buffer.kind is BufferKind.ACCUMULATOR:
                state[buffer] = self._accumulation.zeros(self._parts[buffer.stage, buffer.part].variables)
            elif buffer.kind is not BufferKind.RECOMPUTED or not self._layout.recomputes_within(buffer.stage):
                state[buffer] = _rings.empty_ring(self._layout.specs(buffer), buffer.depth)
        last = self._plan.stages - 1
        if len(self._plan.parts(last)) > 1:
            state[_OUTPUTS] = _rings.empty_ring(self._layout.output_specs(last), 1)
            if self._head is not None:
                state[_OUTPUT_GRADIENTS] = [state[_OUTPUTS][number] for number in self._head.input_gradients]
        return state

    def _head_gradients(self, stage: int, part: int | None) -> list[Any]:
        if self._head is None:
            return []
        first, end = self._layout.range_of_outputs(stage, part)
        numbered = zip(self._head.input_gradients, self._state[_OUTPUT_GRADIENTS], strict=True)
        return [gradient for number, gradient in numbered if first <= number < end]

    def _read(self, buffer: Buffer, micro_batch: Any, order: Any, given: _Values) -> list[Any]:
        """A buffer's content of a micro-batch: what was given, or what is in the ring."""
        if buffer.depth == 1:
            return list(given)
        return _rings.read(self._state[buffer], buffer.depth, micro_batch % buffer.depth + order)

    def _written(self, buffer: Buffer, old: _Values, micro_batch: Any, order: Any, values: _Values) -> list[Any]:
        return _rings.written(old, buffer.depth, micro_batch % buffer.depth + order, values)


def _always(_: Any) -> bool:
    return True


def _cut(values: _Values, widths: Sequence[int]) -> list[list[Any]]:
    """A list cut into pieces."""
    found, begin = [], 0
    for width in widths:
        found.append(list(values[begin : begin + width]))
        begin += width
    return found


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
