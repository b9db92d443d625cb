"""What a pipeline's buffers hold: shapes, and whose outputs, gradients and captures are where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tensorflow_ipu.pipelining._buffers import Buffer, BufferKind
from tensorflow_ipu.pipelining._enums import RecomputationMode
from tensorflow_ipu.pipelining._plan import Plan
from tensorflow_ipu.pipelining._stage import StagePart, split_outputs
from tensorflow_ipu.pipelining._stage_trace import spec_of

Place = tuple[int, int | None]


class Layout:
    """A plan, with the stages that it is for."""

    def __init__(self, plan: Plan, parts: Mapping[Place, StagePart]) -> None:
        """Takes the plan, and the stages by stage and part."""
        self._plan = plan
        self._parts = parts

    def buffer(self, kind: BufferKind, stage: int, part: int | None) -> Buffer:
        """A buffer that the plan has."""
        buffer = self._plan.buffer(kind, stage, part)
        assert buffer is not None
        return buffer

    def recomputes(self, stage: int) -> bool:
        """Whether a stage recomputes."""
        return self._plan.recomputation is not None and stage < self._plan.stages - 1

    def recomputes_within(self, stage: int) -> bool:
        """Whether a stage recomputes right before its backward pass, in the same step."""
        within = RecomputationMode.RecomputeAndBackpropagateInterleaved
        return self.recomputes(stage) and self._plan.recomputation is within

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

    def output_specs(self, stage: int) -> list[tf.TensorSpec]:
        """The outputs of all parts of a stage."""
        return [spec for part, _ in self._plan.parts(stage) for spec in self._parts[stage, part].output_specs]

    def range_of_outputs(self, stage: int, part: int | None) -> tuple[int, int]:
        """Where the outputs of a part begin and end among those of its stage."""
        before = (self._parts[stage, each] for each, _ in self._plan.parts(stage) if (each or 0) < (part or 0))
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

    def carried(self, stage: int) -> list[Any]:
        """The tensors of the last stage that go back to a stage, for it and for those before; theirs come first."""
        parts = (self._parts[each, part] for each in range(stage + 1) for part, _ in self._plan.parts(each))
        return list({id(one): one for runner in parts for one in runner.carried}.values())

    def output_gradients(self, stage: int) -> list[tuple[int | None, list[int]]]:
        """For each part of a stage which outputs of the whole stage have gradients, of those that are its own."""
        behind = (self._parts[stage + 1, part].input_gradients for part, _ in self._plan.parts(stage + 1))
        numbers = sorted({number for each in behind for number in each})
        return split_outputs([(part, self._parts[stage, part]) for part, _ in self._plan.parts(stage)], numbers)
