"""The base class of this package's optimizers: Keras 3's optimizer, or Keras 2's `OptimizerV2` with methods of Keras 3."""

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


def add_colocated(
    optimizer: Any, var: Variable, name: str, shape: ShapeLike, dtype: tf.DType, initializer: Initializer = "zeros"
) -> keras.Variable:
    """Adds a variable to the optimizer, on the device of `var` and named after it."""
    name = f"{name_of(var).replace('/', '_').replace(':', '_')}_{name}"
    strategy = internals.strategy_of(optimizer) or tf.distribute.get_strategy()
    with strategy.extended.colocate_vars_with(tf_variable(var)):
        return optimizer.add_variable(shape, initializer, dtype.name, name=name)


if TYPE_CHECKING or not environment.uses_keras_2():

    class OptimizerBase(keras.optimizers.Optimizer):
        """An optimizer with slots that updates variables by `update_step`."""

        _hyper: ClassVar[dict[str, object]] = {}  # In Keras 2, the hyperparameters that are variables.

        def __init__(self, name: str | None, **kwargs: Any) -> None:
            super().__init__(name=name, **kwargs)
            self._slots = types.SimpleNamespace(by_key={})  # Keras would track a dict.

        def build(self, variables: Sequence[Variable]) -> None:
            """Creates the variables of the optimizer for trainable `variables`."""
            if not self.built:
                keras.optimizers.Optimizer.build(self, list(variables))
                self._create_slots(variables)

        def _create_slots(self, var_list: Sequence[Variable]) -> None:
            """Creates the slots of a subclass."""

        def typed_slot(
            self, var: Variable, slot_name: str, initializer: Initializer, shape: ShapeLike | None, dtype: tf.DType
        ) -> keras.Variable:
            """Returns a slot of a variable, and creates it with this type if it does not exist."""
            key = (slot_name, self._var_key(var))
            if key not in self._slots.by_key:
                shape = var.shape if shape is None else shape
                self._slots.by_key[key] = add_colocated(self, var, slot_name, shape, dtype, initializer)
            return self._slots.by_key[key]

        def get_slot(self, var: Variable, slot_name: str) -> keras.Variable:
            """Returns the slot of a variable.

            Raises:
              KeyError: The variable has no such slot.
            """
            return self._slots.by_key[slot_name, self._var_key(var)]

        def _set_hyper(self, name: str, value: float) -> None:
            """Sets a hyperparameter; Keras 2 stores it as a variable."""
            setattr(self, name, value)

    class WrapperBase(OptimizerBase):
        """An optimizer whose variables include those of the optimizer that it wraps."""

        def __init__(self, opt: keras.optimizers.Optimizer, name: str | None) -> None:
            super().__init__(name, learning_rate=0.0)
            self.inner_optimizer = opt

        @property
        def variables(self) -> list[keras.Variable]:
            """The variables of the wrapper, then those of the wrapped optimizer."""
            return [*self._variables, *self.inner_optimizer.variables]

        def _unbuilt(self, variables: Sequence[Variable]) -> list[Variable]:
            """Returns the variables for which the optimizer is not built yet."""
            return [] if self.built else list(variables)

