"""The table of a pipeline's instructions: the buffers that each reads and writes, and the function that it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import dtype_for
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.feeds.infeed import take
from tensorflow_ipu.pipelining.execution import Contents, Key, Read, Row, Table, View
from tensorflow_ipu.pipelining.schedule.enums import RecomputationMode, Results
from tensorflow_ipu.pipelining.schedule.plan import (
    STASHES,
    Backward,
    Buffer,
    BufferKind,
    Forward,
    Recompute,
    Section,
    Step,
    Task,
)
from tensorflow_ipu.pipelining.stage_graphs import flat_tensors, spec_of
from tensorflow_ipu.pipelining.traced_stage import Captured, GraphFunction, Place, size_of

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.feeds import IPUOutfeedQueue
    from tensorflow_ipu.pipelining.options import Arguments
    from tensorflow_ipu.pipelining.stages import Stages
    from tensorflow_ipu.pipelining.weight_update import Accumulation

# The keys of the memory of a pass, in addition to the buffers of the plan:
# * `SUMS`: sums for the outfeed;
# * `OUTPUTS`: for a last stage of several parts, the outputs of one micro-batch;
# * `OUTPUT_GRADIENTS`: the gradients of `OUTPUTS`, and the carried tensors (see `TracedStage.carried`);
# * `CAPTURED`: captured gradients;
# * `HANDED`: the tensors of the last micro-batch that the weight update uses;
# * `ELEMENT`: for a first stage of several parts, the infeed element that they share within a step.
SUMS, OUTPUTS, OUTPUT_GRADIENTS, CAPTURED, HANDED = "sums", "outputs", "output gradients", "captured", "handed"
ELEMENT = "element"

_CARRIED = -1  # A number for all carried tensors, in place of the index of an input with a gradient.
_WITHIN = RecomputationMode.RecomputeAndBackpropagateInterleaved


class InstructionTable:
    """The rows of the instructions of a plan. Updates and transfers have no rows.

    | instruction | reads | writes |
    | --- | --- | --- |
    | forward | forward link or infeed | stash, forward links of the next stage, or sums and handed tensors |
    | recompute | stash | recomputed activations |
    | backward | stash or recomputed, backward link | accumulator, backward links of the stage before, captured |

    If the last stage has several parts, each part writes its outputs. Then a further row computes the loss and the
    gradients of the outputs from the outputs of all parts.
    """

    def __init__(self, stages: Stages, feeds: PipelineFeeds, accumulation: Accumulation) -> None:
        self._stages = stages
        self._plan = stages.plan
        self._feeds = feeds
        self._accumulation = accumulation
        self._last = self._plan.stages - 1
        self._ends_in_parts = len(self._plan.parts(self._last)) > 1
        self._begins_in_parts = len(self._plan.parts(0)) > 1
        self._captures: dict[Place, tuple[int, int]] = {}  # The range of each part's captured gradients in `CAPTURED`.
        end = 0
        for place, part in stages.items():
            begin, end = end, end + sum(map(len, part.captures.values()))
            self._captures[place] = begin, end

    def of_section(self, section: Section) -> Table:
        """Returns the rows of each step of a section, in the order in which they run."""
        return [self._rows(_in_order(step)) for step in section.steps]

    def memory(self) -> dict[Key, tuple[list[tf.TensorSpec], int]]:
        """Returns the memory that a pass of the pipeline starts with as zeros.

        Each buffer has the specs of the tensors of one micro-batch, and the number of its places.
        """
        stages = self._stages
        captures = [spec for part in stages.values() for specs in part.captures.values() for spec in specs]
        memory: dict[Key, tuple[list[tf.TensorSpec], int]] = {CAPTURED: (captures, 1), HANDED: (stages.handed, 1)}
        for buffer in self._plan.buffers:
            if buffer.kind is not BufferKind.RECOMPUTED or self._plan.recomputation is not _WITHIN:
                memory[buffer] = (self._specs(buffer), buffer.depth)
        if self._ends_in_parts:
            outputs = stages.output_specs(self._last)
            memory[OUTPUTS] = (outputs, 1)
            if stages.head is not None:
                gradients = [outputs[number] for number in stages.head.input_gradients]
                memory[OUTPUT_GRADIENTS] = ([*gradients, *map(spec_of, stages.carried(self._last))], 1)
        return memory

    def _specs(self, buffer: Buffer) -> list[tf.TensorSpec]:
        """Returns the specs of the tensors of one micro-batch in a buffer."""
        stages, stage = self._stages, buffer.stage
        part = stages[stage, buffer.part]
        if buffer.kind is BufferKind.FORWARD_LINK:
            return stages.output_specs(stage - 1)
        if buffer.kind is BufferKind.BACKWARD_LINK:
            specs = stages.output_specs(stage)
            gradients = [specs[number] for number in dict(stages.output_gradients(stage))[buffer.part]]
            return [*gradients, *map(spec_of, stages.carried(stage))]
        if buffer.kind is BufferKind.ACCUMULATOR:
            return self._accumulation.specs(part.variables)
        return part.residuals if buffer.kind is BufferKind.RECOMPUTED else part.stash

    def largest_bytes(self) -> int:
        """Returns the size in bytes of the largest tensor of a micro-batch that one instruction passes to another."""
        buffers = (buffer for buffer in self._plan.buffers if buffer.kind is not BufferKind.ACCUMULATOR)
        return max((size_of([spec]) for buffer in buffers for spec in self._specs(buffer)), default=0)

    def by_tag(self, captured: Sequence[tf.Tensor]) -> Captured:
        """Returns the captured gradients of all parts by their tags."""
        by_tag: Captured = {}
        values = iter(captured)
        for part in self._stages.values():
            for tag, specs in part.captures.items():
                by_tag.setdefault(tag, []).extend(next(values) for _ in specs)
        return by_tag

    def _rows(self, tasks: Sequence[Task]) -> list[Row]:
        rows: list[Row] = []
        begun: set[tuple[int, int, int]] = (
            set()
        )  # Gradients (stage, micro-batch, input) that a part has already written.
        elements: set[int] = set()
        ended: int | None = None
        for task in tasks:
            instruction = task.instruction
            if isinstance(instruction, Forward):
                if self._begins_in_parts and instruction.stage == 0 and instruction.micro_batch not in elements:
                    elements.add(instruction.micro_batch)
                    rows.append(self._element(instruction.micro_batch))
                if self._ends_in_parts and instruction.stage == self._last and ended is None:
                    ended = instruction.micro_batch
                rows.append(self._forward(instruction))
            elif isinstance(instruction, Recompute):
                # In this mode, the row of the backward pass recomputes.
                if self._plan.recomputation is not _WITHIN:
                    rows.append(self._recompute(instruction))
            elif isinstance(instruction, Backward):
                rows.append(self._backward(instruction, frozenset(begun)))
                numbers = self._stages[instruction.stage, instruction.part].input_gradients
                begun |= {(instruction.stage, instruction.micro_batch, number) for number in (*numbers, _CARRIED)}
        return rows if ended is None else [*rows, self._end_of_last_stage(ended)]

    def _buffer(self, kind: BufferKind, stage: int, part: int | None) -> Buffer:
        buffer = self._plan.buffer(kind, stage, part)
        assert buffer is not None
        return buffer

    def _links(self, kind: BufferKind, stage: int) -> list[Buffer]:
        """Returns the links of all parts of a stage, which its neighbors write."""
        return [self._buffer(kind, stage, part) for part, _ in self._plan.parts(stage)]

    def _element(self, micro_batch: int) -> Row:
        """Returns the row that dequeues the element that the parts of the first stage share."""
        specs = list(map(spec_of, self._stages.of(0)[0].varying_inputs))
        return Row(micro_batch, (), (ELEMENT,), lambda _: {ELEMENT: self._feeds.take()}, {ELEMENT: specs})

    def _forward(self, instruction: Forward) -> Row:
        stage, part = instruction.stage, instruction.part
        traced, feeds = self._stages[stage, part], self._feeds
        stash = next((buffer for kind in STASHES if (buffer := self._plan.buffer(kind, stage, part))), None)
        if stage:
            source = Read(self._buffer(BufferKind.FORWARD_LINK, stage, part))
        else:
            source = Read(ELEMENT) if self._begins_in_parts else None
        writes: list[Key] = [] if stash is None else [stash]
        if stage < self._last:
            writes += self._links(BufferKind.FORWARD_LINK, stage + 1)
        else:
            writes += [OUTPUTS] if self._ends_in_parts else [SUMS, HANDED]
        first, end = self._stages.range_of_outputs(stage, part)

        def compute(view: View) -> Contents:
            inputs = view.settled(feeds.take()) if source is None else view.read(source)
            outputs, loss, handed, stashed = traced.forward(inputs, view.micro_batch)
            new: Contents = {}
            for key in writes:
                old = view.current[key]
                if stash is not None and key is stash:
                    new[key] = view.placed(stash, old, stashed)
                elif key == SUMS:
                    new[key] = feeds.give(outputs, loss, old)
                elif key == HANDED:
                    new[key] = handed
                else:
                    # The key has the outputs of the whole stage. A part replaces only its own outputs.
                    replaced = view.placed(key, old[first:end], outputs) if isinstance(key, Buffer) else outputs
                    new[key] = [*old[:first], *replaced, *old[end:]]
            return new

        return Row(instruction.micro_batch, () if source is None else (source,), tuple(writes), compute)

    def _recompute(self, instruction: Recompute) -> Row:
        place = instruction.stage, instruction.part
        source, target = (self._buffer(kind, *place) for kind in (BufferKind.INPUTS, BufferKind.RECOMPUTED))
        traced, read = self._stages[place], Read(source)
        return Row(
            instruction.micro_batch, (read,), (target,), lambda view: {target: traced.recompute(view.read(read))}
        )

    def _backward(self, instruction: Backward, begun: frozenset[tuple[int, int, int]]) -> Row:
        """Returns the row of a backward pass.

        The row passes the gradients of its inputs to each part of the stage before, through the backward link of that
        part. If its own stage has several parts, their gradients of the same input are summed in the link: the first
        part of a step overwrites the place of the micro-batch, and later parts (`begun`) add to it.

        After the gradients, a link also carries tensors of the last stage that backward passes use, for example an
        argument of the optimizer function. Each stage passes on those that the stages before it use:

            backward link of stage 1   gradients of the outputs of stage 1 | tensors used by stages 0 and 1
            backward link of stage 0   gradients of the outputs of stage 0 | tensors used by stage 0
        """
        stage, part, micro_batch = instruction.stage, instruction.part, instruction.micro_batch
        stages = self._stages
        traced, accumulation = stages[stage, part], self._accumulation
        accumulator = self._buffer(BufferKind.ACCUMULATOR, stage, part)
        recomputes = self._plan.recomputes(stage)
        within = recomputes and self._plan.recomputation is _WITHIN
        kind = BufferKind.INPUTS if within else BufferKind.RECOMPUTED if recomputes else BufferKind.ACTIVATIONS
        source = Read(self._buffer(kind, stage, part))
        gradients_of = self._gradients_of_outputs(stage, part)
        links = self._links(BufferKind.BACKWARD_LINK, stage - 1) if stage else []
        numbers_of = dict(stages.output_gradients(stage - 1)) if stage else {}
        first, end = self._captures[stage, part]
        carried = [] if gradients_of is None else stages.carried(stage)
        passed_on = len(stages.carried(stage - 1)) if stage else 0

        def compute(view: View) -> Contents:
            residuals = view.read(source)
            if within:
                residuals = traced.recompute(residuals)
            gradients = [] if gradients_of is None else view.read(gradients_of)
            arrived = gradients[len(gradients) - len(carried) :]
            value_of = {id(tensor): value for tensor, value in zip(carried, arrived, strict=True)}
            gradients[len(gradients) - len(carried) :] = [value_of[id(tensor)] for tensor in traced.carried]
            of_inputs, of_variables, captures, returned = traced.backward(residuals, gradients)
            carry = (arrived or returned)[:passed_on]
            by_number = dict(zip(traced.input_gradients, of_inputs, strict=True))
            new: Contents = {accumulator: accumulation.add(view.current[accumulator], of_variables, view.micro_batch)}
            for link in links:
                old = view.current[link]
                numbers = numbers_of[link.part]
                new[link] = []
                for number, old_gradient in zip(numbers, old[: len(numbers)], strict=True):
                    gradient = by_number.get(number)
                    if gradient is None:
                        new[link].append(old_gradient)
                    elif (stage, micro_batch, number) in begun:
                        new[link].append(old_gradient + gradient)
                    else:
                        new[link] += view.placed(link, [old_gradient], [gradient])
                old_carried = old[len(numbers) :]
                is_begun = (stage, micro_batch, _CARRIED) in begun
                new[link] += old_carried if is_begun else view.placed(link, old_carried, carry)
            if first < end:
                old = view.current[CAPTURED]
                captured = accumulation.captured(old[first:end], captures)
                new[CAPTURED] = [*old[:first], *captured, *old[end:]]
            return new

        reads = (source,) if gradients_of is None else (source, gradients_of)
        return Row(micro_batch, reads, (accumulator, *links, *([CAPTURED] if first < end else [])), compute)

    def _gradients_of_outputs(self, stage: int, part: int | None) -> Read | None:
        """Returns the read of the gradients of a part's outputs; None if the part computes the loss itself."""
        link, head = self._plan.buffer(BufferKind.BACKWARD_LINK, stage, part), self._stages.head
        if link is not None or head is None:
            return None if link is None else Read(link)
        first, end = self._stages.range_of_outputs(stage, part)
        of_outputs = head.input_gradients
        of_part = [index for index, number in enumerate(of_outputs) if first <= number < end]
        numbers = (*of_part, *range(len(of_outputs), len(of_outputs) + len(self._stages.carried(stage))))
        return Read(OUTPUT_GRADIENTS, numbers) if numbers else None

    def _end_of_last_stage(self, micro_batch: int) -> Row:
        """Returns the row that enqueues the outputs of a last stage of several parts, and computes its loss."""
        outputs_of, head, feeds = Read(OUTPUTS), self._stages.head, self._feeds

        def compute(view: View) -> Contents:
            outputs = view.read(outputs_of)
            if head is None:
                return {SUMS: feeds.give(outputs, None, view.current[SUMS])}
            _, loss, handed, stash = head.forward(outputs, view.micro_batch)
            gradients, _, _, carried = head.backward(stash, [])
            sums = feeds.give(outputs, loss, view.current[SUMS])
            return {SUMS: sums, OUTPUT_GRADIENTS: [*gradients, *carried], HANDED: handed}

        return Row(micro_batch, (outputs_of,), (SUMS,) if head is None else (SUMS, OUTPUT_GRADIENTS, HANDED), compute)


