"""The wrappers of Keras optimizers, and dynamic loss scaling on which the replicas of a program agree."""

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
    """Wraps a Keras optimizer, and by itself changes nothing: a subclass overrides `_apply`."""

    def __init__(self, opt: keras.optimizers.Optimizer, name: str | None = None) -> None:
        """Wraps `opt`, which owns the slots and updates the variables; the name is one of the class's if omitted.

        Raises:
          ValueError: `opt` is no Keras optimizer.
        """
        if not isinstance(opt, internals.OPTIMIZERS):
            raise ValueError(
                f"`opt` must be a `keras.optimizers.Optimizer`, but is {opt!r}. Wrappers for `tf.compat.v1.train`"
                " optimizers are in `tensorflow_ipu.optimizers`"
            )
        super().__init__(opt, name)

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the variables of the wrapper and of the wrapped optimizer for those to train."""
        new = self._new_among(variables)
        if new:
            with tf.init_scope():
                self._build_own(new)
                internals.build_optimizer(self.inner_optimizer, new)
                super().build(new)

    def _build_own(self, variables: list[Variable]) -> None:
        """Makes what the wrapper adds for variables to train, once."""

    def apply(self, grads: Sequence[Gradient | None], trainable_variables: Sequence[Variable] | None = None) -> None:
        """Updates variables by their gradients, None where the loss does not reach, or does what the wrapper does instead.

        Raises:
          ValueError: The optimizer was built with other variables, or with none yet and none are given.
        """
        self._apply(*self._matched(grads, trainable_variables))

    def _matched(
        self, grads: Sequence[Gradient | None], trainable_variables: Sequence[Variable] | None
    ) -> tuple[list[Gradient | None], list[Variable]]:
        """The gradients and their variables; builds the optimizer where it is not."""
        if trainable_variables is not None:
            self.build(list(trainable_variables))
            self._check_variables_are_known(trainable_variables)
        elif not self.built:
            raise ValueError("`trainable_variables` are needed, since the optimizer is not built yet")
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"`grads` must hold a gradient for each of {len(variables)} variables, but has {len(grads)}"
            )
        return list(grads), variables

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        internals.update_with(self.inner_optimizer, gradients, variables)

    def scale_loss(self, loss: TensorLike) -> TensorLike:
        """The loss to differentiate, as the wrapped optimizer wants it."""
        return internals.scaled_loss(self.inner_optimizer, loss)

    def finalize_variable_values(self, var_list: Sequence[Variable]) -> None:
        """Lets the wrapped optimizer put its moving averages into the variables."""
        self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def iterations(self) -> keras.Variable:
        """How many updates the wrapped optimizer made."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> tf.Tensor | keras.Variable:
        """The wrapped optimizer's learning rate, which can be set."""
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
        # HDF5 files go by the name of the class alone.
        named = {**saved, "class_name": saved.get("registered_name") or saved["class_name"]}
        arguments[key] = keras.optimizers.deserialize(named, custom_objects=custom_objects)
        return cls(**arguments)


def chain(optimizer: object) -> Iterator[Any]:
    """A Keras optimizer, then those that it wraps; nothing for None."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


@keras.saving.register_keras_serializable("tensorflow_ipu")
class CrossReplicaOptimizer(OptimizerWrapper):
    """Has the wrapped optimizer update with the mean of the gradients over the replicas.

    Under a strategy, other Keras optimizers take the sum.
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
    """Applies a function to each gradient before the wrapped optimizer gets to see it."""

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        gradient_mapping_function: GradientMapping,
        name: str = "MapGradientOptimizer",
    ) -> None:
        """Wraps an optimizer; the function is from a gradient and the value of its variable to the gradient to use.

        Raises:
          ValueError: `opt` is no Keras optimizer.
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
        """What `from_config` makes an equal optimizer of: the function has to be registered with Keras."""
        function = keras.saving.serialize_keras_object(self._map)
        return {**super().get_config(), "gradient_mapping_function": function}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        serialized = config["gradient_mapping_function"]
        function = keras.saving.deserialize_keras_object(serialized, custom_objects=custom_objects)
        return super().from_config({**config, "gradient_mapping_function": function}, custom_objects)


def all_finite(gradients: Sequence[Gradient | None]) -> tf.Tensor:
    """Whether all gradients are finite on all replicas: a bool scalar, equal on all of them."""
    values = [getattr(gradient, "values", gradient) for gradient in gradients if gradient is not None]
    counts = [tf.reduce_sum(tf.cast(~tf.math.is_finite(value), tf.float32)) for value in values]
    return _none_on_any_replica(tf.add_n(counts) if counts else tf.constant(0.0))


def _none_on_any_replica(count: tf.Tensor) -> tf.Tensor:
    """Whether a float scalar, of which each replica has its own, is 0 on all of them."""
    if reductions.in_program():
        [count] = reductions.all_reduce([count])
    return tf.equal(count, 0)


if TYPE_CHECKING or not environment.uses_keras_2():

    @keras.saving.register_keras_serializable("tensorflow_ipu")
    class LossScaleOptimizer(internals.LossScaleOptimizer):
        """Keras's `LossScaleOptimizer`, but an update is skipped on all replicas where it is infinite on any of them.

        Keras's own has each replica judge by its own gradients, and the others wait for it in the sum.
        """

        def check_finite(self, grads: Sequence[Gradient | None]) -> tf.Tensor:
            """Whether all gradients are finite on all replicas, as a bool scalar."""
            return all_finite(grads)

else:
    LossScaleOptimizer = internals.LossScaleOptimizer  # That of Keras 2 judges by the sums, which all replicas have.


def scales_losses(optimizer: object) -> bool:
    """Whether a Keras optimizer, or one that it wraps, scales losses by itself."""
    return any(
        isinstance(one, internals.LossScaleOptimizer) or hasattr(one, "get_scaled_loss") for one in chain(optimizer)
    )


def agree_on_finite(optimizer: object) -> None:
    """Has Keras's own loss scaling skip on all replicas what it skips on any; its class, which files name, stays."""
    one: Any
    for one in chain(optimizer):
        if isinstance(one, internals.LossScaleOptimizer) and not isinstance(one, LossScaleOptimizer):
            one.check_finite = types.MethodType(_check_finite_of_all, one)


def _check_finite_of_all(self: internals.LossScaleOptimizer, grads: Sequence[Gradient | None]) -> tf.Tensor:
    finite = type(self).check_finite(self, grads)
    return _none_on_any_replica(tf.cast(tf.logical_not(finite), tf.float32))  # pyright: ignore[reportArgumentType, reportCallIssue]  # Keras infers those of all backends.
