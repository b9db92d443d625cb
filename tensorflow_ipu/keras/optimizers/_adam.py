"""Keras's Adam with moments of their own types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase, dense, slot_type, type_name

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, DTypeLike, Gradient, LearningRate, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class AdamIpuOptimizer(keras.optimizers.Adam, IpuOptimizerBase):
    """Adam, computed in float32, whose moments may be of other types than the variable, with or without debiasing."""

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
        """Makes an optimizer.

        Args:
          learning_rate: A number, a schedule, or a function that gives the rate.
          beta_1: How much of the first moment stays, each update.
          beta_2: How much of the second moment stays.
          epsilon: What keeps divisors from zero.
          amsgrad: Whether to use the largest second moment so far.
          name: The optimizer's name.
          m_dtype: The type of the first moment; None for that of each variable.
          v_dtype: The type of the second moment, likewise.
          vhat_dtype: The type of the largest second moment, likewise.
          debiasing: Whether to make up for moments that begin at zero.
          **kwargs: What Keras's Adam and `IpuOptimizerBase` take besides.

        Raises:
          ValueError: A type is no floating-point type.
          TypeError: `debiasing` is not a bool.
        """
        kinds = [slot_type("m_dtype", m_dtype), slot_type("v_dtype", v_dtype), slot_type("vhat_dtype", vhat_dtype)]
        check_bool("debiasing", debiasing)
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, name=name, **kwargs)  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        self._m_dtype, self._v_dtype, self._vhat_dtype = kinds
        self.debiasing = debiasing

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: of `m`, `v` and `vhat`, what the constructor was told."""
        known = {"m": self._m_dtype, "v": self._v_dtype, "vhat": self._vhat_dtype}.get(slot_name)
        return known or super().get_slot_dtype(var, slot_name)

    def build(self, variables: Sequence[Variable]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # As in `Optimizer`.
        """Makes the slots of the variables to train."""
        if self.built:
            return
        IpuOptimizerBase.build(self, variables)
        for variable in variables:
            for slot in ("m", "v", "vhat") if self.amsgrad else ("m", "v"):
                self.add_slot(variable, slot)

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable; see the class of Keras."""
        kind = self.optimizer_compute_precisions[0]
        rate, grad = tf.cast(learning_rate, kind), dense(gradient, kind)
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        beta_1, beta_2 = self.hyper("beta_1", kind), self.hyper("beta_2", kind)
        first = _moved(tf.cast(m.value, kind), grad, beta_1)
        second = _moved(tf.cast(v.value, kind), grad * grad, beta_2)
        self.assign(m, first)
        self.assign(v, second)
        if self.amsgrad:
            largest = self.get_slot(variable, "vhat")
            second = tf.maximum(tf.cast(largest.value, kind), second)
            self.assign(largest, second)
        if self.debiasing:
            step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, kind)
            rate *= tf.sqrt(1 - tf.cast(beta_2, kind) ** step) / (1 - tf.cast(beta_1, kind) ** step)
        self.assign(variable, tf.cast(variable, kind) - rate * first / (tf.sqrt(second) + self.hyper("epsilon", kind)))

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        return {
            **super().get_config(),
            "m_dtype": type_name(self._m_dtype),
            "v_dtype": type_name(self._v_dtype),
            "vhat_dtype": type_name(self._vhat_dtype),
            "debiasing": self.debiasing,
        }


def _moved(moment: tf.Tensor, value: tf.Tensor, keep: float | tf.Tensor) -> tf.Tensor:
    return moment + (value - moment) * (1 - keep)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class LAMBIpuOptimizer(IpuOptimizerBase):
    """LAMB with decay of weights, whose moments may be of other types than the variable.

    A step is Adam's, plus the weight times `weight_decay_rate`, scaled to have the norm of the variable, times the
    learning rate.
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
        """Makes an optimizer.

        Args:
          learning_rate: A number, a schedule, or a function that gives the rate.
          beta_1: How much of the first moment stays, each update.
          beta_2: How much of the second moment stays.
          epsilon: What keeps divisors from zero.
          weight_decay_rate: How much of a weight is added to its step.
          exclude_from_weight_decay: Regular expressions; variables whose names have a match do not decay.
          exclude_from_layer_adaptation: Likewise for variables whose steps are not scaled; if omitted, the ones that do
            not decay.
          name: The optimizer's name.
          debiasing: Whether to make up for moments that begin at zero.
          m_dtype: The type of the first moment; None for that of each variable.
          v_dtype: The type of the second moment, likewise.
          weight_norm_clip: What a variable's norm counts at most; None for no limit.
          optimizer_compute_precisions: The types of two stages: the moments and the step, then its norms and the update.
          **kwargs: What `IpuOptimizerBase` takes besides.

        Raises:
          ValueError: There are not two precisions, or a type is no floating-point type.
          TypeError: `debiasing` is not a bool.
        """
        if not isinstance(optimizer_compute_precisions, (list, tuple)) or len(optimizer_compute_precisions) != 2:
            raise ValueError(
                "`optimizer_compute_precisions` must be a list of two types, one for each stage of the update, but is"
                f" {optimizer_compute_precisions!r}"
            )
        check_bool("debiasing", debiasing)
        kinds = slot_type("m_dtype", m_dtype), slot_type("v_dtype", v_dtype)
        super().__init__(
            name, optimizer_compute_precisions=optimizer_compute_precisions, learning_rate=learning_rate, **kwargs
        )
        self._m_dtype, self._v_dtype = kinds
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.weight_decay_rate = weight_decay_rate
        self.exclude_from_weight_decay_names = tuple(exclude_from_weight_decay or ())
        if exclude_from_layer_adaptation is None:
            exclude_from_layer_adaptation = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = tuple(exclude_from_layer_adaptation or ())
        self.debiasing = debiasing
        self.weight_norm_clip = weight_norm_clip

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: of `m` and `v`, what the constructor was told."""
        return {"m": self._m_dtype, "v": self._v_dtype}.get(slot_name) or super().get_slot_dtype(var, slot_name)

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the slots of the variables to train."""
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            for slot in ("m", "v"):
                self.add_slot(variable, slot)

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable."""
        kind, last = self.optimizer_compute_precisions
        step = tf.cast(self._step(dense(gradient, kind), variable, kind), last)
        value = tf.cast(variable, last)
        if not _matches(self.exclude_from_layer_adaptation, variable):
            length = tf.norm(value)
            if self.weight_norm_clip is not None:
                length = tf.minimum(length, tf.cast(self.weight_norm_clip, last))
            own = tf.norm(step)
            # Where there is no direction, or nothing to be in proportion to, a step stays as long as it is.
            scales = tf.logical_and(length > 0, own > 0)
            step *= tf.where(scales, length / tf.where(scales, own, tf.ones_like(own)), tf.ones_like(own))
        self.assign(variable, value - tf.cast(learning_rate, last) * step)

    def _step(self, gradient: tf.Tensor, variable: Variable, kind: tf.DType) -> tf.Tensor:
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        beta_1, beta_2 = self.hyper("beta_1", kind), self.hyper("beta_2", kind)
        first = tf.cast(m.value, kind) * beta_1 + gradient * (1 - beta_1)
        second = tf.cast(v.value, kind) * beta_2 + gradient * gradient * (1 - beta_2)
        self.assign(m, first)
        self.assign(v, second)
        if self.debiasing:
            count = tf.cast(tf.convert_to_tensor(self.iterations) + 1, kind)
            first /= 1 - tf.cast(beta_1, kind) ** count
            second /= 1 - tf.cast(beta_2, kind) ** count
        step = first / (tf.sqrt(second) + self.hyper("epsilon", kind))
        if self.uses("weight_decay_rate") and not _matches(self.exclude_from_weight_decay_names, variable):
            step += self.hyper("weight_decay_rate", kind) * tf.cast(variable, kind)
        return step

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay_rate": self.weight_decay_rate,
            "exclude_from_weight_decay": list(self.exclude_from_weight_decay_names),
            "exclude_from_layer_adaptation": list(self.exclude_from_layer_adaptation),
            "debiasing": self.debiasing,
            "m_dtype": type_name(self._m_dtype),
            "v_dtype": type_name(self._v_dtype),
            "weight_norm_clip": self.weight_norm_clip,
        }


def _matches(patterns: Sequence[str], variable: Variable) -> bool:
    name = getattr(variable, "path", variable.name)
    return any(re.search(pattern, name) for pattern in patterns)
