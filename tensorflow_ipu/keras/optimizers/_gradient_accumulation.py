"""Keras optimizers that accumulate the gradients of several mini-batches for one update."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import is_function, tf_variable
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.optimizers._als import ALSOptimizer, apply_counted
from tensorflow_ipu.keras.optimizers._base import add_colocated
from tensorflow_ipu.keras.optimizers._wrapper import OptimizerWrapper, all_finite
from tensorflow_ipu.optimizers import AccumulationOptions, GradientAccumulationReductionMethod, accumulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from tensorflow_ipu._base.types import Config, DTypeOf, Gradient, Nested, TensorLike, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class GradientAccumulationOptimizer(OptimizerWrapper):
    """Accumulates the gradients of mini-batches, and updates the variables once for every `num_mini_batches` of them.

    Call it in a loop of the program, once for each mini-batch. In every `num_mini_batches`-th call, the wrapped
    optimizer applies the reduced gradients. It must be the outermost optimizer.
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: DTypeOf = None,
        reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        """Wraps `opt`, a Keras optimizer.

        See `tensorflow_ipu.optimizers.GradientAccumulationOptimizerV2` for the other arguments and for the errors.
        """
        options = AccumulationOptions(
            num_mini_batches, offload_weight_update_variables, replicated_optimizer_state_sharding, dtype
        )
        checked_options = accumulation.checked_options(options, reduction_method)
        super().__init__(opt, name)
        self._options = checked_options
        self._counter: keras.Variable | None = None
        self._totals: list[keras.Variable] = []

    @staticmethod
    def bool_to_three_state(value: bool | None, default: str | None) -> str | None:
        """Returns "THREESTATE_ON", "THREESTATE_OFF", or `default` for None, as options of the vendor's compiler are written."""
        if value is None:
            return default
        return "THREESTATE_ON" if value else "THREESTATE_OFF"

    @property
    def options(self) -> AccumulationOptions:
        """The options of accumulation, as passed to the constructor."""
        return self._options

    @property
    def accumulators(self) -> list[keras.Variable]:
        """The variables in which gradients accumulate; none before the optimizer is built."""
        return self._totals

    def _build_wrapper(self, variables: list[Variable]) -> None:
        if self._counter is None:
            self._counter = self.add_variable((), "zeros", "int32", name="mini_batches")
        self._totals += [
            add_colocated(self, variable, "accumulator", variable.shape, self._options.accumulator_dtype(variable))
            for variable in variables
        ]

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        self._accumulate(gradients, variables, functools.partial(internals.update_with, self.inner_optimizer))

    def _accumulate(
        self,
        gradients: list[Gradient | None],
        variables: list[Variable],
        update: Callable[[list[tf.Tensor], list[Variable]], None],
    ) -> None:
        pairs = [(grad, variable) for grad, variable in zip(gradients, variables, strict=True) if grad is not None]
        if not pairs:
            raise ValueError("`grads` has no gradient for any variable: does the loss depend on them?")
        accumulation.must_be_in_loop(type(self).__name__, self._options.num_mini_batches)
        present_gradients, updated_variables = zip(*pairs, strict=True)
        indices: list[int] = [self._get_variable_index(variable) for variable in updated_variables]
        totals = [tf_variable(self._totals[index]) for index in indices]
        count, reduction = self._options.num_mini_batches, self._options.reduction_method
        accumulator = accumulation.Accumulator(tf_variable(self._counter), totals, count, reduction)
        accumulator.step(present_gradients, lambda reduced: update(reduced, list(updated_variables)))

    def get_config(self) -> Config:
        """Returns the configuration for `from_config`. If `dtype` is a function, it has to be registered with Keras."""
        options = self._options
        dtype: Any = options.dtype
        if dtype is not None:
            dtype = keras.saving.serialize_keras_object(dtype) if is_function(dtype) else tf.as_dtype(dtype).name
        method = options.reduction_method.name
        return {**super().get_config(), **vars(options), "dtype": dtype, "reduction_method": method}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        dtype = config["dtype"]
        if isinstance(dtype, dict):
            dtype = keras.saving.deserialize_keras_object(dtype, custom_objects=custom_objects)
        return super().from_config({**config, "dtype": dtype}, custom_objects)


