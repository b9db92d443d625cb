"""Keras's SGD with an accumulator of its own type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import tensorflow as tf

from tensorflow_ipu._base.checks import is_number
from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase, dense, slot_type, type_name

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, DTypeLike, Gradient, LearningRate, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class SGDIpuOptimizer(keras.optimizers.SGD, IpuOptimizerBase):
    """Gradient descent with momentum, computed in float32, whose momentum may be of another type than the variable."""

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
        """Makes an optimizer.

        Args:
          learning_rate: A number, a schedule, or a function that gives the rate.
          momentum: The share of the last step in the next one, in [0, 1].
          nesterov: Whether to look a step ahead.
          name: The optimizer's name.
          momentum_accum_dtype: The type of the momentum; None for that of each variable.
          velocity_scaling: The momentum is kept so many times as large, and divided again where it is used: so that a
            momentum in float16 loses fewer of its small numbers. Too much of it overflows.
          **kwargs: What Keras's SGD and `IpuOptimizerBase` take besides.

        Raises:
          ValueError: A value is out of range.
        """
        kind = slot_type("momentum_accum_dtype", momentum_accum_dtype)
        if not is_number(velocity_scaling) or not velocity_scaling > 0:
            raise ValueError(f"`velocity_scaling` must be a number above 0, but is {velocity_scaling!r}")
        super().__init__(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        self._momentum_dtype = kind
        self.velocity_scaling = velocity_scaling

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: of the momentum, what the constructor was told."""
        return self._momentum_dtype or super().get_slot_dtype(var, slot_name)

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the slots of the variables to train."""
        if self.built:
            return
        IpuOptimizerBase.build(self, variables)
        if self.uses("momentum"):
            for variable in variables:
                self.add_slot(variable, "momentum")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable; see the class of Keras."""
        kind = self.optimizer_compute_precisions[0]
        step = -tf.cast(learning_rate, kind) * dense(gradient, kind)
        if self.uses("momentum"):
            slot, momentum, scale = (
                self.get_slot(variable, "momentum"),
                self.hyper("momentum", kind),
                self.constant("velocity_scaling"),
            )
            scaled = momentum * tf.cast(slot.value, kind) + (step if scale == 1 else scale * step)
            self.assign(slot, scaled)
            moved = scaled if scale == 1 else scaled / scale
            step = momentum * moved + step if self.constant("nesterov") else moved
        self.assign(variable, tf.cast(variable, kind) + step)

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        return {
            **super().get_config(),
            "momentum_accum_dtype": type_name(self._momentum_dtype),
            "velocity_scaling": self.velocity_scaling,
        }


@keras.saving.register_keras_serializable("tensorflow_ipu")
class RMSpropIpuOptimizer(keras.optimizers.RMSprop, IpuOptimizerBase):
    """RMSprop, computed in float32, whose slots may be of other types than the variable."""

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
        """Makes an optimizer.

        Args:
          learning_rate: A number, a schedule, or a function that gives the rate.
          rho: How much of the means stays, each update.
          momentum: The share of the last step in the next one, in [0, 1].
          epsilon: What keeps divisors from zero.
          centered: Whether to divide by the deviation of gradients from their mean.
          name: The optimizer's name.
          velocity_dtype: The type of the mean of squares; None for that of each variable.
          momentum_accum_dtype: The type of the momentum, likewise.
          average_gradient_dtype: The type of the mean of gradients, likewise.
          **kwargs: What Keras's RMSprop and `IpuOptimizerBase` take besides.

        Raises:
          ValueError: A type is no floating-point type.
        """
        kinds = {
            "velocity": slot_type("velocity_dtype", velocity_dtype),
            "momentum": slot_type("momentum_accum_dtype", momentum_accum_dtype),
            "average_gradient": slot_type("average_gradient_dtype", average_gradient_dtype),
        }
        super().__init__(learning_rate, rho, momentum, epsilon, centered, name=name, **kwargs)  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        self._slot_types = kinds

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: what the constructor was told."""
        return self._slot_types.get(slot_name) or super().get_slot_dtype(var, slot_name)

    def build(self, variables: Sequence[Variable]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # As in `Optimizer`.
        """Makes the slots of the variables to train."""
        if self.built:
            return
        IpuOptimizerBase.build(self, variables)
        for variable in variables:
            self.add_slot(variable, "velocity")
            if self.uses("momentum"):
                self.add_slot(variable, "momentum")
            if self.centered:
                self.add_slot(variable, "average_gradient")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable; see the class of Keras."""
        kind = self.optimizer_compute_precisions[0]
        grad = dense(gradient, kind)
        velocity = self._moved(variable, "velocity", grad * grad)
        if self.centered:
            velocity -= self._moved(variable, "average_gradient", grad) ** 2
        step = tf.cast(learning_rate, kind) * grad / tf.sqrt(velocity + self.hyper("epsilon", kind))
        if self.uses("momentum"):
            slot = self.get_slot(variable, "momentum")
            step += self.hyper("momentum", kind) * tf.cast(slot.value, kind)
            self.assign(slot, step)
        self.assign(variable, tf.cast(variable, kind) - step)

    def _moved(self, variable: Variable, slot_name: str, value: tf.Tensor) -> tf.Tensor:
        slot, rho = self.get_slot(variable, slot_name), self.hyper("rho", value.dtype)
        moved = rho * tf.cast(slot.value, value.dtype) + (1 - rho) * value
        self.assign(slot, moved)
        return moved

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        return {
            **super().get_config(),
            "velocity_dtype": type_name(self._slot_types["velocity"]),
            "momentum_accum_dtype": type_name(self._slot_types["momentum"]),
            "average_gradient_dtype": type_name(self._slot_types["average_gradient"]),
        }
