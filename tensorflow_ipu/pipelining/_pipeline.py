"""`pipeline`, which adds a pipeline of stages to a program, and `recomputation_checkpoint`."""

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
    """Runs a model in stages on several IPUs, over the micro-batches of an infeed.

    A pass of the pipeline runs all stages on a number of micro-batches and then, in training, updates the weights once.
    All micro-batches of a pass use the same weights. The results do not depend on the schedule, the device mapping and
    the recomputation mode.

    The first stage gets `inputs`, then an element of the infeed: by position for a tuple, by name for a dict. Each
    other stage gets the outputs of the stage before. Stages that use the same variable must be on the same IPU.

    Call it while a program is traced: in a `tf.function` that a strategy runs, or in a function that `compiler.compile`
    compiles.

    Args:
      computational_stages: The stages: two or more functions. A list of functions in the place of a function is a stage
        of concurrent parts: all parts get the same arguments, and their outputs are concatenated.
      gradient_accumulation_count: The number of micro-batches of a pass; a multiple of `overlap_length(...)`. A whole
        number or an integer scalar. If it is known at run time only, it is checked when the program runs.
      gradient_accumulation_dtype: The type in which gradients are accumulated and passed to the optimizer: None for
        that of the variable, a dtype, or a function from a variable to a dtype.
      gradient_accumulation_for_captured_grads: True to enqueue the sums of captured gradients over a pass, False to
        enqueue the captured gradients of the last micro-batch.
      repeat_count: The number of passes.
      batch_serialization_iterations: The number of elements of the infeed that make up one micro-batch. Numbers above 1
        require `PipelineSchedule.Sequential` on one IPU.
      inputs: The first arguments of the first stage, the same for each micro-batch: a list of tensors, or a tensor.
      infeed_queue: The queue of the other arguments of the first stage, or the iterator of a dataset: `iter(dataset)`
        in the strategy's scope.
      outfeed_queue: The queue that gets the results of the last stage, one element for each micro-batch. In training,
        an element is the list of its outputs; in inference, it is the structure that the stage returned.
      optimizer_function: Returns an `OptimizerFunctionOutput`, given the outputs of the last stage; None for inference.
      device_mapping: For each stage, its IPU, or the list of the IPUs of its parts, or -1 for all IPUs. A stage on all
        IPUs may share variables with any other stage, and is planned on IPU 0. If omitted, stages are on consecutive
        IPUs, or all on IPU 0 with batch serialization; phases are on one group of IPUs, or alternately on two.
      pipeline_schedule: `PipelineSchedule.Grouped` if omitted; `Sequential` with batch serialization.
      recomputation_mode: The method of recomputing activations. If omitted, all activations are stashed.
      forward_propagation_stages_poplar_options: For each stage, its `PipelineStageOptions`. This option and the next
        eight, up to `offload_weights`, are recorded but do not change the emulated program.
      backward_propagation_stages_poplar_options: The same for backward passes.
      weight_update_poplar_options: The `PipelineStageOptions` of the weight update.
      offload_weight_update_variables: True to store the optimizer's slots off the chip.
      replicated_optimizer_state_sharding: True to divide the slots among the replicas; needs
        `offload_weight_update_variables=True`.
      offload_activations: True to store stashes off the chip.
      offload_gradient_accumulation_buffers: True to store gradient accumulators off the chip.
      replicated_weight_sharding: True to divide the weights among the replicas.
      offload_weights: True to store weights off the chip.
      continuous_weight_updates: Not supported.
      outfeed_loss: True to enqueue the loss in place of the outputs.
      accumulate_outfeed: True to sum the results over a pass and enqueue the sums once. In inference, the element is
        a list even if there is only one sum.
      accumulate_outfeed_dtype: The type of these sums: None for that of the results, a dtype, or a function to a dtype.
      outfeed_mask: For each output of the last stage, True to omit it from the outfeed.
      reduction_method: The reduction of the gradients of micro-batches to one: a `GradientAccumulationReductionMethod`
        or its name.
      name: A name for the pipeline.
      phase_liveness: With a `PhasedExecution`, the time at which phases leave the chip.
        `Liveness.OffChipAfterEachPhase` if omitted.

    Returns:
      An operation. The program runs the whole pipeline, even if nothing depends on this operation.

    Raises:
      ValueError: An argument is out of range, or two arguments exclude each other. Or a stage captures a tensor, or
        stages on different IPUs share a variable.
      TypeError: An argument is of the wrong type.
      NotImplementedError: The schedule does not support another argument, or `continuous_weight_updates` is True.
      RuntimeError: There is no variable to train, or no program is being traced.
      tf.errors.FailedPreconditionError: The number of micro-batches is not a multiple of `overlap_length(...)`.
    """
    arguments = locals()  # Before any other assignment, these are the parameters only.
    from tensorflow_ipu.pipelining.program import build  # A late import, as it takes time.

    try:
        return build(Arguments(**arguments))
    except Exception as exc:
        raise tracebacks.blamed_on_call(exc)  # noqa: B904  (It is the same exception.)


def recomputation_checkpoint(tensors: Nested, name: str | None = None) -> Nested:
    """Marks tensors that are stashed even if their stage recomputes.

    Args:
      tensors: A tensor or a structure of tensors of the stage.
      name: A name for the operations.

    Returns:
      The same tensors.
    """
    from tensorflow_ipu.pipelining.stage_graphs import CHECKPOINT

    mark = {CHECKPOINT: tf.compat.v1.AttrValue(b=True)}

    def marked(tensor: TensorLike) -> tf.Tensor:
        with graphs.attributed(mark):
            return tf.identity(tensor, name=name or "recomputation_checkpoint")

    return tf.nest.map_structure(marked, tensors)