def _in_order(step: Step) -> list[Task]:
    """Returns the tasks of a step by slot; within a slot, the reader of a link precedes its writer.

    So the writer can write the link in place.
    """
    return sorted(
        step.tasks,
        key=lambda task: (
            task.slot,
            task.instruction.stage if isinstance(task.instruction, Backward) else -task.instruction.stage,
            task.instruction.part or 0,
        ),
    )


class PipelineFeeds:
    """The queues of a pipeline. All rows call one function that enqueues: a program may enqueue in one place only."""

    def __init__(self, arguments: Arguments, stages: Stages) -> None:
        """Checks that the outfeed queue and its mask match the outputs of the last stage."""
        self._arguments = arguments
        self._outputs = stages.outputs
        flat = flat_tensors(self._outputs)
        mask = arguments.outfeed_mask
        if flat and arguments.outfeed_queue is None:
            raise ValueError(
                f"The last computational stage has tensor outputs: {', '.join(map(str, flat))}, but no outfeed_queue has been"
                " provided. Pass one, or return nothing"
            )
        if mask is not None and len(mask) != len(flat):
            raise ValueError(
                f"The last computational stage has {len(flat)} outputs, but the `outfeed_mask` has {len(mask)} items; pass"
                " one for each output"
            )
        self._masked = mask or (False,) * len(flat)
        self._structure = self._result(flat, stages.loss_spec)
        self.specs: list[Any] = tf.nest.flatten(self._structure)  # The specs of the tensors of one element.
        outfeed = arguments.outfeed_queue if flat_tensors(self._structure) else None
        self.enqueues = outfeed is not None
        self._results = Results.EACH if outfeed is None else arguments.results
        if self.once:
            dtype = arguments.accumulate_outfeed_dtype
            self.specs = [tf.TensorSpec(spec.shape, dtype_for(dtype, spec)) for spec in self.specs]
        self._enqueue = None if outfeed is None else self._enqueuing(outfeed)

    def _result(self, values: Sequence[tf.Tensor], loss: tf.Tensor | tf.TensorSpec | None) -> Nested:
        """Returns the element to enqueue, given the outputs of the last stage and the loss."""
        if self._arguments.outfeed_loss:
            return loss
        if self._arguments.training:
            return [value for value, is_masked in zip(values, self._masked, strict=True) if not is_masked]
        remaining = iter(values)
        with_nones = [None if output is None else next(remaining) for output in tf.nest.flatten(self._outputs)]
        packed = tf.nest.pack_sequence_as(self._outputs, with_nones)
        if self._arguments.results is Results.SUM and not tf.nest.is_nested(packed):
            return flat_tensors(packed)  # A single sum is in a list too, as several sums are.
        return list(packed) if isinstance(packed, tuple) else packed

    def _enqueuing(self, outfeed: IPUOutfeedQueue) -> GraphFunction:
        graph = graphs.FunctionGraph("pipeline_outfeed")

        def enqueue(*tensors: tf.Tensor) -> None:
            outfeed.enqueue(tf.nest.pack_sequence_as(self._structure, tensors))

        graphs.trace_into(graph, enqueue, self.specs)
        return GraphFunction(graph, graph.inputs[: len(self.specs)], [])

    @property
    def once(self) -> bool:
        """True if a pass of the pipeline enqueues one element, at its end."""
        return self._results is not Results.EACH

    def take(self) -> list[tf.Tensor]:
        """Dequeues the next element, and returns it as the flat arguments of a stage."""
        if self._arguments.infeed is None:
            return []
        positional, named = take(self._arguments.infeed)
        return tf.nest.flatten((positional, {name: named[name] for name in sorted(named)}))

    def give(self, outputs: Sequence[tf.Tensor], loss: tf.Tensor | None, sums: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Enqueues the result of a micro-batch, or adds it to the sums; returns the sums."""
        if self._enqueue is None:
            return list(sums)
        tensors = flat_tensors(self._result(outputs, loss))
        if not self.once:
            return self._enqueue(tensors)
        cast = [tf.cast(tensor, total.dtype) for total, tensor in zip(sums, tensors, strict=True)]
        if self._results is Results.LAST:
            return cast
        return [total + tensor for total, tensor in zip(sums, cast, strict=True)]

    def empty_sums(self) -> list[tf.Tensor]:
        """Returns the sums before the first micro-batch; an empty list if each result is enqueued."""
        return [tf.zeros(spec.shape, spec.dtype) for spec in self.specs] if self.once else []

    def finish(self, sums: Sequence[tf.Tensor]) -> None:
        """Enqueues the sums at the end of a pass of the pipeline, if there are sums."""
        if self.once and self._enqueue is not None:
            self._enqueue(sums)
