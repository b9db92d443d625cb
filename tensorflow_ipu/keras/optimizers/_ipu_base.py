"""The base of Keras optimizers that compute in a type of their own, with slots of types of their own."""

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
    """The marks of one optimizer."""

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
                    continue  # It always is.
                raise ValueError(f"`{argument}` has `learning_rate`, which always is a variable")
            if name not in self.changeable:
                known = ", ".join(f"`{each}`" for each in sorted(self.changeable)) or "none"
                raise ValueError(
                    f"`{argument}` has {name!r}; the attributes of this optimizer that can be marked: {known}"
                )
            if self.values or self.compiled:
                raise RuntimeError(
                    f"`{name}` was to be marked when the optimizer was built already: mark attributes before the first step,"
                    " best by `variable_attributes` of the constructor"
                )
            (self.variable.add if is_variable else self.variable.discard)(name)

    def check_set(self, name: str, before: object, value: object) -> None:
        """Refuses a new value for what programs have as a constant."""
        if name in self.compiled and before != value:
            way = (
                f"the optimizer with `variable_attributes=[{name!r}]`"
                if name in self.changeable
                else "another optimizer"
            )
            raise ValueError(
                f"`{name}` was to become {value!r}, and programs were compiled with {before!r}, which they keep: make {way}"
            )

    def read(self, name: str) -> float | tf.Tensor:
        """The value of a variable attribute: a number, or a tensor in the midst of a function."""
        variable = self.values[name]
        return float(variable.numpy()) if tf.executing_eagerly() else tf.convert_to_tensor(variable)


def number(name: str, value: object) -> float:
    """The number that an attribute is to be."""
    if not is_number(value):
        raise TypeError(f"`{name}` is a variable of programs, and must be a number, but is {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, but is {value!r}")
    return float(value)


class _State:
    """What Keras is not to track among the attributes of an optimizer."""

    def __init__(self, precisions: tuple[tf.DType, ...], attributes: Attributes) -> None:
        self.precisions = precisions
        self.attributes = attributes


