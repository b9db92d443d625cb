"""The base of this package's optimizers: that of Keras 3, or Keras 2's `OptimizerV2` with the words of Keras 3."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.tensors import name_of, tf_variable
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.optimizers import accumulation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorflow_ipu._base.types import Config, Gradient, Initializer, ShapeLike, TensorLike, Variable


def add_beside(
    optimizer: Any, var: Variable, name: str, shape: ShapeLike, dtype: tf.DType, initializer: Initializer = "zeros"
) -> keras.Variable:
    """A variable of the optimizer's where a variable that it trains is, named after that."""
    name = f"{name_of(var).replace('/', '_').replace(':', '_')}_{name}"
    strategy = internals.strategy_of(optimizer) or tf.distribute.get_strategy()
    with strategy.extended.colocate_vars_with(tf_variable(var)):
        return optimizer.add_variable(shape, initializer, dtype.name, name=name)


if TYPE_CHECKING or not environment.uses_keras_2():

    class OptimizerBase(keras.optimizers.Optimizer):
        """Has slots, and updates variables by `update_step`."""

        _hyper: ClassVar[dict[str, object]] = {}  # Of Keras 2, the numbers that are variables.

        def __init__(self, name: str | None, **kwargs: Any) -> None:
            """Makes an optimizer without slots."""
            super().__init__(name=name, **kwargs)
            self._slots = types.SimpleNamespace(by_key={})  # Keras would track a dict.

        def build(self, variables: Sequence[Variable]) -> None:
            """Makes the variables of the optimizer for those to train."""
            if not self.built:
                keras.optimizers.Optimizer.build(self, list(variables))
                self._create_slots(variables)

        def _create_slots(self, var_list: Sequence[Variable]) -> None:
            """Makes what a subclass needs for variables to train."""

        def typed_slot(
            self, var: Variable, slot_name: str, initializer: Initializer, shape: ShapeLike | None, dtype: tf.DType
        ) -> keras.Variable:
            """Makes a slot of this type, or gets the one that is there."""
            key = (slot_name, self._var_key(var))
            if key not in self._slots.by_key:
                shape = var.shape if shape is None else shape
                self._slots.by_key[key] = add_beside(self, var, slot_name, shape, dtype, initializer)
            return self._slots.by_key[key]

        def get_slot(self, var: Variable, slot_name: str) -> keras.Variable:
            """The slot of a variable.

            Raises:
              KeyError: There is none.
            """
            return self._slots.by_key[slot_name, self._var_key(var)]

        def _set_hyper(self, name: str, value: float) -> None:
            """Sets a number that Keras 2 keeps as a variable."""
            setattr(self, name, value)

    class WrapperBase(OptimizerBase):
        """Has the variables of the wrapped optimizer beside its own."""

        def __init__(self, opt: keras.optimizers.Optimizer, name: str | None) -> None:
            """Wraps `opt`."""
            super().__init__(name, learning_rate=0.0)
            self.inner_optimizer = opt

        @property
        def variables(self) -> list[keras.Variable]:
            """The variables of the wrapper, then those of the wrapped optimizer."""
            return [*self._variables, *self.inner_optimizer.variables]

        def _new_among(self, variables: Sequence[Variable]) -> list[Variable]:
            """The variables that the optimizer is not built for yet."""
            return [] if self.built else list(variables)

