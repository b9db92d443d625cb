"""What scripts ask of Keras in ways that Keras 3 no longer takes."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu import optimizers, strategy
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._tensorflow import old_keras, patches, variables
from tensorflow_ipu._tensorflow.old_keras import setting
from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat._keras_names import ROOTS, SPELLINGS, TF_KERAS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorflow_ipu._base.types import Gradient, Initializer, LearningRate, Shape, Variable

_train: Any = tf.compat.v1.train

_ACCUMULATING = (
    optimizers.CrossReplicaGradientAccumulationOptimizer,
    optimizers.CrossReplicaGradientAccumulationOptimizerV2,
    optimizers.GradientAccumulationOptimizer,
    optimizers.GradientAccumulationOptimizerV2,
)


def for_keras(optimizer: object) -> Any:
    """The Keras optimizer for a model that is compiled with `optimizer`."""
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
    """A hyperparameter, which TensorFlow 1 keeps as it was given."""
    given = setting(optimizer, name)
    value = None if callable(given) or isinstance(given, (tf.Variable, keras.Variable)) else tf.get_static_value(given)
    if value is None:
        raise ValueError(
            f"the `{'learning_rate' if name == 'lr' else name}` of `{type(optimizer).__name__}` is `{given!r}`, which Keras"
            " cannot follow from step to step; give a number, or make a `keras.optimizers` optimizer with a schedule of"
            " `keras.optimizers.schedules`"
        )
    return float(value)


# The modules of Keras in which `tf.keras` has kept more of the old names than `keras`, such as `metrics.MSE`.
_FULLER = ("backend", "layers", "losses", "metrics", "preprocessing")


def bridge(changes: Changes) -> None:
    """Makes Keras take these; each is undone with `changes`."""
    _place_old_modules(changes)
    for name in _FULLER:
        fuller, holder = (importlib.import_module(f"{keras_name}.{name}") for keras_name in (TF_KERAS, "keras"))
        for lost in vars(fuller).keys() - vars(holder).keys():
            changes.put(holder, lost, vars(fuller)[lost])
    for patch in (patches.OLD_COMPILE, patches.OLD_OPTIMIZERS, patches.OLD_APPLY_GRADIENTS, patches.OLD_INPUTS):
        changes.apply(patch)
    lr = property(_learning_rate, _set_learning_rate, doc="The learning rate.")
    changes.put(keras.optimizers.Optimizer, "lr", lr)


def _place_old_modules(changes: Changes) -> None:
    """Makes the old modules attributes of every module that is Keras, so that they need no import of their own."""
    for root in ROOTS:
        old = importlib.import_module(root)
        parent, _, name = root.rpartition(".")
        below = parent.removeprefix("keras")
        importlib.import_module(f"{TF_KERAS}{below}")
        # Those of TensorFlow's spellings are there if it made them before the installation.
        modules = (sys.modules.get(f"{keras_name}{below}") for keras_name in ("keras", TF_KERAS, *SPELLINGS))
        for holder in filter(None, modules):
            changes.put(holder, name, old)


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """`steps_per_execution` may be a tensor, such as `dataset.cardinality()`, and the optimizer one of TensorFlow 1."""

    @functools.wraps(original)
    def compile(self: keras.Model, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        if args:
            args = (for_keras(args[0]), *args[1:])
        elif "optimizer" in kwargs:
            kwargs["optimizer"] = for_keras(kwargs["optimizer"])
        if tf.is_tensor(kwargs.get("steps_per_execution")):
            kwargs["steps_per_execution"] = int(kwargs["steps_per_execution"])
        return original(self, *args, **kwargs)

    return compile


def _optimizer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Optimizers may be given `lr` for `learning_rate`."""

    @functools.wraps(original)
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            # By now an optimizer has put its default learning rate beside it, as an argument by name.
            kwargs["learning_rate"] = kwargs.pop("lr")
        original(self, *args, **kwargs)

    return init


def _apply_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """`apply_gradients` may be given a `name`, and `experimental_aggregate_gradients`; both say nothing to Keras 3."""

    @functools.wraps(original)
    def apply_gradients(
        self: keras.optimizers.Optimizer,
        grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        del name, experimental_aggregate_gradients
        return original(self, grads_and_vars)

    return apply_gradients


def _input_layer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Input(shape=80)`, as it comes of `shape=(80)`, means `Input(shape=(80,))`."""

    @functools.wraps(original)
    def init(self: object, shape: Shape | int | None = None, *args: Any, **kwargs: Any) -> None:
        if is_int(shape):
            shape = (shape,)
        original(self, shape, *args, **kwargs)

    # Keras reads the signature of a layer in two ways, of which one looks behind a wrapper.
    del init.__wrapped__
    return init


def _learning_rate(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | keras.Variable:
    return optimizer.learning_rate


def _set_learning_rate(optimizer: keras.optimizers.Optimizer, value: LearningRate) -> None:
    optimizer.learning_rate = value


patches.OLD_COMPILE.by(_compile)
patches.OLD_OPTIMIZERS.by(_optimizer_init)
patches.OLD_APPLY_GRADIENTS.by(_apply_gradients)
patches.OLD_INPUTS.by(_input_layer_init)


def bridge_tensorflow(changes: Changes) -> None:
    """Makes TensorFlow take these; each is undone with `changes`."""
    # Variables on devices derived from `VariableV1` once, and had its methods.
    old: Any = tf.compat.v1.Variable
    changes.put(variables.ResourceVariable, "initialized_value", vars(old)["initialized_value"])
    changes.apply(patches.OLD_LOSS_SCALING)


def _supports_loss_scaling(original: Callable[[], bool]) -> Callable[[], bool]:
    """`LossScaleOptimizer` of `tensorflow.python.keras` goes by a list of TensorFlow's own strategies."""

    def supports() -> bool:
        current = tf.distribute.get_strategy()
        return current.supports_loss_scaling if isinstance(current, strategy.IPUStrategy) else original()

    return supports


patches.OLD_LOSS_SCALING.by(_supports_loss_scaling)
