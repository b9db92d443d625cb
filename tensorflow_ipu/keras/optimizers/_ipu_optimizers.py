"""Adam, LAMB, SGD and RMSprop whose slots may have other types than the variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import check_bool, is_number
from tensorflow_ipu._base.tensors import name_of
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase, SlotTypes, dense

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, DTypeLike, Gradient, LearningRate, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class AdamIpuOptimizer(IpuOptimizerBase, internals.optimizers.Adam):  # pyright: ignore[reportIncompatibleMethodOverride]  # As in `Optimizer`.
    """Adam in float32 arithmetic. Moments may have other types than the variable, and debiasing is optional."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-07,
        amsgrad: bool = False,
        name: str = "Adam",
        m_dtype: DTypeLike | None = None,
        v_dtype: DTypeLike | None = None,
        vhat_dtype: DTypeLike | None = None,
        debiasing: bool = True,
        **kwargs: Any,
    ) -> None:
        """Creates the optimizer. Arguments that are not named here are as for `keras.optimizers.Adam` and `IpuOptimizerBase`.

        `m_dtype` is the type of the first moment, `v_dtype` of the second moment, and `vhat_dtype` of the maximum of
        second moments. None means the type of each variable. `debiasing` corrects the moments for their initial value
        of zero.

        Raises:
          ValueError: A type is not a floating-point type.
          TypeError: `debiasing` is not a bool.
        """
        types = SlotTypes(m=("m_dtype", m_dtype), v=("v_dtype", v_dtype), vhat=("vhat_dtype", vhat_dtype))
        check_bool("debiasing", debiasing)
        super().__init__(
            name, learning_rate=learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, amsgrad=amsgrad, **kwargs
        )
        self._slot_types = types
        self.debiasing = debiasing

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """Returns the type of a slot, as set by the constructor for `m`, `v` and `vhat`."""
        return self._slot_types.of(slot_name) or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """Returns the names of the slots of each variable."""
        return ("m", "v", "vhat") if self.amsgrad else ("m", "v")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        dtype = self.optimizer_compute_precisions[0]
        rate, grad = tf.cast(learning_rate, dtype), dense(gradient, dtype)
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        beta_1, beta_2 = self.hyper("beta_1", dtype), self.hyper("beta_2", dtype)
        first = _moving_average(tf.cast(m, dtype), grad, beta_1)
        second = _moving_average(tf.cast(v, dtype), grad * grad, beta_2)
        self.assign(m, first)
        self.assign(v, second)
        if self.amsgrad:
            largest = self.get_slot(variable, "vhat")
            second = tf.maximum(tf.cast(largest, dtype), second)
            self.assign(largest, second)
        if self.debiasing:
            step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, dtype)
            rate *= tf.sqrt(1 - tf.cast(beta_2, dtype) ** step) / (1 - tf.cast(beta_1, dtype) ** step)
        value = tf.cast(variable, dtype)
        self.assign(variable, value - rate * first / (tf.sqrt(second) + self.hyper("epsilon", dtype)))

    def get_config(self) -> Config:
        return {**super().get_config(), **self._slot_types.config(), "debiasing": self.debiasing}


