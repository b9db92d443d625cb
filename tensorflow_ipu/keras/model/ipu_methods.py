"""The methods that a model made in a strategy's scope has in addition to Keras's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.model import files
from tensorflow_ipu.keras.options.options import (
    GradientAccumulationOptions,
    InfeedOptions,
    OutfeedOptions,
    PipeliningOptions,
    ReplicationOptions,
    print_text,
)
from tensorflow_ipu.keras.pipeline.places import summary
from tensorflow_ipu.programs.diagnostics import tracebacks
from tensorflow_ipu.serving import serving_steps

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu._tensorflow import functions
    from tensorflow_ipu.analysis.machine import Machine, Report, System
    from tensorflow_ipu.analysis.pipelines.comparison import Pieces
    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.keras.options.options import ReplicatedMetricReductionMethod
    from tensorflow_ipu.keras.pipeline.stages import Assignment
    from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod


class KerasExtensionBase:
    """The base class of all Keras models that are made in a strategy's scope."""

    _ipu_extension: Extension

    def get_pipeline_stage_assignment(self) -> list[Assignment]:
        """Raises `NotImplementedError`: sequential, functional and subclassed models override it."""
        raise NotImplementedError("each kind of model overrides `get_pipeline_stage_assignment`")

    def set_pipeline_stage_assignment(
        self, pipeline_stage_assignment: list[Assignment] | list[int] | list[Assignment | int]
    ) -> None:
        """Raises `NotImplementedError`: sequential, functional and subclassed models override it."""
        raise NotImplementedError("each kind of model overrides `set_pipeline_stage_assignment`")

    def reset_pipeline_stage_assignment(self) -> None:
        """Raises `NotImplementedError`: sequential, functional and subclassed models override it."""
        raise NotImplementedError("each kind of model overrides `reset_pipeline_stage_assignment`")

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], object] | None = None
    ) -> None:
        """Raises `NotImplementedError`: sequential, functional and subclassed models override it."""
        raise NotImplementedError("each kind of model overrides `print_pipeline_stage_assignment_summary`")

    def export_for_ipu_serving(
        self,
        export_dir: str | os.PathLike[str],
        batch_size: int | None = None,
        output_names: str | list[str] | None = None,
        preprocessing_step: Callable[..., Nested] | None = None,
        preprocessing_step_signature: Sequence[tf.TensorSpec] | None = None,
        postprocessing_step: Callable[..., Nested] | None = None,
        postprocessing_step_signature: Sequence[tf.TensorSpec] | None = None,
        purge_export_dir: bool = False,
    ) -> functions.Function:
        """Exports the model as a SavedModel for TensorFlow Serving on a CPU, and returns the served function.

        Args:
          export_dir: An empty folder, or the path of a new one.
          batch_size: The number of examples in a request. Required if the model's inputs do not fix it.
          output_names: The names of the outputs; `output_0` and so on if omitted.
          preprocessing_step: A function from the tensors of a request to the model's inputs.
          preprocessing_step_signature: The `tf.TensorSpec` of its inputs. Required unless it is a `tf.function` with a
            signature.
          postprocessing_step: A function from the model's outputs to the outputs of a request.
          postprocessing_step_signature: The `tf.TensorSpec` of its inputs, which the model's outputs must match.
          purge_export_dir: Whether to delete the contents of `export_dir`.

        Raises:
          RuntimeError: The inputs of the model are unknown, as it was not called.
          ValueError: A shape is unknown, `export_dir` is not empty, or steps, outputs and names do not match.
          TypeError: A signature or name has a wrong type.
        """
        model = self._ipu_extension.model
        names = serving_steps.names(output_names)
        inputs = files.input_specs(model, batch_size)
        signature = (
            inputs
            if preprocessing_step is None
            else serving_steps.signature("preprocessing_step", preprocessing_step, preprocessing_step_signature)
        )
        if postprocessing_step is not None and postprocessing_step_signature is not None:
            serving_steps.check_signature("postprocessing_step_signature", postprocessing_step_signature)

        def serve(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
            values: Nested = arguments
            if preprocessing_step is not None:
                values = serving_steps.checked("`preprocessing_step`", preprocessing_step(*values), inputs)
            results = serving_steps.checked(
                "the model", files.called_flat(model, values), postprocessing_step_signature
            )
            if postprocessing_step is not None:
                results = serving_steps.checked("`postprocessing_step`", postprocessing_step(*results), None)
            return serving_steps.named(results, names)

        folder = serving_steps.prepared_folder(export_dir, purge_export_dir)
        archive: Any = keras.export.ExportArchive()
        archive.track(model)
        # This is traced outside of any scope, so that the graph names no IPU. In Keras 2, `add_endpoint` returns None.
        served = archive.add_endpoint("serve", serve, input_signature=signature) or archive.serve
        internals.write_archive(archive, folder)
        return served


class IPUMethods(KerasExtensionBase):
    """The options, pipeline stages and reports of a model."""

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Sets whether a thread runs callbacks once per step and replica, or Keras once per execution.

        Raises `TypeError` if `asynchronous` is not a bool.
        """
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
        """Sets how `fit` accumulates gradients. The next run compiles its program again.

        Args:
          gradient_accumulation_steps_per_replica: The number of steps of each replica per update of the weights. It
            must divide `steps_per_execution`. None for one.
          gradient_accumulation_reduction_method: `"sum"`, `"mean"` or `"running_mean"`. The latest call of this method
            or of `set_pipelining_options` sets it for both.
          use_v2_gradient_accumulation_optimizer: Has no effect in the emulator.
          **gradient_accumulation_optimizer_kwargs: `dtype` is the dtype of the accumulators: None for the variable's,
            a dtype, or a function of the variable. `offload_weight_update_variables`,
            `replicated_optimizer_state_sharding`, `verify_usage` and `name` have no effect in the emulator.

        Raises `ValueError` for an option that is out of range or set by the model, `TypeError` for an unsupported
        option or a wrong type.
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
        """Prints these options by one call of `print_fn`, or of `print` if omitted.

        Raises `TypeError` if `print_fn` is not callable.
        """
        self._ipu_extension.print_options("accumulation", print_fn)

    def reset_gradient_accumulation_options(self) -> None:
        """Resets these options. If that changes them, the next run compiles again.

        This also resets the reduction method of pipelining, unless its own number of steps is set.
        """
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
        """Sets how a model with pipeline stages runs. The next run compiles its program again.

        Args:
          gradient_accumulation_steps_per_replica: The number of steps of each replica per update of the weights.
          device_mapping: The IPU of each stage.
          accumulate_outfeed: Whether the host gets results once per update (in `evaluate` once per execution), from
            the last step. `predict` always returns the results of each step.
          gradient_accumulation_reduction_method: As for `set_gradient_accumulation_options`. The latest call sets it
            for both.
          **pipelining_kwargs: Further arguments of `pipeline`. `accumulate_outfeed_dtype` is the dtype of kept results.

        Raises `ValueError` for an option that is out of range or set by the model, `TypeError` for an unsupported
        option or a wrong type.
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
        """Prints these options by one call of `print_fn`, or of `print` if omitted.

        Raises `TypeError` if `print_fn` is not callable.
        """
        self._ipu_extension.print_options("pipelining", print_fn)

    def reset_pipelining_options(self) -> None:
        """Resets these options, but not the stages. If that changes them, the next run compiles again.

        This also resets the reduction method of gradient accumulation, unless its own number of steps is set.
        """
        self._ipu_extension.reset_options("pipelining", compiled=True)

    # Queues.

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Sets `prefetch_depth` and `optimise_latency` of the model's infeeds, as in `IPUInfeedQueue`.

        Raises `ValueError` for an option that is out of range or set by the model, `TypeError` for an unsupported
        option or a wrong type.
        """
        self._ipu_extension.options.infeed = InfeedOptions.of(**kwargs)

    def print_infeed_queue_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, or of `print` if omitted.

        Raises `TypeError` if `print_fn` is not callable.
        """
        self._ipu_extension.print_options("infeed", print_fn)

    def reset_infeed_queue_options(self) -> None:
        """Resets these options."""
        self._ipu_extension.reset_options("infeed", compiled=False)

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Sets `buffer_depth` and `optimise_latency` of the model's outfeeds, as in `IPUOutfeedQueue`.

        The next run compiles its program again.

        Raises `ValueError` for an option that is out of range or set by the model, `TypeError` for an unsupported
        option or a wrong type.
        """
        with self._ipu_extension.changing():
            self._ipu_extension.options.outfeed = OutfeedOptions.of(**kwargs)

    def print_outfeed_queue_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, or of `print` if omitted.

        Raises `TypeError` if `print_fn` is not callable.
        """
        self._ipu_extension.print_options("outfeed", print_fn)

    def reset_outfeed_queue_options(self) -> None:
        """Resets these options. If that changes them, the next run compiles again."""
        self._ipu_extension.reset_options("outfeed", compiled=True)

    # Replicas.

    def set_replication_options(
        self, replicated_metric_reduction_method: str | ReplicatedMetricReductionMethod = "NONE"
    ) -> None:
        """Sets how logs combine the metrics of replicas.

        The method is a `ReplicatedMetricReductionMethod`, or its name in upper or lower case. Raises `ValueError` for
        others.
        """
        group = ReplicationOptions.of(replicated_metric_reduction_method=replicated_metric_reduction_method)
        self._ipu_extension.options.replication = group

    def print_replication_options(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints these options by one call of `print_fn`, or of `print` if omitted.

        Raises `TypeError` if `print_fn` is not callable.
        """
        self._ipu_extension.print_options("replication", print_fn)

    def reset_replication_options(self) -> None:
        """Resets these options."""
        self._ipu_extension.reset_options("replication", compiled=False)

    # Stages.

    def get_pipeline_stage_assignment(self) -> list[Assignment]:
        """Returns the layers, or their calls, in execution order, each with its stage or None.

        Returns:
          A list of the `...PipelineStageAssignment` for this kind of model: `Sequential...`, `Functional...`, or
          `Model...` if subclassed.

        Raises:
          RuntimeError: A subclassed model was not built yet, or its `call` cannot be cut into stages.
        """
        with self._ipu_extension.calls.turn():
            return self._ipu_extension.stages.get()

    def set_pipeline_stage_assignment(
        self, pipeline_stage_assignment: list[Assignment] | list[int] | list[Assignment | int]
    ) -> None:
        """Sets the stage of each layer by a list as `get_pipeline_stage_assignment` returns it.

        For a sequential model, the list may hold the numbers of the stages instead.

        Raises:
          ValueError: The list does not match the model, or a layer depends on a layer of a later stage.
          RuntimeError: A stage has no layer, or a subclassed model was not built yet.
        """
        with self._ipu_extension.changing():
            self._ipu_extension.stages.set(pipeline_stage_assignment)

    def reset_pipeline_stage_assignment(self) -> None:
        """Removes all layers from their stages, so that the model is not pipelined any more."""
        with self._ipu_extension.changing():
            self._ipu_extension.stages.reset()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], object] | None = None
    ) -> None:
        """Prints a table of layers and stages by one call of `print_fn`, or of `print` if omitted.

        The table is `line_length` characters wide, or as wide as its text if omitted. Raises `TypeError` if `print_fn`
        is not callable.
        """
        print_text(summary(self.get_pipeline_stage_assignment(), line_length), print_fn)

    # Reports.

    @tracebacks.user_lines_alone
    def ipu_report(
        self,
        batch_size: int | None = None,
        mode: str = "train",
        machine: System | Machine | str | None = None,
        *,
        spec: Nested = None,
        trip_counts: Mapping[str, int] | None = None,
    ) -> Report:
        """Predicts whether `fit`, `evaluate` or `predict` fits on a real machine, and the time of a step.

        Nothing is run, and no variable changes. A model that is not built yet is built first, as `fit` would build it.

        Args:
          batch_size: The number of samples of each replica in a step. None for the size that the model saw last, or
            for the size in `keras.Input` or `spec`.
          mode: `"train"`, `"evaluate"` or `"predict"`.
          machine: As for `strategy.report`.
          spec: A dataset of batches, or a batch `(x, y)` of `tf.TensorSpec`, tensors or arrays. None for the batches
            that the model saw last, or else for batches that match its inputs and losses: labels are int32 for sparse
            losses, and have the shape of the predictions for others.
          trip_counts: As for `strategy.report`.

        Returns:
          The report, of as many steps as the model runs in an execution.

        Raises:
          ValueError: An argument is out of range, the shapes of the data are unknown, or the model was not compiled.
        """
        from tensorflow_ipu.analysis.models import report

        return report.report_of_model(self._ipu_extension, batch_size, mode, machine, spec, trip_counts)

    @tracebacks.user_lines_alone
    def ipu_pieces(self, machine: System | Machine | str | None = None, batch_size: int | None = None) -> Pieces:
        """Returns the layers of the model and their costs in training, as `pipelining.balance` needs them.

        The arguments are as for `ipu_report`.

        Raises:
          ValueError: The model was not compiled or has fewer than two layers, or `batch_size` is unknown.
        """
        from tensorflow_ipu.analysis.models import report

        return report.pieces_of_model(self._ipu_extension, machine, batch_size)
