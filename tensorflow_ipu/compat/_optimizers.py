"""The Keras optimizers that do what TensorFlow 1's do, number by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu import optimizers
from tensorflow_ipu._tensorflow import old_keras
from tensorflow_ipu._tensorflow.optimizers import setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._types import Initializer, Variable

_train: Any = tf.compat.v1.train

_ACCUMULATING = (
    optimizers.CrossReplicaGradientAccumulationOptimizer,
    optimizers.CrossReplicaGradientAccumulationOptimizerV2,
    optimizers.GradientAccumulationOptimizer,
    optimizers.GradientAccumulationOptimizerV2,
)


def for_keras(optimizer: object) -> Any:
    """The Keras optimizer for a model that is compiled with `optimizer`.

    Args:
      optimizer: What `compile` was given.

    Returns:
      A new Keras optimizer with the same hyperparameters and the same updates for one of TensorFlow 1; the argument
      itself for all else.

    Raises:
      ValueError: Keras has no equal of this optimizer of TensorFlow 1, or cannot follow one of its hyperparameters.
    """
    if isinstance(optimizer, old_keras.Optimizer):
        raise ValueError(
            f"`compile` takes optimizers of Keras 3, and `{type(optimizer).__name__}` is one of"
            " `tensorflow.python.keras`; make it from `keras.optimizers`"
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return optimizer
    equal = _EQUALS.get(type(optimizer))
    if equal is None:
        raise ValueError(f"Keras has no optimizer like `{type(optimizer).__name__}`{_way_out(optimizer)}")
    return equal(optimizer)


def _way_out(optimizer: object) -> str:
    if isinstance(optimizer, _ACCUMULATING):
        return "; call `model.set_gradient_accumulation_options(...)` and give `compile` the optimizer inside"
    if isinstance(optimizer, optimizers.CrossReplicaOptimizer):
        return "; give `compile` the optimizer inside, whose gradients are summed over the replicas"
    names = ", ".join(f"`{kind.__name__}`" for kind in _EQUALS)
    return (
        f": of TensorFlow 1's, {names} have an equal; choose one from `keras.optimizers`, or write the training loop under"
        " `IPUStrategy`"
    )


def _adadelta(old: tf.compat.v1.train.Optimizer) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adadelta(_number(old, "lr"), rho=_number(old, "rho"), epsilon=_number(old, "epsilon"))


def _adagrad(old: tf.compat.v1.train.Optimizer) -> keras.optimizers.Optimizer:
    # TensorFlow 1 adds nothing to what it takes the root of.
    return keras.optimizers.Adagrad(
        _number(old, "learning_rate"),
        initial_accumulator_value=_number(old, "initial_accumulator_value"),
        epsilon=0.0,
    )


def _adam(old: tf.compat.v1.train.Optimizer) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(
        _number(old, "lr"),
        beta_1=_number(old, "beta1"),
        beta_2=_number(old, "beta2"),
        epsilon=_number(old, "epsilon"),
    )


def _ftrl(old: tf.compat.v1.train.Optimizer) -> keras.optimizers.Optimizer:
    names = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )
    settings: dict[str, Any] = {name: _number(old, name) for name in names}
    return keras.optimizers.Ftrl(_number(old, "learning_rate"), **settings)


def _gradient_descent(old: tf.compat.v1.train.Optimizer) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(_number(old, "learning_rate"))


def _momentum(old: tf.compat.v1.train.Optimizer) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(
        _number(old, "learning_rate"), momentum=_number(old, "momentum"), nesterov=setting(old, "use_nesterov")
    )


def _rmsprop(old: tf.compat.v1.train.Optimizer) -> keras.optimizers.Optimizer:
    new: Any = keras.optimizers.RMSprop(
        _number(old, "learning_rate"),
        rho=_number(old, "decay"),
        momentum=_number(old, "momentum"),
        epsilon=_number(old, "epsilon"),
        centered=setting(old, "centered"),
    )
    add = new.add_optimizer_variables

    def add_variables(
        variables: Sequence[Variable], name: str | Sequence[str], initializer: Initializer = "zeros"
    ) -> list[keras.Variable]:
        # TensorFlow 1 starts the mean of squares at 1. No class of its own: plain Keras reads the model's file.
        return add(variables, name, initializer="ones" if name == "velocity" else initializer)

    new.add_optimizer_variables = add_variables
    return new


_EQUALS: dict[type, Callable[[tf.compat.v1.train.Optimizer], keras.optimizers.Optimizer]] = {
    _train.AdadeltaOptimizer: _adadelta,
    _train.AdagradOptimizer: _adagrad,
    _train.AdamOptimizer: _adam,
    _train.FtrlOptimizer: _ftrl,
    _train.GradientDescentOptimizer: _gradient_descent,
    _train.MomentumOptimizer: _momentum,
    _train.RMSPropOptimizer: _rmsprop,
}


def _number(optimizer: tf.compat.v1.train.Optimizer, name: str) -> float:
    """A hyperparameter, which TensorFlow 1 keeps as it was given.

    Raises:
      ValueError: It is neither a number nor a tensor whose value is known.
    """
    given = setting(optimizer, name)
    value = None if callable(given) or isinstance(given, (tf.Variable, keras.Variable)) else tf.get_static_value(given)
    if value is None:
        raise ValueError(
            f"the `{'learning_rate' if name == 'lr' else name}` of `{type(optimizer).__name__}` is `{given!r}`, which Keras"
            " cannot follow from step to step; give a number, or make a `keras.optimizers` optimizer with a schedule of"
            " `keras.optimizers.schedules`"
        )
    return float(value)