def _moving_average(average: tf.Tensor, value: tf.Tensor, decay: float | tf.Tensor) -> tf.Tensor:
    return average + (value - average) * (1 - decay)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class LAMBIpuOptimizer(IpuOptimizerBase):
    """LAMB with weight decay. Moments may have other types than the variable.

    A step is the step of Adam plus `weight_decay_rate` times the variable. It is scaled to the norm of the variable,
    and then multiplied by the learning rate.
    """

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("beta_1", "beta_2", "epsilon", "weight_decay_rate")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-06,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        debiasing: bool = True,
        m_dtype: DTypeLike | None = None,
        v_dtype: DTypeLike | None = None,
        weight_norm_clip: float | None = None,
        optimizer_compute_precisions: Sequence[DTypeLike] = (tf.float32, tf.float32),
        **kwargs: Any,
    ) -> None:
        """Creates the optimizer. Arguments that are not named here are as for `AdamIpuOptimizer`.

        Variables whose names match a regular expression in `exclude_from_weight_decay` do not decay. Steps of variables
        whose names match one in `exclude_from_layer_adaptation` are not scaled; by default these are the same
        expressions. `weight_decay_rate` is the factor of the variable that is added to its step. `weight_norm_clip` is
        the upper limit of the norm to which steps are scaled. `optimizer_compute_precisions` are the types of the two
        phases of an update: first the moments and the step, then the norms and the new value.

        Raises:
          ValueError: There are not two precisions, or a type is not a floating-point type.
          TypeError: `debiasing` is not a bool.
        """
        if not isinstance(optimizer_compute_precisions, (list, tuple)) or len(optimizer_compute_precisions) != 2:
            raise ValueError(
                "`optimizer_compute_precisions` must be a list of two types, one for each stage of the update, but is"
                f" {optimizer_compute_precisions!r}"
            )
        check_bool("debiasing", debiasing)
        types = SlotTypes(m=("m_dtype", m_dtype), v=("v_dtype", v_dtype))
        super().__init__(
            name, optimizer_compute_precisions=optimizer_compute_precisions, learning_rate=learning_rate, **kwargs
        )
        self._slot_types = types
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self._set_hyper("weight_decay_rate", weight_decay_rate)
        self.epsilon = epsilon
        self.exclude_from_weight_decay_names = tuple(exclude_from_weight_decay or ())
        if exclude_from_layer_adaptation is None:
            exclude_from_layer_adaptation = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = tuple(exclude_from_layer_adaptation or ())
        self.debiasing = debiasing
        self.weight_norm_clip = weight_norm_clip

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """Returns the type of a slot, as set by the constructor for `m` and `v`."""
        return self._slot_types.of(slot_name) or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """Returns the names of the slots of each variable."""
        return ("m", "v")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        step_dtype, update_dtype = self.optimizer_compute_precisions
        step = tf.cast(self._step(dense(gradient, step_dtype), variable, step_dtype), update_dtype)
        value = tf.cast(variable, update_dtype)
        if not _matches(self.exclude_from_layer_adaptation, variable):
            norm = tf.norm(value)
            if self.weight_norm_clip is not None:
                norm = tf.minimum(norm, tf.cast(self.weight_norm_clip, update_dtype))
            step_norm = tf.norm(step)
            # If the step or the variable is zero, the step is not scaled.
            is_scaled = tf.logical_and(norm > 0, step_norm > 0)
            divisor = tf.where(is_scaled, step_norm, tf.ones_like(step_norm))
            step *= tf.where(is_scaled, norm / divisor, tf.ones_like(step_norm))
        self.assign(variable, value - tf.cast(learning_rate, update_dtype) * step)

    def _step(self, gradient: tf.Tensor, variable: Variable, dtype: tf.DType) -> tf.Tensor:
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        beta_1, beta_2 = self.hyper("beta_1", dtype), self.hyper("beta_2", dtype)
        first = tf.cast(m, dtype) * beta_1 + gradient * (1 - beta_1)
        second = tf.cast(v, dtype) * beta_2 + gradient * gradient * (1 - beta_2)
        self.assign(m, first)
        self.assign(v, second)
        if self.debiasing:
            count = tf.cast(tf.convert_to_tensor(self.iterations) + 1, dtype)
            first /= 1 - tf.cast(beta_1, dtype) ** count
            second /= 1 - tf.cast(beta_2, dtype) ** count
        step = first / (tf.sqrt(second) + self.hyper("epsilon", dtype))
        if self.uses("weight_decay_rate") and not _matches(self.exclude_from_weight_decay_names, variable):
            step += self.hyper("weight_decay_rate", dtype) * tf.cast(variable, dtype)
        return step

    def _config_value(self, name: str) -> Any:
        return self._serialize_hyperparameter(name) if name in self._hyper else getattr(self, name)

    def get_config(self) -> Config:
        names = ("beta_1", "beta_2", "epsilon", "weight_decay_rate", "debiasing", "weight_norm_clip")
        return {
            **super().get_config(),
            **self._slot_types.config(),
            **{name: self._config_value(name) for name in names},
            "exclude_from_weight_decay": list(self.exclude_from_weight_decay_names),
            "exclude_from_layer_adaptation": list(self.exclude_from_layer_adaptation),
        }