else:

    class OptimizerBase(internals.optimizers.Optimizer):
        """An optimizer that updates variables by `update_step`, unless a subclass defines `_resource_apply_dense`.

        Its checkpoints have the format of Keras's optimizers.
        """

        _HAS_AGGREGATE_GRAD = True
        built = False

        def __init__(self, name: str | None, **kwargs: Any) -> None:
            self._has_learning_rate = "learning_rate" in kwargs
            rate = kwargs.pop("learning_rate", None)
            super().__init__(name=name, **kwargs)
            self._assigned: list[tf.Operation] = []
            if self._has_learning_rate:
                self._set_hyper("learning_rate", kwargs.get("lr", rate))
                self._set_hyper("decay", self._initial_decay)

        @property
        def name(self) -> str:
            """The optimizer's name."""
            return self._name

        def build(self, variables: Sequence[Variable]) -> None:
            """Creates the variables of the optimizer for trainable `variables`."""
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
            """Adds a variable to the optimizer."""
            initial = keras.initializers.get(initializer)
            with tf.init_scope(), self._distribution_strategy_scope():
                variable = tf.Variable(lambda: initial(shape, dtype), trainable=False, name=name, dtype=dtype)
            # Checkpoints match variables by their order, because their names differ each time that the model is
            # created.
            self._track_trackable(variable, f"variable_{len(self._weights)}")
            self._weights.append(variable)
            return variable

        def typed_slot(
            self, var: Variable, slot_name: str, initializer: Initializer, shape: ShapeLike | None, dtype: tf.DType
        ) -> tf.Variable:
            """Returns a slot of a variable, and creates it with this type if it does not exist."""
            return super().add_slot(accumulation.View(var, true_dtype=dtype), slot_name, initializer, shape)

        def assign(self, variable: tf.Variable, value: TensorLike) -> None:
            """Sets a variable to `value`, cast to the variable's type."""
            self._assigned.append(variable.assign(tf.cast(value, variable.dtype)))

        def _prepare_local(self, var_device: str, var_dtype: tf.DType, apply_state: dict[Any, Any]) -> None:
            # The learning rate is computed once per update, because a schedule may have side effects, such as a counter
            # of its calls. `lr_t` has the type of the variables.
            rates = [state["rate"] for state in apply_state.values() if "rate" in state]
            if "learning_rate" in self._hyper:
                rate = rates[0] if rates else tf.identity(self._decayed_lr(tf.float32))
                apply_state[var_device, var_dtype].update(rate=rate, lr_t=tf.cast(rate, var_dtype))

        def _resource_apply_dense(self, grad: Gradient, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
            key = (var.device, var.dtype.base_dtype)
            state = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
            self.update_step(grad, var, state["rate"])
            assigned, self._assigned = self._assigned, []
            return tf.group(*assigned)

        def _resource_apply_sparse(
            self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
        ) -> tf.Operation:
            slices = tf.IndexedSlices(grad, indices, tf.shape(var))
            return self._resource_apply_dense(tf.convert_to_tensor(slices), var, apply_state)

        def get_config(self) -> Config:
            rates = ("learning_rate", "decay") if self._has_learning_rate else ()
            return {**super().get_config(), **{name: self._serialize_hyperparameter(name) for name in rates}}

    class WrapperBase(OptimizerBase):
        """An optimizer whose variables include those of the optimizer that it wraps, and which updates by `apply`."""

        # With mixed precision, each `compile` wraps the optimizer in Keras's `LossScaleOptimizer`, which sets this mark
        # and rejects an optimizer that has it. The setter ignores the mark, so that a model can be compiled again.
        _is_wrapped_by_loss_scale_optimizer = property(lambda _: False, lambda *_: None)

        def __init__(self, opt: keras.optimizers.Optimizer, name: str | None) -> None:
            super().__init__(name)
            self.inner_optimizer = opt
            self._track_trackable(opt, "inner_optimizer")
            self._trainable_variables: list[tf.Variable] = []

        def _track_trackable(self, trackable: Any, name: str, overwrite: bool = False) -> Any:
            del overwrite  # Always True: an outer wrapper tracks the same names again.
            return super()._track_trackable(trackable, name, overwrite=True)

        @property
        def weights(self) -> list[tf.Variable]:
            """The variables of the wrapper, then those of the wrapped optimizer."""
            return [*self._weights, *internals.variables_of(self.inner_optimizer)]

        def variables(self) -> list[tf.Variable]:
            """Returns the same list as `weights`."""
            return self.weights

        @property
        def lr(self) -> tf.Tensor | tf.Variable:
            """The learning rate, by its older name."""
            return self.learning_rate

        def build(self, variables: Sequence[Variable]) -> None:
            """Adds `variables` to the trainable variables of the optimizer."""
            self._trainable_variables += variables
            self.built = True

        def _create_all_weights(self, var_list: Sequence[Variable]) -> None:
            self.build(var_list)

        def _unbuilt(self, variables: Sequence[Variable]) -> list[Variable]:
            """Returns the variables for which the optimizer is not built yet."""
            trained = {id(variable.handle) for variable in self._trainable_variables}
            return [variable for variable in variables if id(variable.handle) not in trained]

        def _get_variable_index(self, variable: tf.Variable) -> int:
            return [id(trained.handle) for trained in self._trainable_variables].index(id(variable.handle))

        def _check_variables_are_known(self, variables: Sequence[Variable]) -> None:
            """Does nothing: optimizers of Keras 2 accept new variables at any time."""

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
            """Updates variables by their gradients. Without aggregation, each replica applies only its own gradients."""
            del name
            gradients, variables = zip(*grads_and_vars, strict=True)
            with contextlib.nullcontext() if experimental_aggregate_gradients else accumulation.as_they_are():
                self.apply(gradients, variables)
            return self.iterations
