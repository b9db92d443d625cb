"""`pipeline`: stages, a schedule and an optimizer as one program, which executes their plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUIterator, IPUOutfeedQueue
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.pipelining.options import Arguments, PipelineStageOptions
from tensorflow_ipu.pipelining.schedule.enums import (
    Liveness,
    PhasedExecution,
    PipelineSchedule,
    RecomputationMode,
    Results,
)
from tensorflow_ipu.programs.diagnostics import tracebacks

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeOf, Nested, Number, TensorLike
    from tensorflow_ipu.pipelining.weight_update import OptimizerFunctionOutput


def pipeline(
    computational_stages: Sequence[Callable[..., Nested] | Sequence[Callable[..., Nested]]],
    gradient_accumulation_count: Number | tf.Variable | None = None,
    gradient_accumulation_dtype: DTypeOf = None,
    gradient_accumulation_for_captured_grads: bool = True,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Nested = None,
    infeed_queue: IPUInfeedQueue | IPUIterator | None = None,
    outfeed_queue: IPUOutfeedQueue | None = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Sequence[int | Sequence[int]] | None = None,
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
    accumulate_outfeed_dtype: DTypeOf = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
    name: str | None = None,
    *,
    phase_liveness: Liveness | None = None,
) -> tf.Operation:
    """Runs a model in stages, each on an IPU of its own, over the micro-batches of an infeed.

    Called where a program is traced: in a `tf.function` that a strategy runs, or in what `compiler.compile` gets. Whatever
    the schedule, the mapping and the recomputation, all micro-batches of a pass see the same weights, and one update
    follows. The first stage gets `inputs`, then an element of the infeed (a tuple by position, a dict by name), each other
    stage what the stage before returned. Variables may be used by stages of one IPU only.

    Args:
      computational_stages: The stages, two or more functions. A list of functions in place of one is a stage of concurrent
        parts: all get the same arguments, and their results are concatenated.
      gradient_accumulation_count: How many micro-batches one pass has; a multiple of `overlap_length(...)`. A whole
        number, or an integer scalar, which is checked when the program runs if it is known only then.
      gradient_accumulation_dtype: The type in which gradients are accumulated, and handed to the optimizer: None for that
        of the variable, a dtype, or a function from a variable to one.
      gradient_accumulation_for_captured_grads: Whether captured gradients are summed over a pass, or its last ones.
      repeat_count: How often the pass is run.
      batch_serialization_iterations: How many elements of the infeed take the place of each micro-batch. With
        `PipelineSchedule.Sequential` on one IPU alone.
      inputs: The first stage's first arguments, the same for each micro-batch: a list of tensors, or one.
      infeed_queue: The queue of the first stage's further arguments, or an iterator of a dataset, `iter(dataset)` in the
        strategy's scope.
      outfeed_queue: The queue that gets the last stage's results, one element a micro-batch: in training a list of its
        outputs, otherwise what it returned.
      optimizer_function: From the outputs of the last stage to an `OptimizerFunctionOutput`; None to infer only.
      device_mapping: For each stage its IPU, or the list of the IPUs of its parts; -1 is all IPUs: such a stage may share
        variables with any other, and is planned on IPU 0. One after the other if omitted; all on IPU 0 with batch
        serialization; for phases their one group of IPUs, or two in turns.
      pipeline_schedule: `PipelineSchedule.Grouped` if omitted; `Sequential` with batch serialization.
      recomputation_mode: How activations are recomputed; all are stashed if omitted.
      forward_propagation_stages_poplar_options: For each stage its `PipelineStageOptions`. Recorded alone, as is each
        option that follows up to `offload_weights`.
      backward_propagation_stages_poplar_options: Likewise.
      weight_update_poplar_options: A `PipelineStageOptions`.
      offload_weight_update_variables: Whether the optimizer's state rests off the chip.
      replicated_optimizer_state_sharding: Whether replicas share that state out; needs that it is offloaded.
      offload_activations: Whether stashes rest off the chip.
      offload_gradient_accumulation_buffers: Whether accumulators do.
      replicated_weight_sharding: Whether replicas share the weights out.
      offload_weights: Whether weights rest off the chip.
      continuous_weight_updates: Not supported.
      outfeed_loss: Whether the outfeed gets the loss in place of the outputs.
      accumulate_outfeed: Whether results are summed over a pass, and enqueued once: in inference, a single one in a list.
      accumulate_outfeed_dtype: The type of these sums: None for that of the results, a dtype, or a function to one.
      outfeed_mask: For each output of the last stage whether it is left out of the outfeed.
      reduction_method: How gradients of micro-batches become one: a `GradientAccumulationReductionMethod` or its name.
      name: A name for the pipeline.
      phase_liveness: With a `PhasedExecution`, when phases leave the chip: `Liveness.OffChipAfterEachPhase` if omitted.

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
    given = locals()  # As they are in the signature.
    from tensorflow_ipu.pipelining.program import build  # It takes time to import.

    try:
        return build(Arguments(**given))
    except Exception as exc:
        raise tracebacks.blamed_on_call(exc)  # noqa: B904  (It is the same.)


def recomputation_checkpoint(tensors: Nested, name: str | None = None) -> Nested:
    """Marks tensors, one or a structure, as stashed even where their stage recomputes, and returns the same tensors."""
    from tensorflow_ipu.pipelining.stage_graphs import CHECKPOINT

    mark = {CHECKPOINT: tf.compat.v1.AttrValue(b=True)}

    def marked(tensor: TensorLike) -> tf.Tensor:
        with graphs.attributed(mark):
            return tf.identity(tensor, name=name or "recomputation_checkpoint")

    return tf.nest.map_structure(marked, tensors)
