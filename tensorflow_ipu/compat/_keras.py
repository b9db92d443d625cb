"""Forms of calls of Keras that scripts use and Keras no longer takes."""

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
    """The Keras optimizer for a model that is compiled with `optimizer`."""
    if isinstance(optimizer, old_keras.Optimizer) and not environment.uses_keras_2():
        raise ValueError(
            f"`compile` takes optimizers of Keras 3, and `{type(optimizer).__name__}` is one of"
            " `tensorflow.python.keras`; make it from `keras.optimizers`"
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return optimizer
    if environment.uses_keras_2() and not isinstance(optimizer, (*_ACCUMULATING, optimizers.CrossReplicaOptimizer)):
        return optimizer  # Which takes it as it is.
    equal = _EQUALS.get(type(optimizer))
    if equal is None:
        raise ValueError(f"Keras has no optimizer like `{type(optimizer).__name__}`{_remedy(optimizer)}")
    kind, names = equal
    settings: dict[str, Any] = {new: _hyperparameter(optimizer, old) for new, old in names.items()}
    if kind is keras.optimizers.Adagrad:
        settings["epsilon"] = 0.0  # TensorFlow 1 adds nothing to what it takes the root of.
    made: Any = kind(**settings)
    if kind is keras.optimizers.RMSprop:
        # TensorFlow 1 starts the mean of squares at 1. No class of its own: plain Keras reads the model's file.
        add = made.add_optimizer_variables
        made.add_optimizer_variables = lambda variables, name, initializer="zeros": add(
            variables, name, initializer="ones" if name == "velocity" else initializer
        )
    return made


def _remedy(optimizer: object) -> str:
    if isinstance(optimizer, _ACCUMULATING):
        return "; call `model.set_gradient_accumulation_options(...)` and give `compile` the optimizer inside"
    if isinstance(optimizer, optimizers.CrossReplicaOptimizer):
        return "; give `compile` the optimizer inside, whose gradients are summed over the replicas"
    names = ", ".join(f"`{kind.__name__}`" for kind in _EQUALS)
    return (
        f": of TensorFlow 1's, {names} have an equal; choose one from `keras.optimizers`, or write the training loop under"
        " `IPUStrategy`"
    )


# By kind: the class in Keras, and the hyperparameters by their names there, with `=` before another name in TensorFlow 1.
_EQUALS: dict[type, tuple[Any, dict[str, str]]] = {
    kind: (equal, {new: old or new for new, _, old in (pair.partition("=") for pair in pairs.split())})
    for kind, equal, pairs in (
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
    """A hyperparameter of TensorFlow 1, which has to be known now."""
    kept = setting(optimizer, name)
    if isinstance(kept, bool):
        return kept
    changes = callable(kept) or isinstance(kept, (tf.Variable, getattr(keras, "Variable", tf.Variable)))
    value = None if changes else tf.get_static_value(kept)
    if value is None:
        raise ValueError(
            f"the `{'learning_rate' if name == 'lr' else name}` of `{type(optimizer).__name__}` is `{kept!r}`, which Keras"
            " cannot follow from step to step; give a number, or make a `keras.optimizers` optimizer with a schedule of"
            " `keras.optimizers.schedules`"
        )
    return float(value)


# The modules of Keras in which `tf.keras` has kept more of the old names than `keras`, such as `metrics.MSE`.
_FULLER = ("backend", "layers", "losses", "metrics", "preprocessing")


def bridge(changes: Changes) -> None:
    """Changes Keras for such scripts; each change is undone with `changes`."""
    changes.apply(patches.OLD_COMPILE, _compile)
    if environment.uses_keras_2():
        _keras_2.bridge(changes)
        return
    _place_old_modules(changes)
    for name in _FULLER:
        fuller, holder = (importlib.import_module(f"{keras_name}.{name}") for keras_name in (TF_KERAS, "keras"))
        for lost in vars(fuller).keys() - vars(holder).keys():
            changes.put(holder, lost, vars(fuller)[lost])
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
        # Those of TensorFlow's spellings are there if it made them before the installation.
        modules = (sys.modules.get(f"{keras_name}{below}") for keras_name in ("keras", TF_KERAS, *SPELLINGS))
        for holder in filter(None, modules):
            changes.put(holder, name, old)


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes a tensor as `steps_per_execution`, and an optimizer of TensorFlow 1."""

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
    """Takes `lr` for `learning_rate`, and any number: of NumPy, an integer, a tensor whose value is known."""

    @functools.wraps(original)
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            # By now an optimizer has put its default learning rate beside it, as an argument by name.
            kwargs["learning_rate"] = kwargs.pop("lr")
        rate = given = kwargs.get("learning_rate")
        if tf.is_tensor(given) and not isinstance(given, tf.Variable):
            rate = tf.get_static_value(given)
        if (
            isinstance(rate, (int, np.number, np.ndarray))
            and not isinstance(rate, (bool, float))
            and np.ndim(rate) == 0
        ):
            _lost_names.note(f"a learning rate of the type `{type(given).__name__}`", "one of Python")
            kwargs["learning_rate"] = float(rate)
        original(self, *args, **kwargs)

    return init


def _apply_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes a `name` and `experimental_aggregate_gradients`, without effect in Keras 3."""

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
    """Takes `Input(shape=80)`, as written `shape=(80)`, for `Input(shape=(80,))`."""

    @functools.wraps(original)
    def init(self: object, shape: Shape | int | None = None, *args: Any, **kwargs: Any) -> None:
        if is_int(shape):
            shape = (shape,)
        original(self, shape, *args, **kwargs)

    # Keras reads the signature of a layer in two ways, one of which follows a wrapper.
    del init.__wrapped__
    return init


def bridge_tensorflow(changes: Changes) -> None:
    """Changes TensorFlow for such scripts; each change is undone with `changes`."""
    # Variables on devices derived from `VariableV1` once, and had its methods.
    old: Any = tf.compat.v1.Variable
    changes.put(variables.ResourceVariable, "initialized_value", vars(old)["initialized_value"])
    changes.apply(patches.OLD_LOSS_SCALING, supporting_loss_scaling)
    # With weights of float16, outside of programs too.
    changes.apply(patches.FUSED_BATCH_NORMS, in_programs)
