"""What a pass of a plan keeps in memory: shapes, and whose outputs, gradients and captures are where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import tensorflow as tf

from tensorflow_ipu.pipelining.schedule.enums import RecomputationMode
from tensorflow_ipu.pipelining.schedule.plan import STASHES, Buffer, BufferKind, Plan
from tensorflow_ipu.pipelining.stages.part import Place, StagePart, split_outputs
from tensorflow_ipu.pipelining.stages.tracing import spec_of

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.program.feeds import PipelineFeeds
    from tensorflow_ipu.pipelining.weight_update import Accumulation, Training

# What a program keeps in memory in addition to the plan's buffers:
# * sums for the outfeed;
# * for a last stage of several parts, the outputs of one micro-batch, and their gradients with the tensors that travel back;
# * captured gradients;
# * the tensors of the last micro-batch that the weight update uses;
# * for a first stage of several parts, the infeed element that they share, within a step.
SUMS, OUTPUTS, OUTPUT_GRADIENTS, CAPTURED, HANDED = "sums", "outputs", "output gradients", "captured", "handed"
ELEMENT = "element"
Key = Buffer | str
T = TypeVar("T")
OfStages = tuple[T | tuple[T, ...], ...]  # By stage; of each part if it has several.


class Layout:
    """A plan, with the stages that it is for."""

    def __init__(self, plan: Plan, parts: Mapping[Place, StagePart], head: StagePart | None = None) -> None:
        """Takes the plan, the stages by stage and part, and what computes the loss, if no part does."""
        self.plan = plan
        self.head = head
        self._parts = parts

    def buffer(self, kind: BufferKind, stage: int, part: int | None) -> Buffer:
        """A buffer that the plan has."""
        buffer = self.plan.buffer(kind, stage, part)
        assert buffer is not None
        return buffer

    def part(self, stage: int, part: int | None) -> StagePart:
        """A part of a stage."""
        return self._parts[stage, part]

    def links(self, kind: BufferKind, stage: int) -> list[Buffer]:
        """The buffers of a stage's parts that others write to."""
        return [self.buffer(kind, stage, part) for part, _ in self.plan.parts(stage)]

    def stash(self, stage: int, part: int | None) -> Buffer | None:
        """The buffer that a forward pass leaves its activations in, or its inputs; None in inference."""
        return next((buffer for kind in STASHES if (buffer := self.plan.buffer(kind, stage, part))), None)

    def recomputes(self, stage: int) -> bool:
        """Whether a stage recomputes."""
        return self.plan.recomputation is not None and stage < self.plan.stages - 1

    def recomputes_within(self, stage: int) -> bool:
        """Whether a stage recomputes right before its backward pass, in the same step."""
        within = RecomputationMode.RecomputeAndBackpropagateInterleaved
        return self.recomputes(stage) and self.plan.recomputation is within

    def residuals(self, stage: int, part: int | None) -> Buffer:
        """The buffer that a backward pass begins with."""
        if not self.recomputes(stage):
            return self.buffer(BufferKind.ACTIVATIONS, stage, part)
        within = self.recomputes_within(stage)
        return self.buffer(BufferKind.INPUTS if within else BufferKind.RECOMPUTED, stage, part)

    def specs(self, buffer: Buffer) -> list[tf.TensorSpec]:
        """What a buffer holds of one micro-batch."""
        kind, stage, part = buffer.kind, buffer.stage, buffer.part
        if kind is BufferKind.FORWARD_LINK:
            return self.output_specs(stage - 1)
        if kind is BufferKind.BACKWARD_LINK:
            specs = self.output_specs(stage)
            with_gradients = [specs[number] for number in dict(self.output_gradients(stage))[part]]
            return [*with_gradients, *map(spec_of, self.carried(stage))]
        runner = self._parts[stage, part]
        return runner.residuals if kind is BufferKind.RECOMPUTED else runner.stash

    def incoming_gradients(self, stage: int, part: int | None) -> tuple[Key, tuple[int, ...] | None] | None:
        """Where the gradients of a part's outputs are, and which of those there."""
        link = self.plan.buffer(BufferKind.BACKWARD_LINK, stage, part)
        if link is not None:
            return link, None
        if self.head is None:
            return None
        first, end = self.range_of_outputs(stage, part)
        of_outputs = self.head.input_gradients
        mine = [at for at, number in enumerate(of_outputs) if first <= number < end]
        found = (*mine, *range(len(of_outputs), len(of_outputs) + len(self.carried(stage))))
        return (OUTPUT_GRADIENTS, found) if found else None

    def output_specs(self, stage: int) -> list[tf.TensorSpec]:
        """The outputs of all parts of a stage."""
        return [spec for part, _ in self.plan.parts(stage) for spec in self._parts[stage, part].output_specs]

    def range_of_outputs(self, stage: int, part: int | None) -> tuple[int, int]:
        """Where the outputs of a part begin and end among those of its stage."""
        before = (self._parts[stage, each] for each, _ in self.plan.parts(stage) if (each or 0) < (part or 0))
        first = sum(len(runner.output_specs) for runner in before)
        return first, first + len(self._parts[stage, part].output_specs)

    def range_of_captures(self, stage: int, part: int | None) -> tuple[int, int]:
        """Where the captured gradients of a part begin and end among those of all."""
        begin = 0
        for place, runner in self._parts.items():
            width = sum(map(len, runner.captures.values()))
            if place == (stage, part):
                return begin, begin + width
            begin += width
        raise KeyError((stage, part))

    def carried(self, stage: int) -> list[tf.Tensor]:
        """The tensors of the last stage that go back to a stage, for it and for those before; theirs come first."""
        parts = (self._parts[each, part] for each in range(stage + 1) for part, _ in self.plan.parts(each))
        return list({id(one): one for runner in parts for one in runner.carried}.values())

    def output_gradients(self, stage: int) -> list[tuple[int | None, list[int]]]:
        """For each part of a stage which outputs of the whole stage have gradients, of those that are its own."""
        after = (self._parts[stage + 1, part].input_gradients for part, _ in self.plan.parts(stage + 1))
        numbers = sorted({number for each in after for number in each})
        return split_outputs([(part, self._parts[stage, part]) for part, _ in self.plan.parts(stage)], numbers)

    def kept(self, accumulation: Accumulation) -> dict[Key, tuple[list[tf.TensorSpec], int]]:
        """What begins a pass as zeros: for each thing its tensors of one micro-batch, and how many places it has."""
        captures = [spec for runner in self._parts.values() for specs in runner.captures.values() for spec in specs]
        handed = [spec_of(one) for runner in (*self._parts.values(), self.head) if runner for one in runner.handed]
        found: dict[Key, tuple[list[tf.TensorSpec], int]] = {CAPTURED: (captures, 1), HANDED: (handed, 1)}
        for buffer in self.plan.buffers:
            if buffer.kind is BufferKind.ACCUMULATOR:
                found[buffer] = (accumulation.specs(self._parts[buffer.stage, buffer.part].variables), 1)
            elif buffer.kind is not BufferKind.RECOMPUTED or not self.recomputes_within(buffer.stage):
                found[buffer] = (self.specs(buffer), buffer.depth)
        last = self.plan.stages - 1
        if len(self.plan.parts(last)) > 1:
            outputs = self.output_specs(last)
            found[OUTPUTS] = (outputs, 1)
            if self.head is not None:
                gradients = [outputs[number] for number in self.head.input_gradients]
                found[OUTPUT_GRADIENTS] = ([*gradients, *map(spec_of, self.carried(last))], 1)
        return found

    def largest_bytes(self) -> int:
        """How large the largest tensor of a micro-batch is that one instruction leaves for another."""
        buffers = (one for one in self.plan.buffers if one.kind is not BufferKind.ACCUMULATOR)
        return max(
            (spec.dtype.size * (spec.shape.num_elements() or 0) for one in buffers for spec in self.specs(one)),
            default=0,
        )

    def by_tag(self, captured: Sequence[tf.Tensor]) -> dict[str, list[tf.Tensor]]:
        """The captured gradients of all parts by their tags."""
        found: dict[str, list[tf.Tensor]] = {}
        values = iter(captured)
        for runner in self._parts.values():
            for tag, specs in runner.captures.items():
                found.setdefault(tag, []).extend(next(values) for _ in specs)
        return found


