"""Keras's SGD with an accumulator of its own type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase, dense, slot_type, type_name

if TYPE_CHECKING:
    from tensorflow_ipu._types import Config, DTypeLike, Gradient, LearningRate, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class SGDIpuOptimizer(keras.optimizers.SGD, IpuOptimizerBase):
    """Gradient descent with momentum, computed in float32, whose momentum may be of another type than the variable."""

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        momentum_accum_dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes an optimizer.

        Args:
          learning_rate: A number, a schedule, or a function that gives the rate.
          momentum: The share of the last step in the next one, in [0, 1].
          nesterov: Whether to look a step ahead.
          name: The optimizer's name.
          momentum_accum_dtype: The type of the momentum; None for that of each variable.
          **kwargs: What Keras's SGD and `IpuOptimizerBase` take besides.

        Raises:
          ValueError: A value is out of range.
        """
        kind = slot_type("momentum_accum_dtype", momentum_accum_dtype)
        super().__init__(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        self._momentum_dtype = kind

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: of the momentum, what the constructor was told."""
        return self._momentum_dtype or super().get_slot_dtype(var, slot_name)

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the slots of the variables to train."""
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        if self.momentum != 0:
            for variable in variables:
                self.add_slot(variable, "momentum")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable; see the class of Keras."""
        kind = self.optimizer_compute_precisions[0]
        step = -tf.cast(learning_rate, kind) * dense(gradient, kind)
        if self.momentum != 0:
            slot = self.get_slot(variable, "momentum")
            moved = self.momentum * tf.cast(slot.value, kind) + step
            self.assign(slot, moved)
            step = self.momentum * moved + step if self.nesterov else moved
        self.assign(variable, tf.cast(variable, kind) + step)

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        return {**super().get_config(), "momentum_accum_dtype": type_name(self._momentum_dtype)}
