"""The base class of Keras optimizers whose slots and arithmetic may have other types than the variables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool, is_number
from tensorflow_ipu._base.tensors import tf_variable
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.optimizers._base import OptimizerBase

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, DTypeLike, Gradient, Initializer, ShapeLike, Variable


class Attributes:
    """The numeric attributes of an optimizer: which are variables of programs, and which are compiled in as constants."""

    def __init__(self, changeable: Iterable[str], variable: Iterable[str]) -> None:
        self.changeable = frozenset(changeable)
        self.variable: set[str] = set()
        self.values: dict[str, keras.Variable] = {}
        self.compiled: set[str] = set()
        if isinstance(variable, str):
            raise TypeError(
                f"`variable_attributes` must be a list of names, but is {variable!r}: write `[{variable!r}]`"
            )
        self.mark("variable_attributes", variable, is_variable=True)

    def mark(self, argument: str, names: Iterable[str], is_variable: bool) -> None:
        for name in names:
            if name == "learning_rate":
                if is_variable:
                    continue  # The learning rate is a variable in any case.
                raise ValueError(f"`{argument}` has `learning_rate`, which is always a variable")
            if name not in self.changeable:
                supported = ", ".join(f"`{attribute}`" for attribute in sorted(self.changeable)) or "none"
                raise ValueError(
                    f"`{argument}` has {name!r}; the attributes of this optimizer that can be marked are: {supported}"
                )
            if self.values or self.compiled:
                raise RuntimeError(
                    f"`{name}` cannot be marked, because the optimizer is already built: mark attributes before the first"
                    " step, best by `variable_attributes` of the constructor"
                )
            (self.variable.add if is_variable else self.variable.discard)(name)

    def check_set(self, name: str, old_value: object, value: object) -> None:
        """Raises an error if an attribute that programs have as a constant would change."""
        if name in self.compiled and old_value != value:
            remedy = (
                f"the optimizer with `variable_attributes=[{name!r}]`"
                if name in self.changeable
                else "another optimizer"
            )
            raise ValueError(
                f"`{name}` cannot become {value!r}: programs were compiled with the constant {old_value!r}; create {remedy}"
            )

    def read(self, name: str) -> float | tf.Tensor:
        """Returns the value of a variable attribute: a number, or a tensor while a function is traced."""
        variable = self.values[name]
        return float(variable.numpy()) if tf.executing_eagerly() else tf.convert_to_tensor(variable)


def checked_number(name: str, value: object) -> float:
    if not is_number(value):
        raise TypeError(f"`{name}` is a variable of programs, and must be a number, but is {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, but is {value!r}")
    return float(value)


class _Settings:
    """The attributes of an optimizer that Keras must not track."""

    def __init__(self, precisions: tuple[tf.DType, ...], attributes: Attributes) -> None:
        self.precisions = precisions
        self.attributes = attributes


class IpuOptimizerBase(OptimizerBase):
    """The base class of optimizers whose slots and arithmetic may have other types than the variables.

    A subclass creates its slots in `build` by `add_slot_with_dtype`, and updates a variable in `update_step`. Programs
    are compiled with the hyperparameters of an optimizer as constants. But they read the learning rate, and the
    attributes that are marked as variable, in each run. So these can change between runs, for example by
    `optimizer.momentum = 0.5`.

    With Keras 2 this is an `OptimizerV2`: a subclass defines `_create_slots` and `_resource_apply_dense`, and
    hyperparameters that it sets by `_set_hyper` are variable.

    Attributes:
      CHANGEABLE: In a subclass, the names of hyperparameters that can be marked. `update_step` reads them by `hyper`.
    """

    CHANGEABLE: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        name: str,
        optimizer_compute_precisions: Sequence[DTypeLike] = (tf.float32,),
        outline_apply_gradients: bool = False,
        outline_apply_gradients_kwargs: Mapping[str, object] | None = None,
        variable_attributes: Iterable[str] = (),
        **kwargs: Any,
    ) -> None:
        """Creates the optimizer.

        Args:
          name: The name of the optimizer.
          optimizer_compute_precisions: The types in which the phases of an update are computed.
          outline_apply_gradients: Whether variables of the same shape share the code of updates. It is recorded, but
            has no effect: XLA decides about it.
          outline_apply_gradients_kwargs: Arguments of `outlined_function` for this purpose. They are only recorded.
          variable_attributes: The names of hyperparameters that can change between runs; see the class.
          **kwargs: Arguments of Keras optimizers, such as `learning_rate` and `clipnorm`.

        Raises:
          ValueError: There is no precision, a precision is not a floating-point type, or an attribute cannot be variable.
          TypeError: `outline_apply_gradients` is not a bool, or `variable_attributes` is not a list.
        """
        attributes = Attributes(self.CHANGEABLE, variable_attributes)
        precisions = _precisions(optimizer_compute_precisions)
        check_bool("outline_apply_gradients", outline_apply_gradients)
        super().__init__(name=name, **kwargs)
        self._settings = _Settings(precisions, attributes)
        self.outline_apply_gradients = outline_apply_gradients
        self.outline_apply_gradients_kwargs = dict(outline_apply_gradients_kwargs or {})

    @property
    def optimizer_compute_precisions(self) -> tuple[tf.DType, ...]:
        """The types in which the phases of an update are computed."""
        return self._settings.precisions

    @property
    def opt_dtypes(self) -> tuple[tf.DType, ...]:
        """The `optimizer_compute_precisions` by their older name. They can be set."""
        return self._settings.precisions

    @opt_dtypes.setter
    def opt_dtypes(self, value: Sequence[DTypeLike]) -> None:
        self._settings.precisions = _precisions(value)

    @property
    def variable_attributes(self) -> frozenset[str]:
        """The names of the hyperparameters that programs read in each run."""
        return frozenset(
            {"learning_rate", *self._settings.attributes.variable, *(self._hyper.keys() & self.CHANGEABLE)}
        )

    def mark_as_variable(self, *names: str) -> None:
        """Marks hyperparameters that programs read in each run.

        Raises:
          ValueError: A name is not in `CHANGEABLE`.
          RuntimeError: The optimizer is already built.
        """
        self._settings.attributes.mark("names", names, is_variable=True)

    def mark_as_constant(self, *names: str) -> None:
        """Marks hyperparameters that are constants of programs; see `mark_as_variable`."""
        self._settings.attributes.mark("names", names, is_variable=False)

    def used_slots(self) -> Iterable[str]:
        """Returns the names of the slots of each variable. A subclass may create slots in `build` or `_create_slots` too."""
        return ()

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        attributes = self._settings.attributes
        for name in sorted(attributes.variable - attributes.values.keys() - self._hyper.keys()):
            value = checked_number(name, self.__dict__.pop(name))
            attributes.values[name] = self.add_variable((), keras.initializers.Constant(value), "float32", name=name)  # pyright: ignore[reportArgumentType]  # Keras annotates no type, so pyright infers that of the default.
        for variable in var_list:
            for slot in self.used_slots():
                self.add_slot(variable, slot)

    def hyper(self, name: str, dtype: tf.DType) -> float | tf.Tensor:
        """Returns a hyperparameter of `CHANGEABLE` for `update_step`: a tensor of `dtype` if it is variable, or a number."""
        attributes = self._settings.attributes
        if name in attributes.values:
            return tf.cast(tf.convert_to_tensor(attributes.values[name]), dtype)
        if name in self._hyper:
            return self._get_hyper(name, dtype)
        return self.constant(name)

    def constant(self, name: str) -> Any:
        """Returns an attribute for `update_step` that becomes a constant of programs. Changing it then raises an error."""
        if not tf.executing_eagerly():
            self._settings.attributes.compiled.add(name)
        return getattr(self, name)

    def uses(self, name: str) -> bool:
        """Returns True if a hyperparameter of `CHANGEABLE` is not 0, or may become so."""
        if name in self._hyper:
            return getattr(self, f"_{name}", True)  # In Keras 2, `_momentum` is True if the initial value was not 0.
        return name in self._settings.attributes.variable or bool(getattr(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute. If it is variable, the next run reads the value."""
        settings: _Settings | None = self.__dict__.get("_settings")
        if settings is None:
            super().__setattr__(name, value)
        elif name in settings.attributes.values:
            settings.attributes.values[name].assign(checked_number(name, value))
        else:
            settings.attributes.check_set(name, self.__dict__.get(name), value)
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Returns a variable attribute. Python calls this, because `__dict__` of a built optimizer has no such attributes."""
        settings: _Settings | None = self.__dict__.get("_settings")
        if settings is not None and name in settings.attributes.values:
            return settings.attributes.read(name)
        raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`")

    def get_slot_dtype(self, var: Variable, slot_name: str) -> tf.DType:
        """Returns the type of a slot of a variable: the type of the variable, unless a subclass overrides this."""
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
        """Returns a slot of a variable, and creates it on the variable's device if it does not exist.

        `initializer` is a Keras initializer or its name. The default shape is the shape of the variable. The default
        type is the result of `get_slot_dtype`.

        Raises:
          ValueError: `var` was created in the scope of another strategy than the optimizer.
        """
        strategy = internals.strategy_of(self) or tf.distribute.get_strategy()
        if not strategy.extended.variable_created_in_scope(tf_variable(var)):
            raise ValueError(
                f"`var` is `{var.name}`, which was made in the scope of another strategy than the optimizer, so it cannot"
                f" have a slot `{slot_name}`: create model and optimizer in one `strategy.scope()`"
            )
        slot_dtype = self.get_slot_dtype(var, slot_name) if dtype is None else dtype
        slot_dtype = tf.as_dtype(var.dtype if slot_dtype is None else slot_dtype)
        return self.typed_slot(var, slot_name, initializer, shape, slot_dtype)

    def add_slot_with_dtype(
        self, var: Variable, slot_name: str, dtype: DTypeLike | None, initializer: Initializer = "zeros"
    ) -> keras.Variable:
        """Creates a slot of type `dtype` with the shape of the variable; see `add_slot`."""
        return self.add_slot(var, slot_name, initializer, dtype=dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "optimizer_compute_precisions": [dtype.name for dtype in self.optimizer_compute_precisions],
            "outline_apply_gradients": self.outline_apply_gradients,
            "outline_apply_gradients_kwargs": dict(self.outline_apply_gradients_kwargs),
            "variable_attributes": sorted(self._settings.attributes.variable),
        }


class SlotTypes:
    """The types of slots by their names. None means the type of each variable.

    `SlotTypes(m=("m_dtype", tf.float32))` means that the argument `m_dtype` of the constructor is the type of slots
    `m`.
    """

    def __init__(self, **dtypes: tuple[str, DTypeLike | None]) -> None:
        self._arguments = {slot: argument for slot, (argument, _) in dtypes.items()}
        self._types = {slot: slot_type(argument, dtype) for slot, (argument, dtype) in dtypes.items()}

    def of(self, slot_name: str) -> tf.DType | None:
        return self._types.get(slot_name)

    def config(self) -> dict[str, str | None]:
        """Returns the arguments of the constructor for a configuration."""
        return {self._arguments[slot]: dtype and dtype.name for slot, dtype in self._types.items()}


def slot_type(argument: str, dtype: DTypeLike | None) -> tf.DType | None:
    """Returns the type in an argument of a constructor, or None."""
    if dtype is None:
        return None
    error = ValueError(f"`{argument}` must be a floating-point type or None, but is {dtype!r}")
    try:
        tf_dtype = tf.as_dtype(dtype)
    except TypeError as exc:
        raise error from exc
    if not tf_dtype.is_floating:
        raise error
    return tf_dtype


def dense(gradient: Gradient, dtype: tf.DType) -> tf.Tensor:
    """Returns a gradient as a dense tensor of type `dtype`."""
    return tf.cast(tf.convert_to_tensor(gradient), dtype)


def _precisions(value: object) -> tuple[tf.DType, ...]:
    dtypes = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not dtypes:
        raise ValueError(f"`optimizer_compute_precisions` must be a list of one type or more, but is {value!r}")
    precisions = [slot_type("optimizer_compute_precisions", dtype) for dtype in dtypes]
    if None in precisions:
        raise ValueError(f"`optimizer_compute_precisions` must hold floating-point types, but is {value!r}")
    return tuple(dtype for dtype in precisions if dtype is not None)