@dataclass(frozen=True)
class Footprint:
    """Bytes, but where it says otherwise."""

    buffers: Mapping[Buffer, int]
    accumulators: Mapping[Place, list[tf.TensorSpec]]
    state: int
    element: int
    result: int
    once: bool

    def scaled(self, share: float) -> Footprint:
        """The same, of so many times the bytes."""
        return replace(
            self,
            buffers={buffer: round(share * size) for buffer, size in self.buffers.items()},
            state=round(share * self.state),
            element=round(share * self.element),
            result=round(share * self.result),
        )


def footprint_of(
    layout: Layout, accumulation: Accumulation, training: Training | None, feeds: PipelineFeeds
) -> Footprint:
    """The footprint of a program whose weight update was traced."""
    first = layout.plan.parts(0)[0][0]
    kept = layout.kept(accumulation)
    return Footprint(
        buffers={key: size_of(specs) * places for key, (specs, places) in kept.items() if isinstance(key, Buffer)},
        accumulators={
            place: accumulation.specs(layout.part(*place).variables) if training else []
            for place in ((stage, part) for stage, part, _ in layout.plan.places())
        },
        state=training.state_bytes() if training else 0,
        element=size_of(layout.part(0, first).varying_input_specs) if feeds.takes else 0,
        result=size_of(feeds.result_specs()),
        once=feeds.once,
    )


def size_of(specs: Iterable[tf.TensorSpec]) -> int:
    """The bytes of tensors; those of unknown shape count as none."""
    return sum((one.shape.num_elements() or 0) * one.dtype.size for one in specs)


@dataclass(frozen=True)
class StageBytes:
    """The bytes of a part of a stage, as traced."""

    activation_bytes: int
    input_bytes: int
    weight_bytes: int


def traced_bytes(part: StagePart) -> StageBytes:
    """Returns the bytes of a part of a stage."""
    return StageBytes(part.activation_bytes, part.input_bytes, part.weight_bytes)


def of_stages(plan: Plan, parts: Mapping[Place, StagePart], figure: Callable[[StagePart], T]) -> OfStages[T]:
    """Returns for each stage of a plan its figure, or those of its parts if it was passed as a list."""
    stages: list[T | tuple[T, ...]] = []
    for stage in range(plan.stages):
        figures = tuple(figure(parts[stage, part]) for part, _ in plan.parts(stage))
        stages.append(figures if plan.concurrent[stage] else figures[0])
    return tuple(stages)
