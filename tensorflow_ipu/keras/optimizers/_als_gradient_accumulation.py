"""Gradient accumulation with automatic loss scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tensorflow_ipu.keras.optimizers._als import ALSOptimizer
from tensorflow_ipu.keras.optimizers._gradient_accumulation import GradientAccumulationOptimizer
from tensorflow_ipu.keras.optimizers._loss_scale import all_finite
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._types import Config, DTypeOf, Gradient, Nested, TensorLike, Variable


def _forwarded(name: str) -> property:
    """An attribute that is that of the wrapped optimizer."""

    def get(self: ALSGradientAccumulationOptimizer) -> object:
        return getattr(self._als, name)

    def change(self: ALSGradientAccumulationOptimizer, value: object) -> None:
        setattr(self._als, name, value)

    return property(get, change, doc=f"See `ALSOptimizer.{name}`.")


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """Accumulates the gradients of scaled losses; each mini-batch counts in the histogram of the `ALSOptimizer`."""

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
        """Wraps `als_optimizer`; see `GradientAccumulationOptimizer` for the other arguments.

        Raises:
          ValueError: `als_optimizer` is none, or as in `GradientAccumulationOptimizer`.
          TypeError: An argument is of a wrong type.
        """
        if not isinstance(als_optimizer, ALSOptimizer):
            raise ValueError(
                f"`als_optimizer` must be an `ALSOptimizer`, but is {als_optimizer!r}. `GradientAccumulationOptimizer`"
                " wraps all others"
            )
        super().__init__(
            als_optimizer,
            num_mini_batches,
            offload_weight_update_variables,
            replicated_optimizer_state_sharding,
            dtype,
            reduction_method,
            name,
        )
        self._als = als_optimizer

    @property
    def als_optimizer(self) -> ALSOptimizer:
        """The optimizer that scales. Its settings and statistics are attributes of this one too."""
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
        """Begins anew with the scale; see `ALSOptimizer.reset`."""
        self._als.reset()

    def get_gradients(self, loss: TensorLike, params: Sequence[Variable]) -> list[Gradient]:
        """The gradients of the scaled loss; see `ALSOptimizer.get_gradients`."""
        return self._als.get_gradients(loss, params)

    def get_scaled_loss(self, loss: TensorLike) -> tf.Tensor:
        """The loss to differentiate; see `ALSOptimizer.get_scaled_loss`."""
        return self._als.get_scaled_loss(loss)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
        captured_grads: Nested = None,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> keras.Variable:
        """Counts and accumulates the gradients of a scaled loss.

        Args:
          grads_and_vars: Pairs of gradient and variable.
          captured_grads: A structure of other gradients of the scaled loss to count.
          name: Accepted, as the original does; operations go by the optimizer's name.
          experimental_aggregate_gradients: Must be True: the wrapped optimizer reduces gradients over the replicas.

        Returns:
          The wrapped optimizer's `iterations`.

        Raises:
          ValueError: `experimental_aggregate_gradients` is not True, or as in `ALSOptimizer.apply_gradients`.
        """
        del name
        if experimental_aggregate_gradients is not True:
            raise ValueError(
                "`experimental_aggregate_gradients` must be True, but is"
                f" {experimental_aggregate_gradients!r}: the strategy decides how replicas' gradients are reduced"
            )
        gradients, variables = zip(*grads_and_vars, strict=True)
        if captured_grads is None:
            self.apply(gradients, variables)
        else:
            self._step(*self._matched(gradients, variables), captured_grads)
        return self.iterations

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        self._step(gradients, variables, None)

    def _step(self, gradients: list[Gradient | None], variables: list[Variable], captured: Nested) -> None:
        self._als.count(gradients, captured)
        # What is not finite in a mini-batch is not finite in the sum either.
        self._accumulate(gradients, variables, self._update)

    def _update(self, reduced: list[tf.Tensor], variables: list[Variable]) -> None:
        self._als.update(reduced, variables, tf.cast(~all_finite(reduced), tf.float32))  # pyright: ignore[reportOperatorIssue]  # The stub of `tf.Tensor` lacks it.

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        config = super().get_config()
        return {"als_optimizer": config.pop("opt"), **config}
