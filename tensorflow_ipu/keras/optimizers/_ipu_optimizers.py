"""Keras's optimizers with slots of types of their own: Adam, LAMB, SGD and RMSprop."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import check_bool, is_number
from tensorflow_ipu._base.tensors import name_of
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase, StateTypes, dense

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, DTypeLike, Gradient, LearningRate, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class AdamIpuOptimizer(IpuOptimizerBase, internals.optimizers.Adam):  # pyright: ignore[reportIncompatibleMethodOverride]  # As in `Optimizer`.
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
        """Makes an optimizer. Arguments that are not named here are as for `keras.optimizers.Adam` and `IpuOptimizerBase`.

        `m_dtype` is the type of the first moment, `v_dtype` of the second, and `vhat_dtype` of the largest second one so
        far; None for that of each variable. `debiasing` says whether to make up for moments that begin at zero.

        Raises:
          ValueError: A type is no floating-point type.
          TypeError: `debiasing` is not a bool.
        """
        types = StateTypes(m=("m_dtype", m_dtype), v=("v_dtype", v_dtype), vhat=("vhat_dtype", vhat_dtype))
        check_bool("debiasing", debiasing)
        super().__init__(
            name, learning_rate=learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, amsgrad=amsgrad, **kwargs
        )
        self._slot_types = types
        self.debiasing = debiasing

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: of `m`, `v` and `vhat`, what the constructor was told."""
        return self._slot_types.of(slot_name) or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """The names of the slots that each variable gets."""
        return ("m", "v", "vhat") if self.amsgrad else ("m", "v")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        kind = self.optimizer_compute_precisions[0]
        rate, grad = tf.cast(learning_rate, kind), dense(gradient, kind)
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        beta_1, beta_2 = self.hyper("beta_1", kind), self.hyper("beta_2", kind)
        first = _moved(tf.cast(m, kind), grad, beta_1)
        second = _moved(tf.cast(v, kind), grad * grad, beta_2)
        self.assign(m, first)
        self.assign(v, second)
        if self.amsgrad:
            largest = self.get_slot(variable, "vhat")
            second = tf.maximum(tf.cast(largest, kind), second)
            self.assign(largest, second)
        if self.debiasing:
            step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, kind)
            rate *= tf.sqrt(1 - tf.cast(beta_2, kind) ** step) / (1 - tf.cast(beta_1, kind) ** step)
        self.assign(variable, tf.cast(variable, kind) - rate * first / (tf.sqrt(second) + self.hyper("epsilon", kind)))

    def get_config(self) -> Config:
        return {**super().get_config(), **self._slot_types.config(), "debiasing": self.debiasing}


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
        """Makes an optimizer. Arguments that are not named here are as for `AdamIpuOptimizer`.

        Variables whose names match one of the regular expressions in `exclude_from_weight_decay` do not decay, and steps
        of those in `exclude_from_layer_adaptation`, by default the same, are not scaled. `weight_decay_rate` says how
        much of a weight is added to its step, and `weight_norm_clip` what a variable's norm counts at most.
        `optimizer_compute_precisions` are the types of two stages: the moments and the step, then its norms and the
        update.

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
        types = StateTypes(m=("m_dtype", m_dtype), v=("v_dtype", v_dtype))
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
        """The type of a slot: of `m` and `v`, what the constructor was told."""
        return self._slot_types.of(slot_name) or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """The names of the slots that each variable gets."""
        return ("m", "v")

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
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
        first = tf.cast(m, kind) * beta_1 + gradient * (1 - beta_1)
        second = tf.cast(v, kind) * beta_2 + gradient * gradient * (1 - beta_2)
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

    def _plain(self, name: str) -> Any:
        """An attribute as configurations have it."""
        return self._serialize_hyperparameter(name) if name in self._hyper else getattr(self, name)

    def get_config(self) -> Config:
        own = ("beta_1", "beta_2", "epsilon", "weight_decay_rate", "debiasing", "weight_norm_clip")
        return {
            **super().get_config(),
            **self._slot_types.config(),
            **{name: self._plain(name) for name in own},
            "exclude_from_weight_decay": list(self.exclude_from_weight_decay_names),
            "exclude_from_layer_adaptation": list(self.exclude_from_layer_adaptation),
        }


def _matches(patterns: Sequence[str], variable: Variable) -> bool:
    name = name_of(variable).split(":")[0]
    return any(re.search(pattern, name) for pattern in patterns)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class SGDIpuOptimizer(IpuOptimizerBase, internals.optimizers.SGD):
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
        """Makes an optimizer. Arguments that are not named here are as for `keras.optimizers.SGD` and `IpuOptimizerBase`.

        `momentum_accum_dtype` is the type of the momentum; None for that of each variable. The momentum is kept
        `velocity_scaling` times as large, and divided again where it is used, so that in float16 it loses fewer of its
        small numbers. Too much of it overflows.

        Raises:
          ValueError: A value is out of range.
        """
        types = StateTypes(momentum=("momentum_accum_dtype", momentum_accum_dtype))
        if not is_number(velocity_scaling) or not velocity_scaling > 0:
            raise ValueError(f"`velocity_scaling` must be a number above 0, but is {velocity_scaling!r}")
        super().__init__(name, learning_rate=learning_rate, momentum=momentum, nesterov=nesterov, **kwargs)
        self._slot_types = types
        self.velocity_scaling = velocity_scaling

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: of the momentum, what the constructor was told."""
        return self._slot_types.of("momentum") or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """The names of the slots that each variable gets."""
        return ("momentum",) if self.uses("momentum") else ()

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        kind = self.optimizer_compute_precisions[0]
        step = -tf.cast(learning_rate, kind) * dense(gradient, kind)
        if self.uses("momentum"):
            slot, momentum, scale = (
                self.get_slot(variable, "momentum"),
                self.hyper("momentum", kind),
                self.constant("velocity_scaling"),
            )
            scaled = momentum * tf.cast(slot, kind) + (step if scale == 1 else scale * step)
            self.assign(slot, scaled)
            moved = scaled if scale == 1 else scaled / scale
            step = momentum * moved + step if self.constant("nesterov") else moved
        self.assign(variable, tf.cast(variable, kind) + step)

    def get_config(self) -> Config:
        return {**super().get_config(), **self._slot_types.config(), "velocity_scaling": self.velocity_scaling}


