"""Makes Keras accept calls that older scripts contain and current releases reject."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu import optimizers
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.types import Gradient, Shape, Variable
from tensorflow_ipu._tensorflow import old_keras, patches, variables
from tensorflow_ipu._tensorflow.old_keras import setting
from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat import _keras_2, _lost_names
from tensorflow_ipu.compat._names import KERAS_ROOTS, SPELLINGS, TF_KERAS
from tensorflow_ipu.ops.distributed_batch_norm import in_programs
from tensorflow_ipu.strategy.ipu_strategy import supporting_loss_scaling

_train: Any = tf.compat.v1.train
keras: Any = tf.keras  # Keras 2 with `TF_USE_LEGACY_KERAS=1`.

_ACCUMULATING = (
    optimizers.CrossReplicaGradientAccumulationOptimizer,
    optimizers.CrossReplicaGradientAccumulationOptimizerV2,
    optimizers.GradientAccumulationOptimizer,
    optimizers.GradientAccumulationOptimizerV2,
)


def for_keras(optimizer: object) -> Any:
    """Returns the optimizer of Keras that replaces `optimizer` in a call of `compile`; it may be `optimizer` itself."""
    if isinstance(optimizer, old_keras.Optimizer) and not environment.uses_keras_2():
        raise ValueError(
            f"`compile` requires an optimizer of Keras 3, but `{type(optimizer).__name__}` is one of"
            " `tensorflow.python.keras`; create it from `keras.optimizers`"
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return optimizer
    if environment.uses_keras_2() and not isinstance(optimizer, (*_ACCUMULATING, optimizers.CrossReplicaOptimizer)):
        return optimizer  # Keras 2 accepts optimizers of TensorFlow 1.
    equivalent = _EQUIVALENTS.get(type(optimizer))
    if equivalent is None:
        raise ValueError(f"Keras has no optimizer like `{type(optimizer).__name__}`{_remedy(optimizer)}")
    kind, names = equivalent
    settings: dict[str, Any] = {new: _hyperparameter(optimizer, old) for new, old in names.items()}
    if kind is keras.optimizers.Adagrad:
        settings["epsilon"] = 0.0  # TensorFlow 1 adds no epsilon under the root.
    converted: Any = kind(**settings)
    if kind is keras.optimizers.RMSprop:
        # TensorFlow 1 initializes the mean of squares with 1. A subclass could do that too, but plain Keras could not
        # load models that were saved with this subclass.
        add = converted.add_optimizer_variables
        converted.add_optimizer_variables = lambda variables, name, initializer="zeros": add(
            variables, name, initializer="ones" if name == "velocity" else initializer
        )
    return converted


def _remedy(optimizer: object) -> str:
    if isinstance(optimizer, _ACCUMULATING):
        return "; call `model.set_gradient_accumulation_options(...)`, and pass the wrapped optimizer to `compile`"
    if isinstance(optimizer, optimizers.CrossReplicaOptimizer):
        return "; pass the wrapped optimizer to `compile`; its gradients are summed over the replicas"
    names = ", ".join(f"`{kind.__name__}`" for kind in _EQUIVALENTS)
    return (
        f": of TensorFlow 1, only {names} have an equivalent; use an optimizer of `keras.optimizers`, or write the"
        " training loop under `IPUStrategy`"
    )


# For each optimizer of TensorFlow 1: its class in Keras, and its hyperparameters as `name` or `keras=tensorflow_1`.
_EQUIVALENTS: dict[type, tuple[Any, dict[str, str]]] = {
    kind: (equivalent, {new: old or new for new, _, old in (pair.partition("=") for pair in pairs.split())})
    for kind, equivalent, pairs in (
        (_train.AdadeltaOptimizer, keras.optimizers.Adadelta, "learning_rate=lr rho epsilon"),
        (_train.AdagradOptimizer, keras.optimizers.Adagrad, "learning_rate initial_accumulator_value"),
        (_train.AdamOptimizer, keras.optimizers.Adam, "learning_rate=lr beta_1=beta1 beta_2=beta2 epsilon"),
        (
            _train.FtrlOptimizer,
            keras.optimizers.Ftrl,
            "learning_rate learning_rate_power initial_accumulator_value beta l1_regularization_strength"  # noqa: ISC004
            " l2_regularization_strength l2_shrinkage_regularization_strength",
        ),
        (_train.GradientDescentOptimizer, keras.optimizers.SGD, "learning_rate"),
        (_train.MomentumOptimizer, keras.optimizers.SGD, "learning_rate momentum nesterov=use_nesterov"),
        (_train.RMSPropOptimizer, keras.optimizers.RMSprop, "learning_rate rho=decay momentum epsilon centered"),
    )
}


def _hyperparameter(optimizer: tf.compat.v1.train.Optimizer, name: str) -> float | bool:
    """Returns a hyperparameter of an optimizer of TensorFlow 1; raises ValueError if it is not constant."""
    stored = setting(optimizer, name)
    if isinstance(stored, bool):
        return stored
    is_dynamic = callable(stored) or isinstance(stored, (tf.Variable, getattr(keras, "Variable", tf.Variable)))
    value = None if is_dynamic else tf.get_static_value(stored)
    if value is None:
        raise ValueError(
            f"the `{'learning_rate' if name == 'lr' else name}` of `{type(optimizer).__name__}` is `{stored!r}`, which"
            " Keras cannot evaluate in each step; pass a number, or create a `keras.optimizers` optimizer with a"
            " schedule of `keras.optimizers.schedules`"
        )
    return float(value)


# Modules in which `tf.keras` still has old names that `keras` lacks, such as `metrics.MSE`.
_WITH_OLD_NAMES = ("backend", "layers", "losses", "metrics", "preprocessing")


def bridge(changes: Changes) -> None:
    """Changes Keras so that it accepts old calls; undoing `changes` restores it."""
    changes.apply(patches.OLD_COMPILE, _compile)
    if environment.uses_keras_2():
        _keras_2.bridge(changes)
        return
    _place_old_modules(changes)
    for name in _WITH_OLD_NAMES:
        source, holder = (importlib.import_module(f"{keras_name}.{name}") for keras_name in (TF_KERAS, "keras"))
        for lost in vars(source).keys() - vars(holder).keys():
            changes.put(holder, lost, vars(source)[lost])
    changes.apply(patches.OLD_OPTIMIZERS, _optimizer_init)
    changes.apply(patches.OLD_APPLY_GRADIENTS, _apply_gradients)
    changes.apply(patches.OLD_INPUTS, _input_layer_init)
    rate = "learning_rate"
    lr = property(
        lambda self: getattr(self, rate), lambda self, value: setattr(self, rate, value), doc="The learning rate."
    )
    changes.put(keras.optimizers.Optimizer, "lr", lr)


def _place_old_modules(changes: Changes) -> None:
    for root in KERAS_ROOTS:
        old = importlib.import_module(root)
        parent, _, name = root.rpartition(".")
        below = parent.removeprefix("keras")
        importlib.import_module(f"{TF_KERAS}{below}")
        # `sys.modules` has `SPELLINGS` only if TensorFlow imported them before `compat.install()`.
        modules = (sys.modules.get(f"{keras_name}{below}") for keras_name in ("keras", TF_KERAS, *SPELLINGS))
        for holder in filter(None, modules):
            changes.put(holder, name, old)


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `compile` that also accepts an optimizer of TensorFlow 1 and a tensor as `steps_per_execution`."""

    @functools.wraps(original)
    def compile(self: tf.keras.Model, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        if args:
            args = (for_keras(args[0]), *args[1:])
        elif "optimizer" in kwargs:
            kwargs["optimizer"] = for_keras(kwargs["optimizer"])
        if tf.is_tensor(kwargs.get("steps_per_execution")):
            kwargs["steps_per_execution"] = int(kwargs["steps_per_execution"])
        return original(self, *args, **kwargs)

    return compile


def _optimizer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `__init__` that accepts `lr` for `learning_rate`, and integers, NumPy numbers and constant tensors."""

    @functools.wraps(original)
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            # The subclass has already passed its default `learning_rate` as a keyword, which `lr` replaces.
            kwargs["learning_rate"] = kwargs.pop("lr")
        rate = argument = kwargs.get("learning_rate")
        if tf.is_tensor(argument) and not isinstance(argument, tf.Variable):
            rate = tf.get_static_value(argument)
        if (
            isinstance(rate, (int, np.number, np.ndarray))
            and not isinstance(rate, (bool, float))
            and np.ndim(rate) == 0
        ):
            _lost_names.note(f"a learning rate of type `{type(argument).__name__}`", "a Python float")
            kwargs["learning_rate"] = float(rate)
        original(self, *args, **kwargs)

    return init


def _apply_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `apply_gradients` that ignores `name` and `experimental_aggregate_gradients` of Keras 2."""

    @functools.wraps(original)
    def apply_gradients(
        self: tf.keras.optimizers.Optimizer,
        grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        del name, experimental_aggregate_gradients
        return original(self, grads_and_vars)

    return apply_gradients


def _input_layer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `__init__` that accepts an integer as `shape`; scripts write `Input(shape=(80))` for `(80,)`."""

    @functools.wraps(original)
    def init(self: object, shape: Shape | int | None = None, *args: Any, **kwargs: Any) -> None:
        if is_int(shape):
            shape = (shape,)
        original(self, shape, *args, **kwargs)

    # Keras inspects the signature in two ways, and only one of them follows `__wrapped__`. Without this attribute, both
    # get the same signature.
    del init.__wrapped__
    return init


def bridge_tensorflow(changes: Changes) -> None:
    """Changes TensorFlow so that it accepts old calls; undoing `changes` restores it."""
    # Resource variables were once derived from `VariableV1`, and had its methods.
    old: Any = tf.compat.v1.Variable
    changes.put(variables.ResourceVariable, "initialized_value", vars(old)["initialized_value"])
    changes.apply(patches.OLD_LOSS_SCALING, supporting_loss_scaling)
    # Makes batch normalization accept float16 weights, also outside of programs.
    changes.apply(patches.FUSED_BATCH_NORMS, in_programs)