def _forwarded(name: str) -> property:
    """Returns a property that gets and sets the attribute of this name of the wrapped `ALSOptimizer`."""

    def get(self: ALSGradientAccumulationOptimizer) -> object:
        return getattr(self._als, name)

    def assign(self: ALSGradientAccumulationOptimizer, value: object) -> None:
        setattr(self._als, name, value)

    return property(get, assign, doc=f"See `ALSOptimizer.{name}`.")


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """Accumulates the gradients of scaled losses. The `ALSOptimizer` counts the gradients of each mini-batch."""

    def __init__(
        self,
        als_optimizer: ALSOptimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: DTypeOf = None,
        reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
        name: str = "ALSGradientAccumulationOptimizer",
    ) -> None:
        """Wraps an `ALSOptimizer`; see `GradientAccumulationOptimizer` for the other arguments and for the errors."""
        if not isinstance(als_optimizer, ALSOptimizer):
            raise ValueError(
                f"`als_optimizer` must be an `ALSOptimizer`, but is {als_optimizer!r}; use"
                " `GradientAccumulationOptimizer` for other optimizers"
            )
        super().__init__(
            als_optimizer, num_mini_batches, offload_weight_update_variables, replicated_optimizer_state_sharding, dtype,
            reduction_method, name,
        )  # fmt: skip
        self._als = als_optimizer

    @property
    def als_optimizer(self) -> ALSOptimizer:
        """The wrapped `ALSOptimizer`. Its settings and statistics are also attributes of this optimizer."""
        return self._als

    histogram = _forwarded("histogram")
    normalized_histogram = _forwarded("normalized_histogram")
    loss_scaling_factor = _forwarded("loss_scaling_factor")
    previous_loss_scaling_factor = _forwarded("previous_loss_scaling_factor")
    update_counter = _forwarded("update_counter")
    update_frequency = _forwarded("update_frequency")
    increase_factor = _forwarded("increase_factor")
    decrease_factor = _forwarded("decrease_factor")
    initial_loss_scaling_factor = _forwarded("initial_loss_scaling_factor")
    max_loss_scaling_factor = _forwarded("max_loss_scaling_factor")
    ratio_threshold = _forwarded("ratio_threshold")
    accumulate_statistics_over_update_period = _forwarded("accumulate_statistics_over_update_period")
    histogram_bin_edge = _forwarded("histogram_bin_edge")
    captured_grads_only = _forwarded("captured_grads_only")
    lpf_alpha = _forwarded("lpf_alpha")
    supports_captured_grads = _forwarded("supports_captured_grads")

    def reset(self) -> None:
        """Resets the scale and the statistics; see `ALSOptimizer.reset`."""
        self._als.reset()

    def get_gradients(self, loss: TensorLike, params: Sequence[Variable]) -> list[Gradient]:
        """Returns the gradients of the scaled loss; see `ALSOptimizer.get_gradients`."""
        return self._als.get_gradients(loss, params)

    def get_scaled_loss(self, loss: TensorLike) -> tf.Tensor:
        """Returns the scaled loss; see `ALSOptimizer.get_scaled_loss`."""
        return self._als.get_scaled_loss(loss)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
        captured_grads: Nested = None,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> keras.Variable:
        """Counts and accumulates the gradients of a scaled loss; see `ALSOptimizer.apply_gradients`.

        Raises:
          ValueError: `experimental_aggregate_gradients` is not True, although the wrapped optimizer reduces gradients
            over the replicas; or for the reasons of `ALSOptimizer.apply_gradients`.
        """
        del name
        if experimental_aggregate_gradients is not True:
            raise ValueError(
                "`experimental_aggregate_gradients` must be True, but is"
                f" {experimental_aggregate_gradients!r}: the wrapped optimizer reduces gradients over replicas"
            )
        apply_counted(self, grads_and_vars, captured_grads)
        return self.iterations

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable], captured: Nested = None) -> None:
        self._als.count(gradients, captured)

        def update(reduced: list[tf.Tensor], variables: list[Variable]) -> None:
            # If the gradient of a mini-batch is not finite, the sum is not finite.
            self._als.update(reduced, variables, tf.cast(~all_finite(reduced), tf.float32))  # pyright: ignore[reportOperatorIssue]  # The stub of `tf.Tensor` lacks `__invert__`.

        self._accumulate(gradients, variables, update)

    def get_config(self) -> Config:
        config = super().get_config()
        return {"als_optimizer": config.pop("opt"), **config}