def _matches(patterns: Sequence[str], variable: Variable) -> bool:
    name = name_of(variable).split(":")[0]
    return any(re.search(pattern, name) for pattern in patterns)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class SGDIpuOptimizer(IpuOptimizerBase, internals.optimizers.SGD):
    """Gradient descent with momentum in float32 arithmetic. The momentum may have another type than the variable."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("momentum",)

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        momentum_accum_dtype: DTypeLike | None = None,
        velocity_scaling: float = 1.0,
        **kwargs: Any,
    ) -> None:
        """Creates the optimizer. Arguments that are not named here are as for `keras.optimizers.SGD` and `IpuOptimizerBase`.

        `momentum_accum_dtype` is the type of the momentum; None means the type of each variable. The momentum is stored
        multiplied by `velocity_scaling`, and divided by it when it is used. So fewer small values are lost in float16.
        A factor that is too large makes the momentum overflow.

        Raises:
          ValueError: A value is out of range.
        """
        types = SlotTypes(momentum=("momentum_accum_dtype", momentum_accum_dtype))
        if not is_number(velocity_scaling) or not velocity_scaling > 0:
            raise ValueError(f"`velocity_scaling` must be a number above 0, but is {velocity_scaling!r}")
        super().__init__(name, learning_rate=learning_rate, momentum=momentum, nesterov=nesterov, **kwargs)
        self._slot_types = types
        self.velocity_scaling = velocity_scaling

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """Returns the type of a slot, as set by the constructor for the momentum."""
        return self._slot_types.of("momentum") or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """Returns the names of the slots of each variable."""
        return ("momentum",) if self.uses("momentum") else ()

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        dtype = self.optimizer_compute_precisions[0]
        step = -tf.cast(learning_rate, dtype) * dense(gradient, dtype)
        if self.uses("momentum"):
            slot, momentum, scale = (
                self.get_slot(variable, "momentum"),
                self.hyper("momentum", dtype),
                self.constant("velocity_scaling"),
            )
            scaled_velocity = momentum * tf.cast(slot, dtype) + (step if scale == 1 else scale * step)
            self.assign(slot, scaled_velocity)
            velocity = scaled_velocity if scale == 1 else scaled_velocity / scale
            step = momentum * velocity + step if self.constant("nesterov") else velocity
        self.assign(variable, tf.cast(variable, dtype) + step)

    def get_config(self) -> Config:
        return {**super().get_config(), **self._slot_types.config(), "velocity_scaling": self.velocity_scaling}


@keras.saving.register_keras_serializable("tensorflow_ipu")
class RMSpropIpuOptimizer(IpuOptimizerBase, internals.optimizers.RMSprop):  # pyright: ignore[reportIncompatibleMethodOverride]  # As in `Optimizer`.
    """RMSprop in float32 arithmetic. Slots may have other types than the variable."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("epsilon", "momentum", "rho")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-07,
        centered: bool = False,
        name: str = "RMSprop",
        velocity_dtype: DTypeLike | None = None,
        momentum_accum_dtype: DTypeLike | None = None,
        average_gradient_dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the optimizer. Arguments not named here are as for `keras.optimizers.RMSprop` and `IpuOptimizerBase`.

        `velocity_dtype` is the type of the mean of squared gradients, `momentum_accum_dtype` of the momentum, and
        `average_gradient_dtype` of the mean of gradients. None means the type of each variable.

        Raises:
          ValueError: A type is not a floating-point type.
        """
        types = SlotTypes(
            velocity=("velocity_dtype", velocity_dtype),
            momentum=("momentum_accum_dtype", momentum_accum_dtype),
            average_gradient=("average_gradient_dtype", average_gradient_dtype),
        )
        super().__init__(
            name, learning_rate=learning_rate, rho=rho, momentum=momentum, epsilon=epsilon, centered=centered, **kwargs
        )
        self._slot_types = types

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """Returns the type of a slot, as set by the constructor."""
        return self._slot_types.of(slot_name) or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """Returns the names of the slots of each variable."""
        slots = {"velocity": True, "momentum": self.uses("momentum"), "average_gradient": self.centered}
        return (slot for slot, is_used in slots.items() if is_used)

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        dtype = self.optimizer_compute_precisions[0]
        grad = dense(gradient, dtype)
        velocity = self._update_average(variable, "velocity", grad * grad)
        if self.centered:
            velocity -= self._update_average(variable, "average_gradient", grad) ** 2
        epsilon = self.hyper("epsilon", dtype)
        # Without momentum, Keras 2 adds epsilon to the root.
        is_inside = self.uses("momentum") or not environment.uses_keras_2()
        root = tf.sqrt(velocity + epsilon) if is_inside else tf.sqrt(velocity) + epsilon
        step = tf.cast(learning_rate, dtype) * grad / root
        if self.uses("momentum"):
            slot = self.get_slot(variable, "momentum")
            step += self.hyper("momentum", dtype) * tf.cast(slot, dtype)
            self.assign(slot, step)
        self.assign(variable, tf.cast(variable, dtype) - step)

    def _update_average(self, variable: Variable, slot_name: str, value: tf.Tensor) -> tf.Tensor:
        slot, rho = self.get_slot(variable, slot_name), self.hyper("rho", value.dtype)
        average = rho * tf.cast(slot, value.dtype) + (1 - rho) * value
        self.assign(slot, average)
        return average

    def get_config(self) -> Config:
        return {**super().get_config(), **self._slot_types.config()}
