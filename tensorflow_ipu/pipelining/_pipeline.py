"""`pipeline`: stages, a schedule and an optimizer as one program, which executes their plan."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from tensorflow_ipu import _library, _tracebacks
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue, program_order
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.pipelining import _arguments, _rings
from tensorflow_ipu.pipelining._accumulation import Accumulation
from tensorflow_ipu.pipelining._enums import PhasedExecution, PipelineSchedule, RecomputationMode, Results
from tensorflow_ipu.pipelining._feeds import PipelineFeeds
from tensorflow_ipu.pipelining._lowering import Lowering
from tensorflow_ipu.pipelining._model import Model
from tensorflow_ipu.pipelining._optimizer_output import OptimizerFunctionOutput
from tensorflow_ipu.pipelining._order import overlap_length
from tensorflow_ipu.pipelining._phased import phased_plan
from tensorflow_ipu.pipelining._pipeline_arguments import Arguments, checked
from tensorflow_ipu.pipelining._pipelined import pipeline_plan
from tensorflow_ipu.pipelining._plan import Plan
from tensorflow_ipu.pipelining._split import CHECKPOINT
from tensorflow_ipu.pipelining._stage_options import PipelineStageOptions
from tensorflow_ipu.pipelining._stage_trace import flat_tensors
from tensorflow_ipu.pipelining._traced import TracedPipeline, note


def pipeline(
    computational_stages: Sequence[Any],
    gradient_accumulation_count: Any = None,
    gradient_accumulation_dtype: Any = None,
    gradient_accumulation_for_captured_grads: bool = True,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    outfeed_queue: IPUOutfeedQueue | None = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Sequence[Any] | None = None,
    pipeline_schedule: PipelineSchedule | PhasedExecution | None = None,
    recomputation_mode: RecomputationMode | None = None,
    forward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    backward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    weight_update_poplar_options: PipelineStageOptions | None = None,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool | None = False,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weights: bool | None = None,
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool | Results = False,
    accumulate_outfeed_dtype: Any = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    name: str | None = None,
) -> tf.Operation:
    """Runs a model in stages, each on an IPU of its own, over the micro-batches of an infeed.

    Called where a program is traced: in a `tf.function` that a strategy runs, or in what `compiler.compile` gets. The
    plan of the pipeline (see `pipeline_plan`) becomes the program: its instructions in its order, with its buffers.
    Whatever the schedule, the mapping and the recomputation, the numbers are those of gradient accumulation: all
    micro-batches of a pass see the same weights, and are followed by one update.

    The first stage gets `inputs`, then an element of the infeed (a tuple by position, a dict by name). Each other stage
    gets what the stage before returned. Variables may be used by stages of one IPU only.

    Args:
      computational_stages: The stages, two or more functions. A list of functions in place of one is a stage of parts that
        run concurrently: all get the same arguments, and their results are concatenated.
      gradient_accumulation_count: How many micro-batches one pass has; a multiple of `overlap_length(...)`. A whole
        number, or an integer scalar. One that is known at run time only is checked then.
      gradient_accumulation_dtype: The type in which gradients are accumulated, and handed to the optimizer: None for that
        of the variable, a dtype, or a function from a variable to one.
      gradient_accumulation_for_captured_grads: Whether captured gradients are summed over the micro-batches of a pass;
        otherwise they are those of the last one.
      repeat_count: How often the pass is run.
      batch_serialization_iterations: Into how many parts each micro-batch of the machine is cut: so many elements of the
        infeed take the place of one. With `PipelineSchedule.Sequential` on one IPU alone.
      inputs: The first stage's first arguments, the same for each micro-batch: a list of tensors, or one.
      infeed_queue: The queue of the first stage's further arguments.
      outfeed_queue: The queue that gets the last stage's results, one element a micro-batch: in training a list of its
        outputs, otherwise what it returned.
      optimizer_function: From the outputs of the last stage to an `OptimizerFunctionOutput`. Without it, the pipeline
        only infers.
      device_mapping: For each stage its IPU, or for a stage of parts the list of their IPUs. One after the other if
        omitted; all on IPU 0 with batch serialization; for phases their one group of IPUs, or two in turns. -1 is all
        IPUs: such a stage may share variables with any other, and is planned on IPU 0.
      pipeline_schedule: `PipelineSchedule.Grouped` if omitted; `Sequential` with batch serialization. With a
        `PhasedExecution` the stages are phases, of which each has the chip for itself.
      recomputation_mode: How activations are recomputed; all are stashed if omitted.
      forward_propagation_stages_poplar_options: For each stage its `PipelineStageOptions`. Recorded alone, as is each
        option that follows up to `offload_weights`.
      backward_propagation_stages_poplar_options: Likewise.
      weight_update_poplar_options: A `PipelineStageOptions`.
      offload_weight_update_variables: Whether the optimizer's state rests off the chip.
      replicated_optimizer_state_sharding: Whether replicas share that state out; needs
        `offload_weight_update_variables=True`.
      offload_activations: Whether stashes rest off the chip.
      offload_gradient_accumulation_buffers: Whether accumulators do.
      replicated_weight_sharding: Whether replicas share the weights out.
      offload_weights: Whether weights rest off the chip.
      continuous_weight_updates: Not supported.
      outfeed_loss: Whether the outfeed gets the loss in place of the outputs.
      accumulate_outfeed: Whether what the outfeed gets is summed over the micro-batches of a pass, and enqueued once: in
        inference, in a list where it is a single tensor.
      accumulate_outfeed_dtype: The type of these sums, where there are such: None for that of the results, a dtype, or a
        function from a result to one.
      outfeed_mask: For each output of the last stage whether it is left out of the outfeed.
      reduction_method: How gradients of micro-batches become one: a `GradientAccumulationReductionMethod` or its name.
      name: A name for the pipeline.

    Returns:
      An operation. The program runs all of the pipeline, whether or not anything depends on it.

    Raises:
      ValueError: An argument is out of range, or two do not go together; a stage captures a tensor; stages of different
        IPUs share a variable.
      TypeError: An argument is of a wrong kind.
      NotImplementedError: The schedule cannot do what is asked for, or `continuous_weight_updates` is set.
      RuntimeError: There is no variable to train, or no program is being traced.
      FailedPreconditionError: Of `tf.errors`; the number of micro-batches is no such multiple.
    """
    given = dict(locals())
    try:
        return _built(given)
    except Exception as exc:
        raise _tracebacks.blamed_on_call(exc)  # noqa: B904  (It is the same.)


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Marks tensors of a stage as ones that are stashed even where the stage recomputes.

    Args:
      tensors: A tensor, or a structure of them.
      name: A name for the operation.

    Returns:
      The same tensors.
    """
    mark = {CHECKPOINT: tf.compat.v1.AttrValue(b=True)}

    def marked(tensor: Any) -> Any:
        with tf.compat.v1.get_default_graph()._attr_scope(mark):
            return tf.identity(tensor, name=name or "recomputation_checkpoint")

    return tf.nest.map_structure(marked, tensors)