class IpuOptimizerBase(OptimizerBase):
    """Keeps slots in types other than their variables', and computes updates in a type of its own.

    A subclass makes its slots in `build`, by `add_slot_with_dtype`, and updates a variable in `update_step`. Programs
    have the numbers of an optimizer as constants, but for the learning rate and those that are marked as variable, which
    can be changed between two runs, as `optimizer.momentum = 0.5`.

    With Keras 2 this is an `OptimizerV2`: a subclass has `_create_slots` and `_resource_apply_dense`, and numbers that it
    sets by `_set_hyper` are variable.

    Attributes:
      CHANGEABLE: Of a subclass, the names of its numbers that can be marked; its `update_step` reads them by `hyper`.
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
        """Makes an optimizer.

        Args:
          name: Its name.
          optimizer_compute_precisions: The types in which the stages of an update are computed.
          outline_apply_gradients: Whether the code of updates is shared among variables of a shape. The emulator leaves
            that to XLA: recorded, and without effect.
          outline_apply_gradients_kwargs: What `outlined_function` gets for that. Recorded likewise.
          variable_attributes: The names of numbers that are to change between runs; see the class.
          **kwargs: What Keras optimizers take: `learning_rate`, `clipnorm` and so on.

        Raises:
          ValueError: There is no precision, or one is no floating-point type; or an attribute cannot be variable.
          TypeError: `outline_apply_gradients` is not a bool, or `variable_attributes` no list.
        """
        attributes = Attributes(self.CHANGEABLE, variable_attributes)
        precisions = _precisions(optimizer_compute_precisions)
        check_bool("outline_apply_gradients", outline_apply_gradients)
        super().__init__(name=name, **kwargs)
        self._state = _State(precisions, attributes)
        self.outline_apply_gradients = outline_apply_gradients
        self.outline_apply_gradients_kwargs = dict(outline_apply_gradients_kwargs or {})

    @property
    def optimizer_compute_precisions(self) -> tuple[tf.DType, ...]:
        """The types in which the stages of an update are computed."""
        return self._state.precisions

    @property
    def opt_dtypes(self) -> tuple[tf.DType, ...]:
        """The same, by an older name, which can be set."""
        return self._state.precisions

    @opt_dtypes.setter
    def opt_dtypes(self, value: Sequence[DTypeLike]) -> None:
        self._state.precisions = _precisions(value)

    @property
    def variable_attributes(self) -> frozenset[str]:
        """The numbers that programs read anew at each run."""
        return frozenset({"learning_rate", *self._state.attributes.variable, *(self._hyper.keys() & self.CHANGEABLE)})

    def mark_as_variable(self, *names: str) -> None:
        """Has programs read these numbers anew at each run.

        Raises:
          ValueError: One is none of `CHANGEABLE`.
          RuntimeError: The optimizer has made a step.
        """
        self._state.attributes.mark("names", names, is_variable=True)

    def mark_as_constant(self, *names: str) -> None:
        """Has programs have these numbers as constants; see `mark_as_variable`."""
        self._state.attributes.mark("names", names, is_variable=False)

    def used_slots(self) -> Iterable[str]:
        """The names of the slots that each variable gets; a subclass may make them in `build` or `_create_slots` as well."""
        return ()

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        attributes = self._state.attributes
        for name in sorted(attributes.variable - attributes.values.keys() - self._hyper.keys()):
            value = number(name, self.__dict__.pop(name))
            attributes.values[name] = self.add_variable((), keras.initializers.Constant(value), "float32", name=name)  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        for variable in var_list:
            for slot in self.used_slots():
                self.add_slot(variable, slot)

    def hyper(self, name: str, dtype: tf.DType) -> float | tf.Tensor:
        """A number of `CHANGEABLE` as `update_step` uses it: a tensor of this type if it is variable, else the number."""
        attributes = self._state.attributes
        if name in attributes.values:
            return tf.cast(tf.convert_to_tensor(attributes.values[name]), dtype)
        if name in self._hyper:
            return self._get_hyper(name, dtype)
        return self.constant(name)

    def constant(self, name: str) -> Any:
        """An attribute as `update_step` uses it that is a constant of programs: to set it anew is an error then."""
        if not tf.executing_eagerly():
            self._state.attributes.compiled.add(name)
        return getattr(self, name)

    def uses(self, name: str) -> bool:
        """Whether a number of `CHANGEABLE` is other than 0, or can become so."""
        if name in self._hyper:
            return getattr(self, f"_{name}", True)  # Keras 2 keeps what the constructor was told.
        return name in self._state.attributes.variable or bool(getattr(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute: of a variable one the value that the next run reads."""
        state: _State | None = self.__dict__.get("_state")
        if state is None:
            super().__setattr__(name, value)
        elif name in state.attributes.values:
            state.attributes.values[name].assign(number(name, value))
        else:
            state.attributes.check_set(name, self.__dict__.get(name), value)
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """A variable attribute, which is no attribute of Python's once the optimizer is built."""
        state: _State | None = self.__dict__.get("_state")
        if state is not None and name in state.attributes.values:
            return state.attributes.read(name)
        raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`")

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
        """Makes a slot of a variable, beside it, or gets the one that is there.

        `initializer` is a Keras initializer, or its name. The shape is the variable's if omitted, and the type what
        `get_slot_dtype` says.

        Raises:
          ValueError: `var` was made in the scope of another strategy than the optimizer.
        """
        strategy = internals.strategy_of(self) or tf.distribute.get_strategy()
        if not strategy.extended.variable_created_in_scope(tf_variable(var)):
            raise ValueError(
                f"`var` is `{var.name}`, which was made in the scope of another strategy than the optimizer that is to have"
                f" a slot `{slot_name}` for it: make model and optimizer in one `strategy.scope()`"
            )
        kind = self.get_slot_dtype(var, slot_name) if dtype is None else dtype
        return self.typed_slot(var, slot_name, initializer, shape, tf.as_dtype(var.dtype if kind is None else kind))

    def add_slot_with_dtype(
        self, var: Variable, slot_name: str, dtype: DTypeLike | None, initializer: Initializer = "zeros"
    ) -> keras.Variable:
        """Makes a slot of this type, shaped as the variable; see `add_slot`."""
        return self.add_slot(var, slot_name, initializer, dtype=dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "optimizer_compute_precisions": [kind.name for kind in self.optimizer_compute_precisions],
            "outline_apply_gradients": self.outline_apply_gradients,
            "outline_apply_gradients_kwargs": dict(self.outline_apply_gradients_kwargs),
            "variable_attributes": sorted(self._state.attributes.variable),
        }


class StateTypes:
    """The types of slots that a constructor was given by the name of each slot, None for that of each variable."""

    def __init__(self, **dtypes: tuple[str, DTypeLike | None]) -> None:
        self._arguments = {slot: argument for slot, (argument, _) in dtypes.items()}
        self._types = {slot: slot_type(*given) for slot, given in dtypes.items()}

    def of(self, slot_name: str) -> tf.DType | None:
        return self._types.get(slot_name)

    def config(self) -> dict[str, str | None]:
        """The arguments, as configurations have them."""
        return {self._arguments[slot]: kind and kind.name for slot, kind in self._types.items()}


def slot_type(argument: str, dtype: DTypeLike | None) -> tf.DType | None:
    """The type that a constructor was given; None for that of each variable."""
    if dtype is None:
        return None
    fault = ValueError(f"`{argument}` must be a floating-point type or None, but is {dtype!r}")
    try:
        kind = tf.as_dtype(dtype)
    except TypeError as exc:
        raise fault from exc
    if not kind.is_floating:
        raise fault
    return kind


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
