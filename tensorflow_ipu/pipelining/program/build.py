"""From the arguments of `pipeline` to its program: checked, planned, traced, lowered."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._native import library
from tensorflow_ipu._tensorflow import functions, gradients, graphs
from tensorflow_ipu.feeds import program_order
from tensorflow_ipu.pipelining.options import Arguments, PipelineOptions
from tensorflow_ipu.pipelining.program import memory
from tensorflow_ipu.pipelining.program.feeds import PipelineFeeds
from tensorflow_ipu.pipelining.program.layout import Layout, OfStages, StageBytes, footprint_of, of_stages, traced_bytes
from tensorflow_ipu.pipelining.program.lowering import Lowering
from tensorflow_ipu.pipelining.program.memory import empty_memory
from tensorflow_ipu.pipelining.program.model import Model, Parts
from tensorflow_ipu.pipelining.program.operations import Operations
from tensorflow_ipu.pipelining.schedule import plan_arguments
from tensorflow_ipu.pipelining.schedule.enums import PhasedExecution, PipelineSchedule
from tensorflow_ipu.pipelining.schedule.phased import planned_phases
from tensorflow_ipu.pipelining.schedule.pipelined import planned
from tensorflow_ipu.pipelining.schedule.plan import Plan
from tensorflow_ipu.pipelining.weight_update import Accumulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.analysis.pipelines.cost import StageCost

# Of the graph of a function: the pipelines that were traced in it, with their stages.
_ATTRIBUTE = "_ipu_pipelines"


@dataclass(frozen=True)
class TracedPipeline:
    """A pipeline as a program runs it.

    For a count that is known at run time only, `plan` is the smallest with a steady section.
    """

    name: str | None
    plan: Plan
    options: PipelineOptions
    _bytes: OfStages[StageBytes] = field(repr=False)
    # Weak, since a program may be large, and has queues whose threads end with them.
    _parts: weakref.ref[Parts] = field(repr=False, compare=False)

    @property
    def stage_costs(self) -> OfStages[StageCost]:
        """The bytes of each stage as traced, with default times."""
        from tensorflow_ipu.analysis.pipelines.cost import StageCost

        def cost(part: StageBytes) -> StageCost:
            return StageCost(**asdict(part))

        return tuple(cost(stage) if isinstance(stage, StageBytes) else tuple(map(cost, stage)) for stage in self._bytes)

    def parts(self) -> Parts:
        """The stages as functions; `RuntimeError` if the program is gone."""
        parts = self._parts()
        if parts is None:
            raise RuntimeError("the program of this pipeline is gone: keep the `tf.function`, and ask again")
        return parts


_last: TracedPipeline | None = None


def note(pipeline: TracedPipeline) -> None:
    """Keeps a pipeline with all functions that are being traced."""
    global _last  # noqa: PLW0603
    _last = pipeline
    for graph in graphs.being_traced():
        setattr(graph, _ATTRIBUTE, [*getattr(graph, _ATTRIBUTE, []), (pipeline, pipeline.parts())])


def last_pipeline() -> TracedPipeline:
    """The pipeline that was traced last in this process; `RuntimeError` if no program that calls `pipeline` has run."""
    if _last is None:
        raise RuntimeError("no pipeline was traced yet: run a program that calls `pipeline` first")
    return _last


def pipelines_of(program: Callable[..., Nested]) -> tuple[TracedPipeline, ...]:
    """The pipelines of the latest trace of a `tf.function(jit_compile=True)` or a concrete function, in order."""
    traces: list[Any] = functions.traces_of(program) if isinstance(program, functions.Function) else [program]
    return tuple(pipeline for pipeline, _ in getattr(traces[-1].graph, _ATTRIBUTE, ())) if traces else ()


def build(arguments: Arguments) -> tf.Operation:
    """The pipeline of these arguments, in the program that is being traced."""
    if tf.executing_eagerly():
        raise RuntimeError("`pipeline` can only be called in a program: in a `tf.function` that `IPUStrategy.run` gets")
    plan = _plan(arguments)
    with tf.name_scope(arguments.name or "pipeline"):
        with program_order.unordered():
            model = Model(arguments, plan)
        _check_count(arguments)
        stage_bytes = of_stages(plan, model.parts, traced_bytes)
        note(TracedPipeline(arguments.name, plan, arguments.recorded(), stage_bytes, weakref.ref(model.parts)))
        with gradients.unrecorded(), _order(arguments):
            _run(arguments, plan, model)
            return tf.no_op(name="done")


def _check_count(arguments: Arguments) -> None:
    """Refuses a count that the schedule cannot have; in a graph of TensorFlow 1 the run does so, as with the SDK."""
    later = not tf.compat.v1.executing_eagerly_outside_functions()
    if isinstance(arguments.count, int) and isinstance(arguments.schedule, PipelineSchedule) and not later:
        plan_arguments.check_multiple(arguments.count, arguments.schedule, arguments.mapping, arguments.training)


def _plan(arguments: Arguments) -> Plan:
    """The plan; for a count that is known at run time only, that of the smallest one with a steady section."""
    micro_batches, full = arguments.known_count, arguments.full_mapping
    schedule, training = arguments.schedule, arguments.training
    if isinstance(schedule, PhasedExecution):
        count = micro_batches or 2
        plan = planned_phases(schedule, full, count, training, arguments.repeat_count, arguments.liveness)
    else:
        count = micro_batches or 4 * arguments.multiple
        plan = planned(
            schedule.name,
            full,
            count * arguments.batch_serialization_iterations,
            schedule,
            training=training,
            mode=arguments.recomputation,
            repeat_count=arguments.repeat_count,
            batch=arguments.batch_serialization_iterations,
        )
    plan = plan.offloaded(
        activations=arguments.offload_activations is True,
        accumulators=arguments.offload_gradient_accumulation_buffers is True,
    )
    if micro_batches is not None:
        return plan
    return plan.with_micro_batches(plan.unlooped_micro_batches + plan.section("steady").advance)


def _count(arguments: Arguments) -> int | tf.Tensor:
    """How many micro-batches one pass has; where the run alone knows, it fails where the schedule cannot have so many."""
    if arguments.known_count is not None:
        return arguments.known_count
    multiple = arguments.multiple
    largest = plan_arguments.LARGEST_COUNT // arguments.batch_serialization_iterations
    before, after = plan_arguments.words_of_multiple(
        arguments.schedule.name,
        len(arguments.stages),
        arguments.training,
        f"{multiple} from {multiple} to {largest}",
    )
    count = tf.cast(arguments.count, tf.int64)
    checked = library.ops.ipu_micro_batches(
        count, multiple=multiple, least=multiple, largest=largest, before=before, after=after
    )
    return tf.cast(checked, tf.int32)


def _order(arguments: Arguments) -> contextlib.AbstractContextManager[None]:
    """The order of the queues: each has its own where several micro-batches are in flight, else all have one."""
    # Else a dequeue would wait until an earlier micro-batch is enqueued.
    if arguments.schedule is PipelineSchedule.Sequential:
        return contextlib.nullcontext()
    return program_order.barrier(arguments.infeed, arguments.outfeed_queue)


def _run(arguments: Arguments, plan: Plan, model: Model) -> None:
    """Builds the program: all passes."""
    feeds = PipelineFeeds(arguments, model)
    total = _count(arguments) * arguments.batch_serialization_iterations
    steady = plan.section("steady")
    iterations: int | tf.Tensor = steady.repeat
    if not isinstance(total, int):
        iterations = (total - plan.unlooped_micro_batches) // steady.advance
    training = model.training
    accumulation = Accumulation(
        arguments.method,
        total,
        arguments.gradient_accumulation_dtype,
        sum_captured=arguments.gradient_accumulation_for_captured_grads,
    )
    zero = memory.opaque_zero()
    update = None if training is None else model.update(training, accumulation)
    layout = Layout(plan, model.parts, model.head)
    model.parts.weight_update = update
    model.parts.footprint = footprint_of(layout, accumulation, training, feeds)
    operations = Operations(layout, model.parts, feeds, accumulation)

    def one_pass(token: tf.Tensor) -> tf.Tensor:
        tokens = memory.TokenThreading(token)
        contents = empty_memory(layout, accumulation, feeds.empty_sums(), tokens)
        results = Lowering(layout, operations, contents, tokens).run(iterations, total)
        feeds.finish(results.sums)
        if training is not None and update is not None:
            update([gradient for place in model.parts for gradient in results.accumulated[place]], results.handed)
            training.finish(results.captured)
        return tokens.token

    if arguments.repeat_count == 1:
        one_pass(zero)
        return
    tf.while_loop(
        lambda number, _: number < arguments.repeat_count,
        lambda number, token: (number + 1, one_pass(token)),
        (tf.constant(0), zero),
        parallel_iterations=1,
    )
