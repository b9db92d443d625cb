"""Wrappers of Keras optimizers, and loss scaling that skips an update on all replicas or on none."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.optimizers._base import WrapperBase
from tensorflow_ipu.ops import reductions
from tensorflow_ipu.optimizers import accumulation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from tensorflow_ipu._base.types import Config, Gradient, GradientMapping, LearningRate, TensorLike, Variable


class OptimizerWrapper(WrapperBase):
    """A wrapper of a Keras optimizer. Subclasses change the update by overriding `_apply`."""

    def __init__(self, opt: keras.optimizers.Optimizer, name: str | None = None) -> None:
        """Wraps `opt`, which owns the slots and updates the variables; the default name is made from the class.

        Raises:
          ValueError: `opt` is not a Keras optimizer.
        """
        if not isinstance(opt, internals.OPTIMIZERS):
            raise ValueError(
                f"`opt` must be a `keras.optimizers.Optimizer`, but is {opt!r}. Wrappers for `tf.compat.v1.train`"
                " optimizers are in `tensorflow_ipu.optimizers`"
            )
        super().__init__(opt, name)

    def build(self, variables: Sequence[Variable]) -> None:
        """Creates the variables of the wrapper and of the wrapped optimizer for trainable `variables`."""
        unbuilt = self._unbuilt(variables)
        if unbuilt:
            with tf.init_scope():
                self._build_wrapper(unbuilt)
                internals.build_optimizer(self.inner_optimizer, unbuilt)
                super().build(unbuilt)

    def _build_wrapper(self, variables: list[Variable]) -> None:
        """Creates the wrapper's own variables for trainable `variables`; is called once for each of them."""

    def apply(self, grads: Sequence[Gradient | None], trainable_variables: Sequence[Variable] | None = None) -> None:
        """Updates variables by their gradients, as the wrapper defines it. The gradient of an unused variable is None.

        Raises:
          ValueError: The optimizer was built for other variables; or it is not built and `trainable_variables` is None.
        """
        self._apply(*self._match(grads, trainable_variables))

    def _match(
        self, grads: Sequence[Gradient | None], trainable_variables: Sequence[Variable] | None
    ) -> tuple[list[Gradient | None], list[Variable]]:
        """Returns lists of gradients and of their variables. Builds the optimizer if necessary."""
        if trainable_variables is not None:
            self.build(list(trainable_variables))
            self._check_variables_are_known(trainable_variables)
        elif not self.built:
            raise ValueError("`trainable_variables` must be set, because the optimizer is not built yet")
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"`grads` must hold a gradient for each of {len(variables)} variables, but has {len(grads)}"
            )
        return list(grads), variables

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        internals.update_with(self.inner_optimizer, gradients, variables)

    def scale_loss(self, loss: TensorLike) -> TensorLike:
        """Returns the loss to differentiate, scaled by the wrapped optimizer."""
        return internals.scaled_loss(self.inner_optimizer, loss)

    def finalize_variable_values(self, var_list: Sequence[Variable]) -> None:
        """Overwrites the variables with the moving averages of the wrapped optimizer, if it has any."""
        self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def iterations(self) -> keras.Variable:
        """The number of updates of the wrapped optimizer, a variable."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> tf.Tensor | keras.Variable:
        """The learning rate of the wrapped optimizer. It can be set."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: LearningRate) -> None:
        self.inner_optimizer.learning_rate = value

    def get_config(self) -> Config:
        return {"opt": keras.saving.serialize_keras_object(self.inner_optimizer), "name": self.name}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        arguments = dict(config)
        key = "opt" if "opt" in arguments else "als_optimizer"
        saved = arguments[key]
        # With HDF5 files, Keras looks only at the class name, which has to be the registered name.
        serialized = {**saved, "class_name": saved.get("registered_name") or saved["class_name"]}
        arguments[key] = keras.optimizers.deserialize(serialized, custom_objects=custom_objects)
        return cls(**arguments)