else:

    class OptimizerBase(internals.optimizers.Optimizer):
        """Updates variables by `update_step`, if a subclass has no `_resource_apply_dense`, and checkpoints as Keras's own."""

        _HAS_AGGREGATE_GRAD = True
        built = False

        def __init__(self, name: str | None, **kwargs: Any) -> None:
            """Makes an optimizer."""
            self._takes_rate = "learning_rate" in kwargs
            rate = kwargs.pop("learning_rate", None)
            super().__init__(name=name, **kwargs)
            self._assigned: list[tf.Operation] = []
            if self._takes_rate:
                self._set_hyper("learning_rate", kwargs.get("lr", rate))
                self._set_hyper("decay", self._initial_decay)

        @property
        def name(self) -> str:
            """The optimizer's name."""
            return self._name

        def build(self, variables: Sequence[Variable]) -> None:
            """Makes the variables of the optimizer for those to train."""
            with tf.init_scope():
                self._create_all_weights(variables)
            self.built = True

        def add_variable(
            self,
            shape: ShapeLike,
            initializer: Initializer = "zeros",
            dtype: str | None = None,
            name: str | None = None,
        ) -> tf.Variable:
            """Makes a variable of the optimizer."""
            initial = keras.initializers.get(initializer)
            with tf.init_scope(), self._distribution_strategy_scope():
                made = tf.Variable(lambda: initial(shape, dtype), trainable=False, name=name, dtype=dtype)
            # Checkpoints go by the order, as variables of the same model have other names each time that it is made.
            self._track_trackable(made, f"variable_{len(self._weights)}")
            self._weights.append(made)
            return made

        def typed_slot(
            self, var: Variable, slot_name: str, initializer: Initializer, shape: ShapeLike | None, dtype: tf.DType
        ) -> tf.Variable:
            """Makes a slot of this type, or gets the one that is there."""
            return super().add_slot(accumulation.View(var, true_dtype=dtype), slot_name, initializer, shape)

        def assign(self, variable: tf.Variable, value: TensorLike) -> None:
            """Sets a variable, in its own type."""
            self._assigned.append(variable.assign(tf.cast(value, variable.dtype)))

        def _prepare_local(self, var_device: str, var_dtype: tf.DType, apply_state: dict[Any, Any]) -> None:
            # Asked for once an update, as a schedule may count or enqueue; `lr_t` is of the variables' type.
            known = [state["rate"] for state in apply_state.values() if "rate" in state]
            if "learning_rate" in self._hyper:
                rate = known[0] if known else tf.identity(self._decayed_lr(tf.float32))
                apply_state[var_device, var_dtype].update(rate=rate, lr_t=tf.cast(rate, var_dtype))

        def _resource_apply_dense(self, grad: Gradient, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
            kind = (var.device, var.dtype.base_dtype)
            state = (apply_state or {}).get(kind) or self._fallback_apply_state(*kind)
            self.update_step(grad, var, state["rate"])
            assigned, self._assigned = self._assigned, []
            return tf.group(*assigned)

        def _resource_apply_sparse(
            self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
        ) -> tf.Operation:
            slices = tf.IndexedSlices(grad, indices, tf.shape(var))
            return self._resource_apply_dense(tf.convert_to_tensor(slices), var, apply_state)

        def get_config(self) -> Config:
            rates = ("learning_rate", "decay") if self._takes_rate else ()
            return {**super().get_config(), **{name: self._serialize_hyperparameter(name) for name in rates}}

    class WrapperBase(OptimizerBase):
        """Has the variables of the wrapped optimizer beside its own, and updates by `apply`."""

        # In half precision, `compile` wraps each time what does not scale losses by a class of Keras's, and marks it.
        _is_wrapped_by_loss_scale_optimizer = property(lambda _: False, lambda *_: None)

        def __init__(self, opt: keras.optimizers.Optimizer, name: str | None) -> None:
            """Wraps `opt`."""
            super().__init__(name)
            self.inner_optimizer = opt
            self._track_trackable(opt, "inner_optimizer")
            self._trainable_variables: list[tf.Variable] = []

        def _track_trackable(self, trackable: Any, name: str, overwrite: bool = False) -> Any:
            del overwrite  # As what wraps it tracks its state with it.
            return super()._track_trackable(trackable, name, overwrite=True)

        @property
        def weights(self) -> list[tf.Variable]:
            """The variables of the wrapper, then those of the wrapped optimizer."""
            return [*self._weights, *internals.variables_of(self.inner_optimizer)]

        def variables(self) -> list[tf.Variable]:
            """The same as `weights`."""
            return self.weights

        @property
        def lr(self) -> tf.Tensor | tf.Variable:
            """The same as `learning_rate`."""
            return self.learning_rate

        def build(self, variables: Sequence[Variable]) -> None:
            """Notes variables that it trains."""
            self._trainable_variables += variables
            self.built = True

        def _create_all_weights(self, var_list: Sequence[Variable]) -> None:
            self.build(var_list)

        def _new_among(self, variables: Sequence[Variable]) -> list[Variable]:
            """The variables that the optimizer is not built for yet."""
            known = {id(each.handle) for each in self._trainable_variables}
            return [each for each in variables if id(each.handle) not in known]

        def _get_variable_index(self, variable: tf.Variable) -> int:
            return [id(each.handle) for each in self._trainable_variables].index(id(variable.handle))

        def _check_variables_are_known(self, variables: Sequence[Variable]) -> None:
            """Does nothing: such optimizers take more variables at any time."""

        def _transform_loss(self, loss: TensorLike) -> TensorLike:
            return self.scale_loss(loss)

        def _compute_gradients(
            self, loss: Any, var_list: Any, grad_loss: TensorLike | None = None, tape: tf.GradientTape | None = None
        ) -> list[tuple[Gradient | None, Variable]]:
            if hasattr(self, "get_scaled_loss"):
                return super()._compute_gradients(loss, var_list, grad_loss, tape)
            return internals.computed_gradients(self.inner_optimizer, loss, var_list, grad_loss, tape)

        def apply_gradients(
            self,
            grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
            name: str | None = None,
            experimental_aggregate_gradients: bool = True,
        ) -> tf.Variable:
            """Updates variables by their gradients; without aggregation, each replica by its own."""
            del name
            gradients, variables = zip(*grads_and_vars, strict=True)
            with contextlib.nullcontext() if experimental_aggregate_gradients else accumulation.as_they_are():
                self.apply(gradients, variables)
            return self.iterations