def _built(given: dict[str, Any]) -> tf.Operation:
    """The pipeline of these arguments, in the program that is being traced."""
    arguments = checked(given)
    if tf.executing_eagerly():
        raise RuntimeError("`pipeline` can only be called in a program: in a `tf.function` that `IPUStrategy.run` gets")
    plan = _plan(arguments)
    with tf.name_scope(given["name"] or "pipeline"):
        with program_order.apart():
            model = Model(arguments, plan)
        pipelined = TracedPipeline(given["name"], plan, arguments.options, model.costs(), weakref.ref(model.parts))
        note(pipelined)
        with record.stop_recording(), _order(arguments):
            _run(arguments, plan, model)
            return tf.no_op(name="done")


def _plan(arguments: Arguments) -> Plan:
    """The plan; for a count that is known at run time only, that of the smallest one with a steady section."""
    known = isinstance(arguments.count, int)
    schedule, mapping, training = arguments.schedule, arguments.mapping, arguments.training
    if isinstance(schedule, PhasedExecution):
        plan = phased_plan(schedule, mapping, arguments.count if known else 2, training, arguments.repeat_count)
    else:
        plan = pipeline_plan(
            len(arguments.stages),
            arguments.count if known else 4 * overlap_length(schedule, mapping, training),
            schedule,
            device_mapping=mapping,
            training=training,
            recomputation_mode=arguments.recomputation,
            repeat_count=arguments.repeat_count,
            batch_serialization_iterations=arguments.serialization,
        )
    if known:
        return plan
    return plan.with_micro_batches(plan.unlooped_micro_batches + plan.section("steady").advance)


