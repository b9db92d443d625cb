"""The options of a model that was made in a strategy's scope, as methods of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow_ipu.keras import _export, _saved_options
from tensorflow_ipu.keras._metrics import ReplicatedMetricReductionMethod

if TYPE_CHECKING:
    from tensorflow_ipu.keras._extension import Extension


class OptionMethods:
    """What models get besides what Keras has."""

    def set_asynchronous_callbacks(self: Any, asynchronous: bool = False) -> None:
        """Sets whether callbacks are called once a step and replica, while the program runs, or once an execution.

        Args:
          asynchronous: True for once a step and replica, from a thread that reads results as they come.

        Raises:
          TypeError: `asynchronous` is no bool.
        """
        if not isinstance(asynchronous, bool):
            raise TypeError(f"`asynchronous` must be True or False, but is {asynchronous!r}")
        _extension(self).options.asynchronous_callbacks = asynchronous

    def set_replication_options(self: Any, replicated_metric_reduction_method: Any = "NONE") -> None:
        """Sets what logs show of the metrics of several replicas.

        Args:
          replicated_metric_reduction_method: A `ReplicatedMetricReductionMethod`, or its name in any case: `NONE` for those
            of the last replica, `LIST` for all, `SUM`, or `MEAN`.

        Raises:
          ValueError: It is neither.
        """
        method = ReplicatedMetricReductionMethod.parse(replicated_metric_reduction_method)
        _extension(self).options.metric_reduction = method

    def set_gradient_accumulation_options(
        self: Any,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        use_v2_gradient_accumulation_optimizer: bool = False,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Sets how `fit` accumulates gradients. The next run compiles its program anew.

        Args:
          gradient_accumulation_steps_per_replica: How many steps of each replica make one update of the weights; it has to
            divide `steps_per_execution`. None for an update a step.
          gradient_accumulation_reduction_method: How the gradients of these steps become one: `"sum"`, `"mean"` or
            `"running_mean"`. Each call sets it.
          use_v2_gradient_accumulation_optimizer: Which of two implementations the machine takes. The emulator has one.
          **gradient_accumulation_optimizer_kwargs: `dtype` is the type in which gradients are added up: that of the variable
            for None, a dtype, or a function of the variable. `offload_weight_update_variables`,
            `replicated_optimizer_state_sharding`, `verify_usage` and `name` change nothing in the emulator.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        _extension(self).options.set_gradient_accumulation(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            use_v2_gradient_accumulation_optimizer,
            gradient_accumulation_optimizer_kwargs,
        )
        _extension(self).reset()

    def set_pipelining_options(
        self: Any,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """Sets how a model with pipeline stages runs. The next run compiles its program anew.

        Args:
          gradient_accumulation_steps_per_replica: How many steps of each replica make one update of the weights.
          device_mapping: The IPU of each stage.
          accumulate_outfeed: Whether results are summed over these steps.
          gradient_accumulation_reduction_method: How the gradients of these steps become one: `"sum"`, `"mean"` or
            `"running_mean"`. Each call sets it.
          **pipelining_kwargs: Further arguments of `pipeline`.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        _extension(self).options.set_pipelining(
            gradient_accumulation_steps_per_replica,
            device_mapping,
            accumulate_outfeed,
            gradient_accumulation_reduction_method,
            pipelining_kwargs,
        )
        _extension(self).reset()

    def set_infeed_queue_options(self: Any, **kwargs: Any) -> None:
        """Sets what the model's infeeds are made with.

        Args:
          **kwargs: `prefetch_depth` and `optimise_latency`, as `IPUInfeedQueue` has them.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        _extension(self).options.set_infeed(kwargs)

    def set_outfeed_queue_options(self: Any, **kwargs: Any) -> None:
        """Sets what the model's outfeeds are made with. The next run compiles its program anew.

        Args:
          **kwargs: `buffer_depth` and `optimise_latency`, as `IPUOutfeedQueue` has them.

        Raises:
          ValueError: An argument is out of range, or set by the model.
          TypeError: An argument is unknown, or of a wrong kind.
        """
        _extension(self).options.set_outfeed(kwargs)
        _extension(self).reset()

    def save_assets(self: Any, dir_path: str) -> None:
        """Writes the model's options and pipeline stages to its file; Keras calls it."""
        _call_own(self, "save_assets", dir_path)
        _saved_options.save(_extension(self).options, _extension(self).stages, dir_path)

    def load_assets(self: Any, dir_path: str | None) -> None:
        """Reads the model's options and pipeline stages from its file; Keras calls it."""
        _call_own(self, "load_assets", dir_path)
        _extension(self).options = _saved_options.load(_extension(self).stages, dir_path)
        _extension(self).reset()

    def export_for_ipu_serving(
        self: Any,
        export_dir: Any,
        batch_size: int | None = None,
        output_names: Any = None,
        preprocessing_step: Any = None,
        preprocessing_step_signature: Any = None,
        postprocessing_step: Any = None,
        postprocessing_step_signature: Any = None,
        purge_export_dir: bool = False,
    ) -> Any:
        """Exports the model as a SavedModel, for TensorFlow Serving on a CPU. Who loads it needs no part of this package.

        Args:
          export_dir: An empty folder, or one to be made.
          batch_size: How many examples a request has; needed where the model's inputs leave it open.
          output_names: The name of each output, as a string or a list of them; `output_0` and so on if omitted.
          preprocessing_step: A function from the request's tensors to the model's inputs.
          preprocessing_step_signature: The `tf.TensorSpec` of the request's tensors; needed where `preprocessing_step` is no
            `tf.function` with an `input_signature`.
          postprocessing_step: A function from the model's outputs to those of the request.
          postprocessing_step_signature: The `tf.TensorSpec` of its inputs, to be checked.
          purge_export_dir: Whether to delete what `export_dir` has.

        Returns:
          The function that is served.

        Raises:
          RuntimeError: The model has not said what its inputs are.
          ValueError: A shape is not known, `export_dir` is not empty, or steps, outputs and names do not fit together.
          TypeError: A signature or name is of a wrong kind.
        """
        return _export.export(
            self,
            export_dir,
            batch_size,
            output_names,
            preprocessing_step,
            preprocessing_step_signature,
            postprocessing_step,
            postprocessing_step_signature,
            purge_export_dir,
        )


def _extension(model: Any) -> Extension:
    return vars(model)["_ipu_extension"]


def _call_own(model: Any, name: str, dir_path: str | None) -> None:
    own = getattr(type(model), name, None)
    if own is not None:
        own(model, dir_path)
