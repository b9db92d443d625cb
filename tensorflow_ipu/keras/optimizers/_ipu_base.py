"""The base of Keras optimizers that compute in a type of their own, with slots of a type of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu._checks import check_bool
from tensorflow_ipu._tensors import tf_variable

if TYPE_CHECKING:
    from tensorflow_ipu._types import Config, DTypeLike, Gradient, Initializer, ShapeLike, Variable


class _State:
    """What Keras is not to track among the attributes of an optimizer.

    Attributes:
      slots: By name and variable.
      precisions: The types in which the stages of an update are computed.
    """

    def __init__(self, precisions: tuple[tf.DType, ...]) -> None:
        self.slots: dict[tuple[str, str | int], keras.Variable] = {}
        self.precisions = precisions


class IpuOptimizerBase(keras.optimizers.Optimizer):
    """Keeps slots in types other than their variables', and computes updates in a type of its own.

    A subclass makes its slots in `build`, by `add_slot_with_dtype`, and updates a variable in `update_step`.
    """

    def __init__(
        self,
        name: str,
        optimizer_compute_precisions: Sequence[DTypeLike] = (tf.float32,),
        outline_apply_gradients: bool = False,
        outline_apply_gradients_kwargs: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes an optimizer.

        Args:
          name: Its name.
          optimizer_compute_precisions: The types in which the stages of an update are computed.
          outline_apply_gradients: Whether the code of updates is shared among variables of a shape. The emulator leaves
            that to XLA: recorded, and without effect.
          outline_apply_gradients_kwargs: What `outlined_function` gets for that. Recorded likewise.
          **kwargs: What Keras optimizers take: `learning_rate`, `clipnorm` and so on.

        Raises:
          ValueError: There is no precision, or one is no floating-point type.
          TypeError: `outline_apply_gradients` is not a bool.
        """
        precisions = _precisions(optimizer_compute_precisions)
        check_bool("outline_apply_gradients", outline_apply_gradients)
        super().__init__(name=name, **kwargs)
        self._state = _State(precisions)
        self.outline_apply_gradients = outline_apply_gradients
        self.outline_apply_gradients_kwargs = dict(outline_apply_gradients_kwargs or {})

    @property
    def optimizer_compute_precisions(self) -> tuple[tf.DType, ...]:
        """The types in which the stages of an update are computed."""
        return self._state.precisions

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """The type of a slot of a variable: that of the variable, if a subclass says nothing else."""
        del slot_name
        return tf.as_dtype(var.dtype)

    def add_slot(
        self,
        var: Variable,
        slot_name: str,
        initializer: Initializer = "zeros",
        shape: ShapeLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> keras.Variable:
        """Makes a slot of a variable, or gets the one that is there.

        Args:
          var: The variable.
          slot_name: The slot's name.
          initializer: A Keras initializer, or its name.
          shape: The slot's shape; the variable's if omitted.
          dtype: The slot's type; what `get_slot_dtype` says if omitted.

        Returns:
          A Keras variable, beside `var`.

        Raises:
          ValueError: `var` was made in the scope of another strategy than the optimizer.
        """
        key = (slot_name, self._var_key(var))
        if key in self._state.slots:
            return self._state.slots[key]
        extended = self._distribution_strategy.extended
        value = tf_variable(var)
        if not extended.variable_created_in_scope(value):
            raise ValueError(
                f"`var` is `{var.name}`, which was made in the scope of another strategy than the optimizer that is to have"
                f" a slot `{slot_name}` for it: make model and optimizer in one `strategy.scope()`"
            )
        kind = self.get_slot_dtype(var, slot_name) if dtype is None else tf.as_dtype(dtype)
        name = f"{getattr(var, 'path', var.name).replace('/', '_').replace(':', '_')}_{slot_name}"
        with extended.colocate_vars_with(value):
            slot = self.add_variable(var.shape if shape is None else shape, initializer, kind.name, name=name)  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        self._state.slots[key] = slot
        return slot

    def add_slot_with_dtype(
        self, var: Variable, slot_name: str, dtype: DTypeLike, initializer: Initializer = "zeros"
    ) -> keras.Variable:
        """Makes a slot of this type, shaped as the variable; see `add_slot`."""
        return self.add_slot(var, slot_name, initializer, dtype=dtype)

    def get_slot(self, var: Variable, slot_name: str) -> keras.Variable:
        """The slot of a variable.

        Raises:
          KeyError: There is none.
        """
        return self._state.slots[slot_name, self._var_key(var)]

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of."""
        return {
            **super().get_config(),
            "optimizer_compute_precisions": [kind.name for kind in self.optimizer_compute_precisions],
            "outline_apply_gradients": self.outline_apply_gradients,
            "outline_apply_gradients_kwargs": dict(self.outline_apply_gradients_kwargs),
        }


def slot_type(argument: str, dtype: DTypeLike | None) -> tf.DType | None:
    """The type of slots that a constructor was given, None for that of each variable.

    Raises:
      ValueError: It is no floating-point type.
    """
    if dtype is None:
        return None
    try:
        kind = tf.as_dtype(dtype)
    except TypeError as exc:
        raise ValueError(f"`{argument}` must be a floating-point type or None, but is {dtype!r}") from exc
    if not kind.is_floating:
        raise ValueError(f"`{argument}` must be a floating-point type or None, but is {dtype!r}")
    return kind


def type_name(dtype: tf.DType | None) -> str | None:
    """The name of a slot's type, for configurations."""
    return None if dtype is None else dtype.name


def dense(gradient: Gradient, dtype: tf.DType) -> tf.Tensor:
    """A gradient as a tensor of the type in which its update is computed."""
    return tf.cast(tf.convert_to_tensor(gradient), dtype)


def _precisions(value: object) -> tuple[tf.DType, ...]:
    kinds = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not kinds:
        raise ValueError(f"`optimizer_compute_precisions` must be a list of one type or more, but is {value!r}")
    found = [slot_type("optimizer_compute_precisions", kind) for kind in kinds]
    if None in found:
        raise ValueError(f"`optimizer_compute_precisions` must hold floating-point types, but is {value!r}")
    return tuple(kind for kind in found if kind is not None)