def _count(arguments: Arguments) -> Any:
    """How many micro-batches one pass has; where the run alone knows, it fails where the schedule cannot have so many."""
    if isinstance(arguments.count, int):
        return arguments.count
    schedule, training = arguments.schedule, arguments.training
    phased = isinstance(schedule, PhasedExecution)
    multiple = 1 if phased else overlap_length(schedule, arguments.mapping, training)
    largest = _arguments.LARGEST_COUNT // arguments.serialization
    before, behind = _arguments.words_of_multiple(
        schedule.name, len(arguments.stages), training, f"{multiple} from {multiple} to {largest}"
    )
    return _library.ops.ipu_micro_batches(
        tf.cast(arguments.count, tf.int64), multiple=multiple, largest=largest, before=before, behind=behind
    )


def _order(arguments: Arguments) -> contextlib.AbstractContextManager[None]:
    """The order of the queues in the pipeline.

    One micro-batch after the other, each use of a queue comes after the one before. Where the plan has several
    micro-batches under way, a dequeue need not wait for what the last stage makes of an earlier one.
    """
    if arguments.schedule is PipelineSchedule.Sequential:
        return contextlib.nullcontext()
    return program_order.joined(arguments.infeed, arguments.outfeed)


def _run(arguments: Arguments, plan: Plan, model: Model) -> None:
    """Builds the program: all passes."""
    feeds = _feeds(arguments, model)
    total = _count(arguments) * arguments.serialization
    steady = plan.section("steady")
    iterations: Any = steady.repeat
    if not isinstance(total, int):
        iterations = (total - plan.unlooped_micro_batches) // steady.advance
    training = model.training
    accumulation = Accumulation(
        arguments.method, total, arguments.accumulation_dtype, sum_captured=arguments.sum_captured
    )
    zero = tf.constant(0) if training is None else _rings.opaque_zero(training.variables)
    update = None if training is None else model.update(training, accumulation)

    def one_pass(now: Any) -> Any:
        order = _rings.Order(zero, now)
        lowering = Lowering(plan, model.parts, feeds, accumulation, order, model.head)
        accumulated = lowering.run(iterations, total)
        feeds.finish(lowering.sums)
        if training is not None and update is not None:
            update([gradient for place in model.parts for gradient in accumulated[place]], lowering.handed)
            training.finish(lowering.captured)
        return order.now

    if arguments.repeat_count == 1:
        one_pass(zero)
        return
    tf.while_loop(
        lambda number, _: number < arguments.repeat_count,
        lambda number, now: (number + 1, one_pass(now)),
        (tf.constant(0), zero),
        parallel_iterations=1,
    )


def _feeds(arguments: Arguments, model: Model) -> PipelineFeeds:
    """The queues, and what goes to the outfeed."""
    outputs = model.outputs()
    flat = flat_tensors(outputs)
    if flat and arguments.outfeed is None:
        raise ValueError(
            f"The last computational stage has tensor outputs: {', '.join(map(str, flat))}, but no outfeed_queue has been"
            " provided. Give one, or return nothing"
        )
    if arguments.outfeed_mask is not None and len(arguments.outfeed_mask) != len(flat):
        raise ValueError(
            f"The last computational stage has {len(flat)} outputs, but the `outfeed_mask` has"
            f" {len(arguments.outfeed_mask)} items; give one for each output"
        )
    masked = arguments.outfeed_mask or (False,) * len(flat)

    def result(values: Sequence[Any], loss: Any) -> Any:
        if arguments.outfeed_loss:
            return loss
        if arguments.training:
            return [value for value, left_out in zip(values, masked, strict=True) if not left_out]
        packed = tf.nest.pack_sequence_as(outputs, _with_nones(outputs, values))
        if arguments.results is Results.SUM and not tf.nest.is_nested(packed):
            return flat_tensors(packed)  # A sum alone comes in a list, as several do.
        return list(packed) if isinstance(packed, tuple) else packed

    specs = result(flat, model.loss_spec())
    nothing = arguments.outfeed is None or not flat_tensors(specs)
    return PipelineFeeds(
        arguments.infeed,
        None if nothing else arguments.outfeed,
        result,
        specs,
        results=arguments.results,
        accumulate_dtype=arguments.accumulate_outfeed_dtype,
    )


def _with_nones(structure: Any, values: Sequence[Any]) -> list[Any]:
    """The values with a None wherever the structure has one."""
    given = iter(values)
    return [None if one is None else next(given) for one in tf.nest.flatten(structure)]
