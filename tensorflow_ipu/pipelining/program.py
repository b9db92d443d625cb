"""The program of a pipeline: it is planned, its stages are traced, and the interpreter turns the plan into a graph."""

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

# The attribute of a function's graph with the pipelines that were traced in it, and their stages.
_ATTRIBUTE = "_ipu_pipelines"


@dataclass(frozen=True)
class TracedPipeline:
    """A pipeline that was traced in a program.

    Attributes:
      name: The name that was passed to `pipeline`.
      plan: The plan. If the number of micro-batches is known at run time only, this is the smallest plan with a steady
        section.
      options: The options that tune hardware.
    """

    name: str | None
    plan: Plan
    options: PipelineOptions
    _bytes: OfStages[StageBytes] = field(repr=False)
    # A weak reference: a strong one would keep the program in memory, and the threads of its queues running.
    _stages: weakref.ref[Stages] = field(repr=False, compare=False)

    @property
    def stage_costs(self) -> OfStages[StageCost]:
        """The bytes of each stage as traced, with default times."""
        return tuple(
            stage.cost() if isinstance(stage, StageBytes) else tuple(part.cost() for part in stage)
            for stage in self._bytes
        )

    def parts(self) -> Stages:
        """Returns the traced stages; raises `RuntimeError` if the program no longer exists."""
        stages = self._stages()
        if stages is None:
            raise RuntimeError("the program of this pipeline no longer exists: keep a reference to its `tf.function`")
        return stages


_last: TracedPipeline | None = None


def last_pipeline() -> TracedPipeline:
    """Returns the pipeline that was traced last in this process.

    Raises:
      RuntimeError: No program has called `pipeline`.
    """
    if _last is None:
        raise RuntimeError("no pipeline was traced yet: run a program that calls `pipeline` first")
    return _last


def pipelines_of(program: Callable[..., Nested]) -> tuple[TracedPipeline, ...]:
    """Returns the pipelines of a program, in the order of their calls.

    Args:
      program: A `tf.function(jit_compile=True)`, of which the latest trace is used, or a concrete function.
    """
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
        # In a graph of TensorFlow 1, the run checks the number, as with the SDK.
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
    """Returns the plan; if the count is known at run time only, the smallest plan with a steady section."""
    schedule, batch = arguments.schedule, arguments.batch_serialization_iterations
    count = arguments.known_count
    plan = schedule.plan(
        arguments.full_mapping,
        (count or schedule.enough * arguments.multiple) * batch,
        training=arguments.training,
        mode=arguments.recomputation,
        repeat_count=arguments.repeat_count,
        batch=batch,
    ).offloaded(
        activations=arguments.offload_activations is True,
        accumulators=arguments.offload_gradient_accumulation_buffers is True,
    )
    if count is not None:
        return plan
    return plan.with_micro_batches(plan.unlooped_micro_batches + plan.section("steady").advance)


def _count(arguments: Arguments) -> int | tf.Tensor:
    """Returns the number of micro-batches. If it is a tensor, a run with an unsupported number fails."""
    if arguments.known_count is not None:
        return arguments.known_count
    multiple = arguments.multiple
    largest = plan_arguments.LARGEST_COUNT // arguments.batch_serialization_iterations
    prefix, suffix = plan_arguments.message_of_multiple(
        arguments.schedule.name,
        len(arguments.stages),
        arguments.training,
        f"{multiple} from {multiple} to {largest}",
    )
    count = tf.cast(arguments.count, tf.int64)
    checked = library.ops.ipu_micro_batches(
        count, multiple=multiple, least=multiple, largest=largest, before=prefix, after=suffix
    )
    return tf.cast(checked, tf.int32)


def _order(arguments: Arguments) -> contextlib.AbstractContextManager[None]:
    """A context for the order of dequeues and enqueues: separate orders if several micro-batches are in flight."""
    # In a common order, a dequeue would wait until an earlier micro-batch is enqueued.
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
    memory = table.memory()
    stages.footprint = Footprint(
        buffers={key: size_of(specs) * places for key, (specs, places) in memory.items() if isinstance(key, Buffer)},
        accumulators={place: accumulation.specs(part.variables) for place, part in stages.items()},
        state=training.state_bytes() if training else 0,
        element=size_of(stages.of(0)[0].varying_inputs) if arguments.infeed is not None else 0,
        result=size_of(feeds.specs) if feeds.enqueues else 0,
        once=feeds.once,
    )
    # Instructions can overlap if all passes run whole stages, without recomputation. They do so if this is faster, which is
    # the case for small tensors.
    may_overlap = plan.recomputation is None and plan.batch_serialization_iterations == 1 and not any(plan.concurrent)
    overlapping = may_overlap and table.largest_bytes() < execution.LARGE

    def run_pass(token: tf.Tensor) -> tf.Tensor:
        sums = feeds.empty_sums()
        contents = {SUMS: sums, **dict(zip(memory, execution.empty(list(memory.values())), strict=True))}
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