@keras.saving.register_keras_serializable("tensorflow_ipu")
class RMSpropIpuOptimizer(IpuOptimizerBase, internals.optimizers.RMSprop):  # pyright: ignore[reportIncompatibleMethodOverride]  # As in `Optimizer`.
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
        """Makes an optimizer. Arguments that are not named here are as for `keras.optimizers.RMSprop` and `IpuOptimizerBase`.

        `velocity_dtype` is the type of the mean of squares, `momentum_accum_dtype` of the momentum, and
        `average_gradient_dtype` of the mean of gradients; None for that of each variable.

        Raises:
          ValueError: A type is no floating-point type.
        """
        types = StateTypes(
            velocity=("velocity_dtype", velocity_dtype),
            momentum=("momentum_accum_dtype", momentum_accum_dtype),
            average_gradient=("average_gradient_dtype", average_gradient_dtype),
        )
        super().__init__(
            name, learning_rate=learning_rate, rho=rho, momentum=momentum, epsilon=epsilon, centered=centered, **kwargs
        )
        self._slot_types = types

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot: what the constructor was told."""
        return self._slot_types.of(slot_name) or super().get_slot_dtype(var, slot_name)

    def used_slots(self) -> Iterable[str]:
        """The names of the slots that each variable gets."""
        slots = {"velocity": True, "momentum": self.uses("momentum"), "average_gradient": self.centered}
        return (slot for slot, is_used in slots.items() if is_used)

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: tf.Tensor) -> None:
        kind = self.optimizer_compute_precisions[0]
        grad = dense(gradient, kind)
        velocity = self._moved(variable, "velocity", grad * grad)
        if self.centered:
            velocity -= self._moved(variable, "average_gradient", grad) ** 2
        epsilon = self.hyper("epsilon", kind)
        # Keras 2 adds it to the root where there is no momentum.
        is_inside = self.uses("momentum") or not environment.uses_keras_2()
        root = tf.sqrt(velocity + epsilon) if is_inside else tf.sqrt(velocity) + epsilon
        step = tf.cast(learning_rate, kind) * grad / root
        if self.uses("momentum"):
            slot = self.get_slot(variable, "momentum")
            step += self.hyper("momentum", kind) * tf.cast(slot, kind)
            self.assign(slot, step)
        self.assign(variable, tf.cast(variable, kind) - step)

    def _moved(self, variable: Variable, slot_name: str, value: tf.Tensor) -> tf.Tensor:
        slot, rho = self.get_slot(variable, slot_name), self.hyper("rho", value.dtype)
        moved = rho * tf.cast(slot, value.dtype) + (1 - rho) * value
        self.assign(slot, moved)
        return moved

    def get_config(self) -> Config:
        return {**super().get_config(), **self._slot_types.config()}
