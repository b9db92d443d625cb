"""Keras's RMSprop, computed and kept in float32 whatever the types of the variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase, dense

if TYPE_CHECKING:
    from tensorflow_ipu._types import Gradient, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class FloatRMSprop(keras.optimizers.RMSprop, IpuOptimizerBase):
    """RMSprop with the arguments of Keras's, and float32 slots."""

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """float32."""
        del var, slot_name
        return tf.float32

    def build(self, variables: Sequence[Variable]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # As in `Optimizer`.
        """Makes the slots of the variables to train."""
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        for variable in variables:
            self.add_slot(variable, "velocity")
            if self.momentum > 0:
                self.add_slot(variable, "momentum")
            if self.centered:
                self.add_slot(variable, "average_gradient")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable; see the class of Keras."""
        grad = dense(gradient, tf.float32)
        velocity = self._moved(variable, "velocity", grad * grad)
        if self.centered:
            velocity -= self._moved(variable, "average_gradient", grad) ** 2
        step = tf.cast(learning_rate, tf.float32) * grad / tf.sqrt(velocity + self.epsilon)
        if self.momentum > 0:
            slot = self.get_slot(variable, "momentum")
            step += self.momentum * slot.value
            self.assign(slot, step)
        self.assign(variable, tf.cast(variable, tf.float32) - step)

    def _moved(self, variable: Variable, slot_name: str, value: tf.Tensor) -> tf.Tensor:
        slot = self.get_slot(variable, slot_name)
        moved = self.rho * slot.value + (1 - self.rho) * value
        self.assign(slot, moved)
        return moved
