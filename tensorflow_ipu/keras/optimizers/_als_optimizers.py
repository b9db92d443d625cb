"""Optimizers with automatic loss scaling of their own: SGD, Adam, RMSprop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu.keras.optimizers._adam import AdamIpuOptimizer
from tensorflow_ipu.keras.optimizers._als import ALSDefaults, ALSOptimizer
from tensorflow_ipu.keras.optimizers._gradient_accumulation import GradientAccumulationOptimizer
from tensorflow_ipu.keras.optimizers._loss_scale import all_finite
from tensorflow_ipu.keras.optimizers._sgd import RMSpropIpuOptimizer, SGDIpuOptimizer
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

    from tensorflow_ipu._base.types import Config, DTypeOf, Gradient, LearningRate, Nested, TensorLike, Variable

_FLOAT_SLOTS: Any = dict.fromkeys(("velocity_dtype", "momentum_accum_dtype", "average_gradient_dtype"), "float32")


class _WithParameters(ALSOptimizer):
    """Has an optimizer of its own, which keeps its state and computes its updates in float32.

    So a gradient that is too small for float16 once it is divided by the scale still counts.
    """

    _PARAMETERS: tuple[str, ...] = ("learning_rate",)

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        inner = self.inner_optimizer.get_config()
        config = super().get_config()
        del config["opt"]
        return {**{name: inner[name] for name in self._PARAMETERS}, **config}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        """Makes an optimizer of what `get_config` returned."""
        rate = config["learning_rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate, custom_objects=custom_objects)
        return cls(**{**config, "learning_rate": rate})


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerSGD(_WithParameters):
    """Gradient descent with momentum and automatic loss scaling; see `keras.optimizers.SGD` and `ALSOptimizer`."""

    _PARAMETERS = ("learning_rate", "momentum")

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        initial_loss_scaling_factor: float = ALSDefaults.initial_loss_scaling_factor,
        update_frequency: int = ALSDefaults.update_frequency,
        increase_factor: float = ALSDefaults.increase_factor,
        max_loss_scaling_factor: float = ALSDefaults.max_loss_scaling_factor,
        accumulate_statistics_over_update_period: bool = ALSDefaults.accumulate_statistics_over_update_period,
        ratio_threshold: float = ALSDefaults.ratio_threshold,
        captured_grads_only: bool = ALSDefaults.captured_grads_only,
        lpf_alpha: float = ALSDefaults.lpf_alpha,
        histogram_bin_edge: float = ALSDefaults.histogram_bin_edge,
        name: str = "ALSOptimizerSGD",
    ) -> None:
        """Makes an optimizer. See `keras.optimizers.SGD` for the first two arguments, `ALSOptimizer` for the others."""
        super().__init__(
            SGDIpuOptimizer(learning_rate, momentum, momentum_accum_dtype=tf.float32),
            initial_loss_scaling_factor,
            update_frequency,
            increase_factor,
            max_loss_scaling_factor,
            accumulate_statistics_over_update_period,
            ratio_threshold,
            captured_grads_only,
            lpf_alpha,
            histogram_bin_edge,
            name,
        )


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerAdam(_WithParameters):
    """Adam with automatic loss scaling; see `keras.optimizers.Adam` and `ALSOptimizer`."""

    _PARAMETERS = ("learning_rate", "beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-07,
        initial_loss_scaling_factor: float = ALSDefaults.initial_loss_scaling_factor,
        update_frequency: int = ALSDefaults.update_frequency,
        increase_factor: float = ALSDefaults.increase_factor,
        max_loss_scaling_factor: float = ALSDefaults.max_loss_scaling_factor,
        accumulate_statistics_over_update_period: bool = ALSDefaults.accumulate_statistics_over_update_period,
        ratio_threshold: float = ALSDefaults.ratio_threshold,
        captured_grads_only: bool = ALSDefaults.captured_grads_only,
        lpf_alpha: float = ALSDefaults.lpf_alpha,
        histogram_bin_edge: float = ALSDefaults.histogram_bin_edge,
        name: str = "ALSOptimizerAdam",
    ) -> None:
        """Makes an optimizer. See `keras.optimizers.Adam` for the first four arguments, `ALSOptimizer` for the others."""
        super().__init__(
            AdamIpuOptimizer(learning_rate, beta_1, beta_2, epsilon, m_dtype=tf.float32, v_dtype=tf.float32),
            initial_loss_scaling_factor,
            update_frequency,
            increase_factor,
            max_loss_scaling_factor,
            accumulate_statistics_over_update_period,
            ratio_threshold,
            captured_grads_only,
            lpf_alpha,
            histogram_bin_edge,
            name,
        )


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerRMSProp(_WithParameters):
    """RMSprop with automatic loss scaling; see `keras.optimizers.RMSprop` and `ALSOptimizer`."""

    _PARAMETERS = ("learning_rate", "rho", "momentum", "epsilon", "centered")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-07,
        centered: bool = False,
        initial_loss_scaling_factor: float = ALSDefaults.initial_loss_scaling_factor,
        update_frequency: int = ALSDefaults.update_frequency,
        increase_factor: float = ALSDefaults.increase_factor,
        max_loss_scaling_factor: float = ALSDefaults.max_loss_scaling_factor,
        accumulate_statistics_over_update_period: bool = ALSDefaults.accumulate_statistics_over_update_period,
        ratio_threshold: float = ALSDefaults.ratio_threshold,
        captured_grads_only: bool = ALSDefaults.captured_grads_only,
        lpf_alpha: float = ALSDefaults.lpf_alpha,
        histogram_bin_edge: float = ALSDefaults.histogram_bin_edge,
        name: str = "ALSOptimizerRMSProp",
    ) -> None:
        """Makes an optimizer. See `keras.optimizers.RMSprop` for the first five arguments, `ALSOptimizer` for others."""
        super().__init__(
            RMSpropIpuOptimizer(learning_rate, rho, momentum, epsilon, centered, **_FLOAT_SLOTS),  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            initial_loss_scaling_factor,
            update_frequency,
            increase_factor,
            max_loss_scaling_factor,
            accumulate_statistics_over_update_period,
            ratio_threshold,
            captured_grads_only,
            lpf_alpha,
            histogram_bin_edge,
            name,
        )


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
