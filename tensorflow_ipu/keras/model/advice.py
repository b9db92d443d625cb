"""Advice for which a Keras model is traced again: other micro-batches, recomputation, more stages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tensorflow_ipu import machine, pipelining, replicas
from tensorflow_ipu.pipelining.parts import Pieces, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.machine import Machine, Memory, NotAsked, Report, Suggestion, System
    from tensorflow_ipu.pipelining.parts import Pieces

Asked = Iterator["Suggestion | NotAsked"]
_MOST_STAGES = 64
_OPTION = "`gradient_accumulation_steps_per_replica`"


@dataclasses.dataclass(frozen=True)
class Retracing:
    """How a model can be asked again."""

    report: Report
    samples: int
    steps: int
    training: bool
    stages: int
    other: Callable[[float, int], Report]
    pieces: Callable[[], Pieces]

    def advice(self, retrace: bool) -> Asked:
        """All that takes another trace, or that it does."""
        if not retrace:
            words = "other micro-batches" + (", recomputation, more stages" if self.training else "")
            yield machine.NotAsked(words, "they take another trace of the model: `report.advice(retrace=True)` asks")
            return
        yield from self._micro_batches()
        if not self.training:
            return
        try:
            pieces = self.pieces()
        except (ValueError, NotImplementedError, RuntimeError) as exc:
            yield machine.NotAsked("recomputation, more stages", f"the model cannot be cut: {exc}")
            return
        if self.stages == 1:
            yield from self._recomputation(pieces)
        yield from self._more_stages(pieces)

    def _micro_batches(self) -> Asked:
        """Half and twice the micro-batch, for an update of as many samples where that can be."""
        size, steps = self.samples, self.steps
        for samples, count in ((size // 2, 2 * steps), (2 * size, max(1, steps // 2))):
            words = f"micro-batches of {samples} in place of {size}"
            if not samples or (samples < size and size % 2):
                yield machine.NotAsked(words, "a micro-batch is of whole samples")
                continue
            if self.training and count != steps:
                words += f", and {_OPTION} of {count}"
            try:
                made = self.other(samples / size, count if self.training else steps)
            except (ValueError, NotImplementedError) as exc:
                yield machine.NotAsked(words, str(exc))
                continue
            except Exception as exc:  # TensorFlow's, where a schedule takes other multiples.
                yield machine.NotAsked(words, str(exc).splitlines()[0])
                continue
            yield machine.changed(words, self.report, made, samples / size)

    def _recomputation(self, pieces: Pieces) -> Asked:
        """The model as stages that are all on one IPU, each recomputed from its input before its backward pass."""
        count = min(len(pieces.costs), max(2, round(math.sqrt(len(pieces.costs)))))
        cuts = pipelining.balance(list(pieces.costs), count, self.report.system, recompute=True)
        mode = pipelining.RecomputationMode.RecomputeAndBackpropagateInterleaved
        schedule = pipelining.PipelineSchedule.Sequential
        plan = pipelining.pipeline_plan(
            count, self.steps, schedule, device_mapping=[0] * count, recomputation_mode=mode
        )
        cost = pipelining.plan_cost(plan, cuts.costs, machine=self.report.system)
        whole = joined(pieces.costs)
        once = self.steps * (whole.forward + (whole.backward or 0.0)) + whole.update
        words = (
            f"recomputation: {count} stages, all on IPU 0 (`device_mapping=[0] * {count}`, `PipelineSchedule.Sequential`,"
            f" `RecomputationMode.{mode.name}`)"
        )
        yield self._planned(words, pieces, cost, more=(cost.time - once) / self.steps)

    def _more_stages(self, pieces: Pieces) -> Asked:
        """As many stages as the next number of IPUs that a replica can have, and where these do not fit, twice as many."""
        count = replicas.power_of_2(self.stages + 1)
        while True:
            words = f"{count} stages, one an IPU, as `pipelining.balance` cuts them"
            if len(pieces.costs) < count:
                yield machine.NotAsked(words, f"the model has {len(pieces.costs)} layers")
                return
            steps = self.steps if self.stages > 1 else None
            try:
                found = pipelining.balance(list(pieces.costs), count, self.report.system, micro_batches=steps)
            except Exception as exc:  # TensorFlow's, where a schedule takes other multiples.
                yield machine.NotAsked(words, str(exc).splitlines()[0])
                return
            recomputed = " with recomputation" * found.recompute
            words += f"{recomputed} ({found.cost.plan.micro_batches} micro-batches; a replica then has {count} IPUs)"
            planned = self._planned(words, pieces, found.cost)
            yield planned
            if planned.verdict == "fits" or count >= _MOST_STAGES:
                return
            count *= 2

    def _planned(self, words: str, pieces: Pieces, cost: pipelining.PlanCost, more: float | None = None) -> Suggestion:
        """What a plan does: to the time of a step, which takes so much more, or that of the plan; and to the memory."""
        report = self.report
        step = cost.time_per_micro_batch
        host = report.part_seconds("host") / report.steps
        alone = max(step, host) if report.overlaps_host else step + host
        seconds = alone if more is None else report.step_seconds + more
        fullest = max((self._memory(pieces, ipu) for ipu in cost.ipus), key=lambda memory: memory.high)
        return machine.Suggestion(words, report.step_seconds / seconds, fullest.high, fullest.verdict)

    def _memory(self, pieces: Pieces, ipu: pipelining.IpuCost) -> Memory:
        """The memory of an IPU that has what a plan says.

        Stages keep more for their backward passes than a program that is compiled as a whole: of such a one, data take as
        much less as they do in stages.
        """
        memory = self.report.memory
        data = ipu.stash_bytes + ipu.link_bytes + ipu.temporary_bytes
        if self.stages == 1:
            whole = joined(pieces.costs)
            data *= memory.data / (whole.activation_bytes + whole.temporary_bytes or 1.0)
        return machine.Memory(
            variables=round(ipu.weight_bytes),
            constants=memory.constants,
            data=round(data),
            code_low=memory.code_low,
            code_high=memory.code_high,
            capacity=memory.capacity,
            feeds=memory.feeds,
        )


# Of a model of more layers, stretches of them are a piece: each piece is compiled by itself.
_MOST = 96


def pieces_of(
    extension: Extension, machine: System | Machine | str | None, described: Callable[[], Callable[[], None]]
) -> Pieces:
    """The pieces of a model: a pipeline of all of them, on one IPU, is traced and read.

    The stages and options that the model has are as before in the end.
    """
    stages, options = extension.stages, extension.options
    names = stages.leaf_names()
    if len(names) < 2:
        raise ValueError(
            f"model `{extension.model.name}` has {len(names)} layers, and a pipeline has 2 stages at least"
        )
    length = -(-len(names) // _MOST)
    of_layers = [number // length for number in range(len(names))]
    count = of_layers[-1] + 1
    before = options.pipelining
    steps = before.gradient_accumulation_steps_per_replica
    options.pipelining = dataclasses.replace(
        before,
        gradient_accumulation_steps_per_replica=1,
        device_mapping=[0] * count,
        pipeline_schedule=pipelining.PipelineSchedule.Sequential,
        recomputation_mode=None,
        forward_propagation_stages_poplar_options=None,
        backward_propagation_stages_poplar_options=None,
    )
    try:
        with stages.staged(of_layers):
            program: Any = described()
            with extension.strategy.scope():
                traced = program.get_concrete_function()
            (pipeline,) = pipelining.pipelines_of(traced)
            costs = pipelining.predicted_stage_costs(pipeline, machine)
    finally:
        options.pipelining = before

    def assigned(of_pieces: Sequence[int]) -> list[Any]:
        with stages.staged([of_pieces[piece] for piece in of_layers]):
            return stages.get()

    first_names = [names[of_layers.index(piece)] for piece in range(count)]
    flat = tuple(joined([cost] if isinstance(cost, pipelining.StageCost) else cost) for cost in costs)
    return Pieces(tuple(first_names), flat, steps, assigned)
