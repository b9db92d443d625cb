"""The options of a model that was made in a strategy's scope, as methods of it that set, print and reset them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.keras.options.options import (
    GradientAccumulationOptions,
    InfeedOptions,
    OutfeedOptions,
    PipeliningOptions,
    ReplicationOptions,
    print_text,
)
from tensorflow_ipu.keras.pipeline.places import summary

if TYPE_CHECKING:
    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.keras.options.options import ReplicatedMetricReductionMethod
    from tensorflow_ipu.keras.pipeline.stages import Assignment
    from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod


class OptionMethods:
    """The methods that models get in addition to Keras's own, for their options."""

    _ipu_extension: Extension

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Sets whether a thread calls callbacks once a step and replica, or Keras once an execution; `TypeError` if no bool."""
        check_bool("asynchronous", asynchronous)
        self._ipu_extension.options.asynchronous_callbacks = asynchronous

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
          gradient_accumulation_steps_per_replica: Steps of each replica for an update of the weights; it has to divide
            `steps_per_execution`. None for one.
          gradient_accumulation_reduction_method: `"sum"`, `"mean"` or `"running_mean"`; the latest call of this method or of
            `set_pipelining_options` sets it for both.
          use_v2_gradient_accumulation_optimizer: No effect in the emulator.
          **gradient_accumulation_optimizer_kwargs: `dtype` is that of the sums: None for the variable's, a dtype, or a function
            of the variable. `offload_weight_update_variables`, `replicated_optimizer_state_sharding`, `verify_usage` and `name`
            change nothing in the emulator.

        Raises `ValueError` for what is out of range or set by the model, `TypeError` for what is unknown or of a wrong kind.
        """
        group = GradientAccumulationOptions.of(
            gradient_accumulation_steps_per_replica=gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method=gradient_accumulation_reduction_method,
            use_v2_gradient_accumulation_optimizer=use_v2_gradient_accumulation_optimizer,
            **gradient_accumulation_optimizer_kwargs,
        )
        with self._ipu_extension.changing():
            self._ipu_extension.options.set_updates("accumulation", group)

    def print_gradient_accumulation_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, `print` if omitted; `TypeError` if it cannot be called."""
        self._ipu_extension.print_options("accumulation", print_fn)

    def reset_gradient_accumulation_options(self) -> None:
        """Resets these options; a reduction method that pipelining options have, too, stays theirs. A change compiles anew."""
        self._ipu_extension.reset_options("accumulation", compiled=True)

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
          gradient_accumulation_steps_per_replica: Steps of each replica for an update of the weights.
          device_mapping: The IPU of each stage.
          accumulate_outfeed: Whether the host gets results once for these steps (in `evaluate` once an execution), those of the
            last; `predict` always hands over each step's.
          gradient_accumulation_reduction_method: As for `set_gradient_accumulation_options`; the latest call sets it for both.
          **pipelining_kwargs: Further arguments of `pipeline`; `accumulate_outfeed_dtype` is the type of kept results.

        Raises `ValueError` for what is out of range or set by the model, `TypeError` for what is unknown or of a wrong kind.
        """
        group = PipeliningOptions.of(
            gradient_accumulation_steps_per_replica=gradient_accumulation_steps_per_replica,
            device_mapping=device_mapping,
            accumulate_outfeed=accumulate_outfeed,
            gradient_accumulation_reduction_method=gradient_accumulation_reduction_method,
            **pipelining_kwargs,
        )
        with self._ipu_extension.changing():
            self._ipu_extension.options.set_updates("pipelining", group)

    def print_pipelining_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, `print` if omitted; `TypeError` if it cannot be called."""
        self._ipu_extension.print_options("pipelining", print_fn)

    def reset_pipelining_options(self) -> None:
        """Resets these options, but no stages, and no reduction method of gradient accumulation. A change compiles anew."""
        self._ipu_extension.reset_options("pipelining", compiled=True)

    # Queues.

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Sets `prefetch_depth` and `optimise_latency` of the model's infeeds, as `IPUInfeedQueue` has them.

        Raises `ValueError` for what is out of range or set by the model, `TypeError` for what is unknown or of a wrong kind.
        """
        self._ipu_extension.options.infeed = InfeedOptions.of(**kwargs)

    def print_infeed_queue_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, `print` if omitted; `TypeError` if it cannot be called."""
        self._ipu_extension.print_options("infeed", print_fn)

    def reset_infeed_queue_options(self) -> None:
        """Resets these options."""
        self._ipu_extension.reset_options("infeed", compiled=False)

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Sets `buffer_depth` and `optimise_latency` of outfeeds, as `IPUOutfeedQueue` has them. The next run compiles anew.

        Raises `ValueError` for what is out of range or set by the model, `TypeError` for what is unknown or of a wrong kind.
        """
        with self._ipu_extension.changing():
            self._ipu_extension.options.outfeed = OutfeedOptions.of(**kwargs)

    def print_outfeed_queue_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, `print` if omitted; `TypeError` if it cannot be called."""
        self._ipu_extension.print_options("outfeed", print_fn)

    def reset_outfeed_queue_options(self) -> None:
        """Resets these options. A change compiles anew."""
        self._ipu_extension.reset_options("outfeed", compiled=True)

    # Replicas.

    def set_replication_options(
        self, replicated_metric_reduction_method: str | ReplicatedMetricReductionMethod = "NONE"
    ) -> None:
        """Sets by a `ReplicatedMetricReductionMethod`, or its name in any case, what logs show; else raises `ValueError`."""
        group = ReplicationOptions.of(replicated_metric_reduction_method=replicated_metric_reduction_method)
        self._ipu_extension.options.replication = group

    def print_replication_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, `print` if omitted; `TypeError` if it cannot be called."""
        self._ipu_extension.print_options("replication", print_fn)

    def reset_replication_options(self) -> None:
        """Resets these options."""
        self._ipu_extension.reset_options("replication", compiled=False)


class PipelineMethods:
    """The methods that models get in addition to Keras's own, for their pipeline stages."""

    _ipu_extension: Extension

    def get_pipeline_stage_assignment(self) -> list[Assignment]:
        """The layers, or their calls, in the order in which they run, each with its stage, or None.

        Returns:
          A list of the `...PipelineStageAssignment` of the model's kind: `Sequential...`, `Functional...`, or `Model...` if
          subclassed.

        Raises:
          RuntimeError: A subclassed model was not built yet, or its `call` cannot be cut into stages.
        """
        with self._ipu_extension.calls.turn():
            return self._ipu_extension.stages.get()

    def set_pipeline_stage_assignment(
        self, pipeline_stage_assignment: list[Assignment] | list[int] | list[Assignment | int]
    ) -> None:
        """Sets the stage of each layer by the list of `get_pipeline_stage_assignment`, or for a sequential model by numbers.

        Raises:
          ValueError: The list does not fit the model, or a layer depends on one of a later stage.
          RuntimeError: A stage has no layer, or a subclassed model was not built yet.
        """
        with self._ipu_extension.changing():
            self._ipu_extension.stages.set(pipeline_stage_assignment)

    def reset_pipeline_stage_assignment(self) -> None:
        """Takes all layers out of their stages: the model is no pipeline any more."""
        with self._ipu_extension.changing():
            self._ipu_extension.stages.reset()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], object] | None = None
    ) -> None:
        """Prints a table of stages, `line_length` characters or as wide as it needs, as `print_pipelining_options` prints."""
        print_text(summary(self.get_pipeline_stage_assignment(), line_length), print_fn)