def chain(optimizer: object) -> Iterator[Any]:
    """Yields a Keras optimizer and the optimizers that it wraps, from the outermost on. Yields nothing for None."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class CrossReplicaOptimizer(OptimizerWrapper):
    """Applies the mean of the gradients over all replicas with the wrapped optimizer.

    Other Keras optimizers under a strategy apply their sum.
    """

    def __init__(self, opt: keras.optimizers.Optimizer, name: str = "CrossReplicaOptimizer") -> None:
        """Wraps a Keras optimizer; see `OptimizerWrapper`."""
        super().__init__(opt, name)

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        means = accumulation.mean(gradients)
        with accumulation.as_they_are():
            internals.update_with(self.inner_optimizer, means, variables)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class MapGradientOptimizer(OptimizerWrapper):
    """Applies a function to each gradient before the wrapped optimizer applies the gradients."""

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        gradient_mapping_function: GradientMapping,
        name: str = "MapGradientOptimizer",
    ) -> None:
        """Wraps an optimizer. The function takes a gradient and the value of its variable, and returns the gradient to apply.

        Raises:
          ValueError: `opt` is not a Keras optimizer.
          TypeError: `gradient_mapping_function` cannot be called.
        """
        if not callable(gradient_mapping_function):
            raise TypeError(f"`gradient_mapping_function` must be a function, but is {gradient_mapping_function!r}")
        super().__init__(opt, name)
        self._map = gradient_mapping_function

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        mapped = [
            gradient if gradient is None else self._map(gradient, tf.convert_to_tensor(variable))
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        internals.update_with(self.inner_optimizer, mapped, variables)

    def get_config(self) -> Config:
        """Returns the configuration for `from_config`. The function has to be registered with Keras."""
        function = keras.saving.serialize_keras_object(self._map)
        return {**super().get_config(), "gradient_mapping_function": function}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        serialized = config["gradient_mapping_function"]
        function = keras.saving.deserialize_keras_object(serialized, custom_objects=custom_objects)
        return super().from_config({**config, "gradient_mapping_function": function}, custom_objects)


def all_finite(gradients: Sequence[Gradient | None]) -> tf.Tensor:
    """Returns a bool scalar, equal on all replicas: True if all gradients are finite on all replicas."""
    values = [getattr(gradient, "values", gradient) for gradient in gradients if gradient is not None]
    counts = [tf.reduce_sum(tf.cast(~tf.math.is_finite(value), tf.float32)) for value in values]
    return _is_zero_on_all_replicas(tf.add_n(counts) if counts else tf.constant(0.0))


def _is_zero_on_all_replicas(count: tf.Tensor) -> tf.Tensor:
    """Returns a bool scalar, equal on all replicas: True if the replicas' float scalars `count` are all 0."""
    if reductions.in_program():
        [count] = reductions.all_reduce([count])
    return tf.equal(count, 0)


if TYPE_CHECKING or not environment.uses_keras_2():

    @keras.saving.register_keras_serializable("tensorflow_ipu")
    class LossScaleOptimizer(internals.LossScaleOptimizer):
        """A `LossScaleOptimizer` of Keras that skips an update on all replicas if a gradient on any replica is not finite.

        In Keras's class, each replica checks only its own gradients. If one replica skips the update, the other
        replicas wait for it in the all-reduce of gradients.
        """

        def check_finite(self, grads: Sequence[Gradient | None]) -> tf.Tensor:
            """Returns a bool scalar: True if all gradients are finite on all replicas."""
            return all_finite(grads)

else:
    LossScaleOptimizer = internals.LossScaleOptimizer  # In Keras 2, it checks the gradients summed over replicas.


def scales_losses(optimizer: object) -> bool:
    """Returns True if a Keras optimizer, or an optimizer that it wraps, scales losses."""
    return any(
        isinstance(wrapped, internals.LossScaleOptimizer) or hasattr(wrapped, "get_scaled_loss")
        for wrapped in chain(optimizer)
    )


def agree_on_finite(optimizer: object) -> None:
    """Makes Keras's `LossScaleOptimizer` skip an update on all replicas if any replica skips it.

    Replaces a method of the object instead of its class, because saved files name the class.
    """
    wrapped: Any
    for wrapped in chain(optimizer):
        if isinstance(wrapped, internals.LossScaleOptimizer) and not isinstance(wrapped, LossScaleOptimizer):
            wrapped.check_finite = types.MethodType(_check_finite_on_all_replicas, wrapped)


def _check_finite_on_all_replicas(self: internals.LossScaleOptimizer, grads: Sequence[Gradient | None]) -> tf.Tensor:
    finite = type(self).check_finite(self, grads)
    return _is_zero_on_all_replicas(tf.cast(tf.logical_not(finite), tf.float32))  # pyright: ignore[reportArgumentType, reportCallIssue]  # Keras infers the types of all backends.
