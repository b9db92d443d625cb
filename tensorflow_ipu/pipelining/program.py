"""From the arguments of `pipeline` to its program: planned, traced, and executed by the interpreter."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._native import library
from tensorflow_ipu._tensorflow import functions, gradients, graphs
from tensorflow_ipu.feeds import program_order
from tensorflow_ipu.pipelining import execution
from tensorflow_ipu.pipelining.instructions import CAPTURED, HANDED, SUMS, InstructionTable, PipelineFeeds
from tensorflow_ipu.pipelining.options import Arguments, PipelineOptions
from tensorflow_ipu.pipelining.schedule import plan_arguments
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule
from tensorflow_ipu.pipelining.schedule.plan import Buffer, BufferKind, Plan
from tensorflow_ipu.pipelining.stages import Footprint, OfStages, Stages
from tensorflow_ipu.pipelining.traced_stage import StageBytes, size_of
from tensorflow_ipu.pipelining.weight_update import Accumulation

if TYPE_CHECKING:
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
    _stages: weakref.ref[Stages] = field(repr=False, compare=False)

    @property
    def stage_costs(self) -> OfStages[StageCost]:
        """The bytes of each stage as traced, with default times."""
        return tuple(
            stage.cost() if isinstance(stage, StageBytes) else tuple(part.cost() for part in stage)
            for stage in self._bytes
        )

    def parts(self) -> Stages:
        """Returns the traced stages; raises `RuntimeError` if the program is gone."""
        stages = self._stages()
        if stages is None:
            raise RuntimeError("the program of this pipeline is gone: keep the `tf.function`, and ask again")
        return stages


_last: TracedPipeline | None = None


def last_pipeline() -> TracedPipeline:
    """Returns the pipeline that was traced last in this process; `RuntimeError` if no program has called `pipeline`."""
    if _last is None:
        raise RuntimeError("no pipeline was traced yet: run a program that calls `pipeline` first")
    return _last


def pipelines_of(program: Callable[..., Nested]) -> tuple[TracedPipeline, ...]:
    """Returns the pipelines of the latest trace of a `tf.function(jit_compile=True)` or a concrete function, in order."""
    traces: list[Any] = functions.traces_of(program) if isinstance(program, functions.Function) else [program]
    return tuple(pipeline for pipeline, _ in getattr(traces[-1].graph, _ATTRIBUTE, ())) if traces else ()


def build(arguments: Arguments) -> tf.Operation:
    """Adds the pipeline of these arguments to the program that is being traced."""
    global _last  # noqa: PLW0603
    if tf.executing_eagerly():
        raise RuntimeError("`pipeline` can only be called in a program: in a `tf.function` that `IPUStrategy.run` gets")
    plan = _plan(arguments)
    with tf.name_scope(arguments.name or "pipeline"):
        with program_order.unordered():
            stages = Stages(arguments, plan)
        schedule, count = arguments.schedule, arguments.count
        # In a graph of TensorFlow 1 the run does so, as with the SDK.
        if isinstance(count, int) and tf.compat.v1.executing_eagerly_outside_functions():
            plan_arguments.check_multiple(count, arguments.multiple, schedule.name, plan.stages, arguments.training)
        bytes_of_stages = stages.figures(lambda part: part.bytes)
        _last = TracedPipeline(arguments.name, plan, arguments.recorded(), bytes_of_stages, weakref.ref(stages))
        for graph in graphs.being_traced():
            setattr(graph, _ATTRIBUTE, [*getattr(graph, _ATTRIBUTE, []), (_last, stages)])
        with gradients.unrecorded(), _order(arguments):
            _run(arguments, stages)
            return tf.no_op(name="done")


def _plan(arguments: Arguments) -> Plan:
    """Returns the plan; for a count that is known at run time only, that of the smallest one with a steady section."""
    schedule, batch = arguments.schedule, arguments.batch_serialization_iterations
    known = arguments.known_count
    plan = schedule.plan(
        arguments.full_mapping,
        (known or schedule.enough * arguments.multiple) * batch,
        training=arguments.training,
        mode=arguments.recomputation,
        repeat_count=arguments.repeat_count,
        batch=batch,
    ).offloaded(
        activations=arguments.offload_activations is True,
        accumulators=arguments.offload_gradient_accumulation_buffers is True,
    )
    if known is not None:
        return plan
    return plan.with_micro_batches(plan.unlooped_micro_batches + plan.section("steady").advance)


def _count(arguments: Arguments) -> int | tf.Tensor:
    """Returns the number of micro-batches; a run that alone knows it fails if the schedule cannot have so many."""
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
    """The order of the queues: each has its own if several micro-batches are in flight, else all have one."""
    # Else a dequeue would wait until an earlier micro-batch is enqueued.
    if arguments.schedule.value is PipelineSchedule.Sequential:
        return contextlib.nullcontext()
    return program_order.barrier(arguments.infeed, arguments.outfeed_queue)


def _run(arguments: Arguments, stages: Stages) -> None:
    plan, training = stages.plan, stages.training
    feeds = PipelineFeeds(arguments, stages)
    total = _count(arguments) * arguments.batch_serialization_iterations
    steady = plan.section("steady")
    iterations: int | tf.Tensor = steady.repeat
    if not isinstance(total, int):
        iterations = (total - plan.unlooped_micro_batches) // steady.advance
    accumulation = Accumulation(
        arguments.method,
        total,
        arguments.gradient_accumulation_dtype,
        arguments.gradient_accumulation_for_captured_grads,
    )
    zero = execution.opaque_zero()
    stages.trace_update(accumulation)
    table = InstructionTable(stages, feeds, accumulation)
    kept = table.kept()
    stages.footprint = Footprint(
        buffers={key: size_of(specs) * places for key, (specs, places) in kept.items() if isinstance(key, Buffer)},
        accumulators={place: accumulation.specs(part.variables) for place, part in stages.items()},
        state=training.state_bytes() if training else 0,
        element=size_of(stages.of(0)[0].varying_inputs) if arguments.infeed is not None else 0,
        result=size_of(feeds.specs) if feeds.enqueues else 0,
        once=feeds.once,
    )
    # Instructions overlap where they may, being passes of whole stages alone, and gain by it.
    whole = plan.recomputation is None and plan.batch_serialization_iterations == 1 and not any(plan.concurrent)
    overlapping = whole and table.largest_bytes() < execution.LARGE

    def run_pass(token: tf.Tensor) -> tf.Tensor:
        sums = feeds.empty_sums()
        contents = {SUMS: sums, **dict(zip(kept, execution.empty(list(kept.values())), strict=True))}
        interpreter = execution.Interpreter(plan, contents, token, total)
        interpreter.run_pass(table.of_section, iterations, overlapping=overlapping)
        contents = interpreter.contents
        feeds.finish(contents[SUMS])
        if training is not None and stages.weight_update is not None:
            buffers = (plan.buffer(BufferKind.ACCUMULATOR, *place) for place in stages)
            sums_of_variables = [gradient for buffer in buffers if buffer for gradient in contents[buffer]]
            stages.weight_update(sums_of_variables, contents[HANDED])
            training.enqueue_captured(table.by_tag(contents[CAPTURED]))
        return interpreter.token

    if arguments.repeat_count == 1:
        run_pass(zero)
        return
    tf.while_loop(
        lambda number, _: number < arguments.repeat_count,
        lambda number, token: (number + 1, run_pass(token)),
        (tf.constant(0), zero),
        parallel_iterations=1,
    )
