"""The options of a model that was made in a strategy's scope, as methods of it that set, print and reset them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.keras.options import options
from tensorflow_ipu.keras.options.options import (
    GradientAccumulationOptions,
    InfeedOptions,
    OutfeedOptions,
    PipeliningOptions,
    ReplicationOptions,
)
from tensorflow_ipu.keras.pipeline.places import summary

if TYPE_CHECKING:
    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.keras.options.options import ReplicatedMetricReductionMethod
    from tensorflow_ipu.keras.pipeline.stages import Assignment
    from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod


class OptionMethods:
    """The methods that models get in addition to Keras's own, for their options."""

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Sets whether callbacks are called once a step and replica, while the program runs, or once an execution.

        Args:
          asynchronous: True for once a step and replica, from a thread that reads results as they come.

        Raises:
          TypeError: `asynchronous` is no bool.
        """
        check_bool("asynchronous", asynchronous)
        _extension(self).options.asynchronous_callbacks = asynchronous

    # Gradient accumulation.

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: str | GradientAccumulationReductionMethod = "sum",
        use_v2_gradient_accumulation_optimizer: bool = False,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Sets how `fit` accumulates gradients. The next run compiles its program anew.

        Args:
          gradient_accumulation_steps_per_replica: How many steps of each replica make one update of the weights; it has to
            divide `steps_per_execution`. None for an update a step.
          gradient_accumulation_reduction_method: How the gradients of these steps become one: `"sum"`, `"mean"` or
            `"running_mean"`. Each call of this method and of `set_pipelining_options` sets it, for both.
          use_v2_gradient_accumulation_optimizer: Which of two implementations the machine takes. The emulator has one.
          **gradient_accumulation_optimizer_kwargs: `dtype` is the type in which gradients are added up: that of the variable
            for None, a dtype, or a function of the variable. `offload_weight_update_variables`,
            `replicated_optimizer_state_sharding`, `verify_usage` and `name` change nothing in the emulator.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        group = GradientAccumulationOptions.checked(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            use_v2_gradient_accumulation_optimizer,
            gradient_accumulation_optimizer_kwargs,
        )
        _extension(self).options.set_accumulation(group)
        _extension(self).reset()

    def print_gradient_accumulation_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints what `set_gradient_accumulation_options` has set, with the defaults of what it has not.

        Args:
          print_fn: What prints, called once with all lines; `print` if omitted.

        Raises:
          TypeError: `print_fn` cannot be called.
        """
        _print(self, "accumulation", print_fn)

    def reset_gradient_accumulation_options(self) -> None:
        """Takes back what `set_gradient_accumulation_options` has set. Where that changes anything, the next run compiles anew.

        A reduction method that pipelining options have, too, stays theirs.
        """
        _reset(self, "accumulation", compiled=True)

    # Pipelining.

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: str | GradientAccumulationReductionMethod = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """Sets how a model with pipeline stages runs. The next run compiles its program anew.

        Args:
          gradient_accumulation_steps_per_replica: How many steps of each replica make one update of the weights.
          device_mapping: The IPU of each stage.
          accumulate_outfeed: Whether the host gets results once for these steps (once for those of an execution of
            `evaluate`): as they are after the last of them; None for not. `predict` always hands over each step's.
          gradient_accumulation_reduction_method: How the gradients of these steps become one: `"sum"`, `"mean"` or
            `"running_mean"`. Each call of this method and of `set_gradient_accumulation_options` sets it, for both.
          **pipelining_kwargs: Further arguments of `pipeline`. `accumulate_outfeed_dtype` is the type in which results are
            kept where `accumulate_outfeed` keeps some.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        group = PipeliningOptions.checked(
            gradient_accumulation_steps_per_replica,
            device_mapping,
            accumulate_outfeed,
            gradient_accumulation_reduction_method,
            pipelining_kwargs,
        )
        _extension(self).options.set_pipelining(group)
        _extension(self).reset()

    def print_pipelining_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints what `set_pipelining_options` has set, with the defaults of what it has not.

        Args:
          print_fn: What prints, called once with all lines; `print` if omitted.

        Raises:
          TypeError: `print_fn` cannot be called.
        """
        _print(self, "pipelining", print_fn)

    def reset_pipelining_options(self) -> None:
        """Takes back what `set_pipelining_options` has set. Where that changes anything, the next run compiles anew.

        The stages of layers stay; `reset_pipeline_stage_assignment` takes those back. A reduction method that options of
        gradient accumulation have, too, stays theirs.
        """
        _reset(self, "pipelining", compiled=True)

    # Queues.

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Sets what the model's infeeds are made with.

        Args:
          **kwargs: `prefetch_depth` and `optimise_latency`, as `IPUInfeedQueue` has them.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        _extension(self).options.infeed = InfeedOptions.checked(kwargs)

    def print_infeed_queue_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints what `set_infeed_queue_options` has set, with the defaults of what it has not.

        Args:
          print_fn: What prints, called once with all lines; `print` if omitted.

        Raises:
          TypeError: `print_fn` cannot be called.
        """
        _print(self, "infeed", print_fn)

    def reset_infeed_queue_options(self) -> None:
        """Takes back what `set_infeed_queue_options` has set."""
        _reset(self, "infeed", compiled=False)

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Sets what the model's outfeeds are made with. The next run compiles its program anew.

        Args:
          **kwargs: `buffer_depth` and `optimise_latency`, as `IPUOutfeedQueue` has them.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        _extension(self).options.outfeed = OutfeedOptions.checked(kwargs)
        _extension(self).reset()

    def print_outfeed_queue_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints what `set_outfeed_queue_options` has set, with the defaults of what it has not.

        Args:
          print_fn: What prints, called once with all lines; `print` if omitted.

        Raises:
          TypeError: `print_fn` cannot be called.
        """
        _print(self, "outfeed", print_fn)

    def reset_outfeed_queue_options(self) -> None:
        """Takes back what `set_outfeed_queue_options` has set. Where that changes anything, the next run compiles anew."""
        _reset(self, "outfeed", compiled=True)

    # Replicas.

    def set_replication_options(
        self, replicated_metric_reduction_method: str | ReplicatedMetricReductionMethod = "NONE"
    ) -> None:
        """Sets what logs show of the metrics of several replicas.

        Args:
          replicated_metric_reduction_method: A `ReplicatedMetricReductionMethod`, or its name in any case: `NONE` for those
            of the last replica, `LIST` for all, `SUM`, or `MEAN`.

        Raises:
          ValueError: It is neither.
        """
        _extension(self).options.replication = ReplicationOptions.checked(replicated_metric_reduction_method)

    def print_replication_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints what `set_replication_options` has set, or its default.

        Args:
          print_fn: What prints, called once with all lines; `print` if omitted.

        Raises:
          TypeError: `print_fn` cannot be called.
        """
        _print(self, "replication", print_fn)

    def reset_replication_options(self) -> None:
        """Takes back what `set_replication_options` has set."""
        _reset(self, "replication", compiled=False)


def _extension(model: object) -> Extension:
    return vars(model)["_ipu_extension"]


def _print(model: object, group: str, print_fn: Callable[[str], object] | None) -> None:
    options.print_text(getattr(_extension(model).options, group).text(_extension(model).model.name), print_fn)


def _reset(model: object, group: str, *, compiled: bool) -> None:
    """Puts a group back to its defaults, and drops the programs if they were compiled by it."""
    if _extension(model).options.reset(group) and compiled:
        _extension(model).reset()


class PipelineMethods:
    """The methods that models get in addition to Keras's own, for their pipeline stages."""

    def get_pipeline_stage_assignment(self) -> list[Assignment]:
        """The layers in the order in which they run, each with its stage, or None.

        Returns:
          For a sequential model a list of `SequentialLayerPipelineStageAssignment`, for a functional one a list of
          `FunctionalLayerPipelineStageAssignment`, one a call of a layer, and for a subclassed one of
          `ModelLayerPipelineStageAssignment`; for nested models, `SequentialNestedModelPipelineStageAssignment` and so on.

        Raises:
          RuntimeError: The model is subclassed, and was not built yet; or its `call` cannot be cut into stages.
        """
        return _extension(self).stages.get()

    def set_pipeline_stage_assignment(
        self, pipeline_stage_assignment: list[Assignment] | list[int] | list[Assignment | int]
    ) -> None:
        """Sets the stage of each layer.

        Args:
          pipeline_stage_assignment: The list of `get_pipeline_stage_assignment`, with stages set; for a sequential model
            also a list of the numbers of stages.

        Raises:
          ValueError: The list does not fit the model, or a layer depends on one of a later stage.
          RuntimeError: A stage has no layer; or the model is subclassed, and was not built yet.
        """
        _extension(self).stages.set(pipeline_stage_assignment)
        _extension(self).reset()

    def reset_pipeline_stage_assignment(self) -> None:
        """Takes all layers out of their stages: the model is no pipeline any more."""
        _extension(self).stages.reset()
        _extension(self).reset()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], object] | None = None
    ) -> None:
        """Prints the stage of each layer.

        Args:
          line_length: How wide the table is, in characters; as wide as it needs if omitted.
          print_fn: What prints, called once with all lines; `print` if omitted.

        Raises:
          TypeError: `print_fn` cannot be called.
        """
        options.print_text(summary(self.get_pipeline_stage_assignment(), line_length), print_fn)
